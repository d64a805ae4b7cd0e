"""A transaction of several effects, decided on one page with a separate vote for each effect."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from countersign.contract.receipt import MAX_EFFECTS
from policy_service.channels.web import batches
from policy_service.channels.web.batches import part_views
from tests.fakes.payments import ANYBODY, PAY, gate
from tests.fakes.world import URL, Visitor
from tests.integration.service.effects import mail, pay
from tests.integration.service.stepping_up import review_of
from tests.integration.service.together.bank import Bank

pytestmark = pytest.mark.anyio

_LINES = re.compile(r'name="(line-\d+)" value="([^"]*)"')
NOT_HERE = re.compile(r"Not here: ([^<]*)\.<")


async def whole(visitor: Visitor, review_id: str) -> str:
    answer = await visitor.get(f"/reviews/{review_id}/whole")
    assert answer.status_code == 200, answer.text
    return answer.text


def lines_in(page: str) -> dict[str, str]:
    """What the approving button sends; the denying form comes first, and sends the first line alone."""
    return dict(_LINES.findall(page[page.index('id="approve"') :])) if 'id="approve"' in page else {}


async def send(visitor: Visitor, review_id: str, *, status: int = 200, **fields: str) -> str:
    answer = await visitor.http.post(
        f"/reviews/{review_id}/whole/votes",
        data={"csrf_token": visitor.csrf, **fields},
        headers={"Cookie": f"countersign_dev={visitor.cookie}", "Origin": URL},
    )
    assert answer.status_code == status, answer.text
    return answer.text


async def approved(visitor: Visitor, view: dict[str, Any], lines: dict[str, str], **more: str) -> str:
    """The text after the approving button for those lines was pressed."""
    return await send(visitor, review_of(view), verdict="approve", seen="yes", **more, **lines)


async def rules(bank: Bank, *gates: str, risk: str = "medium") -> None:
    bank.folder.policies(ANYBODY + "".join(gates or (gate("fin", "finance"),)))
    await bank.write("tools/pay.json", PAY | {"risk": risk})


async def plan(bank: Bank, *amounts: int, key: str = "plan") -> dict[str, Any]:
    effects = [await pay(bank, amount) for amount in amounts]
    view: dict[str, Any] = (await bank.robot.submit(*effects, run_key=key)).json()
    return view


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
    text = await send(bank.maya, review_of(view), verdict="deny", reason="too many", **dict([first]))
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
    text = await send(bank.maya, review_of(view), status=400, verdict="approve", **lines)
    assert "confirm that you have read every effect" in text.lower()
    again = await plan(bank, 500, 9_000)
    text = await send(bank.maya, review_of(view), status=400, verdict="approve", seen="yes", **lines)
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
    assert [kind for kind, _ in await bank.log(view["txn"])].count("vote_recorded") == 2
    text = await send(bank.maya, review_of(view), verdict="deny", reason="after all", **lines)
    assert "your vote to approve counts: open the review" in text.lower() and "0 of 2 votes counted" in text


async def test_a_long_page_is_rendered_outside_the_event_loop(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
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
