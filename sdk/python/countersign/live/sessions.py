"""Sessions of live adapters: committing them, recovering those of dead processes, and reporting their errors.

Rules for committing: one session after the other; those that can take a commit back come last. An interrupt (Ctrl-C, a
signal that raises) is raised after the others have committed: the adapter whose commit it came into says whether that
landed, and is asked once more to commit if not. Where it cannot tell even then, the rest is `unknown`.

Rules for recovery: of a transaction that was not redeemed nothing is left; of one that was, what every adapter has made
permanent or prepared can be finished, and is told apart from what was lost with its process. Nothing is guessed: where
an adapter cannot tell, or some landed and some were lost, nothing is decided here.

Rules for errors of an adapter that was given secrets, for a database quotes the values that it refuses: one of ours
that holds no argument is reported as it is, without its cause; a conflict stays a `Moved`, without key and versions (a
version may be guessed from); of all others the kind and the place.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from countersign.adapters.protocol import LiveAdapter, LiveSession
from countersign.errors import (
    CommitUnknown,
    FireError,
    IsolationConflict,
    MisuseError,
    NotStageable,
    RegistrationError,
    Stopped,
    ToolRaised,
    WorldError,
)
from countersign.journal import TransactionRecord
from countersign.journal.sealing import HIDDEN
from countersign.runtime import Engine
from countersign.texts import text_of

T = TypeVar("T")

_OURS: Final = (MisuseError, Stopped, FireError, WorldError)
_QUOTING: Final = (NotStageable, IsolationConflict)
"""Errors of ours that name what a call was about. What tools and adapters raise themselves (`NotDone`, a bare
`MisuseError`) may as well; the others hold no argument."""
_REDACTED: Final = "over what and at which versions is not told: it was given secret arguments"


def has_no_arguments(error: BaseException) -> bool:
    """Whether it is an error of ours that says nothing of what a call was about."""
    return isinstance(error, _OURS) and not isinstance(error, _QUOTING) and type(error) is not MisuseError


def call_adapter(adapter: str, act: Callable[[], T], *, hidden: bool) -> T:
    """What an adapter answers. `hidden`: it was given secrets, so what it raises is not told as it is."""
    try:
        return act()
    except Exception as error:
        if not hidden:
            raise
        told = _without_values(adapter, error)
    raise told  # out here, or it would keep what it hides as its context


def _without_values(adapter: str, error: Exception) -> Exception:
    if isinstance(error, IsolationConflict):
        return IsolationConflict(adapter, HIDDEN, read=error.read, expected=None, now=None, said=_REDACTED)
    if has_no_arguments(error):
        error.__cause__ = error.__context__ = None
        return error
    return ToolRaised.of(f"live adapter {adapter!r}", error)


@dataclass(frozen=True, slots=True)
class AdapterRecovery:
    """By adapter: the session it had prepared, or whether the attempt landed; and which of them were given secrets."""

    prepared: dict[str, tuple[LiveAdapter, LiveSession]]
    landed: dict[str, bool | None]
    given_secrets: frozenset[str] = frozenset()

    @property
    def can_be_finished(self) -> bool | None:
        """Whether all of it stands or is prepared; False where all that is left of it could be undone, None where
        neither holds.
        """
        answers = {*self.landed.values()}
        if None in answers or answers == {True, False}:
            return None
        return answers != {False}

    @property
    def has_landed(self) -> bool | None:
        """The same of a transaction without a redemption: it is decided once the first adapter has committed."""
        if self.can_be_finished is None:
            return None
        return True in self.landed.values()

    def that(self, landed: bool | None) -> tuple[str, ...]:
        """The adapters that answered so; None: they cannot tell."""
        return tuple(name for name, answer in self.landed.items() if answer is landed)

    @property
    def doubt(self) -> str:
        """Why nobody decides here: a part stands and a part is lost, or an adapter cannot tell."""
        stand, lost = self.that(True), self.that(False)
        if self.that(None) or not (stand and lost):
            return "it cannot be told whether its live effects were kept"
        return f"its live effects in {', '.join(stand)} stand, and those in {', '.join(lost)} do not"

    @property
    def settlement_advice(self) -> str:
        """The same, with what can be done about it."""
        if None in self.landed.values():
            return f"{self.doubt}; where it never can, whoever has looked says so with `countersign journal close`"
        return f"{self.doubt}; whoever puts that right says so with `countersign journal close`"

    def undo(self) -> None:
        """Leave nothing of what was prepared."""
        for name, (_, session) in self.prepared.items():
            call_adapter(name, session.undo, hidden=name in self.given_secrets)


def recover_sessions(engine: Engine, record: TransactionRecord) -> AdapterRecovery:
    """Ask every adapter of the list in force what it has of that attempt; what other lists left is undone."""
    attempt_id = record.attempt_id or ""
    rows = engine.journal.transactions.live(record)
    adapters = _adapters(engine, {row.tool for row in rows})
    given_secrets = frozenset(_adapters(engine, {row.tool for row in rows if row.has_secrets}))
    prepared: dict[str, tuple[LiveAdapter, LiveSession]] = {}
    landed: dict[str, bool | None] = {}
    for name, adapter in adapters.items():
        session = _recovered(engine, adapter, record.txn, attempt_id)
        if session is None:
            landed[name] = adapter.landed(attempt_id)
        else:
            prepared[name] = adapter, session
    undo_orphaned_sessions(engine, record.txn, but=adapters)
    return AdapterRecovery(prepared, landed, given_secrets)


def undo_orphaned_sessions(engine: Engine, txn: str, *, but: Container[str] = ()) -> None:
    """What stands or is prepared under that key was never redeemed: undo it."""
    tools = engine.journal.transactions.live_tools(txn)
    for name, adapter in _adapters(engine, tools).items():
        if name not in but:
            _recovered(engine, adapter, txn, None)


def _recovered(engine: Engine, adapter: LiveAdapter, txn: str, attempt_id: str | None) -> LiveSession | None:
    """What an adapter finishes may be another transaction's, and so may the secret that it quotes."""
    hidden = engine.journal.transactions.unfinished_has_secrets()
    return call_adapter(adapter.name, functools.partial(adapter.recover, txn, attempt_id), hidden=hidden)


def _adapters(engine: Engine, tools: Iterable[str]) -> dict[str, LiveAdapter]:
    """The adapters of these tools, by name.

    Raises:
        RegistrationError: a tool is not here, or staged since, so that what it left cannot be looked at.
    """
    found = {}
    for name in tools:
        adapter = engine.registry.require(name, "it ran live in this transaction").adapter
        if adapter is None:
            raise RegistrationError(
                f"tool {name!r} ran live in this transaction and is staged here, so that nobody can look at what it "
                "left; declare it live with the adapter it had, and a staged one under another name"
            )
        found[adapter.name] = adapter
    return found


log: Final = logging.getLogger("countersign")

_INTERRUPTED: Final = "it was interrupted"


AdapterCall = Callable[[str, Callable[[], Any]], Any]
"""What an adapter of that name answers; what it raises without what is secret."""


class AdapterCommitError(Exception):
    """An adapter could not commit; `committed` names those that had before it."""

    def __init__(self, adapter: str, cause: Exception, committed: tuple[str, ...]) -> None:
        super().__init__(
            cause.kind if isinstance(cause, ToolRaised) else f"{type(cause).__name__}: {text_of(cause)}"
        )
        self.adapter, self.committed = adapter, committed
        # whether it stands, and why
        self.unknown = text_of(cause) if isinstance(cause, CommitUnknown) else ""


class AdapterCommits:
    """The commits of one attempt."""

    def __init__(
        self, attempt_id: str, sessions: Iterable[tuple[LiveAdapter, LiveSession]], heard: AdapterCall
    ) -> None:
        self._attempt_id, self._heard = attempt_id, heard
        self._left = sorted(sessions, key=lambda one: one[0].commits_last)
        self._names = frozenset(adapter.name for adapter, _ in self._left)
        self._begun = False  # the first of those left, in which an interrupt may have come
        self._final: list[str] = []

    @property
    def done(self) -> frozenset[str]:
        """The adapters that are known to have committed."""
        return self._names - {adapter.name for adapter, _ in self._left}

    def run(self) -> None:
        """Commit what is left.

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
            self._stands(adapter)

    def go_on(self) -> None:
        """After an interrupt.

        Raises:
            CommitFailed: one could not, or it is `unknown` whether the one that was interrupted could.
        """
        if self._left and self._begun:
            self._finish(*self._left[0])
        self.run()

    def _stands(self, adapter: LiveAdapter) -> None:
        """In this order: wherever an interrupt comes between, its adapter is asked, and nothing is forgotten."""
        if not adapter.commits_last and adapter.name not in self._final:
            self._final.append(adapter.name)
        del self._left[0]
        self._begun = False

    def _finish(self, adapter: LiveAdapter, session: LiveSession) -> None:
        """What has not landed is committed once more. That it says so is not enough: a database that took the interrupt
        for a ROLLBACK has nothing to commit, and answers as if it had.
        """
        if not self._asked(adapter):
            failed: Exception = InterruptedError(_INTERRUPTED)
            try:
                self._commit(adapter, session)
            except Exception as error:  # noqa: BLE001 - an adapter may raise anything, and it is asked what that means
                failed = error
            if (landed := self._asked(adapter)) is None:
                failed = CommitUnknown(adapter.name, _INTERRUPTED)
            if not landed:
                raise AdapterCommitError(adapter.name, failed, tuple(self._final)) from failed
        self._stands(adapter)

    def _commit(self, adapter: LiveAdapter, session: LiveSession) -> None:
        self._heard(adapter.name, functools.partial(session.commit, self._attempt_id))

    def _asked(self, adapter: LiveAdapter) -> bool | None:
        try:
            return adapter.landed(self._attempt_id)
        except Exception as error:  # noqa: BLE001 - an adapter may raise anything; it has not told
            log.warning(
                "live adapter %s cannot tell whether it has committed: %s", adapter.name, type(error).__name__
            )
            return None
