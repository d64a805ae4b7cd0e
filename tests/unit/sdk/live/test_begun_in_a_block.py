"""A session that began inside a nested block, on an adapter without savepoints: nothing of it outlives the refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from countersign import LiveAdapter, LiveSession, errors, tool, transaction
from countersign.adapters.protocol import Savepoint
from tests.fakes.desk import Desk, notes_in

Put = Callable[[str], None]
Note = Callable[[str, str], int]


class Plain(LiveAdapter):
    """A list. `room`: how many savepoints its sessions can set together; `sticks`: none of them can be undone."""

    name = "plain"

    def __init__(self) -> None:
        self.world: list[str] = []
        self.marks: set[str] = set()
        self.sessions: list[PlainSession] = []
        self.used: list[str] = []
        self.sticks, self.room = False, 0

    def begin(self, txn: str) -> PlainSession:
        """Open one."""
        self.sessions.append(PlainSession(self))
        return self.sessions[-1]

    def landed(self, attempt_id: str) -> bool:
        """Whether it is marked."""
        return attempt_id in self.marks


class PlainSession(LiveSession):
    """What one transaction adds to the list."""

    def __init__(self, adapter: Plain) -> None:
        self._adapter, self.new, self.undone = adapter, list[str](), False

    @contextmanager
    def effect(self, call: object) -> Iterator[None]:
        """One effect; none of these raises after it has written."""
        yield

    def savepoint(self) -> Savepoint:
        """As long as there is room."""
        used = self._adapter.used
        if self.undone or used.count("set") == self._adapter.room:
            return super().savepoint()
        used.append("set")
        return Savepoint(lambda: used.append("released"), lambda: used.append("rolled back"))

    def prepare(self, attempt_id: str) -> None:
        """Nothing can fail."""

    def commit(self, attempt_id: str) -> None:
        """Add it, and the mark."""
        self._adapter.world += self.new
        self._adapter.marks.add(attempt_id)

    def undo(self) -> None:
        """Forget it."""
        if self._adapter.sticks:
            raise OSError("the device is busy")
        self.new, self.undone = [], True


@pytest.fixture
def plain() -> Plain:
    return Plain()


@pytest.fixture
def put(desk: Desk, plain: Plain) -> Put:
    @tool("put", lane="live", adapter=plain, registry=desk.registry)
    def add(text: str) -> None:
        """Add something."""
        plain.sessions[-1].new.append(text)

    return add


def test_every_call_in_the_block_is_refused_not_only_the_first(desk: Desk, plain: Plain, put: Put) -> None:
    with desk.step() as txn:
        with pytest.raises(ValueError, match="taken back"), transaction(runtime=desk.runtime):
            for text in ("x0", "x1"):
                with pytest.raises(errors.NotStageable, match="without savepoints"):
                    put(text)
            raise ValueError("the block is taken back")
        assert all(one.undone for one in plain.sessions)
        put("outer")
    assert (plain.world, txn.state, len(plain.sessions)) == (["outer"], "settled", 3)
    asked = "SELECT staging, state FROM effects WHERE txn = ? ORDER BY staging, lane, seq"
    rows = [tuple(row) for row in desk.runtime.journal.database.rows(asked, (txn.txn,))]
    assert rows == [(1, "undone"), (1, "undone"), (1, "kept")]


def test_the_others_are_still_taken_back(desk: Desk, notes: Path, note: Note, plain: Plain, put: Put) -> None:
    """Also an outer block, which had set one in a session that an inner could not."""
    with desk.step() as txn:
        note("o-0", "before")
        with pytest.raises(ValueError, match="taken back"), transaction(runtime=desk.runtime):
            note("o-0", "inside")
            with pytest.raises(errors.NotStageable):
                put("x")
            raise ValueError("the block is taken back")
        note("o-1", "after")
    assert notes_in(notes) == [("o-0", "before"), ("o-1", "after")]
    assert (plain.world, txn.state) == ([], "settled")


def test_a_savepoint_that_an_outer_block_had_set_is_forgotten(desk: Desk, plain: Plain, put: Put) -> None:
    plain.room = 1
    outer, inner = transaction(runtime=desk.runtime), transaction(runtime=desk.runtime)
    with desk.step() as txn, outer, inner, pytest.raises(errors.NotStageable):
        put("x")
    assert (plain.used, plain.world, txn.state) == (["set"], [], "ended")


def test_one_that_sticks_takes_it_all(desk: Desk, notes: Path, note: Note, plain: Plain, put: Put) -> None:
    plain.sticks = True
    with pytest.raises((errors.SavepointLost, OSError)), desk.step():
        note("o-1", "before")
        with transaction(runtime=desk.runtime), pytest.raises(OSError, match="busy"):
            put("x")
    assert (plain.world, notes_in(notes)) == ([], [])
