"""Who is asked again about what somebody denied is told so: on the page and on the wire, and it decides nothing."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from tests.fakes.payments import person
from tests.integration.service.effects import mail, pay
from tests.integration.service.test_plans import plans
from tests.integration.service.together.bank import Bank

pytestmark = pytest.mark.anyio

WHY = "wrong customer <b>cus_17</b>"


def review_id(view: dict[str, Any], effect: int = 0) -> str:
    found: str = view["effects"][effect]["review"]["review_id"]
    return found


async def denied(bank: Bank, amount: int = 500, **more: Any) -> dict[str, Any]:
    view: dict[str, Any] = (await bank.robot.submit(await pay(bank, amount, **more), run_key="first")).json()
    assert (await bank.maya.vote(view, "deny", reason=WHY)).status_code == 200
    return view


async def told(bank: Bank, view: dict[str, Any]) -> list[dict[str, Any]]:
    """What the wire says, which must be the same in the list and alone."""
    alone = (await bank.maya.get(f"/v1/reviews/{review_id(view)}")).json()
    listed = (await bank.maya.get("/v1/reviews?limit=200")).json()["reviews"]
    found: list[dict[str, Any]] = alone["earlier_denials"]
    for one in listed:
        if one["review_id"] == alone["review_id"]:
            assert one["earlier_denials"] == found
    return found


async def page(bank: Bank, view: dict[str, Any]) -> str:
    answer = await bank.maya.get(f"/reviews/{review_id(view)}")
    assert answer.status_code == 200
    found = re.search(r'<section class="denied-before".*?</section>', answer.text, re.DOTALL)
    return re.sub(r"\s+", " ", found.group()) if found else ""


async def test_the_same_asked_again_in_other_words_says_who_said_no_and_what_differs(bank: Bank) -> None:
    before = await denied(bank)
    bank.clock.pass_(hours=2)
    await bank.sign_in()
    again = (await bank.robot.submit(await pay(bank, 499), await mail(bank), run_key="another-way")).json()
    assert again["state"] == "review"
    with plans(bank) as found:
        (denial,) = await told(bank, again)
    lines = [line for line, asked in found if "effects.state = 'denied'" in asked]
    assert [line for line in lines if "ix_effects_denied" in line], lines
    assert denial["review_id"] == review_id(before)
    assert (denial["person"], denial["reason"], denial["differs"]) == (person("maya"), WHY, ["amount"])
    drawn = await page(bank, again)
    for words in ("Denied before", f'href="/reviews/{review_id(before)}"', "Maya", "<code>amount</code>"):
        assert words in drawn
    assert "<b>cus_17</b>" not in drawn and WHY in unescape(drawn)
    # context and nothing else: it is approved as ever
    assert (await bank.maya.vote(again)).json()["state"] == "met"


async def test_exactly_the_same_under_another_key_says_so(bank: Bank) -> None:
    await denied(bank, items=["a"])
    again = (await bank.robot.submit(await pay(bank, 500, items=["a"]), run_key="another-key")).json()
    assert [one["differs"] for one in await told(bank, again)] == [[]]
    assert "Every argument is the same" in await page(bank, again)
    other = await bank.asks(501, run_key="again")
    assert [one["differs"] for one in await told(bank, other)] == [["amount", "items"]]


async def test_nothing_is_said_of_what_was_not_denied_by_a_person_about_the_same(bank: Bank) -> None:
    pair = [await pay(bank, 500), await pay(bank, 500, "beta")]
    view = (await bank.robot.submit(*pair, run_key="pair")).json()
    await bank.maya.vote(view, "deny", reason="no")
    sibling = (await bank.robot.submit(await pay(bank, 500, "beta"), run_key="sibling")).json()
    assert await told(bank, sibling) == []
    stranger = await bank.asks(robot=await bank.agent(f"{bank.robot.name}-other"))
    assert await told(bank, stranger) == []
    assert await page(bank, stranger) == ""


async def test_what_was_withdrawn_expired_or_approved_is_no_denial(bank: Bank) -> None:
    await bank.withdraw(await bank.asks(run_key="taken-back"))
    good = await bank.asks(run_key="approved")
    await bank.maya.vote(good)
    await bank.asks(run_key="expired")
    bank.clock.pass_(hours=25)
    await bank.sweep()
    await bank.sign_in()
    now = await bank.asks(run_key="now")
    assert await told(bank, now) == []
    await denied(bank)
    assert await told(bank, good) == [], "what comes later is not written into the past"
    assert len(await told(bank, now)) == 1
    settled = (await bank.maya.vote(now)).json()
    assert len(settled["earlier_denials"]) == 1
    bank.clock.pass_(hours=24, seconds=5)  # and after the period it is forgotten
    await bank.sign_in()
    assert await told(bank, await bank.asks(501, run_key="later")) == []


async def test_many_denials_are_five_lines_the_newest_first(bank: Bank) -> None:
    for n in range(7):
        view = await bank.asks(500 + n, run_key=f"try-{n}")
        await bank.maya.vote(view, "deny", reason=f"no {n}")
        bank.clock.pass_(seconds=1)
    again = await bank.asks(600, run_key="again")
    assert [one["reason"] for one in await told(bank, again)] == ["no 6", "no 5", "no 4", "no 3", "no 2"]
    assert "Denied 5 times before" in await page(bank, again)
