"""`with transaction(key=...)`: everything the block requests commits as one, or is rolled back.

Inside the block staged tools return placeholders and live tools run at once (intake.py). Leaving it commits
(commit/commit.py). Leaving it by any exception, Ctrl-C and cancellation included, undoes the live effects and drops the
staged ones. The key names the step: the same key finds the same review and never fires twice, from any process.

A forked child that leaves the block neither commits nor undoes anything: the block belongs to its parent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from countersign.commit.review import CommitOptions
from countersign.concurrency import Executor, SyncExecutor, run_sync
from countersign.contract import digests
from countersign.errors import (
    CountersignError,
    IndependentFailures,
    MisuseError,
    OutsideTransaction,
)
from countersign.errors.tracebacks import shorten_traceback
from countersign.journal.states import OPEN_TXN
from countersign.live.isolation import ABORT, Isolation, Serialize
from countersign.tools.context import current_transaction, open_transaction
from countersign.tools.definition import Tool
from countersign.tools.results import Placeholder
from countersign.transactions import blocks
from countersign.transactions.independent import commit_each
from countersign.transactions.intake import Intake, OpenStep
from countersign.transactions.live_intake import run_live
from countersign.transactions.live_step import LiveStep
from countersign.transactions.state_notes import add_prior_run_note, add_state_notes

if TYPE_CHECKING:
    from countersign.commit.plan import StagedCall
    from countersign.llm.ledger import Ledger
    from countersign.runtime import Engine, Host
    from countersign.simulation.dry_run_report import DryRun
    from countersign.simulation.offline import Simulation

_NEW, _OPEN, _CLOSED = "new", "open", "closed"


class Transaction:
    """One step of an agent. Made by `transaction(...)` (opening.py); used once."""

    def __init__(
        self,
        runtime: Host,
        key: str,
        terms: CommitOptions | None = None,
        *,
        independent: bool = False,
        guard: Callable[[Sequence[StagedCall]], None] | None = None,
        plain: bool = False,
        rehearsal: Simulation[Any] | None = None,
        isolation: Isolation = ABORT,
    ) -> None:
        self.key = key
        self._plain = plain  # opened without options, so it may be a savepoint of another one
        self._runtime = runtime
        self._isolation = isolation
        self._rehearsal = rehearsal
        self._open_step: OpenStep = LiveStep.open if rehearsal is None else rehearsal.open
        self._terms = terms or CommitOptions()
        self._independent = independent
        self._guard = guard
        self._phase = _NEW
        self._engine: Engine | None = None
        self._intake: Intake | None = None
        self._outer: Transaction | None = None
        self._inner = ExitStack()  # the savepoint of a nested one
        self._opened = AsyncExitStack()

    # ------------------------------------------------------------------------------------- what callers see

    @property
    def txn(self) -> str:
        """The transaction's id: the digest of agent and key."""
        return digests.txn_id(agent=self._runtime.settings.agent, run_key=self.key)

    @property
    def ledger(self) -> Ledger:
        """The ledger that counts calls to models inside the block."""
        return self._runtime.ledger

    @property
    def run_key_for_budgets(self) -> str:
        """The run that calls to models count for: the key, or a separate name in a simulation, which must not use up
        the key's budget.
        """
        return self.key if self._rehearsal is None else self._rehearsal.run_key_for_budgets(self.key)

    @property
    def effects(self) -> tuple[Placeholder[Any], ...]:
        """The placeholders of the staged calls, in order."""
        return () if self._intake is None else tuple(self._intake.placeholders)

    @property
    def failed(self) -> tuple[Placeholder[Any], ...]:
        """The placeholders of failed calls, each with its `.error`. After a block without an exception: calls whose
        reviewed manifest lets them fail (`on_exhausted="tool"`).
        """
        return tuple(one for one in self.effects if one.outcome == "failed")

    @property
    def state(self) -> str:
        """`staging`, `review`, `settled`, ... as in the journal; of independent effects the first unfinished one."""
        states = [step.state() for step in self._steps()]
        return next((state for state in states if state in OPEN_TXN), states[0] if states else _NEW)

    @property
    def has_ended(self) -> bool:
        """Whether the block was left. Code of it that still runs is outside."""
        return self._phase == _CLOSED

    @property
    def replayed(self) -> bool:
        """Whether an earlier run of this key had already done it: nothing fired now, and the results are that run's."""
        return any(step.replayed for step in self._steps())

    @property
    def result(self) -> DryRun:
        """The result of a dry run, after its block.

        Raises:
            MisuseError: this is no dry run, or its block raised or has not ended.
        """
        if self._rehearsal is None:
            raise MisuseError(
                f"transaction {self.key!r} is no dry run; what a call returned is the .result of its placeholder"
            )
        return self._rehearsal.result

    def repeat(self) -> AbstractContextManager[None]:
        """A block in which an equal call counts as another call: in this code, or in a task or thread started
        inside.
        """
        return blocks.repeat(self._entered())

    def parallel(self) -> AbstractContextManager[None]:
        """A block in which tasks and threads started inside may call tools too. Its staged calls fire concurrently, and
        all of them end before anything after them fires. Live effects still run one at a time.

        `asyncio` tasks and `asyncio.to_thread` inherit the context they need. For a thread of your own, run its
        function with `contextvars.copy_context().run`, copied inside the block.

        Raises:
            OutsideTransaction: not where the transaction was opened.
            MisuseError: it is inside another one, or the transaction is independent.
        """
        return blocks.parallel(self._entered())

    # --------------------------------------------------------------------------------------- enter and leave

    def __enter__(self) -> Self:
        run_sync(self._enter(self._runtime.sync_executor()))
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            run_sync(self._exit(error))
        except (CountersignError, IndependentFailures) as answer:
            # An expected error: its traceback ends where the program left the block.
            raise shorten_traceback(answer)  # noqa: B904 - the same exception, with the cause it had
        except (KeyboardInterrupt, SystemExit) as interrupt:
            self._add_state_notes(interrupt)
            raise

    async def __aenter__(self) -> Self:
        executor = self._runtime.async_executor()
        await self._opened.enter_async_context(executor.opened())
        try:
            await self._enter(executor)
        except BaseException:
            await self._opened.aclose()
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self._exit(error)
        except (CountersignError, IndependentFailures) as answer:
            raise shorten_traceback(answer)  # noqa: B904 - as above
        except (KeyboardInterrupt, SystemExit, asyncio.CancelledError) as interrupt:
            self._add_state_notes(interrupt)
            raise
        finally:
            await self._opened.aclose()

    async def _enter(self, executor: Executor) -> None:
        if self._phase != _NEW:
            raise MisuseError(
                f"transaction {self.key!r} was used already; make another with transaction(...)"
            )
        outer = open_transaction()
        if isinstance(outer, Transaction):
            self._outer = outer
            self._nest(outer)
            return
        try:
            await self._open(executor)
        except BaseException:
            self._drop()
            raise

    async def _open(self, executor: Executor) -> None:
        real = self._runtime.engine(executor)
        engine = self._engine = real if self._rehearsal is None else self._rehearsal.on_stage(real)
        blocking = engine
        if not isinstance(executor, SyncExecutor):  # a plain live tool sends requests on its own thread
            blocking = replace(engine, service=self._runtime.engine(self._runtime.sync_executor()).service)
        intake = Intake(
            self.key,
            engine,
            independent=self._independent,
            open_step=self._open_step,
            blocking=blocking,
            claimed=self._terms.claimed,
        )
        if not self._independent:
            step = await self._open_step(engine, txn=self.txn, run_key=self.key, independent=False)
            if isinstance(self._isolation, Serialize):
                await step.serialize(engine, self._isolation)
            intake.steps.append(step)
        self._intake, self._phase = intake, _OPEN
        current_transaction.set(self)

    def _nest(self, outer: Transaction) -> None:
        """A transaction inside another is a savepoint of it, without a key or options of its own."""
        if not self._plain or outer._runtime is not self._runtime:
            raise MisuseError(
                f"transaction {self.key!r} was opened inside {outer.key!r}, and one step is one transaction: write "
                "`with transaction():`, without key or anything else, for a block that can be rolled back alone, or "
                "close the outer one first"
            )
        self._inner.enter_context(blocks.savepoint(outer._entered()))
        self.key, self._intake, self._phase = outer.key, outer._intake, _OPEN

    async def _exit(self, error: BaseException | None) -> None:
        self._phase = _CLOSED
        if self._outer is not None:
            self._inner.__exit__(None if error is None else type(error), error, None)
            return
        try:
            await self._leave(error)
        finally:
            self._drop()

    def _drop(self) -> None:
        """Even after an interrupt, this thread leaves the transaction and every step is ended."""
        if current_transaction.get() is self:
            current_transaction.set(None)
        if self._intake is not None and self._intake.owner.pid == os.getpid():
            for step in self._steps():
                step.drop()

    async def _leave(self, error: BaseException | None) -> None:
        intake = self._entered()
        current_transaction.set(None)
        forgotten = intake.end()
        if intake.owner.pid != os.getpid():
            self._leave_to_parent(error)
            return
        if error is not None:
            await blocks.fail(intake, error)
            if self._engine is not None:
                add_prior_run_note(error, self._engine.journal, self.txn, self.key)
            return
        try:
            self._require_awaited(forgotten)
            if self._guard is not None:
                self._guard([call for step in intake.steps for call in step.calls])
        except BaseException as differs:
            await blocks.fail(intake, differs)
            raise
        if self._independent:
            await commit_each(self._steps(), self._commit)
        else:
            await self._commit(intake.steps[0])

    def _require_awaited(self, forgotten: Sequence[str]) -> None:
        """Refuse to commit a block with calls that were never awaited: the key would be used up by an incomplete
        list.
        """
        if forgotten:
            raise MisuseError(
                f"{', '.join(forgotten)} was called in transaction {self.key!r} and not awaited, so it was not "
                f"submitted; nothing in the block was done. Write `await {forgotten[0]}(...)`, in "
                "`async with transaction(...)`"
            )

    def _leave_to_parent(self, error: BaseException | None) -> None:
        """A fork copied the block, its lease and its database sessions; all of them belong to the parent."""
        if error is None:
            raise OutsideTransaction(
                f"transaction {self.key!r} was opened by the process that this one was forked from, and only "
                "that one "
                "commits it; end the child inside the block with os._exit, or fork before it"
            )

    def _add_state_notes(self, interrupt: BaseException) -> None:
        if self._engine is not None and self._rehearsal is None:
            txns = [step.txn for step in self._steps()]
            add_state_notes(interrupt, self._engine.journal, txns, self.key)

    async def _commit(self, step: LiveStep) -> None:
        engine = self._engine
        if engine is None:
            raise AssertionError("only what was entered commits")
        await step.commit(engine, self._terms)

    # --------------------------------------------------------------------------------------- what tools call

    def accept(self, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Stage a call, or run it live. An async live tool returns an awaitable.

        Raises:
            OutsideTransaction: called from an unknown process, thread or task, or after the block.
            NotStageable: the call cannot be written as bytes, or its adapter cannot find what it must snapshot.
            Stopped: a live call was denied or needs a review; or another writer changed what it reads
                (`IsolationConflict`).
            WorldError: the service, the journal or a resource is unavailable or busy.
        """
        intake = self._entered()
        raw = intake.freeze(tool, args, kwargs)
        return run_live(intake, tool, raw) if tool.lane == "live" else intake.stage(tool, raw)

    def made(self, tool: Tool, call: Coroutine[Any, Any, Any]) -> None:
        """Record the coroutine of an async tool; the end of the block checks that it was awaited."""
        self._entered().made.append((tool.name, call))

    def require_stageable(self, tool: Tool) -> None:
        """Refuse a tool that could not be staged here, before anything is called.

        Raises:
            RegistrationError: a compensation is not registered, or the manifest is invalid.
            NotStageable: it has another enforcement point.
        """
        self._entered().require_stageable(tool)

    def live_call_has_secrets(self, tool: Tool) -> bool:
        """Whether a live tool has secret arguments, so that its errors must stay hidden."""
        return self._entered().live_call_has_secrets(tool)

    def _steps(self) -> list[LiveStep]:
        return [] if self._intake is None else self._intake.steps

    def _entered(self) -> Intake:
        if self._intake is None:
            raise MisuseError(f"transaction {self.key!r} was not entered; use it as a context manager")
        return self._intake
