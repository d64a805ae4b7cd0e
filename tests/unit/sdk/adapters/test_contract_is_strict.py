"""An adapter that breaks a rule fails the contract suite, in the test that names the rule."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from countersign.adapters.files import FilesAdapter
from countersign.adapters.files_session import FilesSession
from countersign.adapters.protocol import EffectContext, _ActiveEffect
from countersign.adapters.redo_log import SessionFolder
from countersign.adapters.sqlite import SQLiteAdapter, SQLiteSession
from countersign.errors import CountersignError, NotStageable
from tests.unit.sdk.adapters.test_contract import TestFiles as FilesContract
from tests.unit.sdk.adapters.test_contract import TestSQLite as SQLiteContract

Fault = Callable[[pytest.MonkeyPatch], None]


@contextmanager
def _keeps_half(self: FilesSession, call: object) -> Iterator[None]:
    with self._context.effect(self):
        yield


@contextmanager
def _never_leaves(self: FilesSession, call: object) -> Iterator[None]:
    self._context.effect(self).__enter__()
    yield


class _OfItsThread(_ActiveEffect[FilesSession]):
    """As an adapter has it that asks for the thread."""

    def __init__(self, subject: FilesSession) -> None:
        self.subject, self.used, self._mine = subject, threading.RLock(), threading.get_ident()

    @property
    def over(self) -> bool:  # type: ignore[override]
        return threading.get_ident() != self._mine


def _turns(turn: type[_ActiveEffect[FilesSession]]):
    """Effects of an adapter whose turns end otherwise, or not at all."""

    @contextmanager
    def effect(self: EffectContext[FilesSession], subject: FilesSession) -> Iterator[None]:
        token = self._turn.set(turn(subject))
        try:
            yield
        finally:
            self._turn.reset(token)

    return effect


_stays_open, _of_its_thread = _turns(_ActiveEffect), _turns(_OfItsThread)


def _instead(owner: type, name: str, act) -> Fault:
    return lambda patch: patch.setattr(owner, name, act)


_begin = SQLiteAdapter.begin


def _begins(*before: Callable[[SQLiteAdapter], None]) -> Fault:
    def begin(self: SQLiteAdapter, txn: str) -> SQLiteSession:
        for act in before:
            act(self)
        return _begin(self, txn)

    return _instead(SQLiteAdapter, "begin", begin)


def _makes_it(adapter: SQLiteAdapter) -> None:
    Path(adapter._path).parent.mkdir(exist_ok=True)
    Path(adapter._path).touch()


def _refuses(adapter: SQLiteAdapter) -> None:
    raise NotStageable("it was not there")


def _in_its_own_words(adapter: SQLiteAdapter) -> None:
    """As an adapter does that looks for file and lock by itself."""
    with closing(sqlite3.connect(adapter._path, timeout=0)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise RuntimeError("somebody else has it") from error


def _unprepared(self: FilesSession, attempt_id: str) -> None:
    self._work.write(self._record(attempt_id))


def _nothing(*_) -> None:
    """Instead of what a rule needs."""


_HALF = _instead(FilesSession, "effect", _keeps_half)
_OPEN = _instead(EffectContext, "effect", _stays_open)
_DISPUTED = _instead(FilesSession, "_require_no_conflict", _nothing)
_FORGETS = _instead(FilesAdapter, "recover", _nothing)
_LANDED = _instead(FilesAdapter, "landed", lambda *_: True)
_UNCHANGED = _instead(FilesSession, "changes", lambda _: ())
_UNREMOVED = _instead(FilesAdapter, "remove", _nothing)
FAULTS: list[tuple[Fault, str]] = [
    (_HALF, "an_effect_that_raises_is_undone_alone"),
    (_HALF, "what_cannot_be_snapshotted_is_refused_with_its_whole_effect"),
    (_OPEN, "late_calls_of_a_failed_effect_do_nothing"),
    (_OPEN, "late_calls_do_nothing_in_the_next_effect"),
    (_OPEN, "late_calls_of_a_nested_effect_do_nothing_in_the_outer_one"),
    (_instead(EffectContext, "effect", _of_its_thread), "calls_the_effect_waits_for_are_part_of_it"),
    (_instead(FilesSession, "effect", _never_leaves), "the_resource_is_only_usable_inside_an_effect"),
    (_instead(FilesSession, "verify_isolation", _nothing), "a_changed_read_is_refused_with_both_versions"),
    (_instead(FilesSession, "prepare", _unprepared), "a_changed_overwritten_value_is_refused"),
    (_DISPUTED, "two_sessions_cannot_both_prepare_the_same_key"),
    (_DISPUTED, "no_session_depends_on_a_commit_that_may_be_undone"),
    (_instead(FilesSession, "undo", _nothing), "a_commit_can_be_undone_until_it_is_closed_if_declared"),
    (_FORGETS, "work_prepared_by_a_living_process_is_never_reported_lost"),
    (_LANDED, "an_unknown_attempt_has_not_landed_and_an_unreachable_resource_returns_none"),
    (_instead(FilesAdapter, "landed", lambda *_: False), "a_commit_is_permanent_and_marked"),
    (_FORGETS, "work_prepared_for_a_redeemed_attempt_is_finished_by_another_process"),
    (_FORGETS, "work_prepared_for_an_unredeemed_attempt_is_undone"),
    (_UNCHANGED, "the_state_diff_has_before_and_after_and_changes_nothing"),
    (_UNREMOVED, "what_cannot_be_snapshotted_is_refused_with_its_whole_effect"),
    (_instead(SessionFolder, "_apply", _nothing), "a_commit_is_permanent_and_marked"),
]
_LOST = "a_session_whose_transaction_was_ended_keeps_nothing_and_raises"
_NOT_THERE = "a_missing_resource_is_refused_and_not_created"
OF_A_DATABASE: list[tuple[Fault, str]] = [
    (_instead(SQLiteSession, "_require_open", _nothing), _LOST),
    (_instead(SQLiteSession, "verify_isolation", _nothing), _LOST),
    (_begins(_makes_it), _NOT_THERE),
    (_begins(_makes_it, _refuses), _NOT_THERE),
    (_begins(_in_its_own_words), _NOT_THERE),
    (_begins(_in_its_own_words), "a_locked_resource_is_a_conflict_and_keeps_nothing"),
]
BROKEN = [(FilesContract, *one) for one in FAULTS] + [(SQLiteContract, *one) for one in OF_A_DATABASE]


@pytest.mark.parametrize(("contract", "fault", "rule"), BROKEN)
def test_a_broken_adapter_fails_the_suite(tmp_path, monkeypatch, contract, fault: Fault, rule: str) -> None:
    for folder in ("sound", "broken"):
        (tmp_path / folder).mkdir()
    getattr(contract(), f"test_{rule}")(tmp_path / "sound")
    fault(monkeypatch)
    with pytest.raises((AssertionError, CountersignError, sqlite3.Error, RuntimeError)):
        getattr(contract(), f"test_{rule}")(tmp_path / "broken")
