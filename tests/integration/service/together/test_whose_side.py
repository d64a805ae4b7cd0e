"""Whose side somebody is on is asked at every count: who owns an agent by now has no say in it, whatever was before."""

from __future__ import annotations

import pytest

from policy_service.errors import ForbiddenError
from policy_service.identity.dev_signin import DEV_ISSUER
from policy_service.storage.core import change, find
from policy_service.storage.tables import AgentRow, TransactionRow
from policy_service.workflow.edits import accept as accepting
from policy_service.workflow.edits.accept import accept
from policy_service.workflow.reviews.voter import Voter
from tests.fakes.payments import GROUPS, person, plain_forbid
from tests.fakes.world import Agent
from tests.integration.service.stepping_up import Holder, review_of
from tests.integration.service.together.bank import Bank
from tests.integration.service.together.test_revoked_meanwhile import Paused

pytestmark = pytest.mark.anyio

LESS = {"account": "acme", "amount": 300}


async def give(bank: Bank, robot: Agent, name: str) -> None:
    """Somebody else owns it from now on."""
    owner = {"owner": person(name)}
    await bank.service.db.write(lambda tx: change(tx.conn, AgentRow, {"name": robot.name}, owner))


async def test_an_approval_of_whoever_owns_the_agent_by_now_counts_no_more(bank: Bank) -> None:
    """Nor does their signature for an emergency."""
    bank.folder.people(GROUPS | {"captain": ("jonas",)})
    await bank.rules(
        '@id("alone") permit (principal in Group::"captain", action == Action::"break_glass_alone", resource);'
    )
    view, glass = await bank.asks(), await bank.asks(run_key="emergency")
    assert (await bank.maya.vote(view)).json()["state"] == "met"
    assert (await Holder(bank.jonas).break_glass(review_of(glass))).status_code == 303
    for asked, owner in ((view, "maya"), (glass, "jonas")):
        tokens = await bank.tokens(asked)
        await give(bank, bank.robot, owner)
        assert (await bank.robot.redeem(tokens)).json().get("redeemed") is not True
        assert (await bank.states(asked))[0] == "review"
    assert (await bank.tomas.vote(view)).json()["state"] == "met"


async def test_whoever_proposed_does_not_accept_it_as_the_owner(bank: Bank) -> None:
    view = await bank.asks()
    proposal = await bank.maya.proposed(view, LESS)
    await give(bank, bank.robot, "maya")
    with pytest.raises(ForbiddenError, match="you proposed it yourself"):
        await accept(bank.service.ctx, Voter(DEV_ISSUER, "maya", "Maya", "dev"), proposal)
    assert (await bank.robot.see(view["txn"]))["rev"] == 1


async def test_for_a_frozen_agent_its_owner_accepts_nothing_either(bank: Bank) -> None:
    view = await bank.asks()
    proposal = await bank.maya.proposed(view, LESS)
    await give(bank, bank.robot, "jonas")
    jonas = Voter(DEV_ISSUER, "jonas", "Jonas", "dev")
    await bank.operator("freeze", {"agent": bank.robot.name, "reason": "look"})
    with pytest.raises(ForbiddenError, match="is frozen"):
        await accept(bank.service.ctx, jonas, proposal)
    await bank.operator("unfreeze", {"agent": bank.robot.name})
    assert (await accept(bank.service.ctx, jonas, proposal)).transaction.rev == 2


async def test_a_changed_list_is_as_weakly_proved_as_what_was_submitted(bank: Bank) -> None:
    view = await bank.asks()
    weak = {"method": "api_key"}
    await bank.service.db.write(lambda tx: change(tx.conn, TransactionRow, {"txn": view["txn"]}, weak))
    proposal = await bank.maya.proposed(view, LESS)
    assert (await bank.robot.accept(proposal)).json()["rev"] == 2
    rows = await bank.service.db.read(lambda conn: find(conn, TransactionRow, txn=view["txn"]))
    assert {row.rev: row.method for row in rows} == {1: "api_key", 2: "api_key"}


async def test_a_change_is_decided_by_the_rules_in_force_when_it_is_accepted(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = await bank.asks()
    proposal = await bank.maya.proposed(view, {"account": "acme", "amount": 5})
    bank.folder.rules(plain_forbid("never-small", "context.input.amount < 10"))
    answer = await Paused(accepting, monkeypatch).until(bank.robot.accept(proposal), bank.activate())
    assert (answer.json()["rev"], answer.json()["state"]) == (2, "ended")
