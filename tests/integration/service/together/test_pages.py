"""The page of a review and of a whole transaction: the view in every vote, recent denials, the response to a form."""

from __future__ import annotations

import json
import re
import threading
from html import unescape
from typing import Any

import httpx2
import pytest

from countersign.contract.receipt import MAX_EFFECTS
from policy_service.channels.web import batches
from policy_service.channels.web.batches import part_views
from policy_service.queries.view_digest import RenderedView
from policy_service.storage.core import find
from policy_service.storage.system_tables import ViewRow
from tests.fakes.payments import ANYBODY, HUGE, LARGE, PAY, gate, person, plain_forbid
from tests.fakes.world import Visitor
from tests.integration.service.effects import mail, pay
from tests.integration.service.stepping_up import Holder, review_of
from tests.integration.service.stepping_up import refusal_text as refused_with
from tests.integration.service.together.bank import Bank
from tests.integration.service.together.test_edits import LESS, address
from tests.integration.service.together.test_plans import plans

CHANGED = "The policies changed during this review."


async def staged(bank: Bank) -> tuple[dict[str, Any], Holder, str]:
    """A payment next to a mail, its reviewer, and the address for votes."""
    view: dict[str, Any] = (await bank.robot.submit(await pay(bank, 500), await mail(bank))).json()
    return view, Holder(bank.maya), f"/reviews/{review_of(view)}/votes"


async def test_a_vote_names_its_view(bank: Bank) -> None:
    view, maya, votes = await staged(bank)
    form = await maya.form(review_of(view))
    unnamed = {name: value for name, value in form.items() if name != "view_digest"}
    answer = await maya.send(votes, **unnamed)
    assert (answer.status_code, "does not name the view" in refused_with(answer)) == (400, True)
    assert (await maya.send(votes, **form)).status_code == 303
    (vote,) = await bank.votes(view)
    digest = form["view_digest"]
    (kept,) = await bank.service.db.read(lambda conn: find(conn, ViewRow, view_digest=digest))
    assert vote.view_digest == digest == RenderedView(json.loads(kept.material)).digest
    recorded = [body for kind, body in await bank.log(view["txn"]) if kind == "vote_recorded"]
    assert recorded[0]["view_digest"] == digest


async def test_a_page_is_stale_after_its_policies_changed(bank: Bank) -> None:
    view, maya, votes = await staged(bank)
    read, denial = await maya.form(review_of(view)), await maya.form(review_of(view), "deny")
    await bank.rules(gate("more", "finance", "context.input.amount > 200"))
    answer = await maya.send(votes, **read)
    assert answer.status_code == 409
    assert "Something else on the page has changed: the gates" in refused_with(answer)
    # a denial is never refused for what was shown; it then names no view
    assert (await maya.send(votes, **denial, reason="no")).status_code == 303
    (vote,) = await bank.votes(view)
    assert (vote.verdict, vote.view_digest) == ("deny", None)


async def test_a_stale_page_names_the_revision_that_was_read(bank: Bank) -> None:
    view, maya, votes = await staged(bank)
    form = await maya.form(review_of(view))
    assert (await bank.asks(600))["rev"] == 2
    answer = await maya.send(votes, **form)
    assert answer.status_code == 409
    assert "You were reading revision 1. It has changed since: revision 2 is the newest." in answer.text
    pages = f"/reviews/{review_of(view)} /passkeys /reviews/none /stop /policies /agents /audit".split()
    for page in (answer, *[await maya.visitor.get(path) for path in pages]):
        assert "to settle" in page.text, page.url


async def test_an_approval_on_a_folded_argument_is_refused(bank: Bank) -> None:
    view = (await bank.robot.submit(await pay(bank, 500, account="a" * 400))).json()
    maya, path = Holder(bank.maya), f"/reviews/{review_of(view)}"
    assert "Read everything before you approve" in await maya.page(path)
    folded = await maya.form(review_of(view), "deny", query="")
    answer = await maya.send(f"{path}/votes", **(folded | {"verdict": "approve"}))
    assert (answer.status_code, "Account was folded" in refused_with(answer)) == (400, True)
    assert (await maya.send(f"{path}/votes", **await maya.form(review_of(view)))).status_code == 303


# -- a bundle comes into force while people are asked ----------------------------------------------------------------


async def notes(bank: Bank, view: dict[str, Any]) -> list[str]:
    """The notes about policy changes on the page, newest first."""
    page = (await bank.maya.get(f"/reviews/{review_of(view)}")).text
    found = re.findall(rf"<p><b>{re.escape(CHANGED)}</b> (.*?)\. <span", page, re.DOTALL)
    return [unescape(re.sub(r"<[^>]+>", "", note)) for note in found]


async def test_added_and_removed_gates_and_forbids_are_shown(bank: Bank) -> None:
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


async def test_a_changed_tool_is_shown_instead_of_policy_changes(bank: Bank) -> None:
    view = await bank.asks()
    await bank.write("tools/pay.json", PAY | {"title": "Pay them"})
    (said,) = await notes(bank, view)
    was = r"It is forbidden now: this effect was staged for the manifest \w{12} of 'pay'; the active one is \w{12}"
    assert re.fullmatch(was, said)


# -- recent denials --------------------------------------------------------------------------------------------------

WHY = "wrong customer <b>cus_17</b>"


async def denied(bank: Bank, amount: int = 500, **more: Any) -> dict[str, Any]:
    view: dict[str, Any] = (await bank.robot.submit(await pay(bank, amount, **more), run_key="first")).json()
    assert (await bank.maya.vote(view, "deny", reason=WHY)).status_code == 200
    return view


async def recent_denials(bank: Bank, view: dict[str, Any]) -> list[dict[str, Any]]:
    """What the wire says, which must be the same in the list and alone."""
    alone = (await bank.maya.get(f"/v1/reviews/{review_of(view)}")).json()
    listed = (await bank.maya.get("/v1/reviews?limit=200")).json()["reviews"]
    found: list[dict[str, Any]] = alone["earlier_denials"]
    for one in listed:
        if one["review_id"] == alone["review_id"]:
            assert one["earlier_denials"] == found
    return found


async def denied_part(bank: Bank, view: dict[str, Any]) -> str:
    answer = await bank.maya.get(f"/reviews/{review_of(view)}")
    assert answer.status_code == 200
    found = re.search(r'<section class="denied-before".*?</section>', answer.text, re.DOTALL)
    return re.sub(r"\s+", " ", found.group()) if found else ""


async def test_a_similar_recent_denial_is_shown_with_its_differences(bank: Bank) -> None:
    before = await denied(bank)
    bank.clock.pass_(hours=2)
    await bank.sign_in()
    again = (await bank.robot.submit(await pay(bank, 499), await mail(bank), run_key="another-way")).json()
    assert again["state"] == "review"
    with plans(bank) as found:
        (denial,) = await recent_denials(bank, again)
    lines = [line for line, asked in found if "effects.state = 'denied'" in asked]
    assert [line for line in lines if "ix_effects_denied" in line], lines
    assert denial["review_id"] == review_of(before)
    assert (denial["person"], denial["reason"], denial["differs"]) == (person("maya"), WHY, ["amount"])
    drawn = await denied_part(bank, again)
    for words in ("Denied before", f'href="/reviews/{review_of(before)}"', "Maya", "<code>amount</code>"):
        assert words in drawn
    assert "<b>cus_17</b>" not in drawn and WHY in unescape(drawn)
    # context and nothing else: it is approved as ever
    assert (await bank.maya.vote(again)).json()["state"] == "met"


async def test_an_identical_recent_denial_is_shown(bank: Bank) -> None:
    await denied(bank, items=["a"])
    again = (await bank.robot.submit(await pay(bank, 500, items=["a"]), run_key="another-key")).json()
    assert [one["differs"] for one in await recent_denials(bank, again)] == [[]]
    assert "All arguments are the same" in await denied_part(bank, again)
    other = await bank.asks(501, run_key="again")
    assert [one["differs"] for one in await recent_denials(bank, other)] == [["amount", "items"]]


async def test_other_denials_are_not_shown(bank: Bank) -> None:
    pair = [await pay(bank, 500), await pay(bank, 500, "beta")]
    await bank.maya.vote((await bank.robot.submit(*pair, run_key="pair")).json(), "deny", reason="no")
    sibling = (await bank.robot.submit(await pay(bank, 500, "beta"), run_key="sibling")).json()
    assert await recent_denials(bank, sibling) == []
    stranger = await bank.asks(robot=await bank.other_agent())
    assert await recent_denials(bank, stranger) == []
    assert await denied_part(bank, stranger) == ""


async def test_a_withdrawal_expiry_or_approval_is_not_shown_as_a_denial(bank: Bank) -> None:
    await bank.withdraw(await bank.asks(run_key="taken-back"))
    good = await bank.asks(run_key="approved")
    await bank.maya.vote(good)
    await bank.asks(run_key="expired")
    bank.clock.pass_(hours=25)
    await bank.sweep()
    await bank.sign_in()
    now = await bank.asks(run_key="now")
    assert await recent_denials(bank, now) == []
    await denied(bank)
    assert await recent_denials(bank, good) == [], "a later denial is not shown on an earlier review"
    assert len(await recent_denials(bank, now)) == 1
    assert len((await bank.maya.vote(now)).json()["earlier_denials"]) == 1
    bank.clock.pass_(hours=24, seconds=5)  # and after the period it is forgotten
    await bank.sign_in()
    assert await recent_denials(bank, await bank.asks(501, run_key="later")) == []


async def test_the_newest_five_denials_are_shown(bank: Bank) -> None:
    for n in range(7):
        await bank.maya.vote(await bank.asks(500 + n, run_key=f"try-{n}"), "deny", reason=f"no {n}")
        bank.clock.pass_(seconds=1)
    again = await bank.asks(600, run_key="again")
    reasons = [one["reason"] for one in await recent_denials(bank, again)]
    assert reasons == [f"no {n}" for n in (6, 5, 4, 3, 2)]
    assert "Denied 5 times before" in await denied_part(bank, again)


# -- the response to a form ------------------------------------------------------------------------------------------

ALONE = (
    '@id("captain") permit (principal in Group::"cfo", action == Action::"break_glass_alone", resource);\n'
)


async def form_of(visitor: Visitor, view: dict[str, Any], act: str) -> dict[str, str]:
    return await Holder(visitor).form(review_of(view), act)


async def press(
    visitor: Visitor, view: dict[str, Any], form: dict[str, str], verdict: str
) -> httpx2.Response:
    fields = form | {"verdict": verdict, "reason": "as it was agreed"}
    return await Holder(visitor).send(f"{address(view)}/votes", **fields)


async def test_a_late_voter_is_informed_and_redirected_to_the_review(bank: Bank) -> None:
    view = await bank.asks()
    late, form = await form_of(bank.tomas, view, "approve"), await form_of(bank.maya, view, "deny")
    for _ in range(2):  # a second press of the same button is no late vote
        assert (await press(bank.maya, view, form, "deny")).status_code == 303
    answer = await press(bank.tomas, view, late, "approve")
    assert answer.status_code == 409
    assert "Your vote was not counted" in answer.text
    assert "This was denied already" in answer.text
    assert f'href="{address(view)}">Open the review<' in answer.text


async def test_break_glass_is_never_shown_as_an_approval(bank: Bank) -> None:
    await bank.policies(ANYBODY + LARGE + ALONE)
    view = await bank.asks()
    form = await form_of(bank.tomas, view, "break-glass")
    assert (await press(bank.tomas, view, form, "break_glass")).status_code == 303
    page = (await bank.tomas.get(address(view))).text
    assert "Approved and released" not in page
    assert "It was released without approvals" in page
    decided = (await bank.tomas.get(f"/?tab=decided&agent={bank.robot.name}")).text
    assert "Break-glass</span>" in decided
    assert "Approved</span>" not in decided
    task = await bank.maya.task(view, "break_glass_review")
    text = (await bank.maya.get(f"/tasks/{task['task']['task_id']}")).text
    assert "The policies, without approval" not in text
    assert "By break-glass, without approvals" in text
    assert "as it was agreed" in text
    assert "?." not in text


async def test_a_superseded_revision_links_to_the_current_one(bank: Bank) -> None:
    owned = await bank.other_agent("replaced", owner=person("jonas"))
    old = await bank.asks(robot=owned)
    await owned.accept(await bank.maya.proposed(old, LESS))
    new = await owned.see(old["txn"])
    text = (await bank.jonas.get(address(old))).text
    assert f'<a href="{address(new)}">Read revision 2</a>' in text
    assert "The agent replaced it" not in text
    assert "Not Maya, who belongs to the requester" in (await bank.jonas.get(address(new))).text


async def test_a_stopped_effect_is_not_shown_as_about_to_fire(bank: Bank) -> None:
    view = await bank.asks(robot=await bank.agent("in-a-loop"))
    form = await form_of(bank.maya, view, "approve")
    assert (await press(bank.maya, view, form, "approve")).status_code == 303
    assert "it does not fire until" not in (await bank.maya.get(address(view))).text
    stop = {"what": "agent", "name": "in-a-loop", "reason": "refunds in a loop"}
    assert (await Holder(bank.maya).send("/stop", **stop)).status_code == 303
    assert "it does not fire until" in (await bank.maya.get(address(view))).text


# -- A transaction of several effects, decided on one page with a separate vote for each effect

_LINES = re.compile(r'name="(line-\d+)" value="([^"]*)"')
NOT_HERE = re.compile(r"Not here: ([^<]*)\.<")


async def whole(visitor: Visitor, review_id: str) -> str:
    return await Holder(visitor).page(f"/reviews/{review_id}/whole")


def lines_in(page: str) -> dict[str, str]:
    """What the approving button sends; the denying form comes first, and sends the first line alone."""
    return dict(_LINES.findall(page[page.index('id="approve"') :])) if 'id="approve"' in page else {}


async def send_batch(visitor: Visitor, review_id: str, *, status: int = 200, **fields: str) -> str:
    answer = await Holder(visitor).send(f"/reviews/{review_id}/whole/votes", **fields)
    assert answer.status_code == status, answer.text
    return answer.text


async def approved(visitor: Visitor, view: dict[str, Any], lines: dict[str, str], **more: str) -> str:
    """The text after the approving button for those lines was pressed."""
    return await send_batch(visitor, review_of(view), verdict="approve", seen="yes", **more, **lines)


async def rules(bank: Bank, *gates: str, risk: str = "medium") -> None:
    bank.folder.policies(ANYBODY + "".join(gates or (gate("fin", "finance"),)))
    await bank.write("tools/pay.json", PAY | {"risk": risk})


async def plan(bank: Bank, *amounts: int, key: str = "plan") -> Any:
    effects = [await pay(bank, amount) for amount in amounts]
    return (await bank.robot.submit(*effects, run_key=key)).json()


async def test_a_transaction_is_approved_on_one_page_with_separate_votes(bank: Bank) -> None:
    await rules(bank)
    view = await plan(bank, 500, 501, 502)
    own = (await bank.maya.get(f"/reviews/{review_of(view, 1)}")).text
    assert f'href="/reviews/{review_of(view, 1)}/whole"' in own
    lines = lines_in(await whole(bank.maya, review_of(view, 1)))
    assert [value.split()[0] for value in lines.values()] == [review_of(view, place) for place in range(3)]
    other = await plan(bank, 600, 601, key="other")  # what is not of this one is not decided with it
    theirs = lines_in(await whole(bank.maya, review_of(other)))
    assert "0 of 2 votes counted" in await approved(bank.maya, view, theirs)
    assert (await bank.states(other))[0] == "review"
    assert "3 of 3 votes counted" in await approved(bank.maya, view, lines, note="as agreed")
    assert (await bank.states(view))[0] == "ready"
    votes = [body for kind, body in await bank.log(view["txn"]) if kind == "vote_recorded"]
    assert [body["channel"] for body in votes] == ["web"] * 3
    assert len({body["effect_digest"] for body in votes}) == 3


@pytest.mark.long
async def test_the_longest_transaction_fits_on_the_page(bank: Bank) -> None:
    await rules(bank)
    view = await plan(bank, *range(500, 500 + MAX_EFFECTS))
    lines = lines_in(await whole(bank.maya, review_of(view)))
    assert f"{MAX_EFFECTS} of {MAX_EFFECTS} votes counted" in await approved(bank.maya, view, lines)
    assert (await bank.states(view))[0] == "ready"


async def test_one_denial_ends_the_transaction(bank: Bank) -> None:
    await rules(bank)
    view = await plan(bank, 500, 501)
    first, *_ = _LINES.findall(await whole(bank.maya, review_of(view)))
    text = await send_batch(bank.maya, review_of(view), verdict="deny", reason="too many", **dict([first]))
    assert "1 of 1 vote counted" in text
    assert (await bank.states(view))[0] == "ended"
    assert lines_in(await whole(bank.maya, review_of(view))) == {}


async def test_effects_released_at_once_are_shown_with_the_reviews(bank: Bank) -> None:
    await rules(bank)
    effects = [await mail(bank, "the money is on its way"), await pay(bank, 500), await pay(bank, 501)]
    view = (await bank.robot.submit(*effects, run_key="plan")).json()
    page = await whole(bank.maya, review_of(view, 1))
    assert "the money is on its way" in page and "no gate applies to it" in page
    assert len(lines_in(page)) == 2
    alone = await plan(bank, 500, key="alone")  # a transaction of one effect has no such page
    path = f"/reviews/{review_of(alone)}"
    assert (await bank.maya.get(f"{path}/whole")).status_code == 400
    assert f"{path}/whole" not in (await bank.maya.get(path)).text
    assert (await bank.maya.get("/reviews/rev_none/whole")).status_code == 404


async def test_an_effect_that_needs_more_than_a_vote_has_its_own_page(bank: Bank) -> None:
    for why, asking, risk in (
        ("a gate asks for a passkey", {"step_up": "passkey"}, "medium"),
        ("a gate asks for a reason", {"reason": ""}, "medium"),
        ("it is of high risk", {}, "high"),
    ):
        await rules(bank, gate("fin", "finance", **asking), risk=risk)
        view = await plan(bank, 500, 501, key=why)
        page = await whole(bank.maya, review_of(view))
        assert NOT_HERE.findall(page) == [why, why] and lines_in(page) == {}
        effect = view["effects"][0]
        line = f"{review_of(view)} {view['rev']} {effect['effect_digest']} {view['txn_digest']} {'0' * 64}"
        assert "0 of 1 vote counted" in await approved(bank.maya, view, {"line-1": line})
        assert (await bank.states(view))[0] == "review"


async def test_each_effect_asks_its_own_groups(bank: Bank) -> None:
    small, large = "context.input.amount < 600", "context.input.amount >= 600"
    await rules(bank, gate("fin", "finance", small), gate("law", "legal", large))
    view = await plan(bank, 500, 700)
    page = await whole(bank.maya, review_of(view))
    [line] = lines_in(page).values()
    assert line.split()[0] == review_of(view, 0) and "only people in legal decide this" in page
    assert "1 of 1 vote counted" in await approved(bank.maya, view, {"line-1": line})
    assert (await bank.states(view))[0] == "review"
    [other] = lines_in(await whole(bank.ingrid, review_of(view))).values()
    await approved(bank.ingrid, view, {"line-1": other})
    assert (await bank.states(view))[0] == "ready"


async def test_a_stale_page_does_not_approve_another_revision(bank: Bank) -> None:
    await rules(bank)
    view = await plan(bank, 500, 501)
    lines = lines_in(await whole(bank.maya, review_of(view)))
    text = await send_batch(bank.maya, review_of(view), status=400, verdict="approve", **lines)
    assert "confirm that you have read every effect" in text.lower()
    again = await plan(bank, 500, 9_000)
    text = await send_batch(bank.maya, review_of(view), status=400, verdict="approve", seen="yes", **lines)
    assert "not the newest" in text.lower()
    assert "0 of 2 votes counted" in await approved(bank.maya, again, lines)
    assert (await bank.states(view))[0] == "review"


async def test_a_repeated_form_is_the_same_votes(bank: Bank) -> None:
    """Reloading the page shows that the votes count."""
    await rules(bank, gate("fin", "finance", quorum="2"))
    view = await plan(bank, 500, 501)
    lines = lines_in(await whole(bank.maya, review_of(view)))
    for _ in range(2):
        assert "2 of 2 votes counted" in await approved(bank.maya, view, lines)
    assert await bank.counts(view, "vote_recorded") == [2]
    text = await send_batch(bank.maya, review_of(view), verdict="deny", reason="after all", **lines)
    assert "your vote to approve counts: open the review" in text.lower() and "0 of 2 votes counted" in text


async def test_a_long_page_is_rendered_in_a_thread(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents wait for their responses on the loop."""
    await bank.only(gate("fin", "finance", action="mail"))
    drawn = list[bool]()

    def views(*given: Any) -> Any:
        drawn.append(threading.current_thread() is threading.main_thread())
        return part_views(*given)

    monkeypatch.setattr(batches, "part_views", views)
    for key, text in (("short", "hello "), ("long", "hello " * 800)):
        effects = [await mail(bank, f"{text}{number}") for number in range(5)]
        await whole(bank.maya, review_of((await bank.robot.submit(*effects, run_key=key)).json()))
    assert drawn == [True, False]
