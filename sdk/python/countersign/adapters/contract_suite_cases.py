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

from countersign.adapters.contract_suite_base import (
    CALL,
    A,
    ContractBase,
    ContractResource,
    assert_equal,
    assert_raises,
    commit,
    nested_transaction,
    raise_interrupt,
)
from countersign.adapters.protocol import LiveAdapter
from countersign.errors import IsolationConflict, NotStageable, OutsideTransaction


class NestedEffectTests(ContractBase):
    """What raises is taken back alone, and what goes on is still inside."""

    def test_an_effect_inside_another_leaves_the_outer_one_as_it_was_and_inside(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        with assert_raises(ZeroDivisionError), session.effect(CALL):
            resource.write(adapter, "outer", "half")
            with session.effect(CALL):
                resource.write(adapter, "k", "half")
                assert_equal(resource.read(adapter, "outer"), "half", "inside the inner one")
            resource.write(adapter, "more", "half")
            raise_interrupt(ZeroDivisionError)
        with session.effect(CALL):
            seen = [resource.read(adapter, key) for key in ("k", "outer", "more")]
            assert_equal(seen, ["old", None, None], "after the outer one raised")
        session.prepare(A)
        commit(session)
        seen = [resource.outside(key) for key in ("k", "outer", "more")]
        assert_equal(seen, ["old", None, None], "after the commit")

    def test_an_effect_inside_another_that_raises_is_taken_back_alone(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        with session.effect(CALL):
            resource.write(adapter, "outer", "new")
            with assert_raises(KeyboardInterrupt), session.effect(CALL):
                resource.write(adapter, "k", "half")
                resource.remove(adapter, "outer")
                raise_interrupt(KeyboardInterrupt)
            seen = [resource.read(adapter, key) for key in ("k", "outer")]
            assert_equal(seen, ["old", "new"], "after the inner one")
            resource.write(adapter, "more", "new")
        session.prepare(A)
        commit(session)
        seen = [resource.outside(key) for key in ("k", "outer", "more")]
        assert_equal(seen, ["old", "new", "new"], "after the commit")

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
        assert_equal(told, ["after", "inner", "outer"] if resource.reports_changes else None, "changes()")
        session.undo()

    def test_a_block_of_effects_that_raises_leaves_nothing_of_them_and_all_of_the_others(
        self, tmp_path: Path
    ) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        if not self.supports_savepoints(session):
            session.undo()
            return
        with session.effect(CALL):
            resource.write(adapter, "kept", "new")
        with nested_transaction(session):
            with session.effect(CALL):
                resource.write(adapter, "outer", "new")
            with assert_raises(KeyboardInterrupt), nested_transaction(session):
                with session.effect(CALL):
                    resource.write(adapter, "k", "half")
                with session.effect(CALL):
                    resource.write(adapter, "outer", "half")
                    resource.remove(adapter, "kept")
                raise_interrupt(KeyboardInterrupt)
            with session.effect(CALL):
                seen = [resource.read(adapter, key) for key in ("k", "outer", "kept")]
                assert_equal(seen, ["old", "new", "new"], "after the inner block")
        session.prepare(A)
        commit(session)
        seen = [resource.outside(key) for key in ("k", "outer", "kept")]
        assert_equal(seen, ["old", "new", "new"], "after the commit")

    def test_blocks_that_all_raise_leave_the_session_as_it_was(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        if self.supports_savepoints(session):
            with session.effect(CALL):
                resource.write(adapter, "kept", "new")
            with assert_raises(ZeroDivisionError), nested_transaction(session), nested_transaction(session):
                with session.effect(CALL):
                    resource.write(adapter, "k", "half")
                raise_interrupt(ZeroDivisionError)
            session.prepare(A)
            commit(session)
            assert_equal(
                (resource.outside("k"), resource.outside("kept")), ("old", "new"), "after the commit"
            )
        session.undo()


class RefusalTests(ContractBase):
    """Refused before anything is kept of it."""

    def test_a_resource_that_is_not_there_is_refused_and_not_made(self, tmp_path: Path) -> None:
        away = self.resource(tmp_path).away()
        if away is None:
            return
        for _ in range(2):
            with assert_raises(NotStageable):
                away.begin("t-1")
            assert_equal(away.landed(A), None, "landed: it is away as before")

    def test_whoever_meets_it_locked_is_told_that_it_moved_and_keeps_nothing(self, tmp_path: Path) -> None:
        resource, adapter, first = self.begun(tmp_path, k="old")
        if resource.detects_conflicts:
            first.undo()
            return
        with first.effect(CALL):
            resource.write(adapter, "k", "mine")
        another, second = resource.adapter(), None
        with assert_raises(IsolationConflict):
            second = another.begin("t-2")
            with second.effect(CALL):
                resource.write(another, "k", "theirs")
        if second is not None:
            second.undo()
        first.prepare(A)
        commit(first)
        assert_equal(resource.outside("k"), "mine", "outside")
        self.assert_another_commits(resource)

    def test_what_cannot_be_snapshotted_is_refused_with_all_of_its_effect(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        with session.effect(CALL):
            resource.write(adapter, "kept", "new")
        try:
            with session.effect(CALL):
                resource.write(adapter, "k", "half")
                assert_equal(resource.change_irreversibly(adapter), False, "it is told to whoever touches it")
        except NotStageable:
            pass
        else:
            session.undo()
            return
        session.prepare(A)
        commit(session)
        assert_equal((resource.outside("k"), resource.outside("kept")), ("old", "new"), "after the commit")


Late = Callable[[], None]


class LateCallTests(ContractBase):
    """What comes late is refused, whatever became of the effect and whatever runs by then."""

    def test_what_an_effect_that_raised_has_started_does_nothing_after_it(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        late: list[Late] = []
        with assert_raises(TimeoutError), session.effect(CALL):
            resource.write(adapter, "more", "half")
            late += _start_late_calls(resource, adapter)
            raise_interrupt(TimeoutError)
        for one in late:
            one()
        with session.effect(CALL):
            assert_equal(
                (resource.read(adapter, "k"), resource.read(adapter, "more")), ("old", None), "after it"
            )
        session.prepare(A)
        commit(session)
        assert_equal((resource.outside("k"), resource.outside("more")), ("old", None), "after the commit")

    def test_what_an_effect_has_started_does_nothing_in_the_next_one(self, tmp_path: Path) -> None:
        for ends_well in (True, False):
            resource, adapter, session = self.begun(tmp_path / str(ends_well), k="old")
            late: list[Late] = []
            if ends_well:
                with session.effect(CALL):
                    late += _start_late_calls(resource, adapter)
            else:
                with assert_raises(TimeoutError), session.effect(CALL):
                    late += _start_late_calls(resource, adapter)
                    raise_interrupt(TimeoutError)
            with session.effect(CALL):
                resource.write(adapter, "mine", "new")
                for one in late:
                    one()
            session.prepare(A)
            commit(session)
            seen = [resource.outside(key) for key in ("k", "more", "mine")]
            assert_equal(seen, ["old", None, "new"], "after the commit")

    def test_what_an_inner_effect_has_started_does_nothing_in_the_outer_one(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        late: list[Late] = []
        with session.effect(CALL):
            with assert_raises(TimeoutError), session.effect(CALL):
                late += _start_late_calls(resource, adapter)
                raise_interrupt(TimeoutError)
            for one in late:
                one()
            resource.write(adapter, "mine", "new")
        session.prepare(A)
        commit(session)
        seen = [resource.outside(key) for key in ("k", "more", "mine")]
        assert_equal(seen, ["old", None, "new"], "after the commit")

    def test_what_an_effect_has_started_and_waits_for_is_part_of_it(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path)
        with session.effect(CALL):
            assert_equal(
                _run_late_call(lambda: resource.write(adapter, "k", "new"))(),
                "nothing",
                "what a thread hears",
            )
            assert_equal(resource.read(adapter, "k"), "new", "inside")
        session.prepare(A)
        commit(session)
        assert_equal(resource.outside("k"), "new", "after the commit")


def _start_late_calls(resource: ContractResource, adapter: LiveAdapter) -> list[Late]:
    """What threads that are started now try when they are let go."""
    return [
        _assert_refused(lambda: resource.write(adapter, "more", "late")),
        _assert_refused(lambda: resource.write(adapter, "k", "late")),
        _assert_refused(lambda: resource.remove(adapter, "k")),
        _assert_refused(lambda: resource.read(adapter, "k")),
    ]


def _assert_refused(act: Callable[[], object]) -> Late:
    heard = _run_late_call(act)
    return lambda: assert_equal(
        heard(), "OutsideTransaction", "what a thread hears that goes on after its effect"
    )


def _run_late_call(act: Callable[[], object]) -> Callable[[], str]:
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
