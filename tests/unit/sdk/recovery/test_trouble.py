"""One transaction's trouble does not keep the others waiting, whatever an adapter raises; a journal that was there and
is away does not end a worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from countersign import (
    FilesAdapter,
    JournalError,
    ReviewPending,
    resume,
    tool,
    transaction,
)
from countersign.adapters.overlay import FilesSession
from countersign.engine import Engine
from countersign.recovery import worker
from countersign.recovery.recovery import Resumed
from tests.fakes.desk import Desk, refund_tool

SAID = "row (4111 1111) violates a rule"


def _fails(*_: object) -> None:
    raise sqlite3.IntegrityError(SAID)


def save_tool(desk: Desk, files: FilesAdapter, **options: Any) -> Callable[[str, str], None]:
    @tool("save", lane="live", adapter=files, resource=("File", "name"), registry=desk.registry, **options)
    def save(name: str, text: str) -> None:
        """Save a file."""
        files.write(name, text)

    return save


@pytest.fixture
def files(desk: Desk) -> FilesAdapter:
    (desk.folder / "root").mkdir()
    return FilesAdapter(desk.folder / "root")


def left_live(desk: Desk, save: Callable[[str, str], None]) -> None:
    """A transaction that its adapter cannot undo, and after it one that is approved."""
    with pytest.raises(sqlite3.IntegrityError), transaction("t-1", runtime=desk.runtime):
        save("a", "new")
        raise ZeroDivisionError
    refund = refund_tool(desk)
    with pytest.raises(ReviewPending) as pending, transaction("t-2", runtime=desk.runtime):
        refund("o-2", 90_000)
    desk.service.approve(pending.value.txn)


def told(found: list[Resumed]) -> list[tuple[str, str, bool]]:
    return [(one.run_key, one.after, one.is_kept_up) for one in found]


def test_what_an_adapter_raises_in_recovery_keeps_up_its_transaction_alone(
    desk: Desk, files: FilesAdapter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FilesSession, "undo", _fails)
    monkeypatch.setattr(FilesAdapter, "recover", _fails)
    left_live(desk, save_tool(desk, files))
    found = resume(desk.runtime)
    assert told(found) == [("t-1", "staging", True), ("t-2", "settled", False)]
    assert found[0].note.startswith(f"IntegrityError: {SAID} (at {Path(__file__)}:")
    assert found[0].note in caplog.text
    journal = desk.runtime.journal.transactions
    assert journal.require(found[0].txn).note == found[0].note
    assert len(desk.done) == 1
    monkeypatch.undo()
    assert told(resume(desk.runtime)) == [("t-1", "ended", False)]


def test_what_it_says_of_a_transaction_with_secrets_is_told_nowhere(
    desk: Desk, files: FilesAdapter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FilesSession, "undo", _fails)
    monkeypatch.setattr(FilesAdapter, "recover", _fails)
    left_live(desk, save_tool(desk, files, secret=["text"]))
    found = resume(desk.runtime)
    assert told(found) == [("t-1", "staging", True), ("t-2", "settled", False)]
    assert found[0].note.startswith("IntegrityError (at ")
    assert SAID not in caplog.text


class Rounds:
    """What a worker finds at the journal, round by round; after the last it is told to stop."""

    def __init__(self, *rounds: Exception | None) -> None:
        self._left = list(rounds)

    async def __call__(self, engine: Engine) -> AsyncIterator[Resumed]:
        error = self._left.pop(0)
        if not self._left:
            os.kill(os.getpid(), signal.SIGTERM)
        if error is not None:
            raise error
        yield Resumed("txn", "t-1", "review", "review", "people are asked")  # type: ignore[arg-type]


def test_a_worker_outlasts_a_journal_that_is_away(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker, "resume_each", Rounds(None, JournalError("nobody answers"), None))
    heard: list[Resumed] = []
    with caplog.at_level(logging.WARNING):
        asyncio.run(worker.work(desk.runtime, heard.append, every_seconds=0.001))
    assert "nobody answers" in caplog.text
    assert len(heard) == 1, "what was told before the journal was away is no news after it"


@pytest.mark.parametrize("every_seconds", [None, 0.001], ids=["once", "again and again"])
def test_a_journal_that_was_never_there_ends_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, every_seconds: float | None
) -> None:
    monkeypatch.setattr(worker, "resume_each", Rounds(JournalError("no journal"), None))
    with pytest.raises(JournalError, match="no journal"):
        asyncio.run(worker.work(desk.runtime, list[Resumed]().append, every_seconds=every_seconds))
