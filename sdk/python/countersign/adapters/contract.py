"""The exam of every live adapter, ours and yours: inherit from `AdapterContract` in a test module and run pytest.

    class TestMine(AdapterContract):
        def resource(self, folder: Path) -> Resource:
            return MyResource(folder)

A `Resource` tells the exam how to write, read and look from outside; its flags say what the adapter promises
beyond the minimum. Nothing of pytest is imported here; `tmp_path` is its fixture. Where a flag is off, the
opposite is examined: a resource that does not notice a change has to keep others out, one whose prepared work
does not outlive its process has to leave nothing of it. POSIX: processes are really forked and really die.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from countersign.adapters.protocol import LiveAdapter, LiveCall, LiveSession
from countersign.errors import Moved, OutsideTransaction

_CALL: Final = LiveCall("exam", {}, "e-1")
_A: Final = "a-1"
_TXN: Final = "t-1"


class Resource(ABC):
    """One resource under examination: text under keys. It begins empty."""

    notices_moves = False
    """Others may write meanwhile, and `verify_unmoved` finds out; off: others are kept out until the end."""

    tells_changes = False
    """`changes()` answers; off: it answers None."""

    outlives_its_process = False
    """What was prepared can be finished by another process; off: it vanishes."""

    dies_with_its_process = False
    """Even what was committed: a resource in memory. The chapters about other processes are then left out."""

    @abstractmethod
    def adapter(self) -> LiveAdapter:
        """The adapter, made anew as another process would; in memory the same one."""

    @abstractmethod
    def write(self, adapter: LiveAdapter, key: str, value: str) -> None:
        """What a tool does to set a key; inside an effect."""

    @abstractmethod
    def read(self, adapter: LiveAdapter, key: str) -> str | None:
        """What a tool does to read one; inside an effect."""

    @abstractmethod
    def remove(self, adapter: LiveAdapter, key: str) -> None:
        """What a tool does to remove one; inside an effect."""

    @abstractmethod
    def outside(self, key: str) -> str | None:
        """What everybody else sees of it now."""

    @abstractmethod
    def change_outside(self, key: str, value: str) -> bool:
        """Somebody else sets a key; False where the resource does not let them now."""

    @abstractmethod
    def away(self) -> LiveAdapter | None:
        """An adapter whose resource cannot be reached; None where there is no such thing."""


class AdapterContract(ABC):
    """Everything the SDK relies on. One method for each fact."""

    @abstractmethod
    def resource(self, folder: Path) -> Resource:
        """A fresh, empty resource in this folder."""

    # ------------------------------------------------------------------------------------ what it does

    def test_a_session_reads_its_own_writes_and_nobody_else_does(self, tmp_path: Path) -> None:
        resource, adapter, session = self._begun(tmp_path)
        with session.effect(_CALL):
            resource.write(adapter, "k", "new")
            _equal(resource.read(adapter, "k"), "new", "inside")
        with session.effect(_CALL):
            _equal(resource.read(adapter, "k"), "new", "in the next effect")
        _equal(resource.outside("k"), None, "outside, before the commit")
        session.undo()

    def test_a_commit_makes_all_of_it_permanent_and_is_marked_with_it(self, tmp_path: Path) -> None:
        resource, adapter, session = self._begun(tmp_path, k="old", gone="old")
        with session.effect(_CALL):
            resource.write(adapter, "k", "new")
            resource.write(adapter, "more", "new")
            resource.remove(adapter, "gone")
        session.prepare(_A)
        _equal(resource.adapter().landed(_A), False, "landed, before the commit")
        _commit(session)
        seen = [resource.outside(key) for key in ("k", "more", "gone")]
        _equal(seen, ["new", "new", None], "outside, after the commit")
        _equal(resource.adapter().landed(_A), True, "landed, after it")

    def test_undo_leaves_nothing_and_may_be_said_twice(self, tmp_path: Path) -> None:
        for prepared in (False, True):
            resource, adapter, session = self._begun(tmp_path / str(prepared), k="old")
            with session.effect(_CALL):
                resource.remove(adapter, "k")
                resource.write(adapter, "more", "new")
            if prepared:
                session.prepare(_A)
            session.undo()
            session.undo()
            _equal((resource.outside("k"), resource.outside("more")), ("old", None), "after undo")
            _equal(adapter.landed(_A), False, "landed")
            self._another_can_commit(resource)

    def test_an_effect_that_raises_leaves_nothing_of_itself_and_all_of_the_others(
        self, tmp_path: Path
    ) -> None:
        resource, adapter, session = self._begun(tmp_path, k="old")
        with session.effect(_CALL):
            resource.write(adapter, "kept", "new")
        for error in (ZeroDivisionError, KeyboardInterrupt, SystemExit):
            with _raises(error), session.effect(_CALL):
                resource.write(adapter, "k", "half")
                resource.write(adapter, "more", "half")
                resource.remove(adapter, "kept")
                raise error
        with session.effect(_CALL):
            seen = [resource.read(adapter, key) for key in ("k", "more", "kept")]
            _equal(seen, ["old", None, "new"], "in the next effect")
        session.prepare(_A)
        _commit(session)
        seen = [resource.outside(key) for key in ("k", "more", "kept")]
        _equal(seen, ["old", None, "new"], "after the commit")

    def test_prepare_may_be_said_again(self, tmp_path: Path) -> None:
        resource, adapter, session = self._begun(tmp_path)
        with session.effect(_CALL):
            resource.write(adapter, "k", "new")
        session.prepare(_A)
        session.prepare(_A)
        _commit(session)
        _equal(resource.outside("k"), "new", "after the commit")

    def test_a_session_without_effects_commits_and_is_marked(self, tmp_path: Path) -> None:
        _, adapter, session = self._begun(tmp_path)
        session.prepare(_A)
        _commit(session)
        _equal(adapter.landed(_A), True, "landed")

    def test_what_was_committed_is_taken_back_until_it_is_closed_by_whoever_says_so(
        self, tmp_path: Path
    ) -> None:
        resource, adapter, session = self._begun(tmp_path, k="old", gone="old")
        if not adapter.commits_last:
            session.undo()
            return
        with session.effect(_CALL):
            resource.write(adapter, "k", "new")
            resource.write(adapter, "more", "new")
            resource.remove(adapter, "gone")
        session.prepare(_A)
        session.commit(_A)
        session.undo()
        seen = [resource.outside(key) for key in ("k", "more", "gone")]
        _equal(seen, ["old", None, "old"], "after undo")
        _equal(adapter.landed(_A), False, "landed, once it is taken back")
        self._another_can_commit(resource)

    def test_the_state_diff_says_before_and_after_and_changes_nothing(self, tmp_path: Path) -> None:
        resource, adapter, session = self._begun(tmp_path, k="old", gone="old", same="old")
        with session.effect(_CALL):
            resource.write(adapter, "k", "new")
            resource.remove(adapter, "gone")
            resource.write(adapter, "same", "old")
            resource.write(adapter, "made", "new")
            resource.remove(adapter, "made")
        changes = session.changes()
        told = (
            None if changes is None else {one.key: (_text(one.before), _text(one.after)) for one in changes}
        )
        expected = {"k": ("old", "new"), "gone": ("old", None)} if resource.tells_changes else None
        _equal(told, expected, "changes()")
        _equal(resource.outside("k"), "old", "outside")
        session.undo()

    # --------------------------------------------------------------------------------- what it refuses

    def test_what_was_read_and_has_moved_is_refused_with_both_versions(self, tmp_path: Path) -> None:
        self._moved(tmp_path, lambda resource, adapter: resource.read(adapter, "k"), read=True)

    def test_what_was_overwritten_and_has_moved_is_refused(self, tmp_path: Path) -> None:
        self._moved(tmp_path, lambda resource, adapter: resource.write(adapter, "k", "mine"), read=False)

    def test_what_was_removed_and_has_moved_is_refused(self, tmp_path: Path) -> None:
        self._moved(tmp_path, lambda resource, adapter: resource.remove(adapter, "k"), read=None)

    def test_that_something_was_missing_is_watched_as_well(self, tmp_path: Path) -> None:
        self._moved(tmp_path, lambda resource, adapter: resource.read(adapter, "none"), key="none", read=True)

    def test_what_was_not_touched_may_move(self, tmp_path: Path) -> None:
        resource, adapter, session = self._begun(tmp_path, k="old", other="old")
        if not resource.notices_moves:
            session.undo()
            return
        with session.effect(_CALL):
            resource.write(adapter, "k", "new")
        resource.change_outside("other", "theirs")
        session.verify_unmoved()
        session.prepare(_A)
        _commit(session)
        _equal((resource.outside("k"), resource.outside("other")), ("new", "theirs"), "outside")

    def test_two_that_change_the_same_cannot_both_prepare(self, tmp_path: Path) -> None:
        resource, adapter, first = self._begun(tmp_path, k="old")
        if not resource.notices_moves:
            first.undo()
            return
        second = adapter.begin("t-2")
        for session in (first, second):
            with session.effect(_CALL):
                resource.write(adapter, "k", "mine")
        first.prepare(_A)
        with _raises(Moved):
            second.prepare("a-2")
        second.undo()
        _commit(first)
        _equal(resource.outside("k"), "mine", "outside")

    def test_the_resource_is_only_there_inside_an_effect(self, tmp_path: Path) -> None:
        resource, adapter, session = self._begun(tmp_path)
        with _raises(OutsideTransaction):
            resource.read(adapter, "k")
        with _raises(OutsideTransaction):
            resource.write(adapter, "k", "new")
        session.undo()
        with _raises(OutsideTransaction):
            resource.write(adapter, "k", "new")
        _equal(resource.outside("k"), None, "outside")

    def test_a_session_that_was_undone_commits_nothing(self, tmp_path: Path) -> None:
        resource, adapter, session = self._begun(tmp_path)
        with session.effect(_CALL):
            resource.write(adapter, "k", "new")
        session.prepare(_A)
        session.undo()
        with _raises(Exception):
            session.commit(_A)
        _equal((resource.outside("k"), adapter.landed(_A)), (None, False), "after it")

    def test_an_attempt_nobody_made_has_not_landed_and_one_that_cannot_be_asked_about_is_not_known(
        self, tmp_path: Path
    ) -> None:
        resource, adapter, session = self._begun(tmp_path)
        session.undo()
        _equal(adapter.landed("another"), False, "landed")
        away = resource.away()
        if away is not None:
            _equal(away.landed(_A), None, "landed, with the resource away")

    # ----------------------------------------------------------------------- after a process has died

    def test_recovering_what_nobody_left_changes_nothing(self, tmp_path: Path) -> None:
        resource, adapter, session = self._begun(tmp_path)
        _equal(adapter.recover("never", None), None, "recover, of a transaction that never was")
        with session.effect(_CALL):
            resource.write(adapter, "k", "new")
        session.prepare(_A)
        _commit(session)
        for attempt_id in (_A, None, _A):
            _equal(adapter.recover(_TXN, attempt_id), None, "recover, of one that is finished")
        _equal((resource.outside("k"), adapter.landed(_A)), ("new", True), "after it")

    def test_of_a_process_that_died_before_it_prepared_nothing_is_left(self, tmp_path: Path) -> None:
        resource = self._died(tmp_path, lambda session: None)
        if resource is not None:
            _equal(resource.adapter().recover(_TXN, _A), None, "recover")
            self._nothing_stands(resource)

    def test_what_it_prepared_for_a_redeemed_attempt_is_finished_by_another(self, tmp_path: Path) -> None:
        resource = self._died(tmp_path, lambda session: session.prepare(_A))
        if resource is None:
            return
        for _ in range(2):  # whoever recovers may die as well, having done nothing yet
            session = resource.adapter().recover(_TXN, _A)
            _equal(session is not None, resource.outlives_its_process, "recover answers a session")
        _equal(resource.adapter().landed(_A), False, "landed, before that")
        if session is None:
            self._nothing_stands(resource)
            return
        session.prepare(_A)
        _commit(session)
        _equal((resource.outside("k"), resource.adapter().landed(_A)), ("new", True), "once it is finished")
        _equal(resource.adapter().recover(_TXN, _A), None, "recover, the second time")

    def test_what_it_prepared_is_undone_by_another_as_well(self, tmp_path: Path) -> None:
        resource = self._died(tmp_path, lambda session: session.prepare(_A))
        if resource is not None:
            session = resource.adapter().recover(_TXN, _A)
            if session is not None:
                session.undo()
            self._nothing_stands(resource)

    def test_what_it_prepared_for_an_attempt_that_was_not_redeemed_is_undone(self, tmp_path: Path) -> None:
        for number, attempt_id in enumerate((None, "another")):
            resource = self._died(tmp_path / str(number), lambda session: session.prepare(_A))
            if resource is not None:
                _equal(resource.adapter().recover(_TXN, attempt_id), None, "recover")
                self._nothing_stands(resource)

    def test_what_it_committed_stays(self, tmp_path: Path) -> None:
        def until_committed(session: LiveSession) -> None:
            session.prepare(_A)
            session.commit(_A)

        resource = self._died(tmp_path, until_committed)
        if resource is not None:
            for attempt_id in (_A, None):
                _equal(resource.adapter().recover(_TXN, attempt_id), None, "recover")
            _equal((resource.outside("k"), resource.adapter().landed(_A)), ("new", True), "after it")

    # ------------------------------------------------------------------------------------------ inside

    def _begun(self, folder: Path, **standing: str) -> tuple[Resource, LiveAdapter, LiveSession]:
        folder.mkdir(exist_ok=True)
        resource = self.resource(folder)
        for key, value in standing.items():
            _equal(resource.change_outside(key, value), True, "somebody could write before it began")
        adapter = resource.adapter()
        return resource, adapter, adapter.begin(_TXN)

    def _moved(
        self,
        folder: Path,
        act: Callable[[Resource, LiveAdapter], object],
        *,
        read: bool | None,
        key: str = "k",
    ) -> None:
        for refuses in ("verify_unmoved", "prepare"):
            resource, adapter, session = self._begun(folder / refuses, k="old")
            with session.effect(_CALL):
                act(resource, adapter)
            if not resource.change_outside(key, "theirs"):
                _equal(resource.notices_moves, False, "others are kept out")
                session.undo()
                continue
            _equal(resource.notices_moves, True, "a change by others is noticed")
            with _raises(Moved) as caught:
                session.verify_unmoved() if refuses == "verify_unmoved" else session.prepare(_A)
            (moved,) = caught
            _equal(isinstance(moved, Moved) and moved.key, key, "the key of the refusal")
            _equal(isinstance(moved, Moved) and moved.expected != moved.now, True, "its versions differ")
            if read is not None:
                _equal(isinstance(moved, Moved) and moved.read, read, "whether it was read")
            (seen,) = (one for one in session.versions() if one.key == key)
            _equal(isinstance(moved, Moved) and moved.expected, seen.version, "the version that was seen")
            session.undo()
            _equal(resource.outside(key), "theirs", "outside")

    def _died(self, folder: Path, until: Callable[[LiveSession], None]) -> Resource | None:
        """A process wrote, went on until there, and died."""
        folder.mkdir(exist_ok=True)
        resource = self.resource(folder)
        if resource.dies_with_its_process:
            return None
        child = os.fork()
        if child == 0:
            code = 1
            try:
                adapter = resource.adapter()
                session = adapter.begin(_TXN)
                with session.effect(_CALL):
                    resource.write(adapter, "k", "new")
                until(session)
                code = 0
            finally:
                os._exit(code)
        _equal(
            os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0, "the exit code of the process that died"
        )
        return resource

    def _nothing_stands(self, resource: Resource) -> None:
        _equal((resource.outside("k"), resource.adapter().landed(_A)), (None, False), "nothing stands")
        self._another_can_commit(resource)

    def _another_can_commit(self, resource: Resource) -> None:
        adapter = resource.adapter()
        session = adapter.begin("t-9")
        with session.effect(_CALL):
            resource.write(adapter, "k", "theirs")
        session.verify_unmoved()
        session.prepare("a-9")
        session.commit("a-9")
        session.close()
        _equal(resource.outside("k"), "theirs", "what another transaction committed then")


def _commit(session: LiveSession) -> None:
    session.commit(_A)
    session.close()
    session.undo()  # of a session that has ended: nothing


def _text(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


def _equal(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what}: {found!r}, and it has to be {expected!r}")


@contextmanager
def _raises(kind: type[BaseException]) -> Iterator[list[BaseException]]:
    caught: list[BaseException] = []
    try:
        yield caught
    except kind as error:
        caught.append(error)
        return
    raise AssertionError(f"nothing was raised, and it has to be {kind.__name__}")
