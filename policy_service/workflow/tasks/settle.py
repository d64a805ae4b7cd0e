"""Settle: a person answers a task that the service cannot decide.

1. The task must exist. A settled task is refused with its settlement; the same answer by the same person is accepted
   again. The first settlement is kept.
2. The person must not be on the requester's side, and policy must permit them to settle.
3. The answer must be one that this kind of task accepts. A result is accepted only with `fired`.
4. What the person read must be current: the same digest, and the same state of the effect.
5. A reason is required; the agent and auditors read it.
6. The effect is moved, its settlement is stored with it, the task closes, and the consequences of the outcome are
   applied, in one unit of work. A later report that contradicts it becomes another task (`releases/report.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from countersign.contract import EffectState, ErrorCode, TaskAnswer, TaskKind, load
from policy_service.domain.settlement import ANSWERS, applies_to, transitions_for
from policy_service.errors import ConflictError, ForbiddenError, InvalidRequestError
from policy_service.pap.bundle import Bundle
from policy_service.queries.context import Context
from policy_service.queries.task_context import TaskContext, read_task_context, settle_refusal, settlement_of
from policy_service.queries.vote_eligibility import Voter
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.storage.types import time_text
from policy_service.workflow.authorization import require_active_person
from policy_service.workflow.effects.evaluation import require_current_bundle, with_stable_bundle
from policy_service.workflow.effects.outcomes import apply_outcome, end_effect, sync_transaction_state
from policy_service.workflow.transitions import (
    TransitionReason,
    close_tasks,
    set_columns,
    transition_effect,
)


@dataclass(frozen=True)
class Settlement:
    """A person's answer, and what it is about."""

    task_id: str
    answer: TaskAnswer
    effect_digest: str
    effect_state: str
    reason: str | None
    channel: str
    result: bytes | None = None  # canonical JSON


async def settle(ctx: Context, voter: Voter, settlement: Settlement) -> TaskContext:
    """Settle a task; returns it afterwards.

    Raises:
        NotFoundError: no such task.
        ConflictError: task_settled, with the settlement; stale_task, with the current state.
        ForbiddenError: not_eligible.
        InvalidRequestError: wrong_answer, reason_required.
    """

    async def work(bundle: Bundle) -> TaskContext:
        txn = (await ctx.db.read(lambda conn: read_task_context(conn, settlement.task_id))).task.txn
        return await ctx.db.write(lambda tx: _settle(tx, ctx, bundle, voter, settlement, txn))

    return await with_stable_bundle(ctx, work)


def _settle(
    tx: Tx, ctx: Context, bundle: Bundle, voter: Voter, settlement: Settlement, txn: str
) -> TaskContext:
    require_current_bundle(ctx, bundle)
    tx = lock_transaction(tx, txn)
    require_active_person(tx, voter.iss, voter.sub)
    case = read_task_context(tx.conn, settlement.task_id)
    if case.task.state != "open":
        _require_same_settlement(case, voter, settlement)
        return case
    if (reason := settle_refusal(ctx, bundle, case, voter, tx.now)) is not None:
        raise ForbiddenError(reason, code=ErrorCode.NOT_ELIGIBLE)
    _require_answer(case.kind, settlement)
    _require_same_effect(case, settlement)
    if not (settlement.reason or "").strip():
        raise InvalidRequestError(
            "give a reason: say how you know. The agent reads it",
            code=ErrorCode.REASON_REQUIRED,
        )
    _apply_settlement(tx, case, voter, settlement)
    return read_task_context(tx.conn, settlement.task_id)


def _require_same_settlement(case: TaskContext, voter: Voter, settlement: Settlement) -> None:
    known = settlement_of(case)
    if known is not None and (known["person"], known["answer"]) == (voter.key, settlement.answer.value):
        return
    if known is None:
        detail = f"nothing is left to settle: {case.effect.tool} is {case.effect.state}"
        raise ConflictError(detail, code=ErrorCode.TASK_SETTLED, effect_state=case.effect.state)
    raise ConflictError(
        f"{known['name']} has settled it as {known['answer']}; the first settlement is kept",
        code=ErrorCode.TASK_SETTLED,
        effect_state=case.effect.state,
        settlement={name: known[name] for name in ("answer", "person", "name", "at", "reason")},
    )


def _require_answer(kind: TaskKind, settlement: Settlement) -> None:
    if settlement.answer not in ANSWERS[kind]:
        accepted = [answer.value for answer in ANSWERS[kind]]
        raise InvalidRequestError(
            f"{settlement.answer.value!r} is not an answer to {kind.value!r}; it accepts {', '.join(accepted)}",
            code=ErrorCode.WRONG_ANSWER,
            answers=accepted,
        )
    if settlement.result is not None and settlement.answer is not TaskAnswer.FIRED:
        raise InvalidRequestError("only a fired effect has a result; leave it out")


def _require_same_effect(case: TaskContext, settlement: Settlement) -> None:
    seen, current = (
        (settlement.effect_digest, settlement.effect_state),
        (case.effect.effect_digest, case.effect.state),
    )
    if seen != current or not applies_to(case.kind, case.state):
        raise ConflictError(
            f"nothing was settled: what you read has changed ({case.effect.tool} is {case.effect.state} now)",
            code=ErrorCode.STALE_TASK,
            effect_state=case.effect.state,
            task_id=case.task.task_id,
        )


def _apply_settlement(tx: Tx, case: TaskContext, voter: Voter, settlement: Settlement) -> None:
    effect, task_id = case.effect, case.task.task_id
    detail = {"task_id": task_id, "answer": settlement.answer.value, "channel": settlement.channel}
    cause = TransitionReason.by_person(voter.iss, voter.sub, "settled", detail)
    result = {} if settlement.result is None else {"result": settlement.result}
    set_columns(
        tx, effect, settlements=[*effect.settlements, _settlement(tx, case, voter, settlement)], **result
    )
    if settlement.answer is TaskAnswer.WITHDRAWN:
        reason = (settlement.reason or "").strip()
        end_effect(tx, case.snapshot, effect, EffectState.WITHDRAWN, cause, reason)
    for to in transitions_for(case.state, settlement.answer, spent=effect.redeemed_by is not None):
        transition_effect(tx, effect, to, cause)
        apply_outcome(tx, case.snapshot, effect, cause)
    close_tasks(tx, effect, cause, case.kind)
    review = case.snapshot.review_of(effect)
    if case.kind is TaskKind.IMPOSSIBLE_QUORUM and review is not None:
        set_columns(tx, review, unanswerable=None)  # the person has decided how to proceed
    if case.state is not EffectState.REVIEW and settlement.answer is not TaskAnswer.WITHDRAWN:
        sync_transaction_state(tx, case.snapshot, cause)


def _settlement(tx: Tx, case: TaskContext, voter: Voter, settlement: Settlement) -> dict[str, Any]:
    """The settlement as stored. The audit log records who answered what and when, without the person's text."""
    result = {} if settlement.result is None else {"result": load(settlement.result)}
    return {
        "task_id": case.task.task_id,
        "kind": case.task.kind,
        "answer": settlement.answer.value,
        "person": voter.key,
        "name": voter.name,
        "assurance": voter.assurance,
        "reason": (settlement.reason or "").strip(),
        "at": time_text(tx.now),
        **result,
    }
