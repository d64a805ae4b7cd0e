"""CSV exports contain no formulas."""

import csv
import io
from collections.abc import AsyncIterator

import pytest

from policy_service.channels.web.agents import bars
from policy_service.channels.web.audit import csv_lines
from policy_service.queries.audit_log import LogLine
from tests.fakes.reviews import NOW


@pytest.mark.parametrize("begins", ["=", "+", "-", "@", "\t", "\r", "\n"])
async def test_no_csv_cell_is_a_formula(begins: str) -> None:
    async def lines() -> AsyncIterator[LogLine]:
        agent = f'{begins}cmd|"/c calc"!A1'
        yield LogLine(1, NOW, f"{begins}1", "service", "", agent, None, None, b'{"v":1}')

    table = b"".join([row async for row in csv_lines(lines())]).decode()
    (row,) = csv.DictReader(io.StringIO(table, newline=""))
    assert (row["agent"], row["kind"]) == (f'\'{begins}cmd|"/c calc"!A1', f"'{begins}1")
    assert table.count('"') % 2 == 0


def test_an_hour_with_one_submission_is_visible() -> None:
    drawn = bars((0, 1, 10_000))
    assert [bar["height"] for bar in drawn] == [0, 2, 48]
    assert all(bar["y"] + bar["height"] == 48 for bar in drawn)
