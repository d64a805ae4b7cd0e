"""A plan of steps as data in front of the real service: checked whole, asked about whole, approved as a whole on one
page, and fired in the order it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from countersign import Denied, ReviewPending, StepsRefused, run_steps
from tests.fakes.desk import notes_in
from tests.fakes.payments import PAY
from tests.integration.sdk.near import Near
from tests.integration.sdk.near import near as running_near

pytestmark = pytest.mark.long

PLAN: list[dict[str, Any]] = [
    {"tool": "note", "args": {"order_id": "o-1", "text": "paid"}},
    {"tool": "pay", "id": "second", "after": ["first"], "args": {"account": "a-2", "amount": 600}},
    {"tool": "pay", "id": "first", "args": {"account": "a-1", "amount": 500}},
]


@pytest.fixture
def near(tmp_path: Path) -> Iterator[Near]:
    """Finance is asked above 100, and payments are of medium risk."""
    with running_near(tmp_path) as one:
        one.rules.write("tools/pay.json", PAY | {"risk": "medium"})
        one.put_in_force()
        yield one


def go(near: Near) -> None:
    run_steps(PLAN, key="plan", runtime=near.runtime)


def asked(near: Near) -> ReviewPending:
    with pytest.raises(ReviewPending) as pending:
        go(near)
    assert (near.done, notes_in(near.notes)) == ([], [])
    return pending.value


def on_one_page(near: Near, pending: ReviewPending, **fields: str) -> str:
    """Maya opens the page of the whole and presses one of its two buttons."""

    async def pressed() -> str:
        maya = await near.world.person("maya")
        path = f"/reviews/{pending.reviews[0].review_id}/whole"
        page = (await maya.get(path)).text
        form = page[page.index(f'id="{fields["verdict"]}"') :]
        lines = dict(re.findall(r'name="(line-\d+)" value="([^"]*)"', form[: form.index("</form>")]))
        answer = await maya.http.post(
            f"{path}/votes",
            data={"csrf_token": maya.csrf, **lines, **fields},
            headers={
                "Cookie": f"countersign_dev={maya.cookie}",
                "Origin": near.world.settings.public_url,
            },
        )
        assert answer.status_code == 200, answer.text
        return answer.text

    told: str = near.ask(pressed())
    return told


def test_a_plan_is_approved_as_a_whole_and_fires_in_its_order(near: Near) -> None:
    pending = asked(near)
    assert len(pending.reviews) == 2
    assert "2 of 2 votes counted" in on_one_page(near, pending, verdict="approve", seen="yes")
    go(near)
    assert near.done == [("pay", "a-1", 500), ("pay", "a-2", 600)]
    assert [tuple(row) for row in notes_in(near.notes)] == [("o-1", "paid")]


def test_nothing_of_a_plan_fires_while_a_part_of_it_waits(near: Near) -> None:
    pending = asked(near)
    near.vote(pending)  # of one effect
    assert len(asked(near).reviews) == 1


def test_a_denial_is_of_the_whole(near: Near) -> None:
    pending = asked(near)
    assert "1 of 1 vote counted" in on_one_page(near, pending, verdict="deny", reason="not today")
    with pytest.raises(Denied, match="not today"):
        go(near)
    assert (near.done, notes_in(near.notes)) == ([], [])


def test_a_plan_with_a_step_that_is_wrong_asks_nobody(near: Near) -> None:
    with pytest.raises(StepsRefused):
        run_steps([*PLAN, {"tool": "pay", "args": {"account": "a-3"}}], key="plan", runtime=near.runtime)
    assert (near.done, notes_in(near.notes)) == ([], [])
