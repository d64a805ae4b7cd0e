"""Ctrl-C, or a signal that raises, while the live adapters commit: it parts them no more than `kill -9` would, and the
journal calls nothing undone that is in effect.
"""

import asyncio
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from countersign import FilesAdapter, MemoryAdapter, errors, resume, tool
from countersign.adapters.files_session import FilesSession
from countersign.adapters.redo_log import SessionFolder
from countersign.adapters.sqlite_connection import LiveConnection
from tests.fakes.desk import Desk, charge_tools, live_states, notes_in, record_of, save_tool

STAGED = pytest.mark.parametrize("staged", [False, True])


@pytest.fixture
def run(desk: Desk, note: Any, files: FilesAdapter) -> Any:
    """Run a step on a database and on files, and perhaps with a charge; whether it had been done before."""
    charge, save = charge_tools(desk), save_tool(desk, files)

    def run_step(staged: bool) -> bool:
        return desk.run((note, "o-1", "hello"), (save, "a"), *[(charge, "o-1", 100)] * staged).replayed

    return run_step


def saved(root: Path) -> list[str]:
    return sorted(one.name for one in root.iterdir() if not one.name.startswith("."))


@contextmanager
def interrupted(place: Any, name: str, when: str, error: BaseException) -> Any:
    """Once, as it is called or has answered; of the statements of a connection at its COMMIT alone."""
    real, left = getattr(place, name), [1]

    def act(self: Any, *args: Any, **options: Any) -> Any:
        if not left[0] or (name == "run_internal" and args[0] != "COMMIT"):
            return real(self, *args, **options)
        left[0] = 0
        if when == "after":
            real(self, *args, **options)
        raise error

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(place, name, act)
        yield left


PLACES = {
    "before the first COMMIT": (LiveConnection, "run_internal", "before"),
    "as the first COMMIT returns": (LiveConnection, "run_internal", "after"),
    "before the files are put in place": (FilesSession, "commit", "before"),
    "while the files are put in place": (SessionFolder, "_apply", "after"),
    "as the files are in place": (FilesSession, "commit", "after"),
    "while it is tidied up": (FilesSession, "close", "before"),
}


@STAGED
@pytest.mark.parametrize("where", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("then", ["resume", "rerun"])
def test_an_interrupt_among_the_commits_does_not_part_them(
    desk: Desk, run: Any, notes: Path, root: Path, staged: bool, where: tuple[Any, str, str], then: str
) -> None:
    with interrupted(*where, KeyboardInterrupt()) as left, pytest.raises(KeyboardInterrupt):
        run(staged)
    assert left == [0], "it was interrupted there"
    assert (notes_in(notes), saved(root)) == ([("o-1", "hello")], ["a"])
    assert "undone" not in live_states(desk)
    if then == "rerun":
        assert run(staged)
    assert {found.after.value for found in resume(desk.runtime) if found.after} <= {"settled"}
    assert (record_of(desk).state.value, live_states(desk)) == ("settled", ["kept", "kept"])
    assert (notes_in(notes), saved(root), len(desk.done)) == ([("o-1", "hello")], ["a"], int(staged))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_kept_effects_are_recorded_before_the_interrupt(desk: Desk, run: Any, error: Any) -> None:
    with interrupted(LiveConnection, "run_internal", "after", error()), pytest.raises(error):
        run(False)
    (record,) = desk.runtime.journal.transactions.find("t-1")
    assert (record.state.value, record.landed, live_states(desk)) == ("settled", True, ["kept", "kept"])


@STAGED
def test_a_second_one_leaves_the_rest(desk: Desk, run: Any, notes: Path, root: Path, staged: bool) -> None:
    """What is prepared stays so until its process has ended, and is not taken for undone."""
    first = interrupted(LiveConnection, "run_internal", "after", KeyboardInterrupt())
    second = interrupted(FilesSession, "commit", "before", KeyboardInterrupt())
    with first, second, pytest.raises(KeyboardInterrupt):
        run(staged)
    assert (notes_in(notes), saved(root), live_states(desk)) == ([("o-1", "hello")], [], ["live", "live"])
    (folder,) = (root / ".countersign" / "sessions").iterdir()
    assert (folder / "record").is_file() or any(folder.iterdir())


def test_a_commit_that_fails_after_an_interrupt_does_not_hide_it(desk: Desk, run: Any, notes: Path) -> None:
    full = interrupted(FilesSession, "commit", "before", OSError(28, "No space left on device"))
    strikes = interrupted(LiveConnection, "run_internal", "after", KeyboardInterrupt())
    with strikes, full, pytest.raises(KeyboardInterrupt):
        run(False)
    assert (notes_in(notes), live_states(desk)) == ([("o-1", "hello")], ["live", "live"])
    (found,) = resume(desk.runtime)
    assert (found.after, live_states(desk)) == ("unsettled", ["live", "live"])
    assert "in notes were kept, and those in" in found.note


class Waiting(MemoryAdapter):
    """While `open` it hides what landed, as a database does that waits for it; its first COMMIT is interrupted."""

    commits_last = False

    def __init__(self, lands_at: int, *, stays_open: bool) -> None:
        super().__init__(name="waiting")
        self.lands_at, self.stays_open, self.commits, self.open = lands_at, stays_open, 0, True

    def begin(self, txn: str) -> Any:
        session = super().begin(txn)
        session.commit, session.undo = self._commit, self._end  # type: ignore[method-assign]
        return session

    def _commit(self, attempt_id: str) -> None:
        self.commits += 1
        if attempt_id in self.marks:
            raise ValueError("there is no transaction to commit")
        self.open = self.commits == 1 and self.stays_open
        if self.lands_at == self.commits:
            self.marks.add(attempt_id)
        if self.commits == 1:
            raise KeyboardInterrupt

    def _end(self) -> None:
        self.open = False

    def landed(self, attempt_id: str) -> bool | None:
        return None if self.open else super().landed(attempt_id)


LANDS = {
    "at once": (1, False, 1, "kept"),
    "at once, without a look": (1, True, 2, "live"),
    "when it is reported again": (2, False, 2, "kept"),
    "when it is reported again, without a look before": (2, True, 2, "kept"),
    "never: its interrupt was a ROLLBACK, and it answers as if it had committed": (0, True, 2, "undone"),
}


@pytest.mark.parametrize(("lands_at", "stays_open", "commits", "state"), LANDS.values(), ids=LANDS)
def test_only_landed_effects_are_kept(
    desk: Desk, root: Path, files: FilesAdapter, lands_at: int, stays_open: bool, commits: int, state: str
) -> None:
    adapter, save = Waiting(lands_at, stays_open=stays_open), save_tool(desk, files)

    @tool("wait", lane="live", adapter=adapter, registry=desk.registry)
    def wait() -> None:
        """Do something there."""

    desk.run((wait,), (save, "a"), raises=KeyboardInterrupt)
    assert (adapter.commits, saved(root)) == (commits, ["a"] if state == "kept" else [])
    assert live_states(desk) == [state] * 2
    adapter.open = False
    resume(desk.runtime)
    assert live_states(desk) == ["kept" if lands_at else "undone"] * 2
    assert saved(root) == (["a"] if lands_at else [])


@STAGED
@pytest.mark.parametrize("then", ["resume", "rerun"])
def test_a_journal_that_is_away_calls_nothing_undone(desk: Desk, run: Any, staged: bool, then: str) -> None:
    """For the one write that says it was kept."""
    away = errors.JournalError("locked for a moment")
    strikes = interrupted(type(desk.runtime.journal.transactions), "end_live", "before", away)
    with strikes, pytest.raises(errors.JournalError, match="locked for a moment"):
        run(staged)
    assert live_states(desk) == ["live", "live"]
    if then == "rerun":
        assert run(staged)
    assert [found.after for found in resume(desk.runtime)] == ["settled"] * (then == "resume")
    assert (live_states(desk), len(desk.done)) == (["kept", "kept"], int(staged))
