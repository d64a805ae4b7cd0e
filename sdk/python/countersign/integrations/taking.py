"""The calls of one message of a model, carried out as one transaction, and what is true of each of them afterwards.

A model's message is one step, so its calls go together: one that cannot be read, does not fit its tool or is denied
holds the others, and live work that was done on the way is undone. Rules: an answer is written when its transaction has
ended, never before, so no placeholder is ever described as a result; what a policy, a person or a tool said no to is
told to the model, which can act on it, also where an earlier run or a worker met it; what is not known, and what is the
world's or the program's fault, is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from countersign.commit.answering import OnQuestion
from countersign.contract.admission import admit, load
from countersign.contract.errors import ContractError
from countersign.errors import (
    AlreadyRedeemed,
    CountersignError,
    Denied,
    EffectFailed,
    MisuseError,
    Moved,
    NotDone,
    NotStageable,
    ReleaseLapsed,
    ReviewRequired,
    SessionLost,
)
from countersign.integrations.conversation import Answer, ModelCall
from countersign.integrations.naming import OfferedTools
from countersign.live.isolation import Abort, Retry, Serialize, require_isolation
from countersign.tools.placeholder import Placeholder
from countersign.tools.tool import Tool
from countersign.transactions.opening import transaction
from countersign.transactions.saying import claimed_of, require_wait
from countersign.transactions.transaction import Transaction

if TYPE_CHECKING:
    from countersign.runtime import Runtime

log: Final = logging.getLogger("countersign")

_MAX_CLAIM: Final = 4000  # characters of the model's words that people are shown, as the wire allows
_MAX_ERROR: Final = 500  # characters of a live tool's exception that the model gets to read
_HELD: Final = "not done: the calls of one message go together, and another one of this message was not done"
ABORT: Final = Abort()
_OUTCOMES: Final = {
    "fired": "this one was done and stands",
    "compensated": "this one was done and has been taken back",
    "compensating": "this one was done and is being taken back",
    "compensation_failed": "this one was done and could not be taken back",
    "failed": "this one was not done",
    "unused": "this one was not done",
}


@dataclass(frozen=True, slots=True)
class _Meant:
    """A call whose tool and arguments are found."""

    call: ModelCall
    tool: Tool
    function: Callable[..., Any]
    args: Mapping[str, Any]


@dataclass(slots=True)
class _Taken:
    """What the tools answered inside the block: placeholders of staged calls, results of live ones."""

    returned: list[Any] = field(default_factory=list)


class _NotTakenError(Exception):
    """One call was refused inside the block, so the block is left and nothing of it stands."""

    def __init__(self, call: ModelCall, why: str) -> None:
        self.call, self.why = call, why


@dataclass(frozen=True, slots=True)
class StepTaker:
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
        claimed_of(self.purpose, None, self.on_behalf_of)
        waiting = [one.name for _, one in self.offered if one.is_async]
        if waiting and not self.awaits:
            raise MisuseError(
                f"{waiting[0]} is async, and this client blocks; give the async client of the vendor, and await"
            )

    async def take(self, calls: Sequence[ModelCall], *, key: str, said: str) -> tuple[Answer, ...]:
        """Carry out these calls as the transaction of this key. `said` is what the model wrote beside them; people
        read it as the agent's own words.

        Raises:
            ReviewPending: people are asked first.
            CountersignError: as leaving a transaction does, but for refusals that the model is told.
        """
        read = [self._read(call) for call in calls]
        meant = [one for one in read if isinstance(one, _Meant)]
        if len(meant) < len(read):
            return tuple(one if isinstance(one, Answer) else _held(one.call) for one in read)
        taken, step = _Taken(), self._step(key, said)
        try:
            await self._run(step, meant, taken)
        except _NotTakenError as refused:
            return _answers(meant, {refused.call.call_id: refused.why})
        except Denied as denied:
            return _answers(meant, _of_each(denied, meant, taken))
        except EffectFailed as failed:
            return _after_failure(_in_its_words(failed, step), meant, taken)
        except AlreadyRedeemed as spent:
            failed_before = _how_it_failed(spent, step)
            if failed_before is None:
                raise
            return _after_failure(failed_before, meant, taken)
        except (Moved, ReleaseLapsed) as stopped:
            return _answers(meant, {one.call.call_id: f"not done: {stopped}" for one in meant})
        return _results(meant, taken)

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

    async def _run(self, step: Transaction, meant: Sequence[_Meant], taken: _Taken) -> None:
        if self.awaits:
            async with step:
                await self._call_all(step, meant, taken)
        else:
            with step:
                await self._call_all(step, meant, taken)

    async def _call_all(self, step: Transaction, meant: Sequence[_Meant], taken: _Taken) -> None:
        for one in meant:
            taken.returned.append(await self._call(step, one))

    async def _call(self, step: Transaction, one: _Meant) -> Any:
        try:
            value = one.function(**one.args)
            return await value if one.tool.is_async else value
        except NotDone as refused:
            why = NotDone.__name__ if step.hides_live(one.tool) else str(refused)
            raise _NotTakenError(one.call, f"not done: {why}") from refused
        except (NotStageable, Denied, ReviewRequired) as refused:  # the latter two of `ask: live`
            raise _NotTakenError(one.call, f"not done: {refused}") from refused
        except SessionLost as lost:  # a database said no, and took all of the step's live work back
            if lost.may_stand:
                raise
            why = SessionLost.__name__ if step.hides_live(one.tool) else str(lost)
            raise _NotTakenError(one.call, f"not done: {why}") from lost
        except CountersignError:
            raise
        except Exception as error:  # a live tool may raise anything; it is undone with its transaction
            # Its text may repeat the arguments.
            kind, hidden = type(error).__name__, step.hides_live(one.tool)
            log.warning(
                "live tool %s raised %s; its step is undone and the model is told",
                *(one.tool.name, kind),
                exc_info=not hidden,
            )
            why = kind if hidden else f"{kind}: {error}"[:_MAX_ERROR]
            raise _NotTakenError(one.call, f"not done, and undone as far as it had come: {why}") from error

    def _read(self, call: ModelCall) -> _Meant | Answer:
        """The tool and the arguments that a call means, or what is wrong with it."""
        found = self.offered.find(call.name)
        if call.problem is not None:
            return Answer(call.call_id, f"not done: {call.problem}", done=False)
        if found is None:
            known = ", ".join(self.offered.names)
            return Answer(
                call.call_id, f"not done: there is no tool {call.name!r}; there are {known}", done=False
            )
        try:
            args = load(call.arguments.encode()) if isinstance(call.arguments, str) else admit(call.arguments)
        except (ContractError, UnicodeEncodeError) as error:
            return Answer(call.call_id, f"not done: the arguments are no sound JSON: {error}", done=False)
        if not isinstance(args, dict):
            return Answer(call.call_id, "not done: the arguments must be one JSON object", done=False)
        tool, function = found
        return _Meant(call, tool, function, args)


def _held(call: ModelCall) -> Answer:
    return Answer(call.call_id, _HELD, done=False)


def _answers(meant: Sequence[_Meant], told: Mapping[str, str]) -> tuple[Answer, ...]:
    """Nothing of the step stands; these calls are told why, the others that they were held."""
    return tuple(Answer(one.call.call_id, told.get(one.call.call_id, _HELD), done=False) for one in meant)


def _of_each(denied: Denied, meant: Sequence[_Meant], taken: _Taken) -> dict[str, str]:
    """What was denied is told its reasons, each call its own."""
    refused = {reason.effect_id for reason in denied.reasons if reason.is_a_no}
    staged = zip(meant, taken.returned, strict=True)
    told = {
        one.call.call_id: str(denied)
        for one, back in staged
        if isinstance(back, Placeholder) and back.effect_id in refused
    }
    return told or {one.call.call_id: str(denied) for one in meant}


def _after_failure(failed: EffectFailed, meant: Sequence[_Meant], taken: _Taken) -> tuple[Answer, ...]:
    """Firing began, so each call has an outcome of its own; live work is undone."""
    return tuple(_outcome_of(failed, one, back) for one, back in zip(meant, taken.returned, strict=True))


def _outcome_of(failed: EffectFailed, one: _Meant, back: Any) -> Answer:
    if not isinstance(back, Placeholder):
        return Answer(one.call.call_id, f"this one was undone again: {failed}", done=False)
    outcome = back.outcome or "unused"
    stands = _OUTCOMES.get(outcome, f"the outcome of this one is {outcome!r}")
    return Answer(one.call.call_id, f"{stands}: {failed}", done=outcome == "fired")


def _in_its_words(failed: EffectFailed, step: Transaction) -> EffectFailed:
    """The same with the tool's own words for it: where an earlier run or a worker met them, the journal has them."""
    stopped = _stopped_by(step)
    if stopped is None or stopped.error is None:
        return failed
    return EffectFailed(
        failed.key,
        failed.txn,
        stopped.tool,
        stopped.effect_id,
        stopped.error,
        failed.outcomes,
        failed.reviews,
    )


def _how_it_failed(spent: AlreadyRedeemed, step: Transaction) -> EffectFailed | None:
    """What an earlier run of these calls raised and the model was not told, as the journal has it. None where it is
    another list that was spent, or not known how it ended.
    """
    outcomes = {f"{one.tool}#{seq}": one.outcome or "" for seq, one in enumerate(_distinct(step), start=1)}
    stopped = _stopped_by(step)
    if not step.replayed or stopped is None or not _OUTCOMES.keys() >= set(outcomes.values()):
        return None
    why = stopped.error or "an earlier run did not go through"
    return EffectFailed(spent.key, spent.txn, stopped.tool, stopped.effect_id, why, outcomes)


def _stopped_by(step: Transaction) -> Placeholder[Any] | None:
    """The call that ended the run: the last that failed, for nothing after it was begun, and what failed before it may
    fail alone. Where none failed, the first that was not begun.
    """
    failed = [one for one in _distinct(step) if one.outcome == "failed"]
    unused = [one for one in _distinct(step) if one.outcome == "unused"]
    return failed[-1] if failed else unused[0] if unused else None


def _distinct(step: Transaction) -> tuple[Placeholder[Any], ...]:
    """What was staged, in order; an equal call is the same one."""
    return tuple({one.effect_id: one for one in step.effects}.values())


def _results(meant: Sequence[_Meant], taken: _Taken) -> tuple[Answer, ...]:
    """Everything was done, but for what may fail alone and did. An equal call of one message is the same call, unless
    its tool says otherwise.
    """
    answers, seen = [], set()
    for one, back in zip(meant, taken.returned, strict=True):
        staged = isinstance(back, Placeholder)
        if staged and back.outcome == "failed":
            told = f"{_OUTCOMES['failed']}, which stops no other: {back.error}"
            answers.append(Answer(one.call.call_id, told, done=False))
            continue
        text = _result_text(one.tool, back.result if staged else back)
        if staged and back.effect_id in seen:
            text = f"done once, as the equal call before it in this message: {text}"
        if staged:
            seen.add(back.effect_id)
        answers.append(Answer(one.call.call_id, text, done=True))
    return tuple(answers)


def _result_text(tool: Tool, result: object) -> str:
    if result is None:
        return "done"
    if isinstance(result, str):
        return result
    raw = tool.signature.dump_result(result)
    return "done; its result cannot be written as JSON" if raw is None else raw.decode()
