"""A transaction of several effects, read and decided on one page: each effect by a vote of its own, and nothing fires
before all of them are let go.
"""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from countersign.contract.receipt import MAX_EFFECTS
from policy_service.channels.web import batches
from policy_service.channels.web.drawing.batch_views import part_views
from tests.fakes.payments import ANYBODY, PAY, Payments, gate
from tests.fakes.world import URL, Agent, Visitor, World
from tests.integration.service.effects import mail, pay
from tests.integration.service.engines import SQLITE_IN_SHORT

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("engine", SQLITE_IN_SHORT),
]

_LINES = re.compile(r'name="(line-\d+)" value="([^"]*)"')
NOT_HERE = re.compile(r"Not here: ([^<]*)\.<")


def review_of(view: dict[str, Any], place: int = 0) -> str:
    found: str = view["effects"][place]["review"]["review_id"]
    return found


async def whole(visitor: Visitor, review_id: str) -> str:
    answer = await visitor.get(f"/reviews/{review_id}/whole")
    assert answer.status_code == 200, answer.text
    return answer.text


def lines_in(page: str) -> dict[str, str]:
    """What the button that approves sends; the form that denies stands first, and sends the first line alone."""
    return dict(_LINES.findall(page[page.index('id="approve"') :])) if 'id="approve"' in page else {}


async def send(visitor: Visitor, review_id: str, *, status: int = 200, **fields: str) -> str:
    answer = await visitor.http.post(
        f"/reviews/{review_id}/whole/votes",
        data={"csrf_token": visitor.csrf, **fields},
        headers={"Cookie": f"countersign_dev={visitor.cookie}", "Origin": URL},
    )
    assert answer.status_code == status, answer.text
    return answer.text


async def rules(bank: World, folder: Payments, *gates: str, risk: str = "medium") -> None:
    folder.policies(ANYBODY + "".join(gates or (gate("fin", "finance"),)))
    folder.write("tools/pay.json", PAY | {"risk": risk})
    assert await bank.activate()


async def plan(bank: World, robot: Agent, *amounts: int, key: str = "plan") -> dict[str, Any]:
    effects = [await pay(bank, amount) for amount in amounts]
    view: dict[str, Any] = (await robot.submit(*effects, run_key=key)).json()
    return view


async def test_a_plan_is_approved_as_a_whole_by_votes_of_their_own(
    bank: World, folder: Payments, robot: Agent
) -> None:
    await rules(bank, folder)
    view = await plan(bank, robot, 500, 501, 502)
    maya = await bank.person("maya")
    own = (await maya.get(f"/reviews/{review_of(view, 1)}")).text
    assert f'href="/reviews/{review_of(view, 1)}/whole"' in own
    lines = lines_in(await whole(maya, review_of(view, 1)))
    assert [value.split()[0] for value in lines.values()] == [review_of(view, place) for place in range(3)]
    other = await plan(bank, robot, 600, 601, key="other")  # what is not of this one is not decided with it
    theirs = lines_in(await whole(maya, review_of(other)))
    told = await send(maya, review_of(view), verdict="approve", seen="yes", **theirs)
    assert "0 of 2 votes counted" in told and (await robot.see(other["txn"]))["state"] == "review"
    told = await send(maya, review_of(view), verdict="approve", seen="yes", note="as agreed", **lines)
    assert "3 of 3 votes counted" in told
    assert (await robot.see(view["txn"]))["state"] == "ready"
    votes = [body for kind, body in await bank.log(view["txn"]) if kind == "vote_recorded"]
    assert [body["channel"] for body in votes] == ["web"] * 3
    assert len({body["effect_digest"] for body in votes}) == 3


@pytest.mark.long
async def test_the_longest_plan_there_is_fits_on_the_page(
    bank: World, folder: Payments, robot: Agent
) -> None:
    await rules(bank, folder)
    view = await plan(bank, robot, *range(500, 500 + MAX_EFFECTS))
    maya = await bank.person("maya")
    lines = lines_in(await whole(maya, review_of(view)))
    told = await send(maya, review_of(view), verdict="approve", seen="yes", **lines)
    assert f"{MAX_EFFECTS} of {MAX_EFFECTS} votes counted" in told
    assert (await robot.see(view["txn"]))["state"] == "ready"


async def test_one_denial_ends_the_whole(bank: World, folder: Payments, robot: Agent) -> None:
    await rules(bank, folder)
    view = await plan(bank, robot, 500, 501)
    maya = await bank.person("maya")
    page = await whole(maya, review_of(view))
    [first, *_] = _LINES.findall(page)
    told = await send(maya, review_of(view), verdict="deny", reason="too many", **dict([first]))
    assert "1 of 1 vote counted" in told
    assert (await robot.see(view["txn"]))["state"] == "ended"
    assert lines_in(await whole(maya, review_of(view))) == {}


async def test_what_is_released_at_once_stands_beside_what_is_decided(
    bank: World, folder: Payments, robot: Agent
) -> None:
    await rules(bank, folder)
    effects = [await mail(bank, "the money is on its way"), await pay(bank, 500), await pay(bank, 501)]
    view = (await robot.submit(*effects, run_key="plan")).json()
    page = await whole(await bank.person("maya"), review_of(view, 1))
    assert "the money is on its way" in page and "no rule asks anybody about it" in page
    assert len(lines_in(page)) == 2


@pytest.mark.parametrize(
    ("why", "annotations", "risk"),
    [
        ("a gate asks for a passkey", {"step_up": "passkey"}, "medium"),
        ("a gate asks for a reason", {"reason": ""}, "medium"),
        ("it is of high risk", {}, "high"),
    ],
)
async def test_what_takes_more_than_reading_is_decided_on_its_own_page(
    bank: World, folder: Payments, robot: Agent, why: str, annotations: dict[str, str], risk: str
) -> None:
    await rules(bank, folder, gate("fin", "finance", **annotations), risk=risk)
    view = await plan(bank, robot, 500, 501)
    maya = await bank.person("maya")
    page = await whole(maya, review_of(view))
    assert NOT_HERE.findall(page) == [why, why] and lines_in(page) == {}
    effect = view["effects"][0]
    line = f"{review_of(view)} {view['rev']} {effect['effect_digest']} {view['txn_digest']} {'0' * 64}"
    told = await send(maya, review_of(view), verdict="approve", seen="yes", **{"line-1": line})
    assert "0 of 1 vote counted" in told
    assert (await robot.see(view["txn"]))["state"] == "review"


async def test_each_part_asks_its_own_people(bank: World, folder: Payments, robot: Agent) -> None:
    await rules(
        bank,
        folder,
        gate("fin", "finance", "context.input.amount < 600"),
        gate("law", "legal", "context.input.amount >= 600"),
    )
    view = await plan(bank, robot, 500, 700)
    maya, ingrid = await bank.person("maya"), await bank.person("ingrid")
    page = await whole(maya, review_of(view))
    [line] = lines_in(page).values()
    assert line.split()[0] == review_of(view, 0) and "only people in legal decide this" in page
    told = await send(maya, review_of(view), verdict="approve", seen="yes", **{"line-1": line})
    assert "1 of 1 vote counted" in told and (await robot.see(view["txn"]))["state"] == "review"
    [other] = lines_in(await whole(ingrid, review_of(view))).values()
    await send(ingrid, review_of(view), verdict="approve", seen="yes", **{"line-1": other})
    assert (await robot.see(view["txn"]))["state"] == "ready"


async def test_another_revision_is_not_approved_by_a_page_that_was_read_before(
    bank: World, folder: Payments, robot: Agent
) -> None:
    await rules(bank, folder)
    view = await plan(bank, robot, 500, 501)
    maya = await bank.person("maya")
    lines = lines_in(await whole(maya, review_of(view)))
    told = await send(maya, review_of(view), status=400, verdict="approve", **lines)
    assert "say that you have read every effect" in told.lower()
    again = await plan(bank, robot, 500, 9_000)
    told = await send(maya, review_of(view), status=400, verdict="approve", seen="yes", **lines)
    assert "another revision" in told.lower()
    told = await send(maya, review_of(again), verdict="approve", seen="yes", **lines)
    assert "0 of 2 votes counted" in told
    assert (await robot.see(view["txn"]))["state"] == "review"


async def test_the_same_form_sent_again_is_the_same_votes(
    bank: World, folder: Payments, robot: Agent
) -> None:
    """Whoever loads the page again that told of them hears that they count."""
    await rules(bank, folder, gate("fin", "finance", quorum="2"))
    view = await plan(bank, robot, 500, 501)
    maya = await bank.person("maya")
    lines = lines_in(await whole(maya, review_of(view)))
    for _ in range(2):
        told = await send(maya, review_of(view), verdict="approve", seen="yes", **lines)
        assert "2 of 2 votes counted" in told
    kinds = [kind for kind, _ in await bank.log(view["txn"])]
    assert kinds.count("vote_recorded") == 2
    told = await send(maya, review_of(view), verdict="deny", reason="after all", **lines)
    assert "your vote to approve stands: open it" in told.lower() and "0 of 2 votes counted" in told


async def test_a_long_one_is_drawn_beside_the_event_loop(
    bank: World, folder: Payments, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents wait for their answers on it."""
    folder.policies(ANYBODY + gate("fin", "finance", action="mail"))
    assert await bank.activate()
    drawn = list[bool]()

    def views(*given: Any) -> Any:
        drawn.append(threading.current_thread() is threading.main_thread())
        return part_views(*given)

    monkeypatch.setattr(batches, "part_views", views)
    maya = await bank.person("maya")
    for key, text in (("short", "hello "), ("long", "hello " * 800)):
        effects = [await mail(bank, f"{text}{number}") for number in range(5)]
        await whole(maya, review_of((await robot.submit(*effects, run_key=key)).json()))
    assert drawn == [True, False]


async def test_an_effect_that_stands_alone_has_no_such_page(
    bank: World, folder: Payments, robot: Agent
) -> None:
    await rules(bank, folder)
    view = await plan(bank, robot, 500)
    maya = await bank.person("maya")
    assert (await maya.get(f"/reviews/{review_of(view)}/whole")).status_code == 400
    assert f"{review_of(view)}/whole" not in (await maya.get(f"/reviews/{review_of(view)}")).text
    assert (await maya.get("/reviews/rev_none/whole")).status_code == 404
