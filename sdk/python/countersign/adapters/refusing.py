"""The exam's chapter about what an adapter has to refuse, and in which words: a resource that is not there, one that
others keep locked, and what cannot be snapshotted. The error says what the program may do: `Moved` is run again by
`Retry`, `NotStageable` is not.
"""

from __future__ import annotations

from pathlib import Path

from countersign.adapters.examined import CALL, A, Examined, commit, equal, raises
from countersign.errors import Moved, NotStageable


class Refusing(Examined):
    """Refused before anything is kept of it."""

    def test_a_resource_that_is_not_there_is_refused_and_not_made(self, tmp_path: Path) -> None:
        away = self.resource(tmp_path).away()
        if away is None:
            return
        for _ in range(2):
            with raises(NotStageable):
                away.begin("t-1")
            equal(away.landed(A), None, "landed: it is away as before")

    def test_whoever_meets_it_locked_is_told_that_it_moved_and_keeps_nothing(self, tmp_path: Path) -> None:
        resource, adapter, first = self.begun(tmp_path, k="old")
        if resource.notices_moves:
            first.undo()
            return
        with first.effect(CALL):
            resource.write(adapter, "k", "mine")
        another, second = resource.adapter(), None
        with raises(Moved):
            second = another.begin("t-2")
            with second.effect(CALL):
                resource.write(another, "k", "theirs")
        if second is not None:
            second.undo()
        first.prepare(A)
        commit(first)
        equal(resource.outside("k"), "mine", "outside")
        self.another_can_commit(resource)

    def test_what_cannot_be_snapshotted_is_refused_with_all_of_its_effect(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        with session.effect(CALL):
            resource.write(adapter, "kept", "new")
        try:
            with session.effect(CALL):
                resource.write(adapter, "k", "half")
                equal(resource.touch_what_stays(adapter), False, "it is told to whoever touches it")
        except NotStageable:
            pass
        else:
            session.undo()
            return
        session.prepare(A)
        commit(session)
        equal((resource.outside("k"), resource.outside("kept")), ("old", "new"), "after the commit")
