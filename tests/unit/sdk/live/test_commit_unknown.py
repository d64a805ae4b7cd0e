"""A live commit without an answer is reported as unknown, nothing of it is undone, and the next run asks it again."""

from pathlib import Path
from typing import Any

import pytest

from countersign import FilesAdapter, SQLiteAdapter, errors, resume
from tests.fakes.desk import Desk, charge_tools, live_states, note_tool, notes_in, save_tool
from tests.fakes.running import fails

NOT_KNOWN = "it is unknown whether its live effects were kept"
ARRIVES = pytest.mark.parametrize("arrives", [True, False])


class Silent(SQLiteAdapter):
    """Its COMMIT arrives or is lost; no answer arrives before it can be asked again."""

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
            raise errors.CommitUnknown("notes", "the line broke")

        if not self.away:
            session.commit = unanswered  # type: ignore[method-assign]
        return session

    def landed(self, attempt_id: str) -> bool | None:
        return None if self.away else super().landed(attempt_id)


@pytest.fixture
def silent(notes: Path) -> Silent:
    return Silent(notes, busy_seconds=0.2)


@pytest.fixture
def note(desk: Desk, silent: Silent) -> Any:
    return note_tool(desk, silent)


def done(desk: Desk) -> list[str]:
    return [what for what, *_ in desk.done]


@ARRIVES
def test_live_work_alone_is_unsettled_until_its_adapter_answers(
    desk: Desk, notes: Path, root: Path, files: FilesAdapter, silent: Silent, note: Any, arrives: bool
) -> None:
    """What would have been committed after it is finished with it, where it outlives its session."""
    silent.arrives, save = arrives, save_tool(desk, files)
    reported = r"all of its live work was kept \(.*the line broke"
    unknown = fails(desk, errors.OutcomeUnknown, (save, "a"), (note, "o-1", "hello"), match=reported)
    said = str(unknown.error)
    assert "Nothing of this transaction remains in effect" not in said and "service's queue" not in said
    assert (unknown.txn.state, live_states(desk)) == ("unsettled", ["live"] * 2)
    (found,) = resume(desk.runtime)
    assert (found.after, live_states(desk), (root / "a").exists()) == ("unsettled", ["live"] * 2, False)
    assert NOT_KNOWN in found.note and "if it never can, check by hand" in found.note
    assert "`countersign resume" in said and "`countersign resume" not in found.note
    silent.away = False
    (found,) = resume(desk.runtime)
    ends = ("settled", ["kept"] * 2, [("o-1", "hello")]) if arrives else ("ended", ["undone"] * 2, [])
    assert (found.after, live_states(desk), notes_in(notes)) == ends
    assert ((root / "a").exists(), resume(desk.runtime)) == (arrives, [])


@ARRIVES
def test_a_rerun_repeats_nothing(desk: Desk, notes: Path, silent: Silent, note: Any, arrives: bool) -> None:
    silent.arrives = arrives
    desk.run((note, "o-1", "hello"), raises=errors.OutcomeUnknown)
    fails(desk, errors.AlreadyRedeemed, (note, "o-1", "hello"), match=NOT_KNOWN)
    assert live_states(desk) == ["live"]
    silent.away = False
    silent.begin = super(Silent, silent).begin  # type: ignore[method-assign]
    txn = desk.run((note, "o-1", "hello"))
    assert (txn.replayed, live_states(desk), notes_in(notes)) == (arrives, ["kept"], [("o-1", "hello")])


@ARRIVES
def test_what_fired_waits_for_it(desk: Desk, notes: Path, silent: Silent, note: Any, arrives: bool) -> None:
    charge, silent.arrives = charge_tools(desk), arrives
    unknown = fails(desk, errors.OutcomeUnknown, (note, "o-1", "hello"), (charge, "o-1", 100))
    assert unknown.error.outcomes == {"charge#1": "fired"}
    assert (unknown.txn.state, live_states(desk)) == ("unsettled", ["live"])
    (found,) = resume(desk.runtime)
    assert (found.after, live_states(desk), done(desk)) == ("unsettled", ["live"], ["charge"])
    silent.away = False
    (found,) = resume(desk.runtime)
    assert (found.after, live_states(desk)) == ("settled", ["kept"] if arrives else ["undone"])
    assert done(desk) == (["charge"] if arrives else ["charge", "void"])
    assert notes_in(notes) == ([("o-1", "hello")] if arrives else [])


@pytest.mark.parametrize("away", [True, False])
def test_a_rerun_keeps_what_is_known(desk: Desk, notes: Path, silent: Silent, note: Any, away: bool) -> None:
    calls = (note, "o-1", "hello"), (charge_tools(desk), "o-1", 100)
    for first in (True, False):
        desk.run(*calls, raises=errors.OutcomeUnknown if first or away else None)
        silent.away = away
    if away:
        assert live_states(desk) == ["live"]
        silent.away = False
        assert [found.after for found in resume(desk.runtime)] == ["settled"]
    assert (live_states(desk), notes_in(notes)) == (["kept"], [("o-1", "hello")])
    assert desk.done == [("charge", "o-1", 100)]
