"""Whether an attempt has landed in SQLite: whoever has the write lock can tell, and nobody else while it is taken."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from countersign.adapters import LiveCall, SQLiteAdapter
from countersign.adapters.sqlite import SQLiteSession

CALL = LiveCall("exam", {}, "e-1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "notes.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE notes (t TEXT)")
    return file


@pytest.fixture
def adapter(path: Path) -> SQLiteAdapter:
    return another(path)


def another(path: Path) -> SQLiteAdapter:
    """As another process has it."""
    return SQLiteAdapter(path, busy_seconds=0.05)


@contextmanager
def session_of(adapter: SQLiteAdapter) -> Iterator[SQLiteSession]:
    begun = adapter.begin("t-1")
    yield begun
    begun.undo()


def commit(adapter: SQLiteAdapter, attempt_id: str) -> None:
    with session_of(adapter) as session:
        session.prepare(attempt_id)
        session.commit(attempt_id)


@pytest.mark.parametrize("prepared", [True, False])
def test_while_another_process_has_the_lock_a_mark_that_is_not_there_tells_nothing(
    adapter: SQLiteAdapter, path: Path, prepared: bool
) -> None:
    with session_of(adapter) as owner:
        if prepared:
            owner.prepare("a-1")
        assert another(path).landed("a-1") is None
    assert another(path).landed("a-1") is False


def test_a_mark_that_is_there_tells_all_the_same(adapter: SQLiteAdapter, path: Path) -> None:
    commit(adapter, "a-1")
    with session_of(adapter):
        assert another(path).landed("a-1") is True


def test_a_session_of_ours_keeps_others_out_so_a_rerun_is_told(adapter: SQLiteAdapter) -> None:
    commit(adapter, "a-1")
    with session_of(adapter) as rerun:
        assert (adapter.landed("a-1"), adapter.landed("a-2")) == (True, False)
        rerun.prepare("a-3")
        assert adapter.landed("a-2") is False


def test_what_a_session_of_ours_is_prepared_for_is_not_known_until_it_ends(adapter: SQLiteAdapter) -> None:
    with session_of(adapter) as session:
        session.prepare("a-1")
        assert adapter.landed("a-1") is None
        session.undo()
        assert adapter.landed("a-1") is False


def test_a_fork_has_nothing_of_the_session_that_it_copied(adapter: SQLiteAdapter) -> None:
    with session_of(adapter):
        child = os.fork()
        if child == 0:
            os._exit(0 if adapter.landed("a-1") is None else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_file_that_may_not_be_written_tells_of_a_mark_and_of_no_more(path: Path) -> None:
    commit(another(path), "a-1")
    reader = another(path)
    reader._uri = lambda mode: f"{path.resolve().as_uri()}?mode=ro"  # type: ignore[method-assign]
    assert (reader.landed("a-1"), reader.landed("a-2")) == (True, None)
