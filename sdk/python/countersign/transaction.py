"""`with transaction(key=...)`: everything the block asks for commits as one, or nothing of it stands.

Inside the block staged tools return placeholders and live tools run at once. Leaving it commits (commit.py);
leaving it by any exception, Ctrl-C and cancellation included, undoes the live effects and forgets the staged
ones. The key names the step: the same key finds the same review and never fires twice, from any process.

A transaction watches the process, the thread and the task that entered it and no other: a tool called from
elsewhere refuses, and a forked child that leaves the block neither commits nor undoes what is its parent's.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from countersign.answering import Answering, OnQuestion
from countersign.calls import CallNames
from countersign.contract import names
from countersign.contract.wire import Claimed
from countersign.current import current_transaction, here, require_running
from countersign.edits import Judge
from countersign.errors import (
    UNNAMED,
    CountersignError,
    IndependentFailures,
    MisuseError,
    NotStageable,
    OutsideTransaction,
    Stopped,
)
from countersign.placeholder import Placeholder
from countersign.plan import require_fires_here
from countersign.reasons import Proposal
from countersign.step import Step
from countersign.tool import Tool
from countersign.waiting import AsyncWaits, Waits, run

if TYPE_CHECKING:
    from countersign.engine import Engine, Host
    from countersign.rehearsal.foreseen import DryRun
    from countersign.rehearsal.stage import Rehearsal
    from countersign.rerun import ListGuard
    from countersign.runtime import Runtime

MAX_EFFECTS: Final = 100  # of one transaction, as the wire allows: what a person can still look through
_MAX_KEY: Final = 200
_KEY_BYTES: Final = 16
OpenStep: TypeAlias = "Callable[..., Coroutine[Any, Any, Step]]"
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
        rehearsal: Rehearsal[Any] | None = None,
    ) -> None:
        self.key = key
        self._runtime = runtime
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
        self._steps: list[Step] = []
        self._placeholders: list[Placeholder[Any]] = []
        self._calls = CallNames(runtime.settings.agent, key)
        self._owner: tuple[int, int, asyncio.Task[Any] | None] = (0, 0, None)
        self._outer: Transaction | None = None
        self._opened = AsyncExitStack()

    # ------------------------------------------------------------------------------------- what callers see

    @property
    def txn(self) -> str:
        """The transaction's id: the digest of agent and key."""
        return names.txn_id(agent=self._runtime.settings.agent, run_key=self.key)

    @property
    def effects(self) -> tuple[Placeholder[Any], ...]:
        """The placeholders of the staged calls, in order."""
        return tuple(self._placeholders)

    @property
    def state(self) -> str:
        """`staging`, `review`, `settled`, ... as the journal has it; of independent effects the least
        finished.
        """
        states = [step.state().value for step in self._steps]
        return next(
            (state for state in states if state not in {"settled", "ended"}), states[0] if states else _NEW
        )

    @property
    def replayed(self) -> bool:
        """Whether an earlier run of this key had done it already: nothing fired now, results are that run's."""
        return any(step.replayed for step in self._steps)

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
        before, self._calls.repeating = self._calls.repeating, True
        try:
            yield
        finally:
            self._calls.repeating = before

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
            raise MisuseError(
                f"transaction {self.key!r} was opened inside {self._outer.key!r}; one step is one "
                "transaction: make its calls in the outer block, or close that first"
            )
        engine = self._runtime.engine(waits)
        self._engine = engine if self._rehearsal is None else self._rehearsal.on_stage(engine)
        self._owner = here()
        if not self._independent:
            self._steps.append(
                await self._open_step(self._engine, txn=self.txn, run_key=self.key, independent=False)
            )
        self._phase = _OPEN
        current_transaction.set(self)

    async def _exit(self, error: BaseException | None) -> None:
        self._phase = _CLOSED
        current_transaction.set(self._outer)
        if self._owner[0] != os.getpid():
            self._leave_to_parent(error)
            return
        if error is not None:
            self._abort(f"the body raised {type(error).__name__}")
            return
        try:
            if self._guard is not None:
                self._guard.require_same([call for step in self._steps for call in step.calls])
        except BaseException as differs:
            self._abort(f"the body raised {type(differs).__name__}")
            raise
        if self._independent:
            await self._commit_each()
        else:
            await self._commit(self._steps[0])

    def _leave_to_parent(self, error: BaseException | None) -> None:
        """A fork copied the block, the lease and the open database sessions; all of them stay the parent's."""
        if error is None:
            raise OutsideTransaction(
                f"transaction {self.key!r} was opened by the process that this one was forked from, and only that one "
                "commits it; end the child inside the block with os._exit, or fork before it"
            )

    def _abort(self, note: str) -> None:
        for step in self._steps:
            step.abort(note)

    async def _commit(self, step: Step) -> None:
        await step.commit(
            self._ready(),
            wait=self._wait,
            claimed=self._claimed,
            accept_edits=self._accept_edits,
            answering=self._answering,
        )

    async def _commit_each(self) -> None:
        """Every effect for itself; one that is refused keeps none of the others from going through."""
        failures: list[CountersignError] = []
        for position, step in enumerate(self._steps):
            try:
                await self._commit(step)
            except CountersignError as failure:
                failures.append(failure)
            except BaseException as interrupt:
                for rest in self._steps[position + 1 :]:
                    rest.abort(f"interrupted by {type(interrupt).__name__}")
                raise
        if failures:
            raise IndependentFailures(
                f"{len(failures)} of {len(self._steps)} effects did not go through", failures
            )

    # --------------------------------------------------------------------------------------- what tools call

    def accept(self, tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Stage a call, or run it live; an async live tool answers an awaitable.

        Raises:
            OutsideTransaction: called from a process, thread or task this transaction does not know, or after it.
            NotStageable: the call cannot be described as bytes.
        """
        self._require_known(tool)
        self._require_kind(tool)
        raw = tool.signature.freeze(args, kwargs)
        if tool.lane == "live":
            return self._run_live(tool, raw)
        self._require_stageable(tool)
        return self._stage(tool, raw)

    def _stage(self, tool: Tool, raw: bytes) -> Placeholder[Any]:
        known = self._calls.known(tool, raw)
        if known is not None:
            return known
        if len(self._placeholders) >= MAX_EFFECTS:
            raise NotStageable(f"a transaction holds at most {MAX_EFFECTS} staged effects; split the step")
        n, call_key = self._calls.next(tool, raw)
        placeholder = self._step_for(call_key).stage(tool, raw, n, call_key)
        self._calls.staged(tool, raw, placeholder)
        self._placeholders.append(placeholder)
        return placeholder

    def _run_live(self, tool: Tool, raw: bytes) -> Any:
        """A live effect runs each time it is called: it is not an intent to be kept, but work being done."""
        if self._independent:
            raise NotStageable(
                f"{tool.name} is live, and effects of transaction(independent=True) each stand alone; use a plain one"
            )
        _, call_key = self._calls.next(tool, raw)
        self._calls.ran(tool, raw)
        return self._steps[0].run_live(tool, raw, call_key)

    def _step_for(self, call_key: str) -> Step:
        if not self._independent:
            return self._steps[0]
        txn = names.independent_txn_id(
            agent=self._runtime.settings.agent, run_key=self.key, call_key=call_key
        )
        # Staging does not wait, for it may be called on an event loop: a busy effect is told at once.
        step = run(self._open_step(self._ready(), txn=txn, run_key=self.key, independent=True, patient=False))
        self._steps.append(step)
        return step

    def _require_known(self, tool: Tool) -> None:
        if self._phase != _OPEN:
            raise OutsideTransaction(f"{tool.name} was called after transaction {self.key!r} had ended")
        if here() != self._owner:
            raise OutsideTransaction(
                f"{tool.name} was called from a process, thread or task that transaction {self.key!r} does not know; "
                "call it from where the transaction was opened"
            )

    def _require_kind(self, tool: Tool) -> None:
        if tool.is_async and not isinstance(self._ready().waits, AsyncWaits):
            raise NotStageable(
                f"{tool.name} is async; open the transaction with `async with transaction(...)`"
            )

    def _require_stageable(self, tool: Tool) -> None:
        """Early refusals, with what is at hand; the rest is checked when the list is frozen."""
        registry = self._runtime.registry
        if tool.draft.compensate is not None:
            registry.require(tool.draft.compensate, f"{tool.name!r} names it as its compensation")
        manifest = self._ready().manifests.at_hand(tool)
        if manifest is None:
            return
        require_fires_here(manifest, self._runtime.settings.agent)
        if manifest.compensation is not None:
            registry.require(manifest.compensation.tool, f"the manifest of {tool.name!r} compensates with it")

    def _ready(self) -> Engine:
        if self._engine is None:
            raise MisuseError(f"transaction {self.key!r} was not entered; use it as a context manager")
        return self._engine


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
    runtime: Runtime | None = None,
) -> Transaction:
    """Open one step of an agent: `with transaction(key="ticket-4711"): ...`, or `async with`.

    `key` names the step; the same key is the same step, from any process. Without one it is random and cannot
    be found again. `wait`: how many seconds leaving the block may wait for people. `independent`: every
    staged effect stands alone. `purpose`, `reasoning` and `on_behalf_of` are shown to people as the agent's
    own words. `on_question(question)` answers what they ask meanwhile, with text, or None to leave it open.

    A reviewer may propose other arguments instead of denying a call. `accept_edits=True` takes every such change and
    fires with it; a function is shown each `Proposal` and takes it by returning True. Otherwise nothing but what was
    staged is ever fired: where this agent's owner has accepted a change, leaving the block raises `Edited`.

    With `dry_run` nothing is fired, kept or journaled: live work is undone when the block ends, and `.result` tells
    what the policy would say to each staged call, and what the live ones would change.

    Raises:
        MisuseError: the key is too long, or `on_question` is no function.
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
    claims = {"purpose": purpose, "reasoning": reasoning, "on_behalf_of": on_behalf_of}
    claimed = Claimed(**claims) if any(claims.values()) else None
    return Transaction(
        runtime or default_runtime(),
        named,
        wait=wait,
        independent=independent,
        claimed=claimed,
        accept_edits=accept_edits,
        answering=Answering(on_question),
        rehearsal=_dry(named) if dry_run else None,
    )


def _dry(key: str) -> Rehearsal[Any]:
    from countersign.rehearsal.dry_run import DryRehearsal  # only those who rehearse load it

    return DryRehearsal(key)
