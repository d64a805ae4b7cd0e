"""`run_transaction(fn, key=...)`: run a step, wait for people, and run it again until it is done.

Without live effects waiting is enough: the same list fires when it is approved. With live effects the body must run
again, because its live work was undone while people decided. A body that stages another list at every rerun would ask
people forever, so the second list that differs raises `RerunDiffers`, before another review is requested.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, TypeVar, Unpack, overload

from countersign.async_executor import AsyncExecutor
from countersign.commit.plan import StagedCall
from countersign.commit.review import (
    CommitOptions,
    OnQuestion,
    ProposalResponder,
    QuestionResponder,
    describe_outage,
    poll_pause,
    review_pending_error,
    wait_for_review,
)
from countersign.concurrency import Executor, run_sync
from countersign.contract.states import EffectState, TxnState
from countersign.contract.wire import TransactionView
from countersign.errors import (
    CountersignError,
    IsolationConflict,
    MisuseError,
    OutcomeUnknown,
    OverQuota,
    RerunDiffers,
    ReviewPending,
    ServiceRefused,
    ServiceUnavailable,
    TransactionBusy,
)
from countersign.errors.pending import Proposal
from countersign.errors.tracebacks import shorten_traceback
from countersign.live.isolation import ABORT, ConflictRetries, Isolation
from countersign.process_runtime import default_runtime
from countersign.runtime import Engine, Runtime
from countersign.tools.context import require_not_importing
from countersign.tools.registered_steps import step_call
from countersign.transactions.opening import build_claimed, require_isolation, require_key, require_wait
from countersign.transactions.transaction import Transaction

if TYPE_CHECKING:
    from countersign.simulation.dry_run_report import DryRun

R = TypeVar("R")


class ClaimOptions(TypedDict, total=False):
    """Options of every run."""

    purpose: str | None
    reasoning: str | None
    on_behalf_of: str | None
    runtime: Runtime | None


class RunOptions(ClaimOptions, total=False):
    """Options of a run that commits."""

    wait: float
    accept_edits: bool | Callable[[Proposal], bool]
    on_question: OnQuestion | None
    isolation: Isolation


@overload
def run_transaction(
    fn: Callable[[Transaction], Coroutine[Any, Any, Any]],
    *,
    key: str,
    dry_run: Literal[True],
    **options: Unpack[ClaimOptions],
) -> Coroutine[Any, Any, DryRun]: ...
@overload
def run_transaction(
    fn: Callable[[Transaction], Any], *, key: str, dry_run: Literal[True], **options: Unpack[ClaimOptions]
) -> DryRun: ...
@overload
def run_transaction(
    fn: Callable[[Transaction], Coroutine[Any, Any, R]],
    *,
    key: str,
    dry_run: Literal[False] = False,
    **options: Unpack[RunOptions],
) -> Coroutine[Any, Any, R]: ...
@overload
def run_transaction(
    fn: Callable[[Transaction], R],
    *,
    key: str,
    dry_run: Literal[False] = False,
    **options: Unpack[RunOptions],
) -> R: ...
def run_transaction(
    fn: Callable[[Transaction], Any],
    *,
    key: str,
    wait: float = 0.0,
    purpose: str | None = None,
    reasoning: str | None = None,
    on_behalf_of: str | None = None,
    accept_edits: bool | Callable[[Proposal], bool] = False,
    on_question: OnQuestion | None = None,
    dry_run: bool = False,
    isolation: Isolation = ABORT,
    runtime: Runtime | None = None,
) -> Any:
    """Run `fn(txn)` as one step and return its result; an async `fn` gives a coroutine to await.

    `wait` is how many seconds people and probes may take in all, to answer and to settle unknown outcomes. `fn` may
    run several times, so it must have no side effects of its own: everything that matters goes through tools.
    `purpose`, `reasoning`, `on_behalf_of` and `accept_edits` are as for `transaction`. `independent=True` exists for
    `transaction` only. `on_question(question)` answers reviewers' questions meanwhile, with text, or None to leave
    the question open. `isolation` is as for `transaction`; with `Retry(attempts=3)` `fn` runs again after an
    `IsolationConflict`. With `dry_run` the result is a `DryRun`: nothing was fired, kept or journaled, except calls
    to models, which are made and counted.

    Raises:
        ReviewPending: people have not answered in time.
        OutcomeUnknown: an unknown outcome was not settled in time.
        RerunDiffers: `fn` stages another list every time.
        IsolationConflict: others changed what live effects read, in each run that `isolation` allows.
        MisuseError: `key`, `wait`, a claim, `isolation` or `fn` is invalid; nothing has run.
        CountersignError: as leaving a transaction does.
    """
    require_not_importing()
    require_key(key)
    require_wait(wait)
    require_step(fn, "run_transaction", "run_transaction(step, key=...) without calling step")
    require_isolation(isolation, reruns=True)
    chosen = runtime or default_runtime()
    claimed = build_claimed(purpose, reasoning, on_behalf_of)
    if dry_run:
        from countersign.simulation.dry_run import run_dry  # imported only when used

        return run_dry(fn, key=key, runtime=chosen, claimed=claimed)
    terms = CommitOptions(wait, claimed, accept_edits, QuestionResponder(on_question))
    if inspect.iscoroutinefunction(fn):
        return _rerun_async(chosen, fn, key, terms, isolation)
    try:
        return run_sync(_Rerun(chosen, chosen.sync_executor(), fn, key, terms, isolation).run())
    except CountersignError as answer:
        raise shorten_traceback(answer)  # noqa: B904 - the same exception, with the cause it had


def require_step(fn: object, caller: str, instead: str) -> Callable[[Transaction], Any]:
    """Refuse what cannot be called with the transaction, before it runs. `instead`: what to write if it is a result
    or anything else than a function.

    Raises:
        MisuseError: it is no function, or takes other arguments.
    """
    if not callable(fn):
        raise MisuseError(
            f"{caller} takes the function itself and calls it, this is {type(fn).__name__}; write {instead}"
        )
    try:
        inspect.signature(fn).bind(None)
    except TypeError:
        name = getattr(fn, "__name__", "step")
        raise MisuseError(
            f"{caller} calls {name} with the transaction; write `def {name}(txn):`, and bind other arguments "
            "with functools.partial"
        ) from None
    except ValueError:  # a callable without a signature Python can read
        pass
    return fn


async def _rerun_async(
    runtime: Runtime, fn: Callable[[Transaction], Any], key: str, terms: CommitOptions, isolation: Isolation
) -> Any:
    executor = runtime.async_executor()
    async with executor.opened():
        try:
            return await _Rerun(runtime, executor, fn, key, terms, isolation).run()
        except CountersignError as answer:
            raise shorten_traceback(answer)  # noqa: B904 - as above


Body = Callable[[Transaction], Any]


async def run_body(txn: Transaction, runner: Executor, fn: Body, opened: Body = lambda _: None) -> Any:
    """Run a function as the block of a transaction; `opened` is called before it."""
    body = functools.partial(fn, txn)
    if isinstance(runner, AsyncExecutor):
        async with txn:
            opened(txn)
            return await runner.call(body, {}, None)
    with txn:
        opened(txn)
        return await runner.call(body, {}, None)


_DIFFERENT_LISTS_ALLOWED: Final = 1  # the first may have an outside cause; the second is a pattern


class ListGuard:
    """Compares the list of each run with the one before. With `recorded`, tools and call keys, no run may differ."""

    def __init__(self, key: str, recorded: Sequence[tuple[str, str]] | None = None) -> None:
        self._key = key
        self._last = None if recorded is None else list(recorded)
        self._changes = 0 if recorded is None else _DIFFERENT_LISTS_ALLOWED

    def forget(self) -> None:
        """The last run met an isolation conflict, so the next one may stage another list."""
        self._last = None

    def require_same(self, calls: Sequence[StagedCall]) -> None:
        """Compare with the run before.

        Raises:
            RerunDiffers: the list changed for the second time; names the first call that differs.
        """
        now = [(call.tool.name, call.call_key) for call in calls]
        before, self._last = self._last, now
        if before is None or before == now:
            return
        self._changes += 1
        if self._changes > _DIFFERENT_LISTS_ALLOWED:
            position = _first_difference(before, now)
            raise RerunDiffers(self._key, position + 1, _name_at(before, position), _name_at(now, position))


def _first_difference(before: Sequence[tuple[str, str]], now: Sequence[tuple[str, str]]) -> int:
    pairs = zip(before, now, strict=False)
    return next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(before), len(now)))


def _name_at(calls: Sequence[tuple[str, str]], position: int) -> str | None:
    """A call as people recognise it: the tool and the beginning of the call key."""
    if position >= len(calls):
        return None
    name, call_key = calls[position]
    return f"{name} ({call_key[:8]})"


class _Rerun:
    """One `run_transaction`."""

    def __init__(
        self,
        runtime: Runtime,
        executor: Executor,
        fn: Callable[[Transaction], Any],
        key: str,
        terms: CommitOptions,
        isolation: Isolation,
    ) -> None:
        self._runtime = runtime
        self._executor = executor
        self._fn = fn
        self._call = step_call(fn)
        self._key = key
        self._terms = terms
        self._isolation = isolation
        self._attempts = ConflictRetries.of(isolation)
        self._guard = ListGuard(key)
        self._until = runtime.clock.monotonic() + terms.wait
        self._ran = False  # ran once: a busy transaction is then held by a worker, for a short time
        # Continued once after an unknown outcome that was settled before the first poll.
        self._went_on = False

    async def run(self) -> Any:
        """Run, wait, run again."""
        while True:
            try:
                return await self._once()
            except ReviewPending as pending:
                self._ran = True
                if pending.parked or not await self._answered(pending):
                    raise
            except (TransactionBusy, OverQuota) as in_the_way:
                if not self._ran:
                    raise
                await self._wait_out(in_the_way)
            except IsolationConflict as moved:
                pause = self._attempts.pause_after(moved)
                self._guard.forget()
                await self._executor.sleep(pause)
            except OutcomeUnknown as unknown:
                self._ran = True
                if not await self._settled(unknown):
                    raise

    def _left(self) -> float:
        """Seconds that people, probes and workers may still take."""
        return max(0.0, self._until - self._runtime.clock.monotonic())

    async def _wait_out(self, in_the_way: TransactionBusy | OverQuota) -> None:
        """Wait until a worker may have finished, or until the quota is available again.

        Raises:
            TransactionBusy, OverQuota: the time is up.
        """
        if not self._left():
            raise in_the_way
        lasts = (in_the_way.retry_after or 0) if isinstance(in_the_way, OverQuota) else 0
        await self._executor.sleep(min(max(self._runtime.settings.retry_base_seconds, lasts), self._left()))

    async def _once(self) -> Any:
        txn = Transaction(
            self._runtime,
            self._key,
            replace(self._terms, wait=self._left()),
            guard=self._guard.require_same,
            isolation=self._isolation,
        )
        return await run_body(txn, self._executor, self._fn, self._record_step)

    def _record_step(self, txn: Transaction) -> None:
        if (call := self._call) is not None:
            self._runtime.journal.steps.keep(txn.txn, call.step.name, call.args, call.step.secret)

    async def _answered(self, pending: ReviewPending) -> bool:
        """Wait, with nothing held open, until people have answered or the time is up.

        Raises:
            ReviewPending: the time is up; with proposals and questions of the last poll, or why it failed.
        """
        engine = self._runtime.engine(self._executor)
        edits = ProposalResponder(engine, self._terms.accept_edits)
        try:
            while (seen := await self._poll(engine, pending, edits)) is not None and edits.concerns(seen):
                try:
                    await edits.answer(seen)
                except OverQuota as over:
                    await self._wait_out(over)
        except (ServiceUnavailable, OverQuota) as away:
            raise ReviewPending(
                pending.key,
                pending.txn,
                pending.reviews,
                parked=False,
                waited=True,
                unreached=describe_outage(away),
                proposals=pending.proposals,
                questions=pending.questions,
            ) from away
        if seen is not None and seen.state is TxnState.REVIEW:
            raise review_pending_error(
                seen, pending.key, parked=False, waited=True
            ) from None  # with the current state
        return seen is not None

    async def _poll(
        self, engine: Engine, pending: ReviewPending, edits: ProposalResponder
    ) -> TransactionView | None:
        return await wait_for_review(
            engine, pending.txn, self._until, self._terms.answering, concerns=edits.concerns
        )

    async def _settled(self, unknown: OutcomeUnknown) -> bool:
        """Wait until a person settles an unknown outcome, until the probe's answer counts, or until the time is up;
        then the list continues. Nothing that may have happened is called again. If the service has no unknown
        outcome twice in a row, it will not be settled.
        """
        service = self._runtime.engine(self._executor).service
        settings, asked, missed = self._runtime.settings, False, 0
        away: ServiceUnavailable | OverQuota | None = None
        while (left := self._left()) > 0:
            if unknown.probe_at is not None:
                if (due := unknown.probe_at - self._runtime.clock.wall()) <= 0:
                    return True
                left = min(left, due)
            try:
                view = await service.view(unknown.txn, wait=max(1, min(int(left), settings.poll_seconds)))
            except (ServiceUnavailable, OverQuota) as error:
                # Settles nothing; waiting for people includes waiting for the service.
                away, missed = error, missed + 1
            except ServiceRefused as refused:
                raise unknown from refused  # a refusal settles nothing
            else:
                if not _has_unknown_outcome(view):
                    going_on, self._went_on = asked or not self._went_on, True
                    return going_on
                asked, missed, away = True, 0, None
            await self._executor.sleep(min(poll_pause(settings, missed, away), left, self._left()))
        return False


def _has_unknown_outcome(view: TransactionView) -> bool:
    """Whether the outcome of an effect or compensation is still unknown, or redeemed and not reported yet."""
    states = [one.state for one in view.effects]
    states += [one.compensation.state for one in view.effects if one.compensation is not None]
    return bool({EffectState.UNKNOWN, EffectState.REDEEMED}.intersection(states))
