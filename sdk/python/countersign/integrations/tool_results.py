"""The answers to the calls of one model message after its transaction has ended: never more than is known.

A call that was done is answered with its result, a refused one with the reason, a compensated one as such. If a run
cannot request it again, the answers of an earlier run of the same calls come from the journal; other calls get none of
that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from countersign.contract.admission import load
from countersign.contract.digests import canonicalize
from countersign.errors import AlreadyRedeemed, Denied, EffectFailed, NotStageable
from countersign.integrations.conversation import ModelCall, ToolAnswer
from countersign.journal import EffectRecord, Journal
from countersign.journal.export import without_secrets
from countersign.recovery.prior_run import PriorRun
from countersign.tools.definition import Tool
from countersign.tools.results import Placeholder, settle
from countersign.transactions.intake import CallNames
from countersign.transactions.transaction import Transaction

_WITHHELD: Final = (
    "not done: the calls of one message go together, and another one of this message was not done"
)
_SUPERSEDED: Final = (
    "not done: an earlier run of this conversation has done nothing here and has gone on; call again what is still to "
    "be done, and what that run did next is answered"
)
_RESULT_LOST: Final = "done and kept, in an earlier run of this message; its result was not stored"
_OUTCOMES: Final = {
    "fired": "this one was done and is in effect",
    "compensated": "this one was done and has been compensated",
    "compensating": "this one was done and is being compensated",
    "compensation_failed": "this one was done and could not be compensated",
    "failed": "this one was not done",
    "unused": "this one was not done",
}


@dataclass(frozen=True, slots=True)
class ResolvedCall:
    """A call whose tool and arguments were found."""

    call: ModelCall
    tool: Tool
    function: Callable[..., Any]
    args: Mapping[str, Any]


@dataclass(slots=True)
class ReturnedValues:
    """The return values inside the block: placeholders of staged calls, results of live ones."""

    returned: list[Any] = field(default_factory=list)


def withheld_answer(call: ModelCall) -> ToolAnswer:
    """The answer to a call that was not done because another call of the message was not."""
    return ToolAnswer(call.call_id, _WITHHELD, done=False)


def superseded_answer(call: ModelCall) -> ToolAnswer:
    """The answer if an earlier run did nothing in this turn and continued with later turns, which may include this
    call.
    """
    return ToolAnswer(call.call_id, _SUPERSEDED, done=False)


def refusal_answers(resolved: Sequence[ResolvedCall], reasons: Mapping[str, str]) -> tuple[ToolAnswer, ...]:
    """Answers for a step that was refused: these calls get their reason, the others are withheld."""
    return tuple(
        ToolAnswer(one.call.call_id, reasons.get(one.call.call_id, _WITHHELD), done=False) for one in resolved
    )


def denial_texts(denied: Denied, resolved: Sequence[ResolvedCall], taken: ReturnedValues) -> dict[str, str]:
    """The denial reasons by call."""
    refused = {reason.effect_id for reason in denied.reasons if reason.is_refusal}
    staged = zip(resolved, taken.returned, strict=True)
    reasons = {
        one.call.call_id: str(denied)
        for one, back in staged
        if isinstance(back, Placeholder) and back.effect_id in refused
    }
    return reasons or {one.call.call_id: str(denied) for one in resolved}


def failure_answers(
    failed: EffectFailed, resolved: Sequence[ResolvedCall], taken: ReturnedValues
) -> tuple[ToolAnswer, ...]:
    """Firing began, so each call has its own outcome; live work is undone."""
    return tuple(_outcome_of(failed, one, back) for one, back in zip(resolved, taken.returned, strict=True))


def _outcome_of(failed: EffectFailed, one: ResolvedCall, back: Any) -> ToolAnswer:
    if not isinstance(back, Placeholder):
        return ToolAnswer(one.call.call_id, f"this one was undone again: {failed}", done=False)
    outcome = back.outcome or "unused"
    text = _OUTCOMES.get(outcome, f"the outcome of this one is {outcome!r}")
    return ToolAnswer(one.call.call_id, f"{text}: {failed}", done=outcome == "fired")


def recorded_failure(spent: AlreadyRedeemed, step: Transaction) -> EffectFailed | None:
    """The failure of an earlier run of these calls, from the journal, if the model was not answered then. None if
    another list was redeemed, or the end is unknown.
    """
    return _failure(spent.key, spent.txn, step.effects) if step.replayed else None


def _failure(key: str, txn: str, staged: Sequence[Placeholder[Any]]) -> EffectFailed | None:
    outcomes = {f"{one.tool}#{seq}": one.outcome or "" for seq, one in enumerate(_distinct(staged), start=1)}
    stopped = _stopped_by(staged)
    if stopped is None or not _OUTCOMES.keys() >= set(outcomes.values()):
        return None
    why = stopped.error or "an earlier run failed"
    return EffectFailed(key, txn, stopped.tool, stopped.effect_id, why, outcomes)


def _stopped_by(staged: Sequence[Placeholder[Any]]) -> Placeholder[Any] | None:
    """The call that ended the run: the last failure, because nothing was begun after it and earlier failures were
    allowed to fail alone. If none failed, the first call that was not begun.
    """
    failed = [one for one in _distinct(staged) if one.outcome == "failed"]
    unused = [one for one in _distinct(staged) if one.outcome == "unused"]
    return failed[-1] if failed else unused[0] if unused else None


def _distinct(staged: Sequence[Placeholder[Any]]) -> tuple[Placeholder[Any], ...]:
    """The staged calls in order; equal calls are the same one."""
    return tuple({one.effect_id: one for one in staged}.values())


def recorded_answers(done: PriorRun, resolved: Sequence[ResolvedCall]) -> tuple[ToolAnswer, ...]:
    """The answers of an earlier run, if it carried out these calls.

    Raises:
        AlreadyRedeemed: it did not, or ended in a way that gives no answer for each call.
    """
    returned = recorded_results(done, resolved)
    if returned is None:
        raise done.spent()
    if done.well:
        return success_answers(resolved, ReturnedValues(returned))
    staged = [back for back in returned if isinstance(back, Placeholder)]
    failed = _failure(done.record.run_key, done.record.txn, staged)
    if failed is None or done.kept:
        raise done.spent()
    return failure_answers(failed, resolved, ReturnedValues(returned))


def recorded_results(
    done: PriorRun, resolved: Sequence[ResolvedCall], *, whole: bool = True
) -> list[Any] | None:
    """The recorded results, one for each call. None if the calls are not those that were done; with `whole` False they
    may be a part of them.
    """
    named = CallNames(done.record.agent, done.record.run_key)
    rows = {row.call_key: row for row in done.effects}
    returned: list[Any] = []
    live: list[str] = []
    try:
        for one in resolved:
            raw = one.tool.signature.freeze((), one.args)
            known = named.known(one.tool, raw, repeating=False)
            _, call_key = named.next(one.tool, raw)
            if one.tool.lane == "live":
                named.ran(one.tool, raw)
                live.append(call_key)
                answered = done.live[call_key]
                returned.append(
                    _RESULT_LOST if answered is None else one.tool.signature.result.load(answered)
                )
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


@dataclass(frozen=True, slots=True)
class ChangedArguments:
    """The arguments in force for a call after a reviewer's change. `shown`: what differs from the call, as JSON without
    secrets.
    """

    args: Mapping[str, Any] = field(repr=False)
    shown: str


def changed_arguments(journal: Journal, txn: str) -> dict[str, ChangedArguments]:
    """The changes in force in a transaction, by effect."""
    rows = journal.transactions.effects(journal.transactions.require(txn))
    return {row.effect_id: _change(journal, row) for row in rows if row.staged_args is not None}


def _change(journal: Journal, row: EffectRecord) -> ChangedArguments:
    args: Any = load(row.args)
    staged: Any = load(row.staged_args or b"{}")
    secret = journal.manifests.get(row.tool, row.frozen().tool_digest).secret
    shown: Any = without_secrets(load(row.args), secret)
    differs = [name for name in {**staged, **args} if _member(staged, name) != _member(args, name)]
    text = canonicalize({name: shown.get(name) for name in differs}).decode()
    return ChangedArguments(args, text)


def _member(args: Mapping[str, Any], name: str) -> bytes:
    """Canonical bytes: to Python 1 and true are equal, to a tool they are not."""
    return canonicalize({name: args[name]} if name in args else {})


def success_answers(
    resolved: Sequence[ResolvedCall],
    taken: ReturnedValues,
    changed: Mapping[str, ChangedArguments] = MappingProxyType({}),
) -> tuple[ToolAnswer, ...]:
    """Answers after everything was done, except calls that were allowed to fail alone. Equal calls of one message are
    the same call, unless the tool says otherwise. `changed`: the calls whose arguments a reviewer changed, by effect.
    """
    answers, seen = [], set()
    for one, back in zip(resolved, taken.returned, strict=True):
        staged = isinstance(back, Placeholder)
        if staged and back.outcome == "failed":
            text = f"{_OUTCOMES['failed']}, which stops no other: {back.error}"
            answers.append(ToolAnswer(one.call.call_id, text, done=False))
            continue
        text = _result_text(one.tool, back.result if staged else back)
        change = changed.get(back.effect_id) if staged else None
        if change is not None:
            text = f"done with arguments that a reviewer changed, {change.shown}: {text}"
        if staged and back.effect_id in seen:
            text = f"done once, as the equal call before it in this message: {text}"
        if staged:
            seen.add(back.effect_id)
        answers.append(
            ToolAnswer(one.call.call_id, text, done=True, args=None if change is None else change.args)
        )
    return tuple(answers)


def _result_text(tool: Tool, result: object) -> str:
    if result is None:
        return "done"
    if isinstance(result, str):
        return result
    raw = tool.signature.result.dump(result)
    return "done; its result cannot be written as JSON" if raw is None else raw.decode()
