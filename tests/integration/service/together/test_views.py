"""What was shown goes into every vote; a page that shows something else by now is refused with what moved, and says
what a new bundle changed.
"""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest

from policy_service.storage.core import find
from policy_service.storage.proof_tables import ViewRow
from policy_service.storage.tables import VoteRow
from policy_service.workflow.reviews.shown import View
from tests.fakes.payments import ANYBODY, HUGE, LARGE, PAY, gate, plain_forbid
from tests.integration.service.effects import mail, pay
from tests.integration.service.stepping_up import Holder, review_of, told
from tests.integration.service.together.bank import Bank, refusal

pytestmark = pytest.mark.anyio

TOLD = "The rules changed while this waited."


async def staged(bank: Bank) -> tuple[dict[str, Any], Holder, str]:
    """A payment beside a mail, who is asked about it, and where votes on it go."""
    view: dict[str, Any] = (await bank.robot.submit(await pay(bank, 500), await mail(bank))).json()
    return view, Holder(bank.maya), f"/reviews/{review_of(view)}/votes"


async def votes_on(bank: Bank, view: dict[str, Any]) -> list[VoteRow]:
    return await bank.service.db.read(lambda conn: find(conn, VoteRow, review_id=review_of(view)))


async def test_a_vote_names_what_was_shown(bank: Bank) -> None:
    view, maya, votes = await staged(bank)
    form = await maya.form(review_of(view))
    unnamed = {name: value for name, value in form.items() if name != "view_digest"}
    answer = await maya.send(votes, **unnamed)
    assert (answer.status_code, "does not say what was read" in told(answer)) == (400, True)
    assert (await maya.send(votes, **form)).status_code == 303
    (vote,) = await votes_on(bank, view)
    digest = form["view_digest"]
    (kept,) = await bank.service.db.read(lambda conn: find(conn, ViewRow, view_digest=digest))
    assert vote.view_digest == digest == View(json.loads(kept.material)).digest
    recorded = [body for kind, body in await bank.log(view["txn"]) if kind == "vote_recorded"]
    assert recorded[0]["view_digest"] == digest


async def test_a_page_whose_rules_changed_is_stale(bank: Bank) -> None:
    view, maya, votes = await staged(bank)
    read, denial = await maya.form(review_of(view)), await maya.form(review_of(view), "deny")
    await bank.rules(gate("more", "finance", "context.input.amount > 200"))
    answer = await maya.send(votes, **read)
    assert answer.status_code == 409
    assert "Something else on the page is another now: the rules that ask" in told(answer)
    # a denial is never refused for what was shown; it then names no view
    assert (await maya.send(votes, **denial, reason="no")).status_code == 303
    (vote,) = await votes_on(bank, view)
    assert (vote.verdict, vote.view_digest) == ("deny", None)


async def test_a_stale_page_names_the_revision_that_was_read_and_keeps_its_counts(bank: Bank) -> None:
    view, maya, votes = await staged(bank)
    form = await maya.form(review_of(view))
    assert (await bank.asks(600))["rev"] == 2
    answer = await maya.send(votes, **form)
    assert answer.status_code == 409
    assert "You were reading revision 1. It has changed since: revision 2 is the newest." in answer.text
    pages = (
        f"/reviews/{review_of(view)}",
        "/passkeys",
        "/reviews/none",
        "/stop",
        "/policies",
        "/agents",
        "/audit",
    )
    for page in (answer, *[await maya.visitor.get(path) for path in pages]):
        assert "to settle" in page.text, page.url


async def test_a_program_reads_its_view_and_may_name_it(bank: Bank) -> None:
    view, _, _ = await staged(bank)
    shown = (await bank.maya.get(f"/v1/reviews/{review_of(view)}")).json()
    stale = await bank.maya.vote(view, view_digest="0" * 64)
    assert refusal(stale) == (409, "stale_review")
    assert (stale.json()["read_rev"], stale.json()["rev"]) == (1, 1)
    answer = await bank.maya.vote(view, view_digest=shown["view_digest"])
    assert answer.json()["votes"][0]["view_digest"] == shown["view_digest"]


async def test_a_folded_argument_is_not_approved(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank, 500, account="a" * 400))).json()
    maya, path = Holder(bank.maya), f"/reviews/{review_of(view)}"
    assert "Nobody approves what they have not opened" in await maya.page(path)
    folded = await maya.form(review_of(view), "deny", query="")
    answer = await maya.send(f"{path}/votes", **(folded | {"verdict": "approve"}))
    assert (answer.status_code, "Account stood folded" in told(answer)) == (400, True)
    assert (await maya.send(f"{path}/votes", **await maya.form(review_of(view)))).status_code == 303


# -- a bundle comes into force while people are asked ----------------------------------------------------------------


async def notes(bank: Bank, view: dict[str, Any]) -> list[str]:
    """What the page of the review says of new rules, the newest first."""
    page = (await bank.maya.get(f"/reviews/{review_of(view)}")).text
    found = re.findall(rf"<p><b>{re.escape(TOLD)}</b> (.*?)\. <span", page, re.DOTALL)
    return [unescape(re.sub(r"<[^>]+>", "", note)) for note in found]


async def test_a_gate_that_came_or_went_and_a_forbid_are_named(bank: Bank) -> None:
    view = await bank.asks()
    await bank.write("notes.cedar", "// says nothing new\n")
    assert await notes(bank, view) == []
    late = ANYBODY + gate("large", "finance", "context.input.amount > 900")
    await bank.policies(late + gate("counsel", "legal", title="Legal reads it"))
    assert await notes(bank, view) == ["People are now asked by Legal reads it"]
    await bank.policies(late)
    assert await notes(bank, view) == [
        "No rule asks any more what counsel asked; this revision still waits for it",
        "People are now asked by counsel",
    ]
    assert (await bank.states(view))[0] == "review"
    await bank.policies(ANYBODY + LARGE + HUGE + plain_forbid("stop"))
    assert (await notes(bank, view))[0] == "It is forbidden now, by stop"


async def test_a_tool_that_is_another_one_now_is_named_and_not_the_rules(bank: Bank) -> None:
    view = await bank.asks()
    await bank.write("tools/pay.json", PAY | {"title": "Pay them"})
    (said,) = await notes(bank, view)
    was = r"It is forbidden now: this effect was staged for the manifest \w{12} of 'pay'; the active one is \w{12}"
    assert re.fullmatch(was, said)
