"""`with transaction(key=...)`: everything the block asks for commits as one, or nothing of it stands.

Inside the block staged tools return placeholders and live tools run at once (intake.py). Leaving it commits
(commit.py); leaving it by any exception, Ctrl-C and cancellation included, undoes the live effects and forgets the
staged ones. The key names the step: the same key finds the same review and never fires twice, from any process.

A forked child that leaves the block neither commits nor undoes what is its parent's.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

from countersign.answering import Answering, OnQuestion
from countersign.contract import names
from countersign.contract.wire import Claimed
from countersign.current import current_transaction, require_running
from countersign.edits import Judge
from countersign.errors import (
    UNNAMED,
    CountersignError,
    IndependentFailures,
    MisuseError,
    OutsideTransaction,
    Stopped,
)
from countersign.intake import Intake, OpenStep
from countersign.isolation import Abort, Isolation, Serialize, require_isolation
from countersign.placeholder import Placeholder
from countersign.reasons import Proposal
from countersign.step import Step
from countersign.tool import Tool
from countersign.waiting import Waits, run

if TYPE_CHECKING:
    from countersign.engine import Engine, Host
    from countersign.rehearsal.foreseen import DryRun
    from countersign.rehearsal.stage import Rehearsal
    from countersign.rerun import ListGuard
    from countersign.runtime import Runtime

_MAX_KEY: Final = 200
_KEY_BYTES: Final = 16
_ABORT: Final = Abort()
_NEW, _OPEN, _CLOSED = "new", "open", "closed"


class Transaction:
    """One step of an agent. Made by `transaction(...)`; used once."""

    def __init__(
        self,
        runtime: Host,
        key: str,
        *,
        wait: float = 0.0,
        independent: bool = False,
        claimed: Claimed | None = None,
        guard: ListGuard | None = None,
        accept_edits: Judge = False,
        answering: Answering | None = None,
        plain: bool = False,
        rehearsal: Rehearsal[Any] | None = None,
        isolation: Isolation = _ABORT,
    ) -> None:
        self.key = key
        self._plain = plain  # nothing was said of it, so it may be a savepoint of another
        self._runtime = runtime
        self._isolation = isolation
        self._rehearsal = rehearsal
        self._open_step: OpenStep = Step.open if rehearsal is None else rehearsal.open
        self._wait = wait
        self._independent = independent
        self._claimed = claimed
        self._guard = guard
        self._accept_edits = accept_edits
        self._answering = answering or Answering()
        self._phase = _NEW
        self._engine: Engine | None = None
        self._intake: Intake | None = None
        self._outer: Transaction | None = None
        self._inner = ExitStack()  # the savepoint, of a nested one
        self._opened = AsyncExitStack()

    # ------------------------------------------------------------------------------------- what callers see

    @property
    def txn(self) -> str:
        """The transaction's id: the digest of agent and key."""
        return names.txn_id(agent=self._runtime.settings.agent, run_key=self.key)

    @property
    def effects(self) -> tuple[Placeholder[Any], ...]:
        """The placeholders of the staged calls, in order."""
        return () if self._intake is None else tuple(self._intake.placeholders)

    @property
    def failed(self) -> tuple[Placeholder[Any], ...]:
        """The placeholders of the calls that failed, each with its `.error`. After a block that was left well: those
        whose reviewed manifest lets them fail alone (`on_exhausted="tool"`).
        """
        return tuple(one for one in self.effects if one.outcome == "failed")

    @property
    def state(self) -> str:
        """`staging`, `review`, `settled`, ... as the journal has it; of independent effects the least
        finished.
        """
        states = [step.state().value for step in self._steps()]
        return next(
            (state for state in states if state not in {"settled", "ended"}), states[0] if states else _NEW
        )

    @property
    def replayed(self) -> bool:
        """Whether an earlier run of this key had done it already: nothing fired now, results are that run's."""
        return any(step.replayed for step in self._steps())

    @property
    def result(self) -> DryRun:
        """What a dry run has found, after its block.

        Raises:
            MisuseError: this is no dry run, or its block has not ended well.
        """
        if self._rehearsal is None:
            raise MisuseError(
                f"transaction {self.key!r} is no dry run; what a call returned is the .result of its placeholder"
            )
        return self._rehearsal.result

    @contextmanager
    def repeat(self) -> Iterator[None]:
        """Inside, an equal call is meant once more and not taken for the same one."""
        calls = self._entered().calls
        before, calls.repeating = calls.repeating, True
        try:
            yield
        finally:
            self._entered().calls.repeating = before

    def parallel(self) -> AbstractContextManager[None]:
        """Inside, calls may come from any thread or task of this transaction's context, and the staged ones fire at the
        same time; all of them have ended, one way or another, before anything after them fires. Live effects still take
        turns.

        `asyncio` tasks and `asyncio.to_thread` have that context; for a thread of your own, call
        `contextvars.copy_context().run` in it.

        Raises:
            OutsideTransaction: not where the transaction was opened.
            MisuseError: it is inside another one, or each effect stands alone anyway.
        """
        return self._entered().parallel()

    # --------------------------------------------------------------------------------------- enter and leave

    def __enter__(self) -> Self:
        run(self._enter(self._runtime.sync_waits()))
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            run(self._exit(error))
        except (Stopped, MisuseError) as answer:
            # A refusal is an answer, not a crash: its trace ends where the program left the block.
            raise answer.with_traceback(None)  # noqa: B904 - the same exception, with the cause it had

    async def __aenter__(self) -> Self:
        waits = self._runtime.async_waits()
        await self._opened.enter_async_context(waits.opened())
        try:
            await self._enter(waits)
        except BaseException:
            await self._opened.aclose()
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self._exit(error)
        except (Stopped, MisuseError) as answer:
            raise answer.with_traceback(None)  # noqa: B904 - as above
        finally:
            await self._opened.aclose()

    async def _enter(self, waits: Waits) -> None:
        self._outer = current_transaction.get()
        if self._phase != _NEW:
            raise MisuseError(
                f"transaction {self.key!r} was used already; make another with transaction(...)"
            )
        if self._outer is not None:
            self._nest(self._outer)
            return
        real = self._runtime.engine(waits)
        engine = self._engine = real if self._rehearsal is None else self._rehearsal.on_stage(real)
        intake = Intake(self.key, engine, independent=self._independent, open_step=self._open_step)
        if not self._independent:
            step = await self._open_step(engine, txn=self.txn, run_key=self.key, independent=False)
            if isinstance(self._isolation, Serialize):
                await step.serialize(engine, self._isolation)
            intake.steps.append(step)
        self._intake, self._phase = intake, _OPEN
        current_transaction.set(self)

    def _nest(self, outer: Transaction) -> None:
        """A transaction inside another is a savepoint of it: it has no key, and nothing else, of its own."""
        if not self._plain or outer._runtime is not self._runtime:
            raise MisuseError(
                f"transaction {self.key!r} was opened inside {outer.key!r}, and one step is one transaction: write "
                "`with transaction():`, without key or anything else, for a block that can be taken back alone, or "
                "close the outer one first"
            )
        self._inner.enter_context(outer._entered().savepoint())
        self.key, self._intake, self._phase = outer.key, outer._intake, _OPEN

    async def _exit(self, error: BaseException | None) -> None:
        self._phase = _CLOSED
        intake = self._entered()
        if self._outer is not None:
            self._inner.__exit__(None if error is None else type(error), error, None)
            return
        current_transaction.set(None)
        intake.is_open = False
        if intake.owner.pid != os.getpid():
            self._leave_to_parent(error)
            return
        if error is not None:
            self._abort(f"the body raised {type(error).__name__}")
            return
        try:
            if self._guard is not None:
                self._guard.require_same([call for step in intake.steps for call in step.calls])
        except BaseException as differs:
            self._abort(f"the body raised {type(differs).__name__}")
            raise
        if self._independent:
            await self._commit_each()
        else:
            await self._commit(intake.steps[0])

    def _leave_to_parent(self, error: BaseException | None) -> None:
        """A fork copied the block, the lease and the open database sessions; all of them stay the parent's."""
        if error is None:
            raise OutsideTransaction(
                f"transaction {self.key!r} was opened by the process that this one was forked from, and only that one "
                "commits it; end the child inside the block with os._exit, or fork before it"
            )

    def _abort(self, note: str) -> None:
        for step in self._steps():
            step.abort(note)

    async def _commit(self, step: Step) -> None:
        engine = self._engine
        if engine is None:
            raise AssertionError("only what was entered commits")
        await step.commit(
            engine,
            wait=self._wait,
            claimed=self._claimed,
            accept_edits=self._accept_edits,
            answering=self._answering,
        )

    async def _commit_each(self) -> None:
        """Every effect for itself; one that is refused keeps none of the others from going through."""
        failures: list[CountersignError] = []
        for position, step in enumerate(self._steps()):
            try:
                await self._commit(step)
            except CountersignError as failure:
                failures.append(failure)
            except BaseException as interrupt:
                for rest in self._steps()[position + 1 :]:
                    rest.abort(f"interrupted by {type(interrupt).__name__}")
                raise
        if failures:
            raise IndependentFailures(
                f"{len(failures)} of {len(self._steps())} effects did not go through", failures
            )

    # --------------------------------------------------------------------------------------- what tools call

    def accept(self, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Stage a call, or run it live; an async live tool answers an awaitable.

        Raises:
            OutsideTransaction: called from a process, thread or task this transaction does not know, or after it.
            NotStageable: the call cannot be described as bytes.
        """
        return self._entered().accept(tool, args, kwargs)

    def require_stageable(self, tool: Tool) -> None:
        """Refuse a tool that could not be staged here, before anything is called.

        Raises:
            RegistrationError: a compensation is not registered, or the manifest is none.
            NotStageable: it fires elsewhere.
        """
        self._entered().require_stageable(tool)

    def _steps(self) -> list[Step]:
        return [] if self._intake is None else self._intake.steps

    def _entered(self) -> Intake:
        if self._intake is None:
            raise MisuseError(f"transaction {self.key!r} was not entered; use it as a context manager")
        return self._intake


def transaction(
    key: str | None = None,
    *,
    wait: float = 0.0,
    independent: bool = False,
    purpose: str | None = None,
    reasoning: str | None = None,
    on_behalf_of: str | None = None,
    accept_edits: bool | Callable[[Proposal], bool] = False,
    on_question: OnQuestion | None = None,
    dry_run: bool = False,
    isolation: Abort | Serialize = _ABORT,
    runtime: Runtime | None = None,
) -> Transaction:
    """Open one step of an agent: `with transaction(key="ticket-4711"): ...`, or `async with`. Inside another one,
    `with transaction():` is a savepoint of it: left by an exception, nothing of the block stands, the outer goes on.

    `key` names the step; the same key is the same step, from any process. Without one it is random and cannot
    be found again. `wait`: how many seconds leaving the block may wait for people. `independent`: every
    staged effect stands alone. `purpose`, `reasoning` and `on_behalf_of` are shown to people as the agent's
    own words. `on_question(question)` answers what they ask meanwhile, with text, or None to leave it open.

    A reviewer may propose other arguments instead of denying a call. `accept_edits=True` takes every such change and
    fires with it; a function is shown each `Proposal` and takes it by returning True. Otherwise nothing but what was
    staged is ever fired: where this agent's owner has accepted a change, leaving the block raises `Edited`.

    With `dry_run` nothing is fired, kept or journaled: live work is undone when the block ends, and `.result` tells
    what the policy would say to each staged call, and what the live ones would change.

    `isolation` says what is done about others who work on the same resources (isolation.py): `Abort()` stops with
    `Moved` if they changed what live effects saw; `Serialize(timeout_seconds=30)` first waits for other such blocks.

    Raises:
        MisuseError: the key is too long, `on_question` is no function, or `isolation` is none of a block.
        SettingsError: no runtime was given and the environment describes none.
    """
    from countersign.runtime import default_runtime

    require_running()
    named = f"{UNNAMED}{secrets.token_urlsafe(_KEY_BYTES)}" if key is None else key
    if not isinstance(named, str):
        raise MisuseError(
            f"the key of a transaction is text: write key={str(named)!r} in place of key={named!r}"
        )
    if not 0 < len(named) <= _MAX_KEY:
        raise MisuseError(f"a transaction key has 1 to {_MAX_KEY} characters, this has {len(named)}")
    require_isolation(isolation, reruns=False)
    if independent and isinstance(isolation, Serialize):
        raise MisuseError(
            "transaction(independent=True) has no live effects, so it has nothing to serialize; leave isolation out"
        )
    claims = {"purpose": purpose, "reasoning": reasoning, "on_behalf_of": on_behalf_of}
    claimed = Claimed(**claims) if any(claims.values()) else None
    said = (key, wait, independent, claimed, accept_edits, on_question, dry_run, isolation != _ABORT)
    outer = current_transaction.get()  # whose runtime an inner block has, also where that is a replay's
    return Transaction(
        runtime or (default_runtime() if outer is None else outer._runtime),
        named,
        wait=wait,
        independent=independent,
        claimed=claimed,
        accept_edits=accept_edits,
        answering=Answering(on_question),
        plain=not any(said),
        rehearsal=_dry(named) if dry_run else None,
        isolation=isolation,
    )


def _dry(key: str) -> Rehearsal[Any]:
    from countersign.rehearsal.dry_run import DryRehearsal  # only those who rehearse load it

    return DryRehearsal(key)
