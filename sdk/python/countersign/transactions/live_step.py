"""The live effects of a step, and the blocks inside it that can be rolled back alone."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from countersign.adapters.protocol import LiveCall
from countersign.commit.plan import StagedCall
from countersign.commit.tool_errors import describe_block_error
from countersign.concurrency import run_sync
from countersign.contract.wire import Claimed
from countersign.errors import JournalError
from countersign.journal import StagedRow
from countersign.live.calls import ALL_LOST, LiveCallRequest, LiveEffectRun, require_released
from countersign.live.isolation import Serialize, lock_resources
from countersign.live.work import LiveWork
from countersign.runtime import Engine
from countersign.texts import text_of
from countersign.tools.definition import Tool
from countersign.transactions.step import Step


class LiveStep(Step):
    """A step that may also run live effects."""

    @property
    def ran(self) -> tuple[StagedRow, ...]:
        """The live effects in effect so far, in order."""
        return self._list.ran

    def end_block(self, start: int, calls: Sequence[StagedCall] | None) -> None:
        """A parallel block has ended; its calls from `start` on take this order, if one is given."""
        if self._live is not None:
            self._live.end_block()
        if calls is None:
            return
        try:
            self._list.order(start, calls)
        except JournalError as error:
            self._live_work().mark_lost(str(error))

    async def serialize(self, engine: Engine, policy: Serialize) -> None:
        """Wait until the resources are locked for this transaction.

        Raises:
            ResourceBusy: another transaction holds one for too long; this step has ended then.
        """
        try:
            self._live_work().claimed = await lock_resources(engine, self._lease, policy)
        except BaseException as error:
            self.abort(f"{type(error).__name__} before it began")
            raise

    async def require_released(self, engine: Engine, call: LiveCallRequest, claimed: Claimed | None) -> None:
        """Evaluate the policy for a live call that requires it, before anything is journaled or run.

        Raises:
            Stopped, WorldError: it may not run (live/calls.py).
        """
        await require_released(engine, call, run_key=self.run_key, txn=self.txn, claimed=claimed, noted=True)

    def begin_live(self, tool: Tool, raw: bytes, call_key: str, secret: tuple[str, ...]) -> Callable[[], Any]:
        """Journal one live effect and return the function that runs it."""
        if tool.adapter is None:
            raise AssertionError("registration refuses a live tool without an adapter")
        args = tool.signature.retype(raw)
        row = self._list.run(tool, raw, call_key, secret)
        live = self._live_work()  # the intake's lock is held: no other thread begins it
        if secret:
            live.mark_secret(tool)
        call, running = LiveCall(tool.name, args, row.effect_id), LiveEffectRun(row, tool.adapter.name)
        return functools.partial(
            running.run,
            functools.partial(self._run_live, tool, call),
            functools.partial(self._record_undone, tool),
            functools.partial(self._list.keep, row, tool),
            awaited=tool.is_async,
        )

    def _run_live(self, tool: Tool, call: LiveCall) -> Any:
        return self._live_work().run(tool, call)

    def _live_work(self) -> LiveWork:
        if self._live is None:
            self._live = LiveWork(self.txn)
        return self._live

    def _record_undone(self, tool: Tool, rows: Sequence[StagedRow], error: BaseException) -> None:
        """Record rolled-back live effects. If that fails, the transaction must not commit: they would count as kept."""
        if self._pid != os.getpid():
            return  # a fork inside the effect: its rows belong to the parent
        why = f"{tool.name} raised {describe_block_error(error, has_secrets=self._list.live_has_secrets)}"
        try:
            self._list.drop_undone(rows, why)
        except BaseException as error:
            self._live_work().mark_lost(
                f"{why}, and that could not be journaled: {text_of(error) or type(error).__name__}"
            )
            if not isinstance(error, Exception):
                raise

    @contextmanager
    def savepoint(self, engine: Engine) -> Iterator[None]:
        """A block that is rolled back if it raises. The journal keeps the calls it made; `engine` reads the
        manifests, blocking, to find their secrets.

        Raises:
            NotStageable: an adapter has no savepoints, or a live effect is running.
            SavepointLost, SessionLost: a live effect could not be rolled back alone.
        """
        staged, live = len(self._list.calls), self._list.live
        try:
            with self._live_work().savepoint():
                yield
        except ALL_LOST:
            raise  # the state is unknown, so nothing is recorded before all of it is undone
        except BaseException as error:
            if self._pid == os.getpid():
                self._roll_back(engine, staged, live, error)
            raise

    def _roll_back(self, engine: Engine, staged: int, live: int, raised: BaseException) -> None:
        """Remove the block's calls from the list. If the journal fails, the transaction must not commit."""
        try:
            try:
                run_sync(self.learn_secrets(engine))
            finally:
                self._list.roll_back(staged, live, f"the inner block raised {self._described(raised)}")
        except BaseException as error:
            self._live_work().mark_lost(text_of(error) or type(error).__name__)
            raise
