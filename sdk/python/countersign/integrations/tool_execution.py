"""The calls of one message of a model, carried out as one transaction, and what is true of each of them afterwards.

A model's message is one step, so its calls go together: one that cannot be read, does not fit its tool or is denied
holds the others, and live work that was done on the way is undone. Rules: an answer is written when its transaction has
ended, never before, so no placeholder is ever described as a result; what a policy, a person or a tool said no to is
told to the model, which can act on it, also where an earlier run or a worker met it; nothing is told as not done that
an earlier run has done, or that may be done yet; what is not known, and what is the world's or the program's fault, is
raised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from countersign.commit.attempt import MAX_ERROR
from countersign.commit.review import OnQuestion
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
from countersign.live.isolation import ABORT, Abort, Retry, Serialize, require_isolation
from countersign.recovery.prior_run import find_prior_denial, is_superseded, load_prior_run, withdraw
from countersign.runtime import default_runtime
from countersign.texts import text_of
from countersign.transactions.opening import build_claimed, require_wait, transaction
from countersign.transactions.transaction import Transaction

if TYPE_CHECKING:
    from countersign.runtime import Engine, Runtime

A = TypeVar("A")
T = TypeVar("T")

log: Final = logging.getLogger("countersign")

_MAX_CLAIM: Final = 4000  # characters of the model's words that people are shown, as the wire allows


class _CallRefusedError(Exception):
    """One call was refused inside the block, so the block is left and nothing of it stands."""

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

    def __post_init__(self) -> None:
        if isinstance(self.isolation, Retry):
            raise MisuseError(
                "what a model has called is not run again by itself: the model is told that somebody came in between, "
                "and may call again; write isolation=Abort() or Serialize(timeout_seconds=30)"
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
        """Carry out these calls as the transaction of this key. `said` is what the model wrote beside them; people
        read it as the agent's own words. `later`: the keys of the turns that an earlier run has gone on to from here.
        Where it did something there and nothing here, nothing is done here any more: what it did next may be what is
        asked for here now, and would be done twice.

        Raises:
            ReviewPending: people are asked first.
            CountersignError: as leaving a transaction does, but for refusals that the model is told.
        """
        read = [self._read(call) for call in calls]
        meant = [one for one in read if isinstance(one, ResolvedCall)]
        if len(meant) < len(read):
            answers = tuple(one if isinstance(one, ToolAnswer) else withheld_answer(one.call) for one in read)
            return await self._not_done(key, (), answers)
        runtime = self.runtime or default_runtime()
        if is_superseded(runtime.journal, runtime.settings.agent, key, later):
            return await self._not_done(key, meant, await self._told_then(key, meant))
        taken, step = ReturnedValues(), self._step(key, said)
        try:
            await self._run(step, meant, taken)
        except _CallRefusedError as refused:
            return await self._not_done(
                key, meant, refusal_answers(meant, {refused.call.call_id: refused.why})
            )
        except Denied as denied:
            return refusal_answers(meant, denial_texts(denied, meant, taken))
        except EffectFailed as failed:
            return failure_answers(failed, meant, taken)
        except AlreadyRedeemed as spent:
            failed_before = recorded_failure(spent, step)
            if failed_before is None:
                raise
            return failure_answers(failed_before, meant, taken)
        except (IsolationConflict, ReleaseLapsed) as stopped:
            if isinstance(stopped, ReleaseLapsed) and stopped.may_fire:
                raise  # a model would call it once more, in another turn
            told = {one.call.call_id: f"not done: {stopped}" for one in meant}
            return await self._not_done(key, meant, refusal_answers(meant, told))
        if step.replayed:
            # what live tools answered now was of a world that has the earlier run's work already
            record = runtime.journal.transactions.require(step.txn)
            then = recorded_results(load_prior_run(runtime.journal, record), meant, whole=False)
            taken = taken if then is None else ReturnedValues(then)
        return success_answers(meant, taken)

    async def _told_then(self, key: str, meant: Sequence[ResolvedCall]) -> tuple[ToolAnswer, ...]:
        """What the model is told where nothing is done any more: once more why, where the same was denied then."""
        runtime = self.runtime or default_runtime()
        record = runtime.journal.transactions.get(txn_id(agent=runtime.settings.agent, run_key=key))
        if record is not None and record.staging is not None:
            then = recorded_results(load_prior_run(runtime.journal, record), meant)
            denied = None if then is None else await self._asked(find_prior_denial, record)
            if then is not None and denied is not None:
                return refusal_answers(meant, denial_texts(denied, meant, ReturnedValues(then)))
        return tuple(superseded_answer(one.call) for one in meant)

    async def _not_done(
        self, key: str, meant: Sequence[ResolvedCall], answers: tuple[ToolAnswer, ...]
    ) -> tuple[ToolAnswer, ...]:
        """These answers, which say that nothing was done, where that is so and stays so: the model may call again, in
        another turn. `meant`: the calls, where all of them could be read.

        Raises:
            AlreadyRedeemed, OutcomeUnknown, WorldError: it is not so, or nobody knows (recovery/prior_run.py).
        """
        done = await self._asked(withdraw, key)
        return answers if done is None or done.is_nothing else recorded_answers(done, meant)

    async def _asked(self, ask: Callable[[Engine, A], Coroutine[Any, Any, T]], about: A) -> T:
        """What recovery answers, on the way that this client waits."""
        runtime = self.runtime or default_runtime()
        if not self.awaits:
            return await ask(runtime.engine(runtime.sync_waits()), about)
        waits = runtime.async_waits()
        async with waits.opened():
            return await ask(runtime.engine(waits), about)

    def _step(self, key: str, said: str) -> Transaction:
        return transaction(
            key,
            wait=self.wait,
            purpose=self.purpose,
            reasoning=said[:_MAX_CLAIM],
            on_behalf_of=self.on_behalf_of,
            on_question=self.on_question,
            isolation=self.isolation,
            runtime=self.runtime,
        )

    async def _run(self, step: Transaction, meant: Sequence[ResolvedCall], taken: ReturnedValues) -> None:
        if self.awaits:
            async with step:
                await self._call_all(step, meant, taken)
        else:
            with step:
                await self._call_all(step, meant, taken)

    async def _call_all(
        self, step: Transaction, meant: Sequence[ResolvedCall], taken: ReturnedValues
    ) -> None:
        for one in meant:
            taken.returned.append(await self._call(step, one))

    async def _call(self, step: Transaction, one: ResolvedCall) -> Any:
        try:
            value = one.function(**one.args)
            return await value if one.tool.is_async else value
        except NotDone as refused:
            why = NotDone.__name__ if step.live_call_has_secrets(one.tool) else text_of(refused)
            raise _CallRefusedError(one.call, f"not done: {why}") from refused
        except (NotStageable, Denied, ReviewRequired) as refused:  # the latter two of `ask: live`
            raise _CallRefusedError(one.call, f"not done: {text_of(refused)}") from refused
        except SessionLost as lost:  # a database said no, and took all of the step's live work back
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
                "live tool %s raised %s; its step is undone and the model is told",
                *(one.tool.name, kind),
                exc_info=not hidden,
            )
            why = kind if hidden else f"{kind}: {text_of(error)}"[:MAX_ERROR]
            raise _CallRefusedError(one.call, f"not done, and undone as far as it had come: {why}") from error

    def _read(self, call: ModelCall) -> ResolvedCall | ToolAnswer:
        """The tool and the arguments that a call means, or what is wrong with it."""
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
            return ToolAnswer(call.call_id, f"not done: the arguments are no sound JSON: {error}", done=False)
        if not isinstance(args, dict):
            return ToolAnswer(call.call_id, "not done: the arguments must be one JSON object", done=False)
        tool, function = found
        return ResolvedCall(call, tool, function, args)
