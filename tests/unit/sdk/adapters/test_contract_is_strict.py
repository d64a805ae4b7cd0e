"""An adapter that breaks a rule fails the contract suite, in the test that names the rule."""

import sqlite3
import threading
from collections.abc import Iterator
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


_begin = SQLiteAdapter.begin


def _begins(*before):
    def begin(self: SQLiteAdapter, txn: str) -> SQLiteSession:
        for act in before:
            act(self)
        return _begin(self, txn)

    return begin


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


_LOST = "a_session_whose_transaction_was_ended_keeps_nothing_and_raises"
_FINISHED = "work_prepared_for_a_redeemed_attempt_is_finished_by_another_process"
_NOT_THERE = "a_missing_resource_is_refused_and_not_created"
_NO_SNAPSHOT = "what_cannot_be_snapshotted_is_refused_with_its_whole_effect"
_UNREACHABLE = "an_unknown_attempt_has_not_landed_and_an_unreachable_resource_returns_none"
FAULTS = [
    (FilesSession, "effect", _keeps_half, "an_effect_that_raises_is_undone_alone"),
    (FilesSession, "effect", _keeps_half, _NO_SNAPSHOT),
    (FilesAdapter, "remove", _nothing, _NO_SNAPSHOT),
    (EffectContext, "effect", _stays_open, "late_calls_of_a_failed_effect_do_nothing"),
    (EffectContext, "effect", _stays_open, "late_calls_do_nothing_in_the_next_effect"),
    (EffectContext, "effect", _stays_open, "late_calls_of_a_nested_effect_do_nothing_in_the_outer_one"),
    (EffectContext, "effect", _of_its_thread, "calls_the_effect_waits_for_are_part_of_it"),
    (FilesSession, "effect", _never_leaves, "the_resource_is_only_usable_inside_an_effect"),
    (FilesSession, "verify_isolation", _nothing, "a_changed_read_is_refused_with_both_versions"),
    (FilesSession, "prepare", _unprepared, "a_changed_overwritten_value_is_refused"),
    (FilesSession, "_require_no_conflict", _nothing, "two_sessions_cannot_both_prepare_the_same_key"),
    (FilesSession, "_require_no_conflict", _nothing, "no_session_depends_on_a_commit_that_may_be_undone"),
    (FilesSession, "undo", _nothing, "a_commit_can_be_undone_until_it_is_closed_if_declared"),
    (FilesSession, "changes", lambda _: (), "the_state_diff_has_before_and_after_and_changes_nothing"),
    (FilesAdapter, "landed", lambda *_: True, _UNREACHABLE),
    (FilesAdapter, "landed", lambda *_: False, "a_commit_is_permanent_and_marked"),
    (FilesAdapter, "recover", _nothing, "work_prepared_by_a_living_process_is_never_reported_lost"),
    (FilesAdapter, "recover", _nothing, _FINISHED),
    (FilesAdapter, "recover", _nothing, "work_prepared_for_an_unredeemed_attempt_is_undone"),
    (SessionFolder, "_apply", _nothing, "a_commit_is_permanent_and_marked"),
    (SQLiteSession, "_require_open", _nothing, _LOST),
    (SQLiteSession, "verify_isolation", _nothing, _LOST),
    (SQLiteAdapter, "begin", _begins(_makes_it), _NOT_THERE),
    (SQLiteAdapter, "begin", _begins(_makes_it, _refuses), _NOT_THERE),
    (SQLiteAdapter, "begin", _begins(_in_its_own_words), _NOT_THERE),
    (SQLiteAdapter, "begin", _begins(_in_its_own_words), "a_locked_resource_is_a_conflict_and_keeps_nothing"),
]


@pytest.mark.parametrize(("owner", "name", "act", "rule"), FAULTS)
def test_a_broken_adapter_fails_the_suite(tmp_path, monkeypatch, owner, name: str, act, rule: str) -> None:
    contract = SQLiteContract if owner in {SQLiteSession, SQLiteAdapter} else FilesContract
    for folder in ("sound", "broken"):
        (tmp_path / folder).mkdir()
    getattr(contract(), f"test_{rule}")(tmp_path / "sound")
    monkeypatch.setattr(owner, name, act)
    with pytest.raises((AssertionError, CountersignError, sqlite3.Error, RuntimeError)):
        getattr(contract(), f"test_{rule}")(tmp_path / "broken")
