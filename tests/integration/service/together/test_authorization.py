"""Who may vote, redeem and see: which votes count, the requester's side, and other agents."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from policy_service.errors import ForbiddenError
from policy_service.queries import reviews
from policy_service.queries.review_models import VoteResult
from policy_service.queries.vote_eligibility import Voter
from policy_service.storage.core import find, table, update_rows
from policy_service.storage.tables import AgentRow, TransactionRow, VoteRow
from policy_service.workflow.edits import proposals as accepting
from policy_service.workflow.edits.proposals import accept
from policy_service.workflow.reviews.vote import VoteInput, vote
from tests.fakes.payments import GROUPS, gate, person, plain_forbid
from tests.fakes.world import Agent
from tests.integration.service.effects import ship
from tests.integration.service.stepping_up import Holder, review_of
from tests.integration.service.together.bank import Bank, refusal, voter
from tests.integration.service.together.test_revoked_meanwhile import Paused

pytestmark = pytest.mark.anyio

STRONG = gate("strong", "finance", step_up="passkey")

WEAK = gate("weak", "finance|legal")


def ballot(view: dict[str, Any]) -> VoteInput:
    seen = view["effects"][0]
    stamp = (view["rev"], seen["effect_digest"], view["txn_digest"])
    return VoteInput(seen["review"]["review_id"], "approve", *stamp, None, "test")


async def approve(bank: Bank, view: dict[str, Any], name: str, step_up: str | None = None) -> VoteResult:
    return await vote(bank.service.ctx, voter(name, step_up), ballot(view))


async def kept(bank: Bank, review_id: str) -> list[tuple[str, str | None]]:
    """The voters of a review and their step-up, in order."""
    rows = table(VoteRow).c
    query = select(rows.sub, rows.step_up).where(rows.review_id == review_id).order_by(rows.vote_id)
    return await bank.service.db.read(lambda conn: [(row.sub, row.step_up) for row in conn.execute(query)])


async def counted(bank: Bank, name: str, review_id: str) -> tuple[list[bool], list[bool]]:
    """Which votes count: in the API and on the page."""
    visitor = await bank.person(name)
    wire = (await visitor.get(f"/v1/reviews/{review_id}")).json()["votes"]
    page = await reviews.review_page(bank.service.ctx, voter(name), review_id)
    assert page is not None
    return [shown["counted"] for shown in wire], [shown.counted for shown in page.votes]


async def test_an_approval_must_count_toward_a_gate_of_its_person(bank: Bank) -> None:
    """A gate of other people without step-up must not help."""
    await bank.only(STRONG, gate("law", "legal"))
    view = await bank.asks(10)
    assert refusal(await bank.maya.vote(view)) == (403, "step_up_required")
    assert (await bank.ingrid.vote(view)).status_code == 200
    assert await kept(bank, view["effects"][0]["review"]["review_id"]) == [("ingrid", None)]


async def test_an_approval_repeated_with_a_passkey_is_one_stronger_vote(bank: Bank) -> None:
    await bank.only(STRONG, WEAK)
    view = await bank.asks(10)
    review_id = view["effects"][0]["review"]["review_id"]
    assert (await approve(bank, view, "maya")).state == "open"
    assert (await approve(bank, view, "ingrid")).state == "open"
    assert (await approve(bank, view, "maya", "passkey")).state == "met"
    assert await kept(bank, review_id) == [("maya", "passkey"), ("ingrid", None)]
    lines = [body for kind, body in await bank.log(view["txn"]) if kind == "vote_strengthened"]
    assert [(line["step_up"], line["was"], line["review_id"]) for line in lines] == [
        ("passkey", None, review_id)
    ]
    await bank.only(gate("strong", "finance", step_up="passkey", quorum="2"))
    view = await bank.asks(10, run_key="twice")  # repeated as strongly as before it is the same vote
    for _ in range(2):
        await approve(bank, view, "maya", "passkey")
    assert await kept(bank, view["effects"][0]["review"]["review_id"]) == [("maya", "passkey")]
    kinds = [kind for kind, _ in await bank.log(view["txn"])]
    assert (kinds.count("vote_recorded"), kinds.count("vote_strengthened")) == (1, 0)


async def test_a_denial_counts_the_same_in_every_view(bank: Bank) -> None:
    """It counts while its person is in the group, and never if it is late."""
    view = await bank.asks()
    review_id = view["effects"][0]["review"]["review_id"]
    await bank.maya.vote(view, "deny", reason="no")
    await bank.tomas.vote(view, "deny", reason="no, too")
    assert await counted(bank, "maya", review_id) == ([True, False], [True, False])
    await bank.people({**GROUPS, "finance": ("tomas",)})
    assert await counted(bank, "maya", review_id) == ([False, False], [False, False])


async def test_a_refusal_explains_missing_groups(bank: Bank) -> None:
    await bank.only(WEAK)
    view = await bank.asks(10)
    for problem, words in (
        (None, "ask your administrator to add you to the group"),
        ("Acme sent no claim 'groups'", "add you to the group (Acme sent no claim 'groups')"),
    ):
        stranger = Voter("https://login.example", "248", "Stranger", "oidc", groups_problem=problem)
        with pytest.raises(ForbiddenError) as refused:
            await vote(bank.service.ctx, stranger, ballot(view))
        assert refused.value.detail.endswith(words)


# -- whose side somebody is on is asked at every count ---------------------------------------------------------------

LESS = {"account": "acme", "amount": 300}


async def give(bank: Bank, robot: Agent, name: str) -> None:
    """Another person owns the agent from now on."""
    owner = {"owner": person(name)}
    await bank.service.db.write(lambda tx: update_rows(tx.conn, AgentRow, {"name": robot.name}, owner))


async def test_an_approval_by_a_new_owner_of_the_agent_stops_counting(bank: Bank) -> None:
    """So does their break-glass signature."""
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


async def test_an_owner_cannot_accept_their_own_proposal(bank: Bank) -> None:
    view = await bank.asks()
    proposal = await bank.maya.proposed(view, LESS)
    await give(bank, bank.robot, "maya")
    with pytest.raises(ForbiddenError, match="you proposed it yourself"):
        await accept(bank.service.ctx, voter("maya"), proposal)
    assert (await bank.robot.see(view["txn"]))["rev"] == 1


async def test_an_edited_list_keeps_the_weakest_authentication_method(bank: Bank) -> None:
    view = await bank.asks()
    weak = {"method": "api_key"}
    await bank.service.db.write(lambda tx: update_rows(tx.conn, TransactionRow, {"txn": view["txn"]}, weak))
    assert (await bank.robot.accept(await bank.maya.proposed(view, LESS))).json()["rev"] == 2
    rows = await bank.service.db.read(lambda conn: find(conn, TransactionRow, txn=view["txn"]))
    assert {row.rev: row.method for row in rows} == {1: "api_key", 2: "api_key"}


async def test_an_accepted_proposal_is_decided_by_the_active_bundle(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = await bank.asks()
    proposal = await bank.maya.proposed(view, {"account": "acme", "amount": 5})
    bank.folder.rules(plain_forbid("never-small", "context.input.amount < 10"))
    answer = await Paused(accepting, monkeypatch).until(bank.robot.accept(proposal), bank.activate())
    assert (answer.json()["rev"], answer.json()["state"]) == (2, "ended")


# -- another party learns nothing ------------------------------------------------------------------------------------


def routes(view: dict[str, Any]) -> list[tuple[str, str, dict[str, Any] | None]]:
    """Every route that names a transaction of another agent."""
    txn, effect_id = f"/v1/transactions/{view['txn']}", view["effects"][0]["effect_id"]
    fired = [{"effect_id": effect_id, "outcome": "fired"}]
    return [
        ("GET", txn, None),
        ("POST", f"{txn}/withdraw", {}),
        ("POST", f"{txn}/release", {"rev": 1}),
        ("POST", f"{txn}/compensate", {"effect_id": effect_id}),
        ("POST", "/v1/redemptions/a1/renew", {"effect_ids": [effect_id]}),
        ("POST", "/v1/outcomes", {"attempt_id": "a1", "outcomes": fired}),
    ]


async def test_another_agent_gets_the_response_for_an_unknown_transaction(bank: Bank) -> None:
    stranger = await bank.agent(f"{bank.robot.name}-stranger")
    view = await bank.asks(10, attempt_id="a1")
    for theirs, absent in zip(routes(view), routes({**view, "txn": "0" * 64}), strict=True):
        answers = [await stranger.send(*theirs[:2], theirs[2]), await stranger.send(*absent[:2], absent[2])]
        assert [answer.status_code for answer in answers] == [404, 404]
        details = [one.json()["detail"].replace(view["txn"], "X").replace("0" * 64, "X") for one in answers]
        assert details[0] == details[1]
    for path, body in (("/v1/redemptions/none/renew", {"effect_ids": ["0" * 64]}), routes(view)[-1][1:]):
        assert refusal(await stranger.send("POST", path, body)) == (404, "unknown_attempt")
    await bank.service.sequencer.number()
    assert (await stranger.send("GET", "/v1/audit")).json()["rows"] == []
    assert (await bank.robot.send("GET", "/v1/audit")).json()["rows"] != []


async def test_an_agent_cannot_redeem_what_another_party_redeems(bank: Bank) -> None:
    """The redeemer cannot withdraw it either."""
    robot, warehouse = bank.robot, await bank.agent("warehouse")
    view = (await robot.submit(await ship(bank), attempt_id="a1")).json()
    assert view["state"] == "ready" and view["releases"] == []
    txn = f"/v1/transactions/{view['txn']}"
    assert (await warehouse.see(view["txn"]))["state"] == "ready"
    assert refusal(await warehouse.send("POST", f"{txn}/withdraw", {})) == (403, "forbidden")
    assert refusal(await robot.release(view)) == (403, "not_redeemer")
    released = (await warehouse.release(view)).json()["releases"]
    assert refusal(await robot.redeem(released, "a2")) == (403, "not_redeemer")
    assert (await warehouse.redeem(released, "a3")).json()["redeemed"] is True
    fired = {"effect_id": view["effects"][0]["effect_id"], "outcome": "fired"}
    assert refusal(await robot.report("a3", fired)) == (404, "unknown_attempt")  # not one of its own
    assert (await warehouse.report("a3", fired)).json()["state"] == "settled"
    renewed = await robot.send("POST", "/v1/redemptions/a3/renew", {"effect_ids": [fired["effect_id"]]})
    assert refusal(renewed) == (404, "unknown_attempt")
    undone = await robot.send("POST", f"{txn}/compensate", {"effect_id": fired["effect_id"]})
    assert refusal(undone) == (403, "not_redeemer")


# -- an agent that wants its own yes ---------------------------------------------------------------------------------

FORGED: dict[str, dict[str, str]] = {
    "with nothing else": {},
    "in the name of a person": {"X-Forwarded-User": "maya", "Remote-User": "maya", "X-User": "dev|maya"},
    "with a cookie it made up": {"Cookie": "session=maya; __Host-session=maya; cs_session=maya"},
    "with a bearer token it made up": {"Authorization": "Bearer maya"},
}


def claimed(view: dict[str, Any]) -> dict[str, Any]:
    """What a person's page would send, as far as an agent can know it."""
    effect = view["effects"][0]
    return {
        "verdict": "approve",
        "reason": "I have looked at it",
        "rev": view["rev"],
        "effect_digest": effect["effect_digest"],
        "txn_digest": view["txn_digest"],
        "view_digest": "0" * 64,
        "approver": "maya",
    }


async def test_an_agent_cannot_answer_its_own_question(bank: Bank) -> None:
    view = await bank.asks()
    review = view["effects"][0]["review"]["review_id"]
    for path in (f"/v1/reviews/{review}/votes", f"/reviews/{review}/votes", f"/reviews/{review}"):
        for what, headers in FORGED.items():
            answer = await bank.robot.send("POST", path, claimed(view), headers=headers)
            assert answer.status_code in {401, 403, 404, 405}, (path, what)
    seen = await bank.robot.see(view["txn"])
    assert (seen["state"], seen["effects"][0]["state"]) == ("review", "review")
    assert [kind for kind, _ in await bank.log(view["txn"]) if "vote" in kind] == []
    assert refusal(await bank.robot.release(view)) == (409, "not_ready")
    assert (await bank.maya.vote(view)).json()["state"] == "met"  # the question was a good one all along
