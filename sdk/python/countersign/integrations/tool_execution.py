"""Carries out the calls of one model message as one transaction, and answers each call afterwards.

A model's message is one step, so its calls are atomic: one that is malformed, does not fit its tool or is denied keeps
the others from running, and their live work is undone. Answers are written after the transaction has ended, so no
placeholder is ever described as a result. Refusals of a policy, a person or a tool are returned to the model, which can
react, also if an earlier run or a worker met them. A call that an earlier run has done, or that may still happen, is
never answered as not done. Unknown outcomes, external faults and bugs of the program are raised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from countersign.commit.review import EditPolicy, OnQuestion
from countersign.commit.tool_errors import MAX_ERROR
from countersign.contract import txn_id
from countersign.contract.admission import admit, load
from countersign.contract.errors import ContractError
from countersign.errors import (
    AlreadyRedeemed,
    CountersignError,
    Denied,
    EffectFailed,
    IsolationConflict,
    MisuseError,
    NotDone,
    NotStageable,
    ReleaseLapsed,
    ReviewRequired,
    SessionLost,
)
from countersign.integrations.conversation import ModelCall, ToolAnswer
from countersign.integrations.tool_definitions import OfferedTools
from countersign.integrations.tool_results import (
    ResolvedCall,
    ReturnedValues,
    changed_arguments,
    denial_texts,
    failure_answers,
    recorded_answers,
    recorded_failure,
    recorded_results,
    refusal_answers,
    success_answers,
    superseded_answer,
    withheld_answer,
)
from countersign.live.isolation import ABORT, Abort, Retry, Serialize
from countersign.process_runtime import default_runtime
from countersign.recovery.prior_run import find_prior_denial, is_superseded, load_prior_run, withdraw
from countersign.texts import text_of
from countersign.transactions.opening import build_claimed, require_isolation, require_wait, transaction
from countersign.transactions.transaction import Transaction

if TYPE_CHECKING:
    from countersign.runtime import Engine, Runtime

A = TypeVar("A")
T = TypeVar("T")

log: Final = logging.getLogger("countersign")

_MAX_CLAIM: Final = 4000  # the wire limit for the model's text that reviewers see


class _CallRefusedError(Exception):
    """A call was refused inside the block, so the block ends and nothing of it is kept."""

    def __init__(self, call: ModelCall, why: str) -> None:
        self.call, self.why = call, why


@dataclass(frozen=True, slots=True)
class StepExecutor:
    """Carries out steps. `awaits`: inside an event loop, where tools may be async."""

    offered: OfferedTools
    awaits: bool
    wait: float = 0.0
    purpose: str | None = None
    on_behalf_of: str | None = None
    on_question: OnQuestion | None = None
    runtime: Runtime | None = None
    isolation: Abort | Serialize = ABORT
    accept_edits: EditPolicy = False

    def __post_init__(self) -> None:
        if isinstance(self.isolation, Retry):
            raise MisuseError(
                "a model's calls are not run again automatically: the answer names the conflict, and the model may "
                "call again; write isolation=Abort() or Serialize(timeout_seconds=30)"
            )
        require_isolation(self.isolation, reruns=False)
        require_wait(self.wait)
        build_claimed(self.purpose, None, self.on_behalf_of)
        waiting = [one.name for _, one in self.offered if one.is_async]
        if waiting and not self.awaits:
            raise MisuseError(
                f"{waiting[0]} is async, and this client blocks; give the async client of the vendor, and await"
            )

    async def take(
        self, calls: Sequence[ModelCall], *, key: str, said: str, later: Iterable[str] = ()
    ) -> tuple[ToolAnswer, ...]:
        """Carry out these calls as the transaction with this key. `said` is the model's text next to them, which
        reviewers read as the agent's claim. `later`: the keys of later turns that an earlier run began. If that run
        did something there and nothing here, nothing is done here: its later calls may be what is requested here,
        and would be done twice.

        Raises:
            ReviewPending: a review is open.
            CountersignError: as leaving a transaction does, except refusals, which are returned to the model.
        """
        read = [self._read(call) for call in calls]
        resolved = [one for one in read if isinstance(one, ResolvedCall)]
        if len(resolved) < len(read):
            answers = tuple(one if isinstance(one, ToolAnswer) else withheld_answer(one.call) for one in read)
            return await self._not_done(key, (), answers)
        runtime = self.runtime or default_runtime()
        if is_superseded(runtime.journal, runtime.settings.agent, key, later):
            return await self._not_done(key, resolved, await self._earlier_answers(key, resolved))
        taken, step = ReturnedValues(), self._step(key, said)
        try:
            await self._run(step, resolved, taken)
        except _CallRefusedError as refused:
            return await self._not_done(
                key, resolved, refusal_answers(resolved, {refused.call.call_id: refused.why})
            )
        except Denied as denied:
            return refusal_answers(resolved, denial_texts(denied, resolved, taken))
        except EffectFailed as failed:
            return failure_answers(failed, resolved, taken)
        except AlreadyRedeemed as spent:
            failed_before = recorded_failure(spent, step)
            if failed_before is None:
                raise
            return failure_answers(failed_before, resolved, taken)
        except (IsolationConflict, ReleaseLapsed) as stopped:
            if isinstance(stopped, ReleaseLapsed) and stopped.may_fire:
                raise  # otherwise a model would call it once more, in another turn
            reasons = {one.call.call_id: f"not done: {stopped}" for one in resolved}
            return await self._not_done(key, resolved, refusal_answers(resolved, reasons))
        if not step.replayed:
            changed = changed_arguments(runtime.journal, step.txn) if self.accept_edits else {}
            return success_answers(resolved, taken, changed)
        # live results now reflect a state that already includes the earlier run's work
        record = runtime.journal.transactions.require(step.txn)
        then = recorded_results(load_prior_run(runtime.journal, record), resolved, whole=False)
        taken = taken if then is None else ReturnedValues(then)
        answers = success_answers(resolved, taken, changed_arguments(runtime.journal, step.txn))
        return tuple(replace(one, earlier=True) for one in answers)

    async def _earlier_answers(self, key: str, resolved: Sequence[ResolvedCall]) -> tuple[ToolAnswer, ...]:
        """The answers for a step that is not carried out any more: the earlier denial if there was one."""
        runtime = self.runtime or default_runtime()
        record = runtime.journal.transactions.get(txn_id(agent=runtime.settings.agent, run_key=key))
        if record is not None and record.staging is not None:
            then = recorded_results(load_prior_run(runtime.journal, record), resolved)
            denied = None if then is None else await self._asked(find_prior_denial, record)
            if then is not None and denied is not None:
                return refusal_answers(resolved, denial_texts(denied, resolved, ReturnedValues(then)))
        return tuple(superseded_answer(one.call) for one in resolved)

    async def _not_done(
        self, key: str, resolved: Sequence[ResolvedCall], answers: tuple[ToolAnswer, ...]
    ) -> tuple[ToolAnswer, ...]:
        """Return these answers, which say that nothing was done, if that is final: the model may call again in another
        turn. `meant`: the calls, if all of them were parsed.

        Raises:
            AlreadyRedeemed, OutcomeUnknown, WorldError: something was done, or it is not known (recovery/prior_run.py).
        """
        done = await self._asked(withdraw, key)
        return answers if done is None or done.is_nothing else recorded_answers(done, resolved)

    async def _asked(self, ask: Callable[[Engine, A], Coroutine[Any, Any, T]], about: A) -> T:
        """Query recovery, blocking or async as this client does."""
        runtime = self.runtime or default_runtime()
        if not self.awaits:
            return await ask(runtime.engine(runtime.sync_executor()), about)
        executor = runtime.async_executor()
        async with executor.opened():
            return await ask(runtime.engine(executor), about)

    def _step(self, key: str, said: str) -> Transaction:
        return transaction(
            key,
            wait=self.wait,
            purpose=self.purpose,
            reasoning=said[:_MAX_CLAIM],
            on_behalf_of=self.on_behalf_of,
            accept_edits=self.accept_edits,
            on_question=self.on_question,
            isolation=self.isolation,
            runtime=self.runtime,
        )

    async def _run(self, step: Transaction, resolved: Sequence[ResolvedCall], taken: ReturnedValues) -> None:
        if self.awaits:
            async with step:
                await self._call_all(step, resolved, taken)
        else:
            with step:
                await self._call_all(step, resolved, taken)

    async def _call_all(
        self, step: Transaction, resolved: Sequence[ResolvedCall], taken: ReturnedValues
    ) -> None:
        for one in resolved:
            taken.returned.append(await self._call(step, one))

    async def _call(self, step: Transaction, one: ResolvedCall) -> Any:
        try:
            value = one.function(**one.args)
            return await value if one.tool.is_async else value
        except NotDone as refused:
            why = NotDone.__name__ if step.live_call_has_secrets(one.tool) else text_of(refused)
            raise _CallRefusedError(one.call, f"not done: {why}") from refused
        except (NotStageable, Denied, ReviewRequired) as refused:  # the latter two come from `ask: live`
            raise _CallRefusedError(one.call, f"not done: {text_of(refused)}") from refused
        except SessionLost as lost:  # a database refused, and rolled back all live work of the step
            if lost.may_stand:
                raise
            why = SessionLost.__name__ if step.live_call_has_secrets(one.tool) else str(lost)
            raise _CallRefusedError(one.call, f"not done: {why}") from lost
        except CountersignError:
            raise
        except Exception as error:  # a live tool may raise anything; it is undone with its transaction
            # Its text may repeat the arguments.
            kind, hidden = type(error).__name__, step.live_call_has_secrets(one.tool)
            log.warning(
                "live tool %s raised %s; its step is undone and the call is answered",
                *(one.tool.name, kind),
                exc_info=not hidden,
            )
            why = kind if hidden else f"{kind}: {text_of(error)}"[:MAX_ERROR]
            raise _CallRefusedError(one.call, f"not done, and undone as far as it had come: {why}") from error

    def _read(self, call: ModelCall) -> ResolvedCall | ToolAnswer:
        """Resolve the tool and arguments of a call, or answer why that is impossible."""
        found = self.offered.find(call.name)
        if call.problem is not None:
            return ToolAnswer(call.call_id, f"not done: {call.problem}", done=False)
        if found is None:
            known = ", ".join(self.offered.names)
            return ToolAnswer(
                call.call_id, f"not done: there is no tool {call.name!r}; there are {known}", done=False
            )
        try:
            args = load(call.arguments.encode()) if isinstance(call.arguments, str) else admit(call.arguments)
        except (ContractError, UnicodeEncodeError) as error:
            return ToolAnswer(
                call.call_id, f"not done: the arguments are not valid JSON: {error}", done=False
            )
        if not isinstance(args, dict):
            return ToolAnswer(call.call_id, "not done: the arguments must be one JSON object", done=False)
        tool, function = found
        return ResolvedCall(call, tool, function, args)
