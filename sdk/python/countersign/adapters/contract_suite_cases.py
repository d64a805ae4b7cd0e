"""Contract suite: nested effects, refusals, and calls that outlive their effect.

`NestedEffectTests`: effects inside effects (a live tool may call another), and blocks of effects. `RefusalTests`: a
missing resource, a locked one, and what cannot be snapshotted. The error type matters: `Retry` runs again after
`IsolationConflict`, never after `NotStageable`. `LateCallTests`: a thread or a task that continues after its live
effect, in its context.
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
    """An effect that raises is undone alone; later work is still part of the session."""

    def test_a_nested_effect_keeps_the_outer_one(self, tmp_path: Path) -> None:
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

    def test_a_nested_effect_that_raises_is_undone_alone(self, tmp_path: Path) -> None:
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

    def test_the_state_diff_covers_nested_effects(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path)
        with session.effect(CALL):
            resource.write(adapter, "outer", "new")
            with session.effect(CALL):
                resource.write(adapter, "inner", "new")
            resource.write(adapter, "after", "new")
        changes = session.changes()
        keys = None if changes is None else sorted(resource.normalize(one)[0] for one in changes)
        assert_equal(keys, ["after", "inner", "outer"] if resource.reports_changes else None, "changes()")
        session.undo()

    def test_a_nested_transaction_that_raises_is_undone_alone(self, tmp_path: Path) -> None:
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

    def test_nested_transactions_that_all_raise_leave_the_session_unchanged(self, tmp_path: Path) -> None:
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
    """Refused before anything is kept."""

    def test_a_missing_resource_is_refused_and_not_created(self, tmp_path: Path) -> None:
        away = self.resource(tmp_path).away()
        if away is None:
            return
        for _ in range(2):
            with assert_raises(NotStageable):
                away.begin("t-1")
            assert_equal(away.landed(A), None, "landed: it is still unreachable")

    def test_a_locked_resource_is_a_conflict_and_keeps_nothing(self, tmp_path: Path) -> None:
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

    def test_what_cannot_be_snapshotted_is_refused_with_its_whole_effect(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        with session.effect(CALL):
            resource.write(adapter, "kept", "new")
        try:
            with session.effect(CALL):
                resource.write(adapter, "k", "half")
                assert_equal(
                    resource.change_irreversibly(adapter),
                    False,
                    ("an effect that swallows the error still raises it"),
                )
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
    """Late calls are refused, however the effect ended and while any other effect runs."""

    def test_late_calls_of_a_failed_effect_do_nothing(self, tmp_path: Path) -> None:
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

    def test_late_calls_do_nothing_in_the_next_effect(self, tmp_path: Path) -> None:
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

    def test_late_calls_of_a_nested_effect_do_nothing_in_the_outer_one(self, tmp_path: Path) -> None:
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

    def test_calls_the_effect_waits_for_are_part_of_it(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path)
        with session.effect(CALL):
            assert_equal(
                _run_late_call(lambda: resource.write(adapter, "k", "new"))(),
                "nothing",
                "the error in the thread",
            )
            assert_equal(resource.read(adapter, "k"), "new", "inside")
        session.prepare(A)
        commit(session)
        assert_equal(resource.outside("k"), "new", "after the commit")


def _start_late_calls(resource: ContractResource, adapter: LiveAdapter) -> list[Late]:
    """Start threads that each try one late call when they are released."""
    return [
        _assert_refused(lambda: resource.write(adapter, "more", "late")),
        _assert_refused(lambda: resource.write(adapter, "k", "late")),
        _assert_refused(lambda: resource.remove(adapter, "k")),
        _assert_refused(lambda: resource.read(adapter, "k")),
    ]


def _assert_refused(act: Callable[[], object]) -> Late:
    heard = _run_late_call(act)
    return lambda: assert_equal(
        heard(), "OutsideTransaction", "the error in a thread that outlives its effect"
    )


def _run_late_call(act: Callable[[], object]) -> Callable[[], str]:
    """A thread that makes the call when released, in a copy of the current context like `asyncio.to_thread`."""
    answers: list[str] = []

    def tries() -> None:
        try:
            act()
            answers.append("nothing")
        except OutsideTransaction:
            answers.append("OutsideTransaction")
        except BaseException as error:  # noqa: BLE001 - an exception in a thread is lost
            answers.append(repr(error))

    thread = threading.Thread(target=contextvars.copy_context().run, args=(tries,))

    def let_go() -> str:
        thread.start()
        thread.join()
        return answers[0]

    return let_go
