"""What a model is told of each call of one message, once its transaction has ended: never more than is known.

What was done is told with its result; what was not, with why; what was taken back, as that. Where a run could not ask
for it again, what an earlier one of the same calls has done is told from the journal, and of other calls nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from countersign.errors import AlreadyRedeemed, Denied, EffectFailed, NotStageable
from countersign.integrations.conversation import ModelCall, ToolAnswer
from countersign.journal import EffectRecord
from countersign.recovery.prior_run import PriorRun
from countersign.tools.definition import Tool
from countersign.tools.placeholder import Placeholder, settle
from countersign.tools.tool import CallNames
from countersign.transactions.transaction import Transaction

_WITHHELD: Final = (
    "not done: the calls of one message go together, and another one of this message was not done"
)
_SUPERSEDED: Final = (
    "not done: an earlier run of this conversation has done nothing here and has gone on; call again what is still to "
    "be done, and what that run did next is answered"
)
_NOT_KEPT: Final = "done and kept, in an earlier run of this message; what it answered then is not kept"
_OUTCOMES: Final = {
    "fired": "this one was done and stands",
    "compensated": "this one was done and has been taken back",
    "compensating": "this one was done and is being taken back",
    "compensation_failed": "this one was done and could not be taken back",
    "failed": "this one was not done",
    "unused": "this one was not done",
}


@dataclass(frozen=True, slots=True)
class ResolvedCall:
    """A call whose tool and arguments are found."""

    call: ModelCall
    tool: Tool
    function: Callable[..., Any]
    args: Mapping[str, Any]


@dataclass(slots=True)
class ReturnedValues:
    """What the tools answered inside the block: placeholders of staged calls, results of live ones."""

    returned: list[Any] = field(default_factory=list)


def withheld_answer(call: ModelCall) -> ToolAnswer:
    """Another call of the message was not done, so this one was not either."""
    return ToolAnswer(call.call_id, _WITHHELD, done=False)


def superseded_answer(call: ModelCall) -> ToolAnswer:
    """An earlier run did nothing in this turn and something in a later one, which this call may be meant for."""
    return ToolAnswer(call.call_id, _SUPERSEDED, done=False)


def refusal_answers(meant: Sequence[ResolvedCall], told: Mapping[str, str]) -> tuple[ToolAnswer, ...]:
    """Nothing of the step stands; these calls are told why, the others that they were held."""
    return tuple(
        ToolAnswer(one.call.call_id, told.get(one.call.call_id, _WITHHELD), done=False) for one in meant
    )


def denial_texts(denied: Denied, meant: Sequence[ResolvedCall], taken: ReturnedValues) -> dict[str, str]:
    """What was denied is told its reasons, each call its own."""
    refused = {reason.effect_id for reason in denied.reasons if reason.is_refusal}
    staged = zip(meant, taken.returned, strict=True)
    told = {
        one.call.call_id: str(denied)
        for one, back in staged
        if isinstance(back, Placeholder) and back.effect_id in refused
    }
    return told or {one.call.call_id: str(denied) for one in meant}


def failure_answers(
    failed: EffectFailed, meant: Sequence[ResolvedCall], taken: ReturnedValues
) -> tuple[ToolAnswer, ...]:
    """Firing began, so each call has an outcome of its own; live work is undone."""
    return tuple(_outcome_of(failed, one, back) for one, back in zip(meant, taken.returned, strict=True))


def _outcome_of(failed: EffectFailed, one: ResolvedCall, back: Any) -> ToolAnswer:
    if not isinstance(back, Placeholder):
        return ToolAnswer(one.call.call_id, f"this one was undone again: {failed}", done=False)
    outcome = back.outcome or "unused"
    stands = _OUTCOMES.get(outcome, f"the outcome of this one is {outcome!r}")
    return ToolAnswer(one.call.call_id, f"{stands}: {failed}", done=outcome == "fired")


def recorded_failure(spent: AlreadyRedeemed, step: Transaction) -> EffectFailed | None:
    """What an earlier run of these calls raised and the model was not told, as the journal has it. None where it is
    another list that was spent, or not known how it ended.
    """
    return _failure(spent.key, spent.txn, step.effects) if step.replayed else None


def _failure(key: str, txn: str, staged: Sequence[Placeholder[Any]]) -> EffectFailed | None:
    outcomes = {f"{one.tool}#{seq}": one.outcome or "" for seq, one in enumerate(_distinct(staged), start=1)}
    stopped = _stopped_by(staged)
    if stopped is None or not _OUTCOMES.keys() >= set(outcomes.values()):
        return None
    why = stopped.error or "an earlier run did not go through"
    return EffectFailed(key, txn, stopped.tool, stopped.effect_id, why, outcomes)


def _stopped_by(staged: Sequence[Placeholder[Any]]) -> Placeholder[Any] | None:
    """The call that ended the run: the last that failed, for nothing after it was begun, and what failed before it may
    fail alone. Where none failed, the first that was not begun.
    """
    failed = [one for one in _distinct(staged) if one.outcome == "failed"]
    unused = [one for one in _distinct(staged) if one.outcome == "unused"]
    return failed[-1] if failed else unused[0] if unused else None


def _distinct(staged: Sequence[Placeholder[Any]]) -> tuple[Placeholder[Any], ...]:
    """What was staged, in order; an equal call is the same one."""
    return tuple({one.effect_id: one for one in staged}.values())


def recorded_answers(done: PriorRun, meant: Sequence[ResolvedCall]) -> tuple[ToolAnswer, ...]:
    """What an earlier run has done, where it is what these calls mean.

    Raises:
        AlreadyRedeemed: it is not, or did not end in a way that can be told of each call.
    """
    returned = recorded_results(done, meant)
    if returned is None:
        raise done.spent()
    if done.well:
        return success_answers(meant, ReturnedValues(returned))
    staged = [back for back in returned if isinstance(back, Placeholder)]
    failed = _failure(done.record.run_key, done.record.txn, staged)
    if failed is None or done.kept:
        raise done.spent()
    return failure_answers(failed, meant, ReturnedValues(returned))


def recorded_results(
    done: PriorRun, meant: Sequence[ResolvedCall], *, whole: bool = True
) -> list[Any] | None:
    """What the tools answered then, one call after the other. None where the calls are not those that were done; where
    `whole` is False, a part of those is told as well.
    """
    named = CallNames(done.record.agent, done.record.run_key)
    rows = {row.call_key: row for row in done.effects}
    returned: list[Any] = []
    live: list[str] = []
    try:
        for one in meant:
            raw = one.tool.signature.freeze((), one.args)
            known = named.known(one.tool, raw, repeating=False)
            _, call_key = named.next(one.tool, raw)
            if one.tool.lane == "live":
                named.ran(one.tool, raw)
                live.append(call_key)
                answered = done.live[call_key]
                returned.append(_NOT_KEPT if answered is None else one.tool.signature.result.load(answered))
            elif known is None:
                known = _settled(one.tool, rows[call_key])
                named.staged(one.tool, raw, known)
                returned.append(known)
            else:
                returned.append(known)
    except (NotStageable, KeyError):
        return None
    staged = [back.call_key for back in returned if isinstance(back, Placeholder)]
    same = tuple(dict.fromkeys(staged)) == tuple(rows) and live == list(done.live)
    return returned if same or not whole else None


def _settled(tool: Tool, row: EffectRecord) -> Placeholder[Any]:
    placeholder: Placeholder[Any] = Placeholder(tool.name, row.effect_id, row.call_key)
    result = None if row.result is None else tool.signature.result.load(row.result)
    settle(placeholder, row.state.value, result, row.error)
    return placeholder


def success_answers(meant: Sequence[ResolvedCall], taken: ReturnedValues) -> tuple[ToolAnswer, ...]:
    """Everything was done, but for what may fail alone and did. An equal call of one message is the same call, unless
    its tool says otherwise.
    """
    answers, seen = [], set()
    for one, back in zip(meant, taken.returned, strict=True):
        staged = isinstance(back, Placeholder)
        if staged and back.outcome == "failed":
            told = f"{_OUTCOMES['failed']}, which stops no other: {back.error}"
            answers.append(ToolAnswer(one.call.call_id, told, done=False))
            continue
        text = _result_text(one.tool, back.result if staged else back)
        if staged and back.effect_id in seen:
            text = f"done once, as the equal call before it in this message: {text}"
        if staged:
            seen.add(back.effect_id)
        answers.append(ToolAnswer(one.call.call_id, text, done=True))
    return tuple(answers)


def _result_text(tool: Tool, result: object) -> str:
    if result is None:
        return "done"
    if isinstance(result, str):
        return result
    raw = tool.signature.result.dump(result)
    return "done; its result cannot be written as JSON" if raw is None else raw.decode()
