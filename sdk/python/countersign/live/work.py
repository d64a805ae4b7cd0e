"""The live lane of one transaction: adapters' sessions, opened when first needed, ended together.

Rules: an effect is in the journal before it runs; after `undo` nothing of it stands; a commit that fails says
which adapters had already committed; what could not be undone is never said to be. No session is open while people
decide: the commit calls `undo` first. What an adapter raises that was given secrets is told without them (sessions.py);
what a tool raises itself is its caller's. Effects take turns (isolation.py); a block among them can be taken back alone
(`savepoint`).
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable, Container
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final, TypeVar

from countersign import tracing
from countersign.adapters.protocol import Change, LiveAdapter, LiveCall, LiveSession, Savepoint
from countersign.adapters.reads import READS
from countersign.errors import JournalError, MisuseError, NotStageable, SavepointLost, SessionLost
from countersign.live.isolation import SessionLock
from countersign.live.sessions import AdapterCommitError, AdapterCommits, AdapterRecovery, call_adapter
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
        self._blocks: list[Block] = []  # that are open, the outermost first
        self._turns = SessionLock()
        self._given_secrets: set[str] = set()  # adapters, by name
        self._lost: SavepointLost | SessionLost | None = None
        self._not_undone: BaseException | None = None  # why; the journal says so until recovery has done it
        self.may_stand = False  # a commit of it was begun, and it is not known that nothing stands
        self._adopted = False  # it goes on with what others left, and what was done here is undone
        self.rerun: int | None = None  # the list it is of, where an earlier one is in force
        self.claimed: frozenset[str] | None = None  # with Serialize: the adapters it may use

    def __bool__(self) -> bool:
        return bool(self._sessions)

    def run(self, tool: Tool, call: LiveCall) -> Any:
        """Run one live effect now; an async tool answers an awaitable that does."""
        if tool.adapter is None:
            raise AssertionError("registration refuses a live tool without an adapter")
        if tool.is_async:
            return self._run_async(tool, call)
        with self._turns.blocking(tool.name), self._traced(call), self._session(tool.adapter).effect(call):
            answer = tool.fn(**dict(call.args))
            if is_awaitable(answer) and (error := unfinished_error(answer)) is not None:
                raise error  # in here: what it had done is taken back
            return answer

    def _traced(self, call: LiveCall) -> AbstractContextManager[object]:
        return tracing.span("countersign live", txn=self._txn, effect_id=call.effect_id, tool=call.tool)

    def hide(self, tool: Tool) -> None:
        """A call of this tool has secrets."""
        if tool.adapter is not None:
            self._given_secrets.add(tool.adapter.name)

    def savepoint(self) -> Block:
        """A block whose live effects are taken back if it raises, and those before it are not.

        Raises:
            NotStageable: an adapter has no savepoints, or a live effect is running.
        """
        if self._turns.is_held_here:
            raise NotStageable("a live tool is part of a block and cannot open one inside itself")
        return Block(self)

    def end_block(self) -> None:
        """Calls of other threads and tasks are over. One in the middle of a live effect would leave half of it."""
        if not self._turns.end_block():
            self.lose(
                "a live effect was still running when its block was over; wait inside it for every thread and task"
            )

    def lose(self, why: str) -> None:
        """Nobody knows any more what stands, so nothing of the whole lane may be kept."""
        self._lost = self._lost or SavepointLost(why)

    def require_whole(self) -> None:
        """Refuse to go on where a block could not be taken back.

        Raises:
            SavepointLost: naming the adapter.
        """
        if self._lost is not None:
            raise self._lost

    def verify_isolation(self) -> None:
        """Design section 7, step 2."""
        for name, (_, session) in self._sessions.items():
            self.heard(name, session.verify_isolation)

    def changes(self) -> dict[str, tuple[Change, ...] | None]:
        """What each adapter would change by its name; None of one that cannot tell."""
        return {name: self.heard(name, session.changes) for name, (_, session) in self._sessions.items()}

    def prepare(self, attempt_id: str) -> None:
        """Let what can fail about a commit fail before the redemption."""
        for name, (_, session) in self._sessions.items():
            self.heard(name, functools.partial(session.prepare, attempt_id))

    def commit(self, attempt_id: str, kept: Callable[[], object]) -> None:
        """Commit every adapter, in the order they were first used; last those that can take a commit back. `kept` notes
        that all of it stands. An interrupt parts nothing (sessions.py): it goes on its way once that is noted.

        Raises:
            CommitFailed: one could not; of the others only those whose commit is final stand. Where it is not `unknown`
            whether it could, nothing is undone that `recover` might have to finish.
        """
        commits = AdapterCommits(attempt_id, self._sessions.values(), self.heard)
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
        """Only another interrupt takes the place of the one that came; what failed besides, recovery finds out."""
        try:
            commits.go_on()
            self._close()
            kept()
        except AdapterCommitError as failed:
            log.warning("live adapter %s could not commit after an interrupt: %s", failed.adapter, failed)
            self._leave(failed)
        except JournalError as error:
            log.warning("it could not be noted that the live work of %s was kept: %s", self._txn[:12], error)
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
        """Go on with what dead processes had prepared, in place of what this one has done."""
        self.undo()
        self._adopted, self.rerun = True, None
        self._sessions = dict(found.prepared)
        self._given_secrets |= found.given_secrets

    def undo(self) -> None:
        """Leave nothing behind. One adapter's trouble does not keep the others from being undone; it is raised again
        when this is said again, for silence would be taken for "undone".
        """
        self._turns.end_block()
        sessions, self._sessions = self._sessions, {}
        try:
            with ExitStack() as stack:
                for name, (_, session) in sessions.items():
                    stack.callback(self.heard, name, session.undo)
        except BaseException as error:
            self._not_undone = error
            raise
        if self._not_undone is not None:
            raise self._not_undone

    def heard(self, adapter: str, act: Callable[[], T]) -> T:
        """What an adapter answers; what it raises without what is secret, where it was given that."""
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
        """A session in which every open block can be taken back, or none: its next call would run without savepoint."""
        known = adapter, adapter.begin(self._txn)
        self._sessions[adapter.name] = known  # from here on it is undone with the others, whatever follows
        try:
            for block in self._blocks:
                block.begin(adapter.name, known[1])
        except BaseException:
            self._drop(adapter.name)
            raise
        return known

    def _drop(self, name: str) -> None:
        """Nothing has run in that session yet."""
        for block in self._blocks:
            block.forget(name)
        _, session = self._sessions.pop(name)
        try:
            self.heard(name, session.undo)
        except BaseException as error:
            self._not_undone = error
            self.lose(f"live adapter {name!r} could not undo a session in which a block could not begin")
            raise

    def _require_claimed(self, adapter: LiveAdapter) -> None:
        if self.claimed is not None and adapter is not READS and adapter.name not in self.claimed:
            raise NotStageable(
                f"live adapter {adapter.name!r} was not claimed as this transaction was entered; name it in "
                "Serialize(adapters=[...]), or register its tools before"
            )

    def _close(self) -> None:
        """Everything is committed; what is left to do is tidying up, and the next to come does it as well."""
        for name, (_, session) in list(self._sessions.items()):
            try:
                self.heard(name, session.close)
            except Exception as error:  # noqa: BLE001 - an adapter may raise anything; everything stands all the same
                log.warning("live adapter %s could not tidy up: %s", name, text_of(error))
            del self._sessions[name]

    def _let_go(self, but: Container[str]) -> None:
        """Of what is not committed yet nobody knows whether it has to be; recovery does, once an adapter can tell."""
        sessions, self._sessions = self._sessions, {}
        for name, (_, session) in sessions.items():
            if name in but:
                continue
            try:
                self.heard(name, session.let_go)
            except Exception as error:  # noqa: BLE001 - an adapter may raise anything; recovery looks at it again
                log.warning(
                    "live adapter %s could not let go of what it had prepared: %s", name, text_of(error)
                )

    async def _run_async(self, tool: Tool, call: LiveCall) -> Any:
        if tool.adapter is None:
            raise AssertionError("registration refuses a live tool without an adapter")
        async with self._turns.awaiting(tool.name):
            with self._traced(call), self._session(tool.adapter).effect(call):
                answer = tool.fn(**dict(call.args))
                return await answer if inspect.isawaitable(answer) else answer


class Block:
    """One nested transaction inside a live lane, over every session that is open in it. One that could not be taken
    back leaves nobody knowing what stands, so then the whole lane has to be undone.
    """

    def __init__(self, live: LiveWork) -> None:
        self._live = live
        self._savepoints: list[tuple[str, Savepoint]] = []  # with the names of their adapters
        self._pid = os.getpid()

    def begin(self, adapter: str, session: LiveSession) -> None:
        """Take a session in: one that was open before, or begins inside."""
        self._savepoints.append((adapter, self._live.heard(adapter, session.savepoint)))

    def forget(self, adapter: str) -> None:
        """Its session is undone."""
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
        if os.getpid() == self._pid:  # a fork copied the sessions; they stay the parent's
            self._end(keep=error is None)

    def _end(self, *, keep: bool) -> None:
        self._live._blocks.remove(self)
        try:
            for name, one in reversed(self._savepoints):
                self._live.heard(name, one.release if keep else one.rollback)
        except SessionLost as lost:
            self._live._lost = lost
            raise
        except Exception as error:
            lost_block = SavepointLost(text_of(error) or type(error).__name__)
            self._live._lost = lost_block
            raise lost_block from error
