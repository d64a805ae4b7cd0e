"""Committing the sessions of one transaction, one after the other: nothing parts them but a resource that fails.

Rules: those that can take a commit back come last. An interrupt (Ctrl-C, a signal that raises) goes on its way after
the others have committed: the adapter whose commit it came into says whether that landed, and is told once more to
commit if it does not say so. Where it cannot tell even then, nobody knows whether the rest is to follow (`unknown`).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from countersign.adapters.protocol import LiveAdapter, LiveSession
from countersign.errors import CommitUnknown, ToolRaised
from countersign.texts import text_of

log: Final = logging.getLogger("countersign")

_INTERRUPTED: Final = "it was interrupted"


class Heard(Protocol):
    """What an adapter answers; what it raises without what is secret."""

    def __call__(self, adapter: str, act: Callable[[], Any]) -> Any:
        """Ask it."""
        ...


class CommitFailed(Exception):
    """An adapter could not commit; `committed` names those that had before it."""

    def __init__(self, adapter: str, cause: Exception, committed: tuple[str, ...]) -> None:
        super().__init__(
            cause.kind if isinstance(cause, ToolRaised) else f"{type(cause).__name__}: {text_of(cause)}"
        )
        self.adapter, self.committed = adapter, committed
        # whether it stands, and why
        self.unknown = text_of(cause) if isinstance(cause, CommitUnknown) else ""


class Committing:
    """The commits of one attempt."""

    def __init__(
        self, attempt_id: str, sessions: Iterable[tuple[LiveAdapter, LiveSession]], heard: Heard
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
                raise CommitFailed(adapter.name, error, tuple(self._final)) from error
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
                raise CommitFailed(adapter.name, failed, tuple(self._final)) from failed
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
