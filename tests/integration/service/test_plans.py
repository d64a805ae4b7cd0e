"""What grows with every effect there ever was is never read from end to end to answer for one of them, or one page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event

from tests.fakes.world import Agent, World
from tests.integration.service.effects import pay

pytestmark = pytest.mark.anyio

GROWS = (
    "transactions",
    "effects",
    "decisions",
    "reviews",
    "votes",
    "attempts",
    "redemptions",
    "tasks",
    "audit",
)


@contextmanager
def plans(bank: World) -> Iterator[list[tuple[str, str]]]:
    """(line of SQLite's plan, statement) of everything that is asked meanwhile, by reading or by writing."""
    found: list[tuple[str, str]] = []

    def note(conn: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        if statement.startswith(("SELECT", "UPDATE", "DELETE", "WITH")):
            explained = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            found.extend((row[3], statement) for row in explained.fetchall())

    event.listen(Engine, "before_cursor_execute", note)
    yield found
    event.remove(Engine, "before_cursor_execute", note)


def scans(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those that read one of the growing tables from end to end, by no index."""
    return sorted({(line, asked) for line, asked in found for name in GROWS if line == f"SCAN {name}"})


@pytest.mark.parametrize("path", ["/", "/v1/reviews?limit=5", "/v1/tasks", "/v1/audit?limit=5"])
async def test_a_page_reads_no_table_from_end_to_end(bank: World, robot: Agent, path: str) -> None:
    maya = await bank.person("maya")
    for n in range(3):
        await robot.submit(await pay(bank, 500), await pay(bank, n + 1), run_key=f"r-{n}")
    with plans(bank) as found:
        assert (await maya.get(path)).status_code == 200
    assert found
    assert scans(found) == []


async def test_an_effect_is_submitted_voted_on_and_looked_at_without_reading_those_of_others(
    bank: World, robot: Agent
) -> None:
    maya = await bank.person("maya")
    with plans(bank) as found:
        view = (await robot.submit(await pay(bank, 500), run_key="r-1")).json()
        assert view["state"] == "review"
        await maya.vote(view)
        assert (await robot.see(view["txn"]))["state"] == "ready"
    assert any("votes" in asked for _, asked in found)
    assert scans(found) == []
