"""What was shown goes into every vote, and a page that shows something else by now is refused with what moved."""

from __future__ import annotations

import json
from typing import Any

import pytest

from policy_service.storage.core import find
from policy_service.storage.proof_tables import ViewRow
from policy_service.storage.tables import VoteRow
from policy_service.workflow.reviews.shown import View
from tests.fakes.payments import ANYBODY, HUGE, LARGE, Payments, gate
from tests.fakes.world import Agent, World
from tests.integration.service.effects import mail, pay
from tests.integration.service.stepping_up import Holder, review_of, told

pytestmark = pytest.mark.anyio


async def staged(bank: World, robot: Agent, amount: int = 500) -> dict[str, Any]:
    view: dict[str, Any] = (await robot.submit(await pay(bank, amount), await mail(bank))).json()
    return view


async def test_a_vote_names_what_was_shown(bank: World, robot: Agent) -> None:
    view = await staged(bank, robot)
    maya = Holder(await bank.person("maya"))
    form = await maya.form(review_of(view))
    unnamed = {name: value for name, value in form.items() if name != "view_digest"}
    answer = await maya.send(f"/reviews/{review_of(view)}/votes", **unnamed)
    assert (answer.status_code, "does not say what was read" in told(answer)) == (400, True)
    assert (await maya.send(f"/reviews/{review_of(view)}/votes", **form)).status_code == 303
    (vote,) = await bank.service.db.read(lambda conn: find(conn, VoteRow))
    (kept,) = await bank.service.db.read(lambda conn: find(conn, ViewRow))
    assert vote.view_digest == kept.view_digest == form["view_digest"]
    recorded = [body for kind, body in await bank.log(view["txn"]) if kind == "vote_recorded"]
    assert recorded[0]["view_digest"] == form["view_digest"]
    assert View(json.loads(kept.material)).digest == kept.view_digest


async def test_a_page_whose_rules_changed_is_stale(bank: World, folder: Payments, robot: Agent) -> None:
    view = await staged(bank, robot)
    maya = Holder(await bank.person("maya"))
    read, denial = await maya.form(review_of(view)), await maya.form(review_of(view), "deny")
    folder.policies(ANYBODY + LARGE + HUGE + gate("more", "finance", "context.input.amount > 200"))
    await bank.activate()
    answer = await maya.send(f"/reviews/{review_of(view)}/votes", **read)
    assert answer.status_code == 409
    assert "Something else on the page is another now: the rules that ask" in told(answer)
    # a denial is never refused for what was shown; it then names no view
    answer = await maya.send(f"/reviews/{review_of(view)}/votes", **denial, reason="no")
    assert answer.status_code == 303
    (vote,) = await bank.service.db.read(lambda conn: find(conn, VoteRow))
    assert (vote.verdict, vote.view_digest) == ("deny", None)


async def test_a_stale_page_names_the_revision_that_was_read_and_keeps_its_counts(
    bank: World, robot: Agent
) -> None:
    view = await staged(bank, robot)
    maya = Holder(await bank.person("maya"))
    form = await maya.form(review_of(view))
    assert (await robot.submit(await pay(bank, 600))).json()["rev"] == 2
    answer = await maya.send(f"/reviews/{review_of(view)}/votes", **form)
    assert answer.status_code == 409
    assert "You were reading revision 1. It has changed since: revision 2 is the newest." in answer.text
    pages = ("/passkeys", "/reviews/none", "/stop", "/policies", "/agents", "/audit")
    for path in (f"/reviews/{review_of(view)}", *pages):
        assert "to settle" in (await maya.visitor.get(path)).text, path
    assert "to settle" in answer.text


async def test_a_program_reads_its_view_and_may_name_it(bank: World, robot: Agent) -> None:
    view = await staged(bank, robot)
    maya = await bank.person("maya")
    shown = (await maya.get(f"/v1/reviews/{review_of(view)}")).json()
    stale = await maya.vote(view, view_digest="0" * 64)
    assert (stale.status_code, stale.json()["code"]) == (409, "stale_review")
    assert (stale.json()["read_rev"], stale.json()["rev"]) == (1, 1)
    answer = await maya.vote(view, view_digest=shown["view_digest"])
    assert answer.json()["votes"][0]["view_digest"] == shown["view_digest"]


async def test_a_folded_argument_is_not_approved(bank: World, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500, account="a" * 400))).json()
    maya = Holder(await bank.person("maya"))
    page = await maya.page(f"/reviews/{review_of(view)}")
    assert "Nobody approves what they have not opened" in page
    folded = await maya.form(review_of(view), "deny", query="")
    answer = await maya.send(f"/reviews/{review_of(view)}/votes", **(folded | {"verdict": "approve"}))
    assert answer.status_code == 400
    assert "Account stood folded" in told(answer)
    form = await maya.form(review_of(view))
    assert (await maya.send(f"/reviews/{review_of(view)}/votes", **form)).status_code == 303
