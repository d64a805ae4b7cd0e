"""The adapter contract suite's tests of nesting, refusals and what an effect leaves behind.

`Nesting`: effects inside effects (a live tool may call another), and blocks of effects. `Refusing`: a resource that is
not there, one that others keep locked, and what cannot be snapshotted; the error says what the program may do: `Moved`
is run again by `Retry`, `NotStageable` is not. `Stragglers`: a thread or a task that goes on after its live effect, in
its context.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from pathlib import Path

from countersign.adapters.examined import (
    CALL,
    A,
    Examined,
    Resource,
    block,
    commit,
    equal,
    interrupt,
    raises,
)
from countersign.adapters.protocol import LiveAdapter
from countersign.errors import IsolationConflict, NotStageable, OutsideTransaction


class Nesting(Examined):
    """What raises is taken back alone, and what goes on is still inside."""

    def test_an_effect_inside_another_leaves_the_outer_one_as_it_was_and_inside(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        with raises(ZeroDivisionError), session.effect(CALL):
            resource.write(adapter, "outer", "half")
            with session.effect(CALL):
                resource.write(adapter, "k", "half")
                equal(resource.read(adapter, "outer"), "half", "inside the inner one")
            resource.write(adapter, "more", "half")
            interrupt(ZeroDivisionError)
        with session.effect(CALL):
            seen = [resource.read(adapter, key) for key in ("k", "outer", "more")]
            equal(seen, ["old", None, None], "after the outer one raised")
        session.prepare(A)
        commit(session)
        seen = [resource.outside(key) for key in ("k", "outer", "more")]
        equal(seen, ["old", None, None], "after the commit")

    def test_an_effect_inside_another_that_raises_is_taken_back_alone(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        with session.effect(CALL):
            resource.write(adapter, "outer", "new")
            with raises(KeyboardInterrupt), session.effect(CALL):
                resource.write(adapter, "k", "half")
                resource.remove(adapter, "outer")
                interrupt(KeyboardInterrupt)
            seen = [resource.read(adapter, key) for key in ("k", "outer")]
            equal(seen, ["old", "new"], "after the inner one")
            resource.write(adapter, "more", "new")
        session.prepare(A)
        commit(session)
        seen = [resource.outside(key) for key in ("k", "outer", "more")]
        equal(seen, ["old", "new", "new"], "after the commit")

    def test_the_state_diff_tells_of_what_came_before_inside_and_after_an_inner_effect(
        self, tmp_path: Path
    ) -> None:
        resource, adapter, session = self.begun(tmp_path)
        with session.effect(CALL):
            resource.write(adapter, "outer", "new")
            with session.effect(CALL):
                resource.write(adapter, "inner", "new")
            resource.write(adapter, "after", "new")
        changes = session.changes()
        told = None if changes is None else sorted(resource.told(one)[0] for one in changes)
        equal(told, ["after", "inner", "outer"] if resource.tells_changes else None, "changes()")
        session.undo()

    def test_a_block_of_effects_that_raises_leaves_nothing_of_them_and_all_of_the_others(
        self, tmp_path: Path
    ) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        if not self.has_savepoints(session):
            session.undo()
            return
        with session.effect(CALL):
            resource.write(adapter, "kept", "new")
        with block(session):
            with session.effect(CALL):
                resource.write(adapter, "outer", "new")
            with raises(KeyboardInterrupt), block(session):
                with session.effect(CALL):
                    resource.write(adapter, "k", "half")
                with session.effect(CALL):
                    resource.write(adapter, "outer", "half")
                    resource.remove(adapter, "kept")
                interrupt(KeyboardInterrupt)
            with session.effect(CALL):
                seen = [resource.read(adapter, key) for key in ("k", "outer", "kept")]
                equal(seen, ["old", "new", "new"], "after the inner block")
        session.prepare(A)
        commit(session)
        seen = [resource.outside(key) for key in ("k", "outer", "kept")]
        equal(seen, ["old", "new", "new"], "after the commit")

    def test_blocks_that_all_raise_leave_the_session_as_it_was(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        if self.has_savepoints(session):
            with session.effect(CALL):
                resource.write(adapter, "kept", "new")
            with raises(ZeroDivisionError), block(session), block(session):
                with session.effect(CALL):
                    resource.write(adapter, "k", "half")
                interrupt(ZeroDivisionError)
            session.prepare(A)
            commit(session)
            equal((resource.outside("k"), resource.outside("kept")), ("old", "new"), "after the commit")
        session.undo()


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
        with raises(IsolationConflict):
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


Late = Callable[[], None]


class Stragglers(Examined):
    """What comes late is refused, whatever became of the effect and whatever runs by then."""

    def test_what_an_effect_that_raised_has_started_does_nothing_after_it(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        late: list[Late] = []
        with raises(TimeoutError), session.effect(CALL):
            resource.write(adapter, "more", "half")
            late += _left_behind(resource, adapter)
            interrupt(TimeoutError)
        for one in late:
            one()
        with session.effect(CALL):
            equal((resource.read(adapter, "k"), resource.read(adapter, "more")), ("old", None), "after it")
        session.prepare(A)
        commit(session)
        equal((resource.outside("k"), resource.outside("more")), ("old", None), "after the commit")

    def test_what_an_effect_has_started_does_nothing_in_the_next_one(self, tmp_path: Path) -> None:
        for ends_well in (True, False):
            resource, adapter, session = self.begun(tmp_path / str(ends_well), k="old")
            late: list[Late] = []
            if ends_well:
                with session.effect(CALL):
                    late += _left_behind(resource, adapter)
            else:
                with raises(TimeoutError), session.effect(CALL):
                    late += _left_behind(resource, adapter)
                    interrupt(TimeoutError)
            with session.effect(CALL):
                resource.write(adapter, "mine", "new")
                for one in late:
                    one()
            session.prepare(A)
            commit(session)
            seen = [resource.outside(key) for key in ("k", "more", "mine")]
            equal(seen, ["old", None, "new"], "after the commit")

    def test_what_an_inner_effect_has_started_does_nothing_in_the_outer_one(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        late: list[Late] = []
        with session.effect(CALL):
            with raises(TimeoutError), session.effect(CALL):
                late += _left_behind(resource, adapter)
                interrupt(TimeoutError)
            for one in late:
                one()
            resource.write(adapter, "mine", "new")
        session.prepare(A)
        commit(session)
        seen = [resource.outside(key) for key in ("k", "more", "mine")]
        equal(seen, ["old", None, "new"], "after the commit")

    def test_what_an_effect_has_started_and_waits_for_is_part_of_it(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path)
        with session.effect(CALL):
            equal(_heard(lambda: resource.write(adapter, "k", "new"))(), "nothing", "what a thread hears")
            equal(resource.read(adapter, "k"), "new", "inside")
        session.prepare(A)
        commit(session)
        equal(resource.outside("k"), "new", "after the commit")


def _left_behind(resource: Resource, adapter: LiveAdapter) -> list[Late]:
    """What threads that are started now try when they are let go."""
    return [
        _refused(lambda: resource.write(adapter, "more", "late")),
        _refused(lambda: resource.write(adapter, "k", "late")),
        _refused(lambda: resource.remove(adapter, "k")),
        _refused(lambda: resource.read(adapter, "k")),
    ]


def _refused(act: Callable[[], object]) -> Late:
    heard = _heard(act)
    return lambda: equal(heard(), "OutsideTransaction", "what a thread hears that goes on after its effect")


def _heard(act: Callable[[], object]) -> Callable[[], str]:
    """What a thread hears once it is let go. It has the context of now, as `asyncio.to_thread` gives it."""
    answers: list[str] = []

    def tries() -> None:
        try:
            act()
            answers.append("nothing")
        except OutsideTransaction:
            answers.append("OutsideTransaction")
        except BaseException as error:  # noqa: BLE001 - a thread raises to nobody
            answers.append(repr(error))

    thread = threading.Thread(target=contextvars.copy_context().run, args=(tries,))

    def let_go() -> str:
        thread.start()
        thread.join()
        return answers[0]

    return let_go
