"""Ctrl-C, or a signal that raises, while the live adapters commit: it parts them no more than `kill -9` would, and the
journal calls nothing undone that stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from countersign import (
    FilesAdapter,
    JournalError,
    LiveAdapter,
    LiveSession,
    MemoryAdapter,
    SQLiteAdapter,
    resume,
    tool,
)
from countersign.adapters.overlay import FilesSession
from countersign.adapters.redo import Work
from countersign.adapters.sqlite_connection import LiveConnection
from tests.fakes.desk import Desk, charge_tools, live_states, note_tool, notes_database, notes_in

INTERRUPTS = [KeyboardInterrupt, SystemExit, asyncio.CancelledError]
STAGED = [False, True]
Body = Callable[[], None]


@pytest.fixture
def notes(desk: Desk) -> Path:
    return notes_database(desk.folder)


@pytest.fixture
def root(desk: Desk) -> Path:
    (desk.folder / "root").mkdir()
    return desk.folder / "root"


def save_tool(desk: Desk, root: Path) -> Callable[[str], None]:
    files = FilesAdapter(root)

    @tool("save", lane="live", adapter=files, registry=desk.registry)
    def save(path: str) -> None:
        """Write a file."""
        files.write(path, "new")

    return save


@pytest.fixture
def step(desk: Desk, notes: Path, root: Path) -> Callable[[bool], Body]:
    """A step on a database and on files, and perhaps with a charge."""
    note, charge = note_tool(desk, SQLiteAdapter(notes, busy_seconds=0.2)), charge_tools(desk)
    save = save_tool(desk, root)

    def begin(staged: bool) -> Body:
        def body() -> None:
            note("o-1", "hello")
            save("a")
            if staged:
                charge("o-1", 100)

        return body

    return begin


def run(desk: Desk, body: Body) -> bool:
    """Under the one key; whether it was answered from what stood already."""
    with desk.step() as txn:
        body()
    return txn.replayed


def saved(root: Path) -> list[str]:
    return sorted(one.name for one in root.iterdir() if not one.name.startswith("."))


@contextmanager
def interrupted(
    place: Any, name: str, when: str, error: BaseException, times: int = 1
) -> Iterator[list[int]]:
    """`when` it is called, or has answered; as often as that, and from the COMMIT alone of a connection."""
    real, left = getattr(place, name), [times]

    def act(self: Any, *args: Any, **options: Any) -> Any:
        strikes = left[0] > 0 and (name != "say" or args[0] == "COMMIT")
        left[0] -= int(strikes)
        if strikes and when == "before":
            raise error
        answer = real(self, *args, **options)
        if strikes:
            raise error
        return answer

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(place, name, act)
        yield left


PLACES = {
    "before the first COMMIT": (LiveConnection, "say", "before"),
    "as the first COMMIT returns": (LiveConnection, "say", "after"),
    "before the files are put in place": (FilesSession, "commit", "before"),
    "while the files are put in place": (Work, "_apply", "after"),
    "as the files stand": (FilesSession, "commit", "after"),
    "while it is tidied up": (FilesSession, "close", "before"),
}


@pytest.mark.parametrize("staged", STAGED)
@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("then", ["resume", "rerun"])
def test_an_interrupt_among_the_commits_does_not_part_them(
    desk: Desk, step: Callable[[bool], Body], notes: Path, root: Path, *, staged: bool, where: str, then: str
) -> None:
    body = step(staged)
    with interrupted(*PLACES[where], KeyboardInterrupt()) as left, pytest.raises(KeyboardInterrupt):
        run(desk, body)
    assert left == [0], "it was interrupted there"
    assert (notes_in(notes), saved(root)) == ([("o-1", "hello")], ["a"])
    assert "undone" not in live_states(desk)
    if then == "rerun":
        assert run(desk, body)
    assert {found.after.value for found in resume(desk.runtime) if found.after} <= {"settled"}
    (record,) = desk.runtime.journal.transactions.find("t-1")
    assert (record.state.value, live_states(desk)) == ("settled", ["kept", "kept"])
    assert (notes_in(notes), saved(root)) == ([("o-1", "hello")], ["a"])
    assert len(desk.done) == int(staged)


@pytest.mark.parametrize("error", INTERRUPTS)
def test_what_stands_is_noted_before_the_interrupt_goes_on(
    desk: Desk, step: Callable[[bool], Body], error: type[BaseException]
) -> None:
    with interrupted(LiveConnection, "say", "after", error()), pytest.raises(error):
        run(desk, step(False))
    (record,) = desk.runtime.journal.transactions.find("t-1")
    assert (record.state.value, record.landed, live_states(desk)) == ("settled", True, ["kept", "kept"])


@pytest.mark.parametrize("staged", STAGED)
def test_a_second_interrupt_leaves_the_rest_to_recovery(
    desk: Desk, step: Callable[[bool], Body], notes: Path, root: Path, *, staged: bool
) -> None:
    """What is prepared stays so until its process has ended, and is not taken for undone."""
    first = interrupted(LiveConnection, "say", "after", KeyboardInterrupt())
    second = interrupted(FilesSession, "commit", "before", KeyboardInterrupt())
    with first, second, pytest.raises(KeyboardInterrupt):
        run(desk, step(staged))
    assert (notes_in(notes), saved(root), live_states(desk)) == ([("o-1", "hello")], [], ["live", "live"])
    (folder,) = (root / ".countersign" / "sessions").iterdir()
    assert (folder / "record").is_file() or any(folder.iterdir())


def test_a_commit_that_fails_after_an_interrupt_does_not_swallow_it(
    desk: Desk, step: Callable[[bool], Body], notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with interrupted(LiveConnection, "say", "after", KeyboardInterrupt()), monkeypatch.context() as broken:
        broken.setattr(FilesSession, "commit", full)
        with pytest.raises(KeyboardInterrupt):
            run(desk, step(False))
    assert (notes_in(notes), live_states(desk)) == ([("o-1", "hello")], ["live", "live"])
    (found,) = resume(desk.runtime)
    assert (found.after, live_states(desk)) == ("unsettled", ["live", "live"])
    assert "in notes stand, and those in" in found.note


@pytest.mark.parametrize("staged", STAGED)
def test_where_nothing_landed_and_it_cannot_be_committed_any_more_it_is_undone(
    desk: Desk, notes: Path, *, staged: bool
) -> None:
    """The interrupt has ended its transaction."""
    note, charge = note_tool(desk, SQLiteAdapter(notes)), charge_tools(desk)
    say = LiveConnection.say

    def rolled_back(self: LiveConnection, statement: str, params: tuple[str, ...] = ()) -> None:
        if statement != "COMMIT":
            return say(self, statement, params)
        say(self, "ROLLBACK")
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(LiveConnection, "say", rolled_back)
        with desk.step():
            note("o-1", "hello")
            if staged:
                charge("o-1", 100)
    (found,) = resume(desk.runtime)
    assert (found.after, live_states(desk)) == ("settled" if staged else "ended", ["undone"])
    assert [what for what, *_ in desk.done] == (["charge", "void"] if staged else [])
    assert notes_in(notes) == []


class Silent(SQLiteAdapter):
    """It cannot tell what landed as long as its server is away."""

    away = True

    def landed(self, attempt_id: str) -> bool | None:
        """For the time being."""
        return None if self.away else super().landed(attempt_id)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("staged", STAGED)
def test_where_nobody_can_tell_the_rows_stay_live_for_recovery(
    desk: Desk, notes: Path, *, when: str, staged: bool
) -> None:
    adapter = Silent(notes)
    note, charge = note_tool(desk, adapter), charge_tools(desk)
    strikes = interrupted(LiveConnection, "say", when, KeyboardInterrupt())
    with strikes, pytest.raises(KeyboardInterrupt), desk.step():
        note("o-1", "hello")
        if staged:
            charge("o-1", 100)
    assert live_states(desk) == ["live"]
    (found,) = resume(desk.runtime)
    assert (found.after, live_states(desk)) == ("unsettled", ["live"])
    adapter.away = False
    resume(desk.runtime)
    assert (live_states(desk), notes_in(notes)) == (["kept"], [("o-1", "hello")])


class Uncertain(LiveSession):
    """Its open transaction hides what landed, as a database does that waits for it; its first COMMIT is interrupted."""

    def __init__(self, adapter: Waiting) -> None:
        self._adapter, self._open = adapter, True
        adapter.session = self

    @contextmanager
    def effect(self, call: object) -> Iterator[None]:
        """Nothing to take back."""
        yield

    def prepare(self, attempt_id: str) -> None:
        """Nothing can fail."""

    def commit(self, attempt_id: str) -> None:
        """As told; a second one of what landed at the first is an error."""
        first, self._adapter.commits = self._adapter.commits == 0, self._adapter.commits + 1
        if attempt_id in self._adapter.marks:
            raise ValueError("there is no transaction to commit")
        self._open = first and self._adapter.stays_open
        if self._adapter.lands_at == self._adapter.commits:
            self._adapter.marks.add(attempt_id)
        if first:
            raise KeyboardInterrupt

    def undo(self) -> None:
        """End it."""
        self._open = False

    @property
    def is_open(self) -> bool:
        """Whether nobody can look."""
        return self._open


class Waiting(LiveAdapter):
    """A resource with such sessions."""

    name = "waiting"

    def __init__(self, lands_at: int, *, stays_open: bool) -> None:
        self.lands_at, self.stays_open, self.commits = lands_at, stays_open, 0
        self.marks: set[str] = set()
        self.session: Uncertain | None = None

    def begin(self, txn: str) -> Uncertain:
        """Open one."""
        return Uncertain(self)

    def landed(self, attempt_id: str) -> bool | None:
        """Not while it is open."""
        if self.session is not None and self.session.is_open:
            return None
        return attempt_id in self.marks


@pytest.mark.parametrize(
    ("lands_at", "stays_open", "commits", "stands"),
    [(1, False, 1, True), (1, True, 2, False), (2, False, 2, True), (2, True, 2, True), (0, True, 2, False)],
    ids=[
        "it landed at once",
        "it landed at once and nobody can look",
        "it landed when it was told again",
        "it landed when it was told again, and nobody could look before",
        "its interrupt was a ROLLBACK, and it answers as if it had committed",
    ],
)
def test_only_what_its_adapter_says_has_landed_stands(
    desk: Desk, root: Path, *, lands_at: int, stays_open: bool, commits: int, stands: bool
) -> None:
    adapter, save = Waiting(lands_at, stays_open=stays_open), save_tool(desk, root)

    @tool("wait", lane="live", adapter=adapter, registry=desk.registry)
    def wait() -> None:
        """Do something there."""

    with pytest.raises(KeyboardInterrupt), desk.step():
        wait()
        save("a")
    hidden = lands_at == 1 and stays_open  # by its own session, for as long as that is open
    assert (adapter.commits, saved(root)) == (commits, ["a"] if stands else [])
    assert live_states(desk) == [{True: "kept", False: "live" if hidden else "undone"}[stands]] * 2
    assert adapter.session is not None
    adapter.session.undo()
    resume(desk.runtime)
    assert live_states(desk) == ["kept" if lands_at else "undone"] * 2
    assert saved(root) == (["a"] if lands_at else [])


def test_memory_that_stands_is_kept_by_its_process(desk: Desk, notes: Path) -> None:
    memory = MemoryAdapter()
    note = note_tool(desk, SQLiteAdapter(notes))

    @tool("keep", lane="live", adapter=memory, registry=desk.registry)
    def keep(text: str) -> None:
        """Remember it."""
        memory["x"] = text

    strikes = interrupted(LiveConnection, "say", "after", KeyboardInterrupt())
    with strikes, pytest.raises(KeyboardInterrupt), desk.step():
        keep("hello")
        note("o-1", "hello")
    assert (memory.snapshot(), notes_in(notes)) == ({"x": "hello"}, [("o-1", "hello")])
    assert live_states(desk) == ["kept", "kept"]


@pytest.mark.parametrize("staged", STAGED)
@pytest.mark.parametrize("then", ["resume", "rerun"])
def test_a_journal_that_is_away_as_the_work_was_committed_calls_it_undone_at_no_time(
    desk: Desk, step: Callable[[bool], Body], monkeypatch: pytest.MonkeyPatch, *, staged: bool, then: str
) -> None:
    """For the one write that says it was kept."""
    journal, body = desk.runtime.journal.transactions, step(staged)
    end_live, away = journal.end_live, [1]

    def lost(*args: Any, **options: Any) -> None:
        if away:
            away.pop()
            raise JournalError("locked for a moment")
        end_live(*args, **options)

    with monkeypatch.context() as broken:
        broken.setattr(journal, "end_live", lost)
        with pytest.raises(JournalError, match="locked for a moment"):
            run(desk, body)
    assert live_states(desk) == ["live", "live"]
    if then == "rerun":
        assert run(desk, body)
    assert [found.after for found in resume(desk.runtime)] == ["settled"] * (then == "resume")
    assert live_states(desk) == ["kept", "kept"]
    assert len(desk.done) == int(staged)
