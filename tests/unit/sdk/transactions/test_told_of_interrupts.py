"""Whoever presses Ctrl-C reads under the traceback where the step stands and how it goes on."""

from __future__ import annotations

from typing import Any

import pytest

from countersign import JournalError
from countersign.contract import Verdict
from countersign.journal.transactions import Transactions
from tests.fakes.desk import Desk, failing_tool, refund_tool
from tests.unit.sdk.transactions.looks import on_view


def raises(error: BaseException) -> None:
    raise error


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_one_that_stops_a_tool_tells_what_fired_and_what_not(desk: Desk, error: Any) -> None:
    refund, wire = refund_tool(desk), failing_tool(desk, error(), "wire")
    with pytest.raises(error) as stopped, desk.step():
        refund("o-1", 5)
        wire("o-1")
    assert "transaction 't-1': redeemed (refund#1 fired, wire#2 unknown)" in notes(stopped.value)
    assert "`countersign resume --tools MODULE`" in notes(stopped.value)


def test_one_in_the_wait_tells_that_people_are_asked(desk: Desk) -> None:
    refund = refund_tool(desk)
    on_view(desk, lambda: raises(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt) as stopped, desk.step(wait=60):
        refund("o-1", 90_000)
    assert notes(stopped.value).startswith("transaction 't-1': parked (refund#1 review); ")
    assert "goes on with it" in notes(stopped.value)


def test_one_before_anything_was_begun_tells_that_the_block_goes_on_and_no_worker(desk: Desk) -> None:
    refund = refund_tool(desk)
    desk.face.faults["/v1/transactions"] = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt) as stopped, desk.step():
        refund("o-1", 5)
    told = "stopped (refund#1 staged); nothing more of it is begun until the same block runs again"
    assert told in notes(stopped.value)


def test_one_of_the_body_needs_no_word_for_nothing_of_it_stands(desk: Desk) -> None:
    refund = refund_tool(desk)
    with pytest.raises(KeyboardInterrupt) as stopped, desk.step():
        refund("o-1", 5)
        raise KeyboardInterrupt
    assert notes(stopped.value) == ""


def test_a_journal_that_cannot_be_read_loses_no_interrupt(desk: Desk, monkeypatch: Any) -> None:
    refund = refund_tool(desk)
    desk.service.policy = lambda *_: Verdict.REVIEW

    def away(*_: Any) -> None:
        raise JournalError("the disk is gone")

    def stop() -> None:
        monkeypatch.setattr(Transactions, "require", away)
        raise KeyboardInterrupt

    on_view(desk, stop)
    with pytest.raises(KeyboardInterrupt) as stopped, desk.step(wait=60):
        refund("o-1", 90_000)
    assert notes(stopped.value) == ""
    monkeypatch.undo()
