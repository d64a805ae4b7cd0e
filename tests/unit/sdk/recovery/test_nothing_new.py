"""A look that finds nothing new writes nothing: a worker looks every few seconds, for as long as people take."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from countersign import CountersignError, NotDone, OutcomeUnknown, ReviewPending, SQLiteAdapter, resume
from countersign.contract import Verdict
from tests.fakes.desk import (
    Desk,
    answering_tool,
    charge_tools,
    failing_tool,
    note_tool,
    notes_database,
    refund_tool,
)
from tests.unit.sdk.transactions.looks import TXN


def written(desk: Desk) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(desk.runtime.settings.journal_path)) as journal:
        lines = journal.execute("SELECT id, kind FROM chain ORDER BY id").fetchall()
        return [*lines, *journal.execute("SELECT state, note FROM transactions").fetchall()]


def unknown(desk: Desk) -> None:
    failing_tool(desk, TimeoutError("slow"))("o-1")


def parked(desk: Desk) -> None:
    refund_tool(desk)("o-1", 90_000)


def beside_live_work(desk: Desk) -> None:
    note_tool(desk, SQLiteAdapter(notes_database(desk.folder)))("o-1", "x")
    refund_tool(desk)("o-1", 90_000)


def not_taken_back(desk: Desk) -> None:
    answering_tool(desk, ValueError("refused"), name="void")
    refunded: dict[str, Any] = {"compensate": "void", "compensation_map": {"order_id": "args:/order_id"}}
    answering_tool(desk, None, name="charge", **refunded)("o-1")
    failing_tool(desk, NotDone("no"), acts=False)("o-1")


def not_to_be_taken_back(desk: Desk) -> None:
    charge_tools(desk)("o-1", 100)
    desk.service.policy = lambda name, _: Verdict.DENY if name == "void" else Verdict.RELEASE
    failing_tool(desk, NotDone("no"), acts=False)("o-1")


@pytest.mark.parametrize("body", [unknown, parked, beside_live_work, not_taken_back, not_to_be_taken_back])
def test_looking_again_writes_nothing(desk: Desk, body: Callable[[Desk], None]) -> None:
    desk.run((body, desk), raises=CountersignError)
    first = resume(desk.runtime)
    before = written(desk)
    for _ in range(3):
        assert resume(desk.runtime) == first
    assert (len(first), written(desk)) == (1, before)


def test_nor_where_people_have_approved_what_only_its_program_can_fire(desk: Desk) -> None:
    desk.run((beside_live_work, desk), raises=ReviewPending)
    desk.service.approve(TXN)
    first = resume(desk.runtime)
    before = written(desk)
    assert (resume(desk.runtime)[0].note, written(desk)) == (first[0].note, before)


def test_what_is_not_known_is_noted_in_the_words_of_whoever_found_out(desk: Desk) -> None:
    desk.run((unknown, desk), raises=OutcomeUnknown)
    (found,) = resume(desk.runtime)
    assert desk.runtime.journal.transactions.require(TXN).note == "TimeoutError: slow"
    assert "is not known whether notify#1 happened (TimeoutError: slow)" in found.note
