"""One transaction's error does not block the others, for any adapter error; an unavailable journal is retried."""

import asyncio
import logging
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from countersign import FilesAdapter, errors, resume, tool
from countersign.adapters.files_session import FilesSession
from countersign.recovery import worker
from countersign.recovery.recovery import RecoveryResult
from countersign.tools.rest import RestUnknown
from tests.fakes.desk import Desk, save_tool

UNDO_FAILED = (sqlite3.IntegrityError, errors.ToolRaised)
SAID = "row (4111 1111) violates a rule"


def _fails(*_: object) -> None:
    raise sqlite3.IntegrityError(SAID)


@pytest.fixture
def files(files: FilesAdapter, monkeypatch: pytest.MonkeyPatch) -> FilesAdapter:
    """Files that can neither be undone nor looked at."""
    monkeypatch.setattr(FilesSession, "undo", _fails)
    monkeypatch.setattr(FilesAdapter, "recover", _fails)
    return files


def left_live(desk: Desk, save: Any) -> list[RecoveryResult]:
    """What is found of a transaction that its adapter cannot undo, and after it one that is approved."""
    desk.run((save, "a", "new"), (divmod, 1, 0), raises=UNDO_FAILED)
    desk.approved("t-2")
    found = resume(desk.runtime)
    assert reported(found) == [("t-1", "staging", True), ("t-2", "settled", False)]
    return found


def reported(found: list[RecoveryResult]) -> list[tuple[str, str, bool]]:
    return [(one.run_key, one.after, one.needs_attention) for one in found]


def test_a_raising_adapter_stops_one(desk: Desk, files: FilesAdapter, monkeypatch: Any, caplog: Any) -> None:
    found = left_live(desk, save_tool(desk, files))
    assert found[0].note.startswith(f"IntegrityError: {SAID} (at {Path(__file__)}:")
    assert found[0].note in caplog.text
    journal = desk.runtime.journal.transactions
    assert (journal.require(found[0].txn).note, len(desk.done)) == (found[0].note, 1)
    monkeypatch.undo()
    assert reported(resume(desk.runtime)) == [("t-1", "ended", False)]


class Textless(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


QUOTED: dict[str, tuple[Exception, str]] = {
    "bytes that are no text": (
        RuntimeError("caf\udce9.txt\nand more"),
        r"RuntimeError: caf\udce9.txt and more (at ",
    ),
    "without a text": (Textless(), "Textless (at "),
    "long": (RuntimeError("x" * 100_000), f"RuntimeError: {'x' * 500} (at "),
    "a file": (
        PermissionError(13, "Permission denied", "/of/another"),
        "PermissionError: Permission denied (at ",
    ),
}


@pytest.mark.parametrize(("error", "said"), QUOTED.values(), ids=QUOTED)
def test_how_it_is_quoted(desk: Desk, files: FilesAdapter, monkeypatch: Any, error: Any, said: str) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(FilesAdapter, "recover", fails)
    found = left_live(desk, save_tool(desk, files))
    assert found[0].note.startswith(said)


def test_secrets_of_another_transaction_are_hidden_too(desk: Desk, files: FilesAdapter) -> None:
    """An adapter may finish another transaction's session than the one it is asked about."""
    save = save_tool(desk, files)

    @tool("hide", lane="live", adapter=files, secret=["text"], registry=desk.registry)
    def hide(name: str, text: str) -> None:
        """Save a secret."""
        files.write(name, text)

    for key, write in (("t-1", save), ("t-2", hide)):
        desk.run((write, "a", "new"), (divmod, 1, 0), key=key, raises=UNDO_FAILED)
    assert [SAID in one.note for one in resume(desk.runtime)] == [False, False]


KINDS = [errors.NotStageable, errors.NotDone, RestUnknown, errors.CountersignError, sqlite3.IntegrityError]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_hides_secrets(desk: Desk, files: Any, monkeypatch: Any, kind: Any, caplog: Any) -> None:
    def refuses(*_: object) -> None:
        raise kind("'4111' leads through a symbolic link")

    monkeypatch.setattr(FilesAdapter, "recover", refuses)
    found = left_live(desk, save_tool(desk, files, secret=["name"]))
    assert found[0].note.startswith(f"live adapter 'root' raised {kind.__name__} at {Path(__file__)}:")
    assert "4111" not in found[0].note + caplog.text


class Rounds:
    """The results of a worker's rounds; after the last it is stopped."""

    def __init__(self, *rounds: Exception | None) -> None:
        self._left = list(rounds)

    async def __call__(self, engine: Any) -> Any:
        error = self._left.pop(0)
        if not self._left:
            os.kill(os.getpid(), signal.SIGTERM)
        if error is not None:
            raise error
        yield RecoveryResult("txn", "t-1", "review", "review", "people are asked")  # type: ignore[arg-type]


def test_a_worker_outlasts_a_journal_that_is_away(desk: Desk, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(worker, "resume_each", Rounds(None, errors.JournalError("there is no answer"), None))
    heard: list[RecoveryResult] = []
    with caplog.at_level(logging.WARNING):
        asyncio.run(worker.run_worker(desk.runtime, heard.append, every_seconds=0.001))
    assert "there is no answer" in caplog.text
    assert len(heard) == 1, "what was reported before the journal was away is no news after it"


@pytest.mark.parametrize("every_seconds", [None, 0.001], ids=["once", "again and again"])
def test_a_journal_that_was_never_there_ends_it(desk: Desk, monkeypatch: Any, every_seconds: Any) -> None:
    monkeypatch.setattr(worker, "resume_each", Rounds(errors.JournalError("no journal"), None))
    with pytest.raises(errors.JournalError, match="no journal"):
        asyncio.run(worker.run_worker(desk.runtime, print, every_seconds=every_seconds))
