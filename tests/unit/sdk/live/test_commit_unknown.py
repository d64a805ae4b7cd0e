"""A live commit that nobody answered: it is told as not known, nothing of it is taken back, and whoever comes next asks
the adapter again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from countersign import AlreadyRedeemed, FilesAdapter, OutcomeUnknown, SQLiteAdapter, resume, tool
from countersign.errors import CommitUnknown
from tests.fakes.desk import Desk, charge_tools, live_states, note_tool, notes_database, notes_in

Note = Callable[[str, str], int]
NOT_KNOWN = "it cannot be told whether its live effects were kept"


class Silent(SQLiteAdapter):
    """Its COMMIT arrives or is lost; nobody hears which, before it can be asked again."""

    arrives, away = True, False

    def begin(self, txn: str) -> Any:
        session = super().begin(txn)
        commit = session.commit

        def unanswered(attempt_id: str) -> None:
            if self.arrives:
                commit(attempt_id)
            else:
                session.undo()
            self.away = True
            raise CommitUnknown(self.name, "the line broke")

        if not self.away:
            session.commit = unanswered  # type: ignore[method-assign]
        return session

    def landed(self, attempt_id: str) -> bool | None:
        return None if self.away else super().landed(attempt_id)


@pytest.fixture
def silent(desk: Desk) -> Silent:
    return Silent(notes_database(desk.folder), busy_seconds=0.2)


@pytest.fixture
def note(desk: Desk, silent: Silent) -> Note:
    return note_tool(desk, silent)


def rows(desk: Desk) -> list[tuple[str, str]]:
    return notes_in(desk.folder / "notes.db")


@pytest.mark.parametrize("arrives", [True, False])
def test_live_work_alone_is_unsettled_until_its_adapter_can_be_asked(
    desk: Desk, silent: Silent, note: Note, arrives: bool
) -> None:
    silent.arrives = arrives
    with (
        pytest.raises(OutcomeUnknown, match=r"all of its live work was kept \(.*the line broke") as unknown,
        desk.step() as txn,
    ):
        note("o-1", "hello")
    assert "Nothing of this transaction stands" not in str(unknown.value)
    assert "service's queue" not in str(unknown.value)
    assert (txn.state, live_states(desk)) == ("unsettled", ["live"])
    (found,) = resume(desk.runtime)
    assert (found.after, live_states(desk)) == ("unsettled", ["live"])
    assert NOT_KNOWN in found.note
    assert "`countersign resume" in str(unknown.value) and "`countersign resume" not in found.note
    assert "where it never can, whoever has looked says so" in found.note
    silent.away = False
    (found,) = resume(desk.runtime)
    ends = ("settled", ["kept"], [("o-1", "hello")]) if arrives else ("ended", ["undone"], [])
    assert (found.after, live_states(desk), rows(desk)) == ends
    assert resume(desk.runtime) == []


@pytest.mark.parametrize("arrives", [True, False])
def test_a_rerun_asks_again_as_well_and_does_nothing_twice(
    desk: Desk, silent: Silent, note: Note, arrives: bool
) -> None:
    silent.arrives = arrives
    for told in (pytest.raises(OutcomeUnknown), pytest.raises(AlreadyRedeemed, match=NOT_KNOWN)):
        with told, desk.step():
            note("o-1", "hello")
    assert live_states(desk) == ["live"]
    silent.away = False
    silent.begin = super(Silent, silent).begin  # type: ignore[method-assign]
    with desk.step() as txn:
        note("o-1", "hello")
    assert (txn.replayed, live_states(desk), rows(desk)) == (arrives, ["kept"], [("o-1", "hello")])


@pytest.mark.parametrize("arrives", [True, False])
def test_beside_it_nothing_that_fired_is_taken_back_before_it_is_known(
    desk: Desk, silent: Silent, note: Note, arrives: bool
) -> None:
    charge, silent.arrives = charge_tools(desk), arrives
    with pytest.raises(OutcomeUnknown) as unknown, desk.step() as txn:
        note("o-1", "hello")
        charge("o-1", 100)
    assert unknown.value.outcomes == {"charge#1": "fired"}
    assert (txn.state, live_states(desk)) == ("unsettled", ["live"])
    (found,) = resume(desk.runtime)
    assert (found.after, live_states(desk)) == ("unsettled", ["live"])
    assert [what for what, *_ in desk.done] == ["charge"]
    silent.away = False
    (found,) = resume(desk.runtime)
    assert (found.after, live_states(desk)) == ("settled", ["kept"] if arrives else ["undone"])
    assert [what for what, *_ in desk.done] == (["charge"] if arrives else ["charge", "void"])
    assert rows(desk) == ([("o-1", "hello")] if arrives else [])


@pytest.mark.parametrize("away", [True, False])
def test_a_rerun_beside_it_leaves_what_is_not_known_and_keeps_what_is(
    desk: Desk, silent: Silent, note: Note, away: bool
) -> None:
    charge = charge_tools(desk)
    for first in (True, False):
        with pytest.raises(OutcomeUnknown) if first or away else nullcontext(), desk.step():
            note("o-1", "hello")
            charge("o-1", 100)
        silent.away = away
    if away:
        assert live_states(desk) == ["live"]
        silent.away = False
        assert [found.after for found in resume(desk.runtime)] == ["settled"]
    assert (live_states(desk), rows(desk)) == (["kept"], [("o-1", "hello")])
    assert desk.done == [("charge", "o-1", 100)]


@pytest.mark.parametrize("arrives", [True, False])
def test_what_would_have_been_committed_after_it_is_finished_with_it_where_it_outlives_its_session(
    desk: Desk, silent: Silent, note: Note, arrives: bool
) -> None:
    silent.arrives = arrives
    (desk.folder / "root").mkdir()
    files = FilesAdapter(desk.folder / "root")

    @tool("save", lane="live", adapter=files, registry=desk.registry)
    def save(path: str) -> None:
        """Write a file."""
        files.write(path, "new")

    with pytest.raises(OutcomeUnknown), desk.step():
        save("a")
        note("o-1", "hello")
    assert not (desk.folder / "root" / "a").exists()
    assert [one.after for one in resume(desk.runtime)] == ["unsettled"]
    silent.away = False
    (found,) = resume(desk.runtime)
    stands = (["kept"] * 2, [("o-1", "hello")], True) if arrives else (["undone"] * 2, [], False)
    assert (live_states(desk), rows(desk), (desk.folder / "root" / "a").exists()) == stands
    assert found.after == ("settled" if arrives else "ended")
