"""The adapter contract suite: tests that every live adapter must pass. Inherit from `AdapterContract` in a test module.

    class TestMine(AdapterContract):
        def resource(self, folder: Path) -> ContractResource:
            return MyResource(folder)

A `ContractResource` defines how to read, write and look from outside; its flags declare what the adapter guarantees
beyond the minimum. pytest is not imported; `tmp_path` is its fixture. If a flag is off, the opposite is tested: a
resource that detects no changes must lock others out, and prepared work that does not survive its process must leave
nothing. POSIX only: processes are forked and killed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from countersign.adapters.contract_suite_base import (
    CALL,
    TXN,
    A,
    ContractResource,
    assert_equal,
    assert_raises,
    commit,
)
from countersign.adapters.contract_suite_cases import LateCallTests, NestedEffectTests, RefusalTests
from countersign.adapters.protocol import LiveAdapter, LiveSession
from countersign.errors import IsolationConflict, OutsideTransaction, SessionLost, TransactionBusy

__all__ = ["AdapterContract", "ContractResource"]


class AdapterContract(NestedEffectTests, RefusalTests, LateCallTests):
    """Everything the SDK relies on, one test method for each requirement."""

    # ---------------------------------------------------------------------------------- effects, commit, undo

    def test_a_session_reads_its_own_writes_and_others_do_not(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path)
        with session.effect(CALL):
            resource.write(adapter, "k", "new")
            assert_equal(resource.read(adapter, "k"), "new", "inside")
        with session.effect(CALL):
            assert_equal(resource.read(adapter, "k"), "new", "in the next effect")
        assert_equal(resource.outside("k"), None, "outside, before the commit")
        session.undo()

    def test_a_commit_is_permanent_and_marked(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old", gone="old")
        with session.effect(CALL):
            resource.write(adapter, "k", "new")
            resource.write(adapter, "more", "new")
            resource.remove(adapter, "gone")
        session.prepare(A)
        assert_equal(resource.adapter().landed(A) is True, False, "landed (or None), before the commit")
        commit(session)
        seen = [resource.outside(key) for key in ("k", "more", "gone")]
        assert_equal(seen, ["new", "new", None], "outside, after the commit")
        assert_equal(resource.adapter().landed(A), True, "landed, after it")

    def test_undo_leaves_nothing_and_is_idempotent(self, tmp_path: Path) -> None:
        for prepared in (False, True):
            resource, adapter, session = self.begun(tmp_path / str(prepared), k="old")
            with session.effect(CALL):
                resource.remove(adapter, "k")
                resource.write(adapter, "more", "new")
            if prepared:
                session.prepare(A)
            session.undo()
            session.undo()
            assert_equal((resource.outside("k"), resource.outside("more")), ("old", None), "after undo")
            assert_equal(adapter.landed(A), False, "landed")
            self.assert_another_commits(resource)

    def test_an_effect_that_raises_is_undone_alone(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        with session.effect(CALL):
            resource.write(adapter, "kept", "new")
        for error in (ZeroDivisionError, KeyboardInterrupt, SystemExit):
            with assert_raises(error), session.effect(CALL):
                resource.write(adapter, "k", "half")
                resource.write(adapter, "more", "half")
                resource.remove(adapter, "kept")
                raise error
        with session.effect(CALL):
            seen = [resource.read(adapter, key) for key in ("k", "more", "kept")]
            assert_equal(seen, ["old", None, "new"], "in the next effect")
        session.prepare(A)
        commit(session)
        seen = [resource.outside(key) for key in ("k", "more", "kept")]
        assert_equal(seen, ["old", None, "new"], "after the commit")

    def test_prepare_is_idempotent(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path)
        with session.effect(CALL):
            resource.write(adapter, "k", "new")
        session.prepare(A)
        session.prepare(A)
        commit(session)
        assert_equal(resource.outside("k"), "new", "after the commit")

    def test_a_session_without_effects_commits_and_is_marked(self, tmp_path: Path) -> None:
        _, adapter, session = self.begun(tmp_path)
        session.prepare(A)
        commit(session)
        assert_equal(adapter.landed(A), True, "landed")

    def test_a_commit_can_be_undone_until_it_is_closed_if_declared(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old", gone="old")
        if not adapter.commits_last:
            session.undo()
            return
        with session.effect(CALL):
            resource.write(adapter, "k", "new")
            resource.write(adapter, "more", "new")
            resource.remove(adapter, "gone")
        session.prepare(A)
        session.commit(A)
        session.undo()
        seen = [resource.outside(key) for key in ("k", "more", "gone")]
        assert_equal(seen, ["old", None, "old"], "after undo")
        assert_equal(adapter.landed(A), False, "landed, once it is taken back")
        self.assert_another_commits(resource)

    def test_the_state_diff_has_before_and_after_and_changes_nothing(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old", gone="old", same="old")
        with session.effect(CALL):
            resource.write(adapter, "k", "new")
            resource.remove(adapter, "gone")
            resource.write(adapter, "same", "old")
            resource.write(adapter, "made", "new")
            resource.remove(adapter, "made")
        changes = session.changes()
        found = None if changes is None else {key: both for key, *both in map(resource.normalize, changes)}
        expected = {"k": ["old", "new"], "gone": ["old", None]} if resource.reports_changes else None
        assert_equal(found, expected, "changes()")
        assert_equal(resource.outside("k"), "old", "outside")
        session.undo()

    # ---------------------------------------------------------------------------------- refusals

    def test_a_changed_read_is_refused_with_both_versions(self, tmp_path: Path) -> None:
        self._moved(tmp_path, lambda resource, adapter: resource.read(adapter, "k"), read=True)

    def test_a_changed_overwritten_value_is_refused(self, tmp_path: Path) -> None:
        self._moved(tmp_path, lambda resource, adapter: resource.write(adapter, "k", "mine"), read=False)

    def test_a_changed_removed_value_is_refused(self, tmp_path: Path) -> None:
        self._moved(tmp_path, lambda resource, adapter: resource.remove(adapter, "k"), read=None)

    def test_a_key_that_was_missing_and_appears_is_refused(self, tmp_path: Path) -> None:
        self._moved(tmp_path, lambda resource, adapter: resource.read(adapter, "none"), key="none", read=True)

    def test_untouched_keys_may_change(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old", other="old")
        if not resource.detects_conflicts:
            session.undo()
            return
        with session.effect(CALL):
            resource.write(adapter, "k", "new")
        resource.change_outside("other", "theirs")
        session.verify_isolation()
        session.prepare(A)
        commit(session)
        assert_equal((resource.outside("k"), resource.outside("other")), ("new", "theirs"), "outside")

    def test_two_sessions_cannot_both_prepare_the_same_key(self, tmp_path: Path) -> None:
        resource, adapter, first = self.begun(tmp_path, k="old")
        if not resource.detects_conflicts:
            first.undo()
            return
        second = adapter.begin("t-2")
        for session in (first, second):
            with session.effect(CALL):
                resource.write(adapter, "k", "mine")
        first.prepare(A)
        with assert_raises(IsolationConflict):
            second.prepare("a-2")
        second.undo()
        commit(first)
        assert_equal(resource.outside("k"), "mine", "outside")

    def test_no_session_depends_on_a_commit_that_may_be_undone(self, tmp_path: Path) -> None:
        resource, adapter, first = self.begun(tmp_path, k="old")
        if not (resource.detects_conflicts and adapter.commits_last):
            first.undo()
            return
        with first.effect(CALL):
            resource.write(adapter, "k", "first")
        first.prepare(A)
        first.commit(A)
        second = adapter.begin("t-2")
        with second.effect(CALL):
            resource.read(adapter, "k")
            resource.write(adapter, "k", "second")
        with assert_raises(IsolationConflict):
            second.prepare("a-2")
        second.undo()
        first.close()
        assert_equal(resource.outside("k"), "first", "after it was closed")
        self.assert_another_commits(resource)

    def test_the_resource_is_only_usable_inside_an_effect(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path)
        with session.effect(CALL):
            resource.read(adapter, "k")
        with assert_raises(OutsideTransaction):
            resource.read(adapter, "k")
        with assert_raises(OutsideTransaction):
            resource.write(adapter, "k", "new")
        session.undo()
        with assert_raises(OutsideTransaction):
            resource.write(adapter, "k", "new")
        assert_equal(resource.outside("k"), None, "outside")

    def test_a_session_whose_transaction_was_ended_keeps_nothing_and_raises(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path, k="old")
        with session.effect(CALL):
            resource.write(adapter, "more", "new")
        try:
            with session.effect(CALL):
                ended = resource.end(adapter)
            assert_equal(ended, False, "an effect that swallows the error still raises it")
            session.undo()
            return
        except SessionLost:
            for refused in (session.verify_isolation, session.changes, lambda: session.prepare(A)):
                with assert_raises(SessionLost):
                    refused()
        with assert_raises(SessionLost), session.effect(CALL):
            resource.write(adapter, "k", "alone")
        session.undo()
        assert_equal((resource.outside("k"), resource.outside("more")), ("old", None), "after undo")
        assert_equal(adapter.landed(A), False, "landed")
        self.assert_another_commits(resource)

    def test_a_session_that_was_undone_commits_nothing(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path)
        with session.effect(CALL):
            resource.write(adapter, "k", "new")
        session.prepare(A)
        session.undo()
        with assert_raises(Exception):
            session.commit(A)
        assert_equal((resource.outside("k"), adapter.landed(A)), (None, False), "after it")

    def test_an_unknown_attempt_has_not_landed_and_an_unreachable_resource_returns_none(
        self, tmp_path: Path
    ) -> None:
        resource, adapter, session = self.begun(tmp_path)
        session.undo()
        assert_equal(adapter.landed("another"), False, "landed")
        away = resource.away()
        if away is not None:
            assert_equal(away.landed(A), None, "landed, with the resource unreachable")

    # ---------------------------------------------------------------------------------- after a process has died

    def test_recovering_nothing_changes_nothing(self, tmp_path: Path) -> None:
        resource, adapter, session = self.begun(tmp_path)
        assert_equal(adapter.recover("never", None), None, "recover, of an unknown transaction")
        with session.effect(CALL):
            resource.write(adapter, "k", "new")
        session.prepare(A)
        commit(session)
        for attempt_id in (A, None, A):
            assert_equal(adapter.recover(TXN, attempt_id), None, "recover, of a finished one")
        assert_equal((resource.outside("k"), adapter.landed(A)), ("new", True), "after it")

    def test_a_process_that_died_before_prepare_leaves_nothing(self, tmp_path: Path) -> None:
        resource = self._died(tmp_path, lambda session: None)
        if resource is not None:
            assert_equal(resource.adapter().recover(TXN, A), None, "recover")
            self.assert_nothing_kept(resource)

    def test_work_prepared_by_a_living_process_is_never_reported_lost(self, tmp_path: Path) -> None:
        """A suspended process may resume and commit at any time."""
        resource, adapter, session = self.begun(tmp_path)
        with session.effect(CALL):
            resource.write(adapter, "k", "new")
        session.prepare(A)
        if not resource.in_process_only:
            for looks in (resource.adapter(), adapter):
                try:
                    answers = looks.recover(TXN, A), looks.landed(A)
                except TransactionBusy:
                    continue
                assert_equal(answers, (None, None), "recover and landed, while it may still commit")
        commit(session)
        assert_equal((resource.outside("k"), adapter.landed(A)), ("new", True), "after the commit")

    def test_work_prepared_for_a_redeemed_attempt_is_finished_by_another_process(
        self, tmp_path: Path
    ) -> None:
        resource = self._died(tmp_path, lambda session: session.prepare(A))
        if resource is None:
            return
        for _ in range(2):  # the recovering process may die as well, before it has done anything
            session = resource.adapter().recover(TXN, A)
            assert_equal(session is not None, resource.survives_process, "recover returns a session")
        assert_equal(resource.adapter().landed(A), False, "landed, before that")
        if session is None:
            self.assert_nothing_kept(resource)
            return
        session.prepare(A)
        commit(session)
        assert_equal(
            (resource.outside("k"), resource.adapter().landed(A)), ("new", True), "once it is finished"
        )
        assert_equal(resource.adapter().recover(TXN, A), None, "recover, the second time")

    def test_prepared_work_can_be_undone_by_another_process(self, tmp_path: Path) -> None:
        resource = self._died(tmp_path, lambda session: session.prepare(A))
        if resource is not None:
            session = resource.adapter().recover(TXN, A)
            if session is not None:
                session.undo()
            self.assert_nothing_kept(resource)

    def test_work_prepared_for_an_unredeemed_attempt_is_undone(self, tmp_path: Path) -> None:
        for number, attempt_id in enumerate((None, "another")):
            resource = self._died(tmp_path / str(number), lambda session: session.prepare(A))
            if resource is not None:
                assert_equal(resource.adapter().recover(TXN, attempt_id), None, "recover")
                self.assert_nothing_kept(resource)

    def test_committed_work_of_a_dead_process_stays(self, tmp_path: Path) -> None:
        def until_committed(session: LiveSession) -> None:
            session.prepare(A)
            session.commit(A)

        resource = self._died(tmp_path, until_committed)
        if resource is not None:
            for attempt_id in (A, None):
                assert_equal(resource.adapter().recover(TXN, attempt_id), None, "recover")
            assert_equal((resource.outside("k"), resource.adapter().landed(A)), ("new", True), "after it")

    # ---------------------------------------------------------------------------------- helpers

    def _moved(
        self,
        folder: Path,
        act: Callable[[ContractResource, LiveAdapter], object],
        *,
        read: bool | None,
        key: str = "k",
    ) -> None:
        for refuses in ("verify_isolation", "prepare"):
            resource, adapter, session = self.begun(folder / refuses, k="old")
            with session.effect(CALL):
                act(resource, adapter)
            if not resource.change_outside(key, "theirs"):
                assert_equal(resource.detects_conflicts, False, "others are locked out")
                session.undo()
                continue
            assert_equal(resource.detects_conflicts, True, "a change by others is detected")
            with assert_raises(IsolationConflict) as caught:
                session.verify_isolation() if refuses == "verify_isolation" else session.prepare(A)
            (moved,) = caught
            assert_equal(isinstance(moved, IsolationConflict) and moved.key, key, "the key of the refusal")
            assert_equal(
                isinstance(moved, IsolationConflict) and moved.expected != moved.now,
                True,
                "its versions differ",
            )
            if read is not None:
                assert_equal(isinstance(moved, IsolationConflict) and moved.read, read, "whether it was read")
            (seen,) = (one for one in session.versions() if one.key == key)
            assert_equal(
                isinstance(moved, IsolationConflict) and moved.expected,
                seen.version,
                "the version that was read",
            )
            session.undo()
            assert_equal(resource.outside(key), "theirs", "outside")

    def _died(self, folder: Path, until: Callable[[LiveSession], None]) -> ContractResource | None:
        """A child process wrote, continued up to `until`, and died."""
        folder.mkdir(exist_ok=True)
        resource = self.resource(folder)
        if resource.in_process_only:
            return None
        child = os.fork()
        if child == 0:
            code = 1
            try:
                adapter = resource.adapter()
                session = adapter.begin(TXN)
                with session.effect(CALL):
                    resource.write(adapter, "k", "new")
                until(session)
                code = 0
            finally:
                os._exit(code)
        assert_equal(
            os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0, "the exit code of the process that died"
        )
        return resource
