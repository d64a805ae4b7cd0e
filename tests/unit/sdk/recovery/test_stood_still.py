"""An owner whom nobody can see (in another container, on another host) stood still until its lease ran out: recovery
guesses nothing while it may still commit, and it commits nothing once it has lost its lease.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from countersign import FilesAdapter, JournalError, LeaseLost, LiveAdapter, SQLiteAdapter, resume, tool
from countersign.adapters.overlay import FilesSession
from countersign.adapters.sqlite import SQLiteSession
from countersign.journal import Lease, leases
from tests.fakes.desk import Desk, charge_tools, live_states, notes_database, notes_in

Put = Callable[[str], None]
BUSY = "it cannot be told whether its live effects were kept"


@pytest.fixture(autouse=True)
def _unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "fate_of", lambda holder: "unknown")
    monkeypatch.setattr(leases, "is_of_this_process", lambda holder: False)


def on_sqlite(folder: Path) -> tuple[LiveAdapter, Put, Callable[[], list[str]]]:
    path = notes_database(folder)
    adapter = SQLiteAdapter(path, busy_seconds=0.1)

    def put(key: str) -> None:
        adapter.connection.execute("INSERT INTO notes VALUES (?, 'x')", (key,))

    return adapter, put, lambda: [key for key, _ in notes_in(path)]


def on_files(folder: Path) -> tuple[LiveAdapter, Put, Callable[[], list[str]]]:
    root = folder / "root"
    root.mkdir()
    adapter = FilesAdapter(root)

    def put(key: str) -> None:
        adapter.write(key, "x")

    return adapter, put, lambda: [one.name for one in root.iterdir() if one.is_file()]


Kind = tuple[Callable[[Path], tuple[LiveAdapter, Put, Callable[[], list[str]]]], type[Any]]
KINDS: dict[str, Kind] = {"sqlite": (on_sqlite, SQLiteSession), "files": (on_files, FilesSession)}


class Still:
    """Who stands still, once, before a step of its session; what a worker finds meanwhile."""

    def __init__(self, desk: Desk, monkeypatch: pytest.MonkeyPatch, session: type[Any], step: str) -> None:
        self.found: list[tuple[str, str]] = []
        real = getattr(session, step)

        def paused(this: Any, attempt_id: str) -> None:
            if not self.found:
                desk.clock.advance(10_000)
                with desk.another_process() as runtime:
                    self.found += [
                        (one.after.value if one.after else "", one.note) for one in resume(runtime)
                    ]
            real(this, attempt_id)

        monkeypatch.setattr(session, step, paused)


def put_tool(desk: Desk, kind: str) -> tuple[Put, Callable[[], list[str]]]:
    adapter, write, standing = KINDS[kind][0](desk.folder)

    @tool("put", lane="live", adapter=adapter, registry=desk.registry)
    def put(key: str) -> None:
        """Write."""
        write(key)

    return put, standing


def settle(desk: Desk) -> list[str]:
    desk.clock.advance(10_000)
    return [one.after.value for one in resume(desk.runtime) if one.after]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("staged", [True, False])
def test_nothing_is_taken_back(desk: Desk, monkeypatch: pytest.MonkeyPatch, kind: str, staged: bool) -> None:
    """It had its lease when it looked last, and stands still at its commit."""
    put, standing = put_tool(desk, kind)
    charge = charge_tools(desk)
    still = Still(desk, monkeypatch, KINDS[kind][1], "commit")
    with pytest.raises(LeaseLost), desk.step():
        put("a")
        if staged:
            charge("o-1", 100)
    assert [what for what, *_ in desk.done] == (["charge"] if staged else [])
    ((_, note),) = still.found
    assert BUSY in note if kind == "sqlite" else "a living process" in note
    assert standing() == ["a"]
    assert settle(desk) == ["settled"]
    assert (live_states(desk), [what for what, *_ in desk.done]) == (["kept"], ["charge"] if staged else [])


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_undone_is_not_committed(desk: Desk, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """It stands still before it has prepared anything: nobody can see that it is about to."""
    put, standing = put_tool(desk, kind)
    still = Still(desk, monkeypatch, KINDS[kind][1], "prepare")
    desk.run((put, "a"), raises=LeaseLost)
    assert [after for after, _ in still.found] == ["ended"]
    assert (standing(), live_states(desk), settle(desk)) == ([], ["undone"], [])


@pytest.mark.parametrize("staged", [True, False])
def test_a_lost_lease_keeps_live_work_from_being_committed(desk: Desk, staged: bool) -> None:
    put, standing = put_tool(desk, "sqlite")
    charge, journal = charge_tools(desk), desk.runtime.journal
    renew, lost = journal.leases.renew, list[int]()

    def too_late(lease: Lease) -> None:
        lost.append(1)
        with journal.database.unit(durable=False) as unit:
            unit.execute("UPDATE transactions SET generation = generation + 1")
        renew(lease)

    journal.leases.renew = too_late  # type: ignore[method-assign,assignment]
    with pytest.raises(LeaseLost), desk.step():
        put("a")
        if staged:
            charge("o-1", 100)
    assert (standing(), len(lost)) == ([], 1)


def test_a_journal_that_is_away_keeps_nothing_from_being_committed_beside_what_fired(desk: Desk) -> None:
    """What fired is whole with it, and the mark of the database tells whoever comes next."""
    put, standing = put_tool(desk, "sqlite")
    charge, journal = charge_tools(desk), desk.runtime.journal

    def away(*_: Any, **__: Any) -> None:
        raise JournalError("the disk is full")

    journal.leases.renew = away  # type: ignore[method-assign]
    desk.run((put, "a"), (charge, "o-1", 100))
    assert (standing(), live_states(desk)) == (["a"], ["kept"])
