"""The live lane of one transaction: adapters' sessions, opened when first needed, ended together.

Rules: an effect is in the journal before it runs; after `undo` nothing of it stands; a commit that fails says
which adapters had already committed. No session is open while people decide: the commit calls `undo` first.
"""

from __future__ import annotations

import inspect
import logging
from contextlib import ExitStack
from typing import Any, Final

from countersign.adapters.protocol import Change, LiveAdapter, LiveCall, LiveSession
from countersign.errors import MisuseError
from countersign.remains import Recovered
from countersign.tool import Tool

log: Final = logging.getLogger("countersign")


class CommitFailed(Exception):
    """An adapter could not commit; `committed` names those that had before it."""

    def __init__(self, adapter: str, cause: Exception, committed: tuple[str, ...]) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.adapter, self.committed = adapter, committed


class LiveWork:
    """The sessions of one transaction."""

    def __init__(self, txn: str) -> None:
        self._txn = txn
        self._sessions: dict[str, tuple[LiveAdapter, LiveSession]] = {}
        self.effects = 0

    def __bool__(self) -> bool:
        return bool(self._sessions)

    def run(self, tool: Tool, call: LiveCall) -> Any:
        """Run one live effect now; an async tool answers an awaitable that does."""
        if tool.adapter is None:
            raise AssertionError("registration refuses a live tool without an adapter")
        session = self._session(tool.adapter)
        self.effects += 1
        if tool.is_async:
            return self._run_async(tool, call, session)
        with session.effect(call):
            return tool.fn(**dict(call.args))

    def verify_unmoved(self) -> None:
        """Design section 7, step 2."""
        for _, session in self._sessions.values():
            session.verify_unmoved()

    def changes(self) -> dict[str, tuple[Change, ...] | None]:
        """What each adapter would change by its name; None of one that cannot tell."""
        return {name: session.changes() for name, (_, session) in self._sessions.items()}

    def prepare(self, attempt_id: str) -> None:
        """Let what can fail about a commit fail before the redemption."""
        for _, session in self._sessions.values():
            session.prepare(attempt_id)

    def commit(self, attempt_id: str) -> None:
        """Commit every adapter, in the order they were first used; last those that can take a commit back.

        Raises:
            CommitFailed: one could not; of the others only those whose commit is final stand.
        """
        final: list[str] = []
        for adapter, session in sorted(self._sessions.values(), key=lambda one: one[0].commits_last):
            try:
                session.commit(attempt_id)
            except Exception as error:  # an adapter may raise anything, and its name must reach the caller
                self._forget(final)
                self.undo()
                raise CommitFailed(adapter.name, error, tuple(final)) from error
            if not adapter.commits_last:
                final.append(adapter.name)
        self._close()

    def adopt(self, found: Recovered) -> None:
        """Go on with what dead processes had prepared, in place of what this one has done."""
        self.undo()
        self._sessions = dict(found.prepared)

    def undo(self) -> None:
        """Leave nothing behind. One adapter's trouble does not keep the others from being undone."""
        sessions, self._sessions = self._sessions, {}
        with ExitStack() as stack:
            for _, session in sessions.values():
                stack.callback(session.undo)

    def _session(self, adapter: LiveAdapter) -> LiveSession:
        known = self._sessions.get(adapter.name)
        if known is None:
            known = self._sessions[adapter.name] = (adapter, adapter.begin(self._txn))
        elif known[0] is not adapter:
            raise MisuseError(f"two live adapters are called {adapter.name!r}; give one another name")
        return known[1]

    def _close(self) -> None:
        """Everything is committed; what is left to do is tidying up, and the next to come does it as well."""
        sessions, self._sessions = self._sessions, {}
        for adapter, session in sessions.values():
            try:
                session.close()
            except Exception as error:  # noqa: BLE001 - as above; and it must not hide that everything stands
                log.warning("live adapter %s could not tidy up: %s", adapter.name, error)

    def _forget(self, names: list[str]) -> None:
        for name in names:
            del self._sessions[name]

    @staticmethod
    async def _run_async(tool: Tool, call: LiveCall, session: LiveSession) -> Any:
        with session.effect(call):
            answer = tool.fn(**dict(call.args))
            return await answer if inspect.isawaitable(answer) else answer
