"""Sessions of live adapters: commit them, hold what recovery found, and report their errors.

Rules for committing: one session after the other; those that can roll a commit back come last. An interrupt (Ctrl-C, a
signal that raises) is raised after the others have committed: the interrupted adapter reports whether its commit
landed, and commits once more if not. If it cannot tell even then, the result is `unknown`.

Rules for errors of an adapter that was given secrets, since a database quotes the values it refuses: an SDK error that
quotes no argument is reported without its cause; a conflict stays an `IsolationConflict`, without key and versions (a
version can be guessed from); of all others only the type and the location.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from countersign.adapters.protocol import LiveAdapter, LiveSession
from countersign.errors import (
    CommitUnknown,
    FireError,
    IsolationConflict,
    MisuseError,
    NotStageable,
    Stopped,
    ToolRaised,
    WorldError,
)
from countersign.journal.shown import HIDDEN
from countersign.texts import text_of

T = TypeVar("T")

_OURS: Final = (MisuseError, Stopped, FireError, WorldError)
_QUOTING: Final = (NotStageable, IsolationConflict)
"""Errors of ours that name what a call was about. What tools and adapters raise themselves (`NotDone`, a bare
`MisuseError`) may as well; the others hold no argument."""
_REDACTED: Final = "the resource and its versions are hidden: it was given secret arguments"


def has_no_arguments(error: BaseException) -> bool:
    """Whether this is an SDK error that quotes nothing of a call."""
    return isinstance(error, _OURS) and not isinstance(error, _QUOTING) and type(error) is not MisuseError


def call_adapter(adapter: str, act: Callable[[], T], *, hidden: bool) -> T:
    """Call an adapter. With `hidden` it was given secrets, so its exceptions are replaced by redacted ones."""
    try:
        return act()
    except Exception as error:
        if not hidden:
            raise
        text = _without_values(adapter, error)
    raise text  # outside of the handler, or its context would hold the hidden exception


def _without_values(adapter: str, error: Exception) -> Exception:
    if isinstance(error, IsolationConflict):
        return IsolationConflict(adapter, HIDDEN, read=error.read, expected=None, now=None, said=_REDACTED)
    if has_no_arguments(error):
        error.__cause__ = error.__context__ = None
        return error
    return ToolRaised.of(f"live adapter {adapter!r}", error)


@dataclass(frozen=True, slots=True)
class AdapterRecovery:
    """By adapter: the session it had prepared, or whether the attempt landed; and which adapters were given secrets."""

    prepared: dict[str, tuple[LiveAdapter, LiveSession]]
    landed: dict[str, bool | None]
    given_secrets: frozenset[str] = frozenset()

    @property
    def can_be_finished(self) -> bool | None:
        """Whether all of it is committed or prepared. False if everything left could be undone, None if neither."""
        answers = {*self.landed.values()}
        if None in answers or answers == {True, False}:
            return None
        return answers != {False}

    @property
    def has_landed(self) -> bool | None:
        """The same for a transaction without a redemption: its first committed adapter decides."""
        if self.can_be_finished is None:
            return None
        return True in self.landed.values()

    def adapters_with(self, landed: bool | None) -> tuple[str, ...]:
        """The adapters with that answer; None means they cannot tell."""
        return tuple(name for name, answer in self.landed.items() if answer is landed)

    @property
    def doubt(self) -> str:
        """Why the result is undecided: some adapters kept the work and some lost it, or one cannot tell."""
        stand, lost = self.adapters_with(True), self.adapters_with(False)
        if self.adapters_with(None) or not (stand and lost):
            return "it is unknown whether its live effects were kept"
        return f"its live effects in {', '.join(stand)} were kept, and those in {', '.join(lost)} were lost"

    @property
    def settlement_advice(self) -> str:
        """The doubt and how to resolve it."""
        if None in self.landed.values():
            return f"{self.doubt}; if it never can, check by hand and record that with `countersign journal close`"
        return f"{self.doubt}; resolve that by hand and record it with `countersign journal close`"

    def undo(self) -> None:
        """Undo every prepared session."""
        for name, (_, session) in self.prepared.items():
            call_adapter(name, session.undo, hidden=name in self.given_secrets)


log: Final = logging.getLogger("countersign")

_INTERRUPTED: Final = "it was interrupted"


AdapterCall = Callable[[str, Callable[[], Any]], Any]
"""Calls an adapter by name and redacts its exceptions."""


class AdapterCommitError(Exception):
    """An adapter could not commit; `committed` names the adapters that had committed before it."""

    def __init__(self, adapter: str, cause: Exception, committed: tuple[str, ...]) -> None:
        super().__init__(
            cause.kind if isinstance(cause, ToolRaised) else f"{type(cause).__name__}: {text_of(cause)}"
        )
        self.adapter, self.committed = adapter, committed
        # why its result is unknown; empty if it is known
        self.unknown = text_of(cause) if isinstance(cause, CommitUnknown) else ""


class AdapterCommits:
    """The adapter commits of one attempt."""

    def __init__(
        self, attempt_id: str, sessions: Iterable[tuple[LiveAdapter, LiveSession]], call: AdapterCall
    ) -> None:
        self._attempt_id, self._call = attempt_id, call
        self._left = sorted(sessions, key=lambda one: one[0].commits_last)
        self._names = frozenset(adapter.name for adapter, _ in self._left)
        self._begun = False  # whether the commit of the first remaining session was begun
        self._final: list[str] = []

    @property
    def done(self) -> frozenset[str]:
        """The adapters that are known to have committed."""
        return self._names - {adapter.name for adapter, _ in self._left}

    def run(self) -> None:
        """Commit the remaining sessions.

        Raises:
            CommitFailed: one could not; those after it were not begun.
        """
        while self._left:
            adapter, session = self._left[0]
            self._begun = True
            try:
                self._commit(adapter, session)
            except Exception as error:
                raise AdapterCommitError(adapter.name, error, tuple(self._final)) from error
            self._mark_committed(adapter)

    def go_on(self) -> None:
        """Continue after an interrupt.

        Raises:
            CommitFailed: one could not, or the result of the interrupted one is `unknown`.
        """
        if self._left and self._begun:
            self._finish(*self._left[0])
        self.run()

    def _mark_committed(self, adapter: LiveAdapter) -> None:
        """Mark an adapter as committed. In this order, so that after an interrupt at any point the adapter is asked
        again.
        """
        if not adapter.commits_last and adapter.name not in self._final:
            self._final.append(adapter.name)
        del self._left[0]
        self._begun = False

    def _finish(self, adapter: LiveAdapter, session: LiveSession) -> None:
        """Commit the interrupted session once more unless it has landed. Its success report is not enough: a
        database that took the interrupt for a ROLLBACK has nothing to commit and still reports success.
        """
        if not self._has_landed(adapter):
            failed: Exception = InterruptedError(_INTERRUPTED)
            try:
                self._commit(adapter, session)
            except Exception as error:  # noqa: BLE001 - an adapter may raise anything; it is asked again
                failed = error
            if (landed := self._has_landed(adapter)) is None:
                failed = CommitUnknown(adapter.name, _INTERRUPTED)
            if not landed:
                raise AdapterCommitError(adapter.name, failed, tuple(self._final)) from failed
        self._mark_committed(adapter)

    def _commit(self, adapter: LiveAdapter, session: LiveSession) -> None:
        self._call(adapter.name, functools.partial(session.commit, self._attempt_id))

    def _has_landed(self, adapter: LiveAdapter) -> bool | None:
        try:
            return adapter.landed(self._attempt_id)
        except Exception as error:  # noqa: BLE001 - an adapter may raise anything, which is no answer
            log.warning(
                "live adapter %s cannot tell whether it has committed: %s", adapter.name, type(error).__name__
            )
            return None
