"""The live work of one transaction: adapter sessions, opened on first use, ended together.

Rules: an effect is journaled before it runs; after `undo` nothing of it remains; a failed commit reports which adapters
had committed; nothing is reported as undone that could not be undone. No session is open while people decide: the
commit calls `undo` first. Errors of an adapter that was given secrets are redacted (sessions.py); errors of a tool go
to its caller. Effects run one at a time (isolation.py); a block of them can be rolled back alone (`savepoint`).

Rules for recovery: a transaction that was not redeemed is undone. For a redeemed one, everything that an adapter has
committed or prepared can be finished; what was lost with its process is reported separately. Nothing is guessed: if an
adapter cannot tell, or some landed and some were lost, nothing is decided here.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable, Container, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final, TypeVar

from countersign import tracing
from countersign.adapters.protocol import Change, LiveAdapter, LiveCall, LiveSession, Savepoint
from countersign.adapters.reads import READS
from countersign.errors import (
    JournalError,
    MisuseError,
    NotStageable,
    RegistrationError,
    SavepointLost,
    SessionLost,
)
from countersign.journal import TransactionRecord
from countersign.live.isolation import SessionLock
from countersign.live.sessions import AdapterCommitError, AdapterCommits, AdapterRecovery, call_adapter
from countersign.runtime import Engine
from countersign.texts import text_of
from countersign.tools.definition import Tool
from countersign.tools.results import is_awaitable, unfinished_error

T = TypeVar("T")

log: Final = logging.getLogger("countersign")


class LiveWork:
    """The sessions of one transaction."""

    def __init__(self, txn: str) -> None:
        self._txn = txn
        self._sessions: dict[str, tuple[LiveAdapter, LiveSession]] = {}
        self._blocks: list[Block] = []  # open ones, the outermost first
        self._turns = SessionLock()
        self._given_secrets: set[str] = set()  # adapters, by name
        self._lost: SavepointLost | SessionLost | None = None
        # the error of a failed undo; the rows stay `live` until recovery
        self._not_undone: BaseException | None = None
        self.may_stand = False  # a commit was begun, so some of it may be kept
        self._adopted = False  # it continues a dead process's sessions; this run's own were undone
        self.rerun: int | None = None  # its list, if an earlier one is in force
        self.claimed: frozenset[str] | None = None  # with Serialize: the adapters it may use

    def __bool__(self) -> bool:
        return bool(self._sessions)

    def run(self, tool: Tool, call: LiveCall) -> Any:
        """Run one live effect now; an async tool returns an awaitable."""
        if tool.adapter is None:
            raise AssertionError("registration refuses a live tool without an adapter")
        if tool.is_async:
            return self._run_async(tool, call)
        with self._turns.blocking(tool.name), self._traced(call), self._session(tool.adapter).effect(call):
            answer = tool.fn(**dict(call.args))
            if is_awaitable(answer) and (error := unfinished_error(answer)) is not None:
                raise error  # inside the effect, so that it is rolled back
            return answer

    def _traced(self, call: LiveCall) -> AbstractContextManager[object]:
        return tracing.span("countersign live", txn=self._txn, effect_id=call.effect_id, tool=call.tool)

    def mark_secret(self, tool: Tool) -> None:
        """Redact the errors of this tool's adapter: a call of it has secrets."""
        if tool.adapter is not None:
            self._given_secrets.add(tool.adapter.name)

    def savepoint(self) -> Block:
        """A block whose live effects are rolled back if it raises; earlier ones stay.

        Raises:
            NotStageable: an adapter has no savepoints, or a live effect is running.
        """
        if self._turns.is_held_here:
            raise NotStageable("a live tool is part of a block and cannot open one inside itself")
        return Block(self)

    def end_block(self) -> None:
        """A parallel block has ended. If a live effect is still running, the whole live work is lost."""
        if not self._turns.end_block():
            self.mark_lost(
                "a live effect was still running when its block was over; wait inside it for every thread and task"
            )

    def mark_lost(self, why: str) -> None:
        """The state of the live work is unknown, so it must not be committed."""
        self._lost = self._lost or SavepointLost(why)

    def require_whole(self) -> None:
        """Refuse to continue after a block could not be rolled back.

        Raises:
            SavepointLost: naming the adapter.
        """
        if self._lost is not None:
            raise self._lost

    def verify_isolation(self) -> None:
        """Design section 7, step 2."""
        for name, (_, session) in self._sessions.items():
            self.call(name, session.verify_isolation)

    def changes(self) -> dict[str, tuple[Change, ...] | None]:
        """What each adapter would change, by its name; None if it cannot tell."""
        return {name: self.call(name, session.changes) for name, (_, session) in self._sessions.items()}

    def prepare(self, attempt_id: str) -> None:
        """Let errors of a commit occur before the redemption."""
        for name, (_, session) in self._sessions.items():
            self.call(name, functools.partial(session.prepare, attempt_id))

    def commit(self, attempt_id: str, kept: Callable[[], object]) -> None:
        """Commit every adapter in the order of first use; last those that can roll a commit back. `kept` records
        that all of it is kept. An interrupt is raised after that is recorded (sessions.py).

        Raises:
            CommitFailed: one could not; of the others only those whose commit is final are kept. Unless the result
                is `unknown`, nothing is undone that `recover` might have to finish.
        """
        commits = AdapterCommits(attempt_id, self._sessions.values(), self.call)
        self.may_stand = not self._adopted
        try:
            commits.run()
            self._close()
        except AdapterCommitError as failed:
            self._leave(failed)
            raise
        except BaseException:
            self._end_interrupted(commits, kept)
            raise
        kept()

    def _end_interrupted(self, commits: AdapterCommits, kept: Callable[[], object]) -> None:
        """Only another interrupt replaces the first one; recovery handles other errors."""
        try:
            commits.go_on()
            self._close()
            kept()
        except AdapterCommitError as failed:
            log.warning("live adapter %s could not commit after an interrupt: %s", failed.adapter, failed)
            self._leave(failed)
        except JournalError as error:
            log.warning("could not record that the live work of %s was kept: %s", self._txn[:12], error)
        except BaseException:
            self._let_go(but=commits.done)
            raise

    def _leave(self, failed: AdapterCommitError) -> None:
        if failed.unknown:
            self._let_go(but=(*failed.committed, failed.adapter))
            return
        for name in failed.committed:
            del self._sessions[name]
        self.undo()
        self.may_stand = self.may_stand and bool(failed.committed)

    def adopt(self, found: AdapterRecovery) -> None:
        """Continue with the sessions that dead processes had prepared, in place of this run's."""
        self.undo()
        self._adopted, self.rerun = True, None
        self._sessions = dict(found.prepared)
        self._given_secrets |= found.given_secrets

    def undo(self) -> None:
        """Undo every session. An error of one adapter does not stop the others; it is raised again at the next call,
        because silence would mean "undone".
        """
        self._turns.end_block()
        sessions, self._sessions = self._sessions, {}
        try:
            with ExitStack() as stack:
                for name, (_, session) in sessions.items():
                    stack.callback(self.call, name, session.undo)
        except BaseException as error:
            self._not_undone = error
            raise
        if self._not_undone is not None:
            raise self._not_undone

    def call(self, adapter: str, act: Callable[[], T]) -> T:
        """Call an adapter; its errors are redacted if it was given secrets."""
        return call_adapter(adapter, act, hidden=adapter in self._given_secrets)

    def _session(self, adapter: LiveAdapter) -> LiveSession:
        known = self._sessions.get(adapter.name)
        if known is None:
            self._require_claimed(adapter)
            known = self._begun(adapter)
        elif known[0] is not adapter:
            raise MisuseError(f"two live adapters are called {adapter.name!r}; give one another name")
        return known[1]

    def _begun(self, adapter: LiveAdapter) -> tuple[LiveAdapter, LiveSession]:
        """Begin a session with every open savepoint, or none: its next call would run without savepoint."""
        known = adapter, adapter.begin(self._txn)
        self._sessions[adapter.name] = known  # from here on it is undone with the others
        try:
            for block in self._blocks:
                block.begin(adapter.name, known[1])
        except BaseException:
            self._drop(adapter.name)
            raise
        return known

    def _drop(self, name: str) -> None:
        """Undo a session in which nothing has run yet."""
        for block in self._blocks:
            block.forget(name)
        _, session = self._sessions.pop(name)
        try:
            self.call(name, session.undo)
        except BaseException as error:
            self._not_undone = error
            self.mark_lost(f"live adapter {name!r} could not undo a session in which a block could not begin")
            raise

    def _require_claimed(self, adapter: LiveAdapter) -> None:
        if self.claimed is not None and adapter is not READS and adapter.name not in self.claimed:
            raise NotStageable(
                f"live adapter {adapter.name!r} was not locked when this transaction was entered; name it in "
                "Serialize(adapters=[...]), or register its tools before"
            )

    def _close(self) -> None:
        """Everything is committed. A failed cleanup is repeated by the next process."""
        for name, (_, session) in list(self._sessions.items()):
            try:
                self.call(name, session.close)
            except Exception as error:  # noqa: BLE001 - an adapter may raise anything; the work is committed
                log.warning("live adapter %s could not clean up: %s", name, text_of(error))
            del self._sessions[name]

    def _let_go(self, but: Container[str]) -> None:
        """Release sessions that are not committed; recovery decides about them once an adapter can tell."""
        sessions, self._sessions = self._sessions, {}
        for name, (_, session) in sessions.items():
            if name in but:
                continue
            try:
                self.call(name, session.let_go)
            except Exception as error:  # noqa: BLE001 - an adapter may raise anything; recovery handles it
                log.warning(
                    "live adapter %s could not release its prepared session: %s", name, text_of(error)
                )

    async def _run_async(self, tool: Tool, call: LiveCall) -> Any:
        if tool.adapter is None:
            raise AssertionError("registration refuses a live tool without an adapter")
        async with self._turns.awaiting(tool.name):
            with self._traced(call), self._session(tool.adapter).effect(call):
                answer = tool.fn(**dict(call.args))
                return await answer if inspect.isawaitable(answer) else answer


class Block:
    """A savepoint over every open session. If it cannot be rolled back, the state is unknown and the whole live work
    has to be undone.
    """

    def __init__(self, live: LiveWork) -> None:
        self._live = live
        self._savepoints: list[tuple[str, Savepoint]] = []  # with the names of their adapters
        self._pid = os.getpid()

    def begin(self, adapter: str, session: LiveSession) -> None:
        """Add a session: one that was open before, or that begins inside the block."""
        self._savepoints.append((adapter, self._live.call(adapter, session.savepoint)))

    def forget(self, adapter: str) -> None:
        """Remove a session that is undone."""
        self._savepoints = [one for one in self._savepoints if one[0] != adapter]

    def __enter__(self) -> None:
        self._live._blocks.append(self)
        try:
            for name, (_, session) in self._live._sessions.items():
                self.begin(name, session)
        except BaseException:
            self._end(keep=False)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if os.getpid() == self._pid:  # a fork copied the sessions, which belong to the parent
            self._end(keep=error is None)

    def _end(self, *, keep: bool) -> None:
        self._live._blocks.remove(self)
        try:
            for name, one in reversed(self._savepoints):
                self._live.call(name, one.release if keep else one.rollback)
        except SessionLost as lost:
            self._live._lost = lost
            raise
        except Exception as error:
            lost_savepoint = SavepointLost(text_of(error) or type(error).__name__)
            self._live._lost = lost_savepoint
            raise lost_savepoint from error


def recover_sessions(engine: Engine, record: TransactionRecord) -> AdapterRecovery:
    """Ask every adapter of the list in force for that attempt. Sessions of other lists are undone."""
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
    undo_orphaned_sessions(engine, record.txn, keep=adapters)
    return AdapterRecovery(prepared, landed, given_secrets)


def undo_orphaned_sessions(engine: Engine, txn: str, *, keep: Container[str] = ()) -> None:
    """Undo sessions and work under that key that were never redeemed."""
    tools = engine.journal.transactions.live_tools(txn)
    for name, adapter in _adapters(engine, tools).items():
        if name not in keep:
            _recovered(engine, adapter, txn, None)


def _recovered(engine: Engine, adapter: LiveAdapter, txn: str, attempt_id: str | None) -> LiveSession | None:
    """A recovering adapter may finish another transaction's session, and may quote its secrets."""
    hidden = engine.journal.transactions.unfinished_has_secrets()
    return call_adapter(adapter.name, functools.partial(adapter.recover, txn, attempt_id), hidden=hidden)


def _adapters(engine: Engine, tools: Iterable[str]) -> dict[str, LiveAdapter]:
    """The adapters of these tools, by name.

    Raises:
        RegistrationError: a tool is not registered, or is staged now, so its session cannot be checked.
    """
    found = {}
    for name in tools:
        adapter = engine.registry.require(name, "it ran live in this transaction").adapter
        if adapter is None:
            raise RegistrationError(
                f"tool {name!r} ran live in this transaction and is staged here, so its session cannot be "
                "checked; declare it live with its former adapter, and the staged tool under another name"
            )
        found[adapter.name] = adapter
    return found
