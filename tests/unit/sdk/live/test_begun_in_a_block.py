"""A session that began inside a nested block, on an adapter without savepoints: nothing of it outlives the refusal."""

from typing import Any

import pytest

from countersign import LiveSession, MemoryAdapter, errors, tool, transaction
from countersign.adapters.protocol import Savepoint
from tests.fakes.desk import Desk, listed, notes_in


class Plain(MemoryAdapter):
    """Memory. `limit`: how many savepoints its sessions can set together; `sticks`: none of them can be undone."""

    commits_last, limit, sticks = False, 0, False

    def __init__(self) -> None:
        super().__init__(name="plain")
        self.sessions, self.undone, self.used = list[Any](), set[Any](), list[str]()

    def begin(self, txn: str) -> Any:
        session = super().begin(txn)
        undo = session.undo
        self.sessions.append(session)

        def savepoint() -> Savepoint:
            if self.used.count("set") == self.limit:
                return LiveSession.savepoint(session)
            self.used.append("set")
            return Savepoint(lambda: self.used.append("released"), lambda: self.used.append("rolled back"))

        def undone() -> None:
            if self.sticks:
                raise OSError("the device is busy")
            self.undone.add(session)
            undo()

        session.savepoint, session.undo = savepoint, undone  # type: ignore[method-assign]
        return session


@pytest.fixture
def plain() -> Plain:
    return Plain()


@pytest.fixture
def put(desk: Desk, plain: Plain) -> Any:
    @tool("put", lane="live", adapter=plain, registry=desk.registry)
    def add(text: str) -> None:
        """Add something."""
        plain[text] = 1

    return add


def test_every_call_in_the_block_is_refused_not_only_the_first(desk: Desk, plain: Plain, put: Any) -> None:
    with desk.step() as txn:
        with pytest.raises(ValueError, match="taken back"), transaction(runtime=desk.runtime):
            for text in ("x0", "x1"):
                with pytest.raises(errors.NotStageable, match="without savepoints"):
                    put(text)
            raise ValueError("the block is taken back")
        assert plain.undone == {*plain.sessions}
        put("outer")
    assert ([*plain.snapshot()], txn.state, len(plain.sessions)) == (["outer"], "settled", 3)
    assert listed(desk, "staging, state") == [(1, "undone"), (1, "undone"), (1, "kept")]


def test_the_others_are_still_taken_back(desk: Desk, notes: Any, note: Any, plain: Plain, put: Any) -> None:
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
    assert (plain.snapshot(), txn.state) == ({}, "settled")


def test_a_savepoint_that_an_outer_block_had_set_is_forgotten(desk: Desk, plain: Plain, put: Any) -> None:
    plain.limit = 1
    outer, inner = transaction(runtime=desk.runtime), transaction(runtime=desk.runtime)
    with desk.step() as txn, outer, inner, pytest.raises(errors.NotStageable):
        put("x")
    assert (plain.used, plain.snapshot(), txn.state) == (["set"], {}, "ended")


def test_one_that_sticks_takes_it_all(desk: Desk, notes: Any, note: Any, plain: Plain, put: Any) -> None:
    plain.sticks = True
    with pytest.raises((errors.SavepointLost, OSError)), desk.step():
        note("o-1", "before")
        with transaction(runtime=desk.runtime), pytest.raises(OSError, match="busy"):
            put("x")
    assert (plain.snapshot(), notes_in(notes)) == ({}, [])
