"""Who is asked again about what somebody denied is told so: on the page and on the wire, and it decides nothing."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from tests.fakes.payments import person
from tests.fakes.world import Agent, Visitor, World
from tests.integration.service.effects import mail, pay
from tests.integration.service.test_plans import plans

pytestmark = pytest.mark.anyio

WHY = "wrong customer <b>cus_17</b>"


def review_id(view: dict[str, Any], effect: int = 0) -> str:
    found: str = view["effects"][effect]["review"]["review_id"]
    return found


async def denied(bank: World, robot: Agent, maya: Visitor, amount: int = 500, **more: Any) -> dict[str, Any]:
    view: dict[str, Any] = (await robot.submit(await pay(bank, amount, **more), run_key="first")).json()
    assert (await maya.vote(view, "deny", reason=WHY)).status_code == 200
    return view


async def told(maya: Visitor, view: dict[str, Any]) -> list[dict[str, Any]]:
    """What the wire says, which must be the same in the list and alone."""
    alone = (await maya.get(f"/v1/reviews/{review_id(view)}")).json()
    listed = (await maya.get("/v1/reviews?limit=200")).json()["reviews"]
    found: list[dict[str, Any]] = alone["earlier_denials"]
    for one in listed:
        if one["review_id"] == alone["review_id"]:
            assert one["earlier_denials"] == found
    return found


async def page(maya: Visitor, view: dict[str, Any]) -> str:
    answer = await maya.get(f"/reviews/{review_id(view)}")
    assert answer.status_code == 200
    found = re.search(r'<section class="denied-before".*?</section>', answer.text, re.DOTALL)
    return re.sub(r"\s+", " ", found.group()) if found else ""


async def test_the_same_asked_again_in_other_words_says_who_said_no_and_what_differs(
    bank: World, robot: Agent
) -> None:
    maya = await bank.person("maya")
    before = await denied(bank, robot, maya)
    bank.clock.pass_(hours=2)
    maya = await bank.person("maya")
    again = (await robot.submit(await pay(bank, 499), run_key="another-way")).json()
    assert again["state"] == "review"
    (denial,) = await told(maya, again)
    assert denial["review_id"] == review_id(before)
    assert (denial["person"], denial["reason"], denial["differs"]) == (person("maya"), WHY, ["amount"])
    drawn = await page(maya, again)
    assert "Denied before" in drawn
    assert f'href="/reviews/{review_id(before)}"' in drawn
    assert "Maya" in drawn
    assert "<code>amount</code>" in drawn
    assert "<b>cus_17</b>" not in drawn
    assert WHY in unescape(drawn)
    # context and nothing else: it is approved as ever
    assert (await maya.vote(again)).json()["state"] == "met"


async def test_exactly_the_same_under_another_key_says_so(bank: World, robot: Agent) -> None:
    maya = await bank.person("maya")
    await denied(bank, robot, maya)
    again = (await robot.submit(await pay(bank, 500), run_key="another-key")).json()
    assert [one["differs"] for one in await told(maya, again)] == [[]]
    assert "Every argument is the same" in await page(maya, again)


async def test_an_argument_that_was_added_or_left_out_differs(bank: World, robot: Agent) -> None:
    maya = await bank.person("maya")
    await denied(bank, robot, maya, items=["a"])
    again = (await robot.submit(await pay(bank, 501), run_key="again")).json()
    assert [one["differs"] for one in await told(maya, again)] == [["amount", "items"]]


async def test_nothing_is_said_of_what_was_not_denied_by_a_person_about_the_same(
    bank: World, robot: Agent
) -> None:
    maya = await bank.person("maya")
    await denied(bank, robot, maya)
    other = await bank.agent(f"{robot.name}-other")
    elsewhere = (await robot.submit(await pay(bank, 500, "beta"), run_key="elsewhere")).json()
    stranger = (await other.submit(await pay(bank, 500))).json()
    assert await told(maya, elsewhere) == []
    assert await told(maya, stranger) == []
    assert await page(maya, stranger) == ""


async def test_what_was_withdrawn_expired_or_approved_is_no_denial(bank: World, robot: Agent) -> None:
    maya = await bank.person("maya")
    taken = (await robot.submit(await pay(bank, 500), run_key="taken-back")).json()
    await robot.send("POST", f"/v1/transactions/{taken['txn']}/withdraw", {})
    good = (await robot.submit(await pay(bank, 500), run_key="approved")).json()
    await maya.vote(good)
    await robot.submit(await pay(bank, 500), run_key="expired")
    bank.clock.pass_(hours=23)
    bank.clock.pass_(hours=2)
    await bank.sweep()
    maya = await bank.person("maya")
    now = (await robot.submit(await pay(bank, 500), run_key="now")).json()
    assert await told(maya, now) == []


async def test_a_sibling_that_fell_with_a_denial_was_not_denied_itself(bank: World, robot: Agent) -> None:
    maya = await bank.person("maya")
    pair = (await robot.submit(await pay(bank, 500), await pay(bank, 500, "beta"), run_key="pair")).json()
    await maya.vote(pair, "deny", reason="no")
    again = (await robot.submit(await pay(bank, 500, "beta"), run_key="again")).json()
    assert await told(maya, again) == []


async def test_after_the_period_it_is_forgotten(bank: World, robot: Agent) -> None:
    maya = await bank.person("maya")
    await denied(bank, robot, maya)
    bank.clock.pass_(hours=24, seconds=5)
    maya = await bank.person("maya")
    again = (await robot.submit(await pay(bank, 501), run_key="again")).json()
    assert await told(maya, again) == []


async def test_what_is_denied_while_another_waits_is_told_there_too(bank: World, robot: Agent) -> None:
    maya = await bank.person("maya")
    waits = (await robot.submit(await pay(bank, 501), run_key="waits")).json()
    assert await told(maya, waits) == []
    await denied(bank, robot, maya)
    assert len(await told(maya, waits)) == 1
    settled = (await maya.vote(waits)).json()
    assert len(settled["earlier_denials"]) == 1


async def test_what_comes_later_is_not_written_into_the_past(bank: World, robot: Agent) -> None:
    maya = await bank.person("maya")
    good = (await robot.submit(await pay(bank, 501), run_key="approved")).json()
    await maya.vote(good)
    bank.clock.pass_(seconds=1)
    await denied(bank, robot, maya)
    assert await told(maya, good) == []


async def test_many_denials_are_five_lines_the_newest_first(bank: World, robot: Agent) -> None:
    maya = await bank.person("maya")
    for n in range(7):
        view = (await robot.submit(await pay(bank, 500 + n), run_key=f"try-{n}")).json()
        await maya.vote(view, "deny", reason=f"no {n}")
        bank.clock.pass_(seconds=1)
    again = (await robot.submit(await pay(bank, 600), run_key="again")).json()
    assert [one["reason"] for one in await told(maya, again)] == ["no 6", "no 5", "no 4", "no 3", "no 2"]
    assert "Denied 5 times before" in await page(maya, again)


async def test_denials_are_found_by_their_own_index(bank: World, robot: Agent) -> None:
    maya = await bank.person("maya")
    await denied(bank, robot, maya)
    again = (await robot.submit(await pay(bank, 501), await mail(bank), run_key="again")).json()
    with plans(bank) as found:
        await maya.get(f"/v1/reviews/{review_id(again)}")
    lines = [line for line, asked in found if "effects.state = 'denied'" in asked]
    assert [line for line in lines if "ix_effects_denied" in line], lines
