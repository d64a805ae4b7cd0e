"""Settle: a person's word on what nobody else can tell.

Numbered as they run:

1. the task exists; one that is settled is told with what was said, and the same word of the same person again is the
   same word: the first stands;
2. the person is not of the requester's side, and policy lets them settle (``settlers.py``);
3. the answer is one this kind of task takes, and a result is told only of what fired;
4. what they read still stands: the same bytes, the effect still where it stood;
5. it has a reason: the agent reads it, and so does whoever audits;
6. the effect moves, its settlement is kept with it, the task closes, and what follows from an outcome follows, in one
   unit of work. A later report that says otherwise changes nothing and is a task of its own (``releases/report.py``).
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
from policy_service.queries.voter import Voter
from policy_service.storage.advisory_locks import lock_transaction
from policy_service.storage.database import Tx
from policy_service.storage.types import time_text
from policy_service.workflow.authorization import require_active_person
from policy_service.workflow.effects.evaluation import require_current_bundle, with_stable_bundle
from policy_service.workflow.effects.termination import withdraw_effect
from policy_service.workflow.releases.report import apply_outcome
from policy_service.workflow.transitions import (
    TransitionReason,
    close_tasks,
    person_actor,
    set_columns,
    sync_transaction_state,
    transition_effect,
)


@dataclass(frozen=True)
class Settlement:
    """What a person says, and of what they read."""

    task_id: str
    answer: TaskAnswer
    effect_digest: str
    effect_state: str
    reason: str | None
    channel: str
    result: bytes | None = None  # canonical JSON


async def settle(ctx: Context, voter: Voter, word: Settlement) -> TaskContext:
    """Settle a task; the case as it is afterwards.

    Raises:
        NotFoundError: no such task.
        ConflictError: task_settled (with what was said), stale_task (with what stands now).
        ForbiddenError: not_eligible.
        InvalidRequestError: wrong_answer, reason_required.
    """

    async def under(bundle: Bundle) -> TaskContext:
        txn = (await ctx.db.read(lambda conn: read_task_context(conn, word.task_id))).task.txn
        return await ctx.db.write(lambda tx: _settle(tx, ctx, bundle, voter, word, txn))

    return await with_stable_bundle(ctx, under)


def _settle(tx: Tx, ctx: Context, bundle: Bundle, voter: Voter, word: Settlement, txn: str) -> TaskContext:
    require_current_bundle(ctx, bundle)
    tx = lock_transaction(tx, txn)
    require_active_person(tx, voter.iss, voter.sub)
    case = read_task_context(tx.conn, word.task_id)
    if case.task.state != "open":
        _require_same_word(case, voter, word)
        return case
    if (reason := settle_refusal(ctx, bundle, case, voter, tx.now)) is not None:
        raise ForbiddenError(reason, code=ErrorCode.NOT_ELIGIBLE)
    _require_answer(case.kind, word)
    _require_same_effect(case, word)
    if not (word.reason or "").strip():
        raise InvalidRequestError(
            "say how you know: a settlement needs a reason, and the agent reads it",
            code=ErrorCode.REASON_REQUIRED,
        )
    _take(tx, case, voter, word)
    return read_task_context(tx.conn, word.task_id)


def _require_same_word(case: TaskContext, voter: Voter, word: Settlement) -> None:
    said = settlement_of(case)
    if said is not None and (said["person"], said["answer"]) == (voter.key, word.answer.value):
        return
    if said is None:
        detail = f"nothing is left to settle: {case.effect.tool} is {case.effect.state} by now"
        raise ConflictError(detail, code=ErrorCode.TASK_SETTLED, effect_state=case.effect.state)
    raise ConflictError(
        f"{said['name']} has settled it: {said['answer']}; the first word stands",
        code=ErrorCode.TASK_SETTLED,
        effect_state=case.effect.state,
        settlement={name: said[name] for name in ("answer", "person", "name", "at", "reason")},
    )


def _require_answer(kind: TaskKind, word: Settlement) -> None:
    if word.answer not in ANSWERS[kind]:
        takes = ", ".join(answer.value for answer in ANSWERS[kind])
        raise InvalidRequestError(
            f"{word.answer.value!r} is no answer to {kind.value!r}; it takes {takes}",
            code=ErrorCode.WRONG_ANSWER,
            answers=[answer.value for answer in ANSWERS[kind]],
        )
    if word.result is not None and word.answer is not TaskAnswer.FIRED:
        raise InvalidRequestError("only what fired has a result; leave it out")


def _require_same_effect(case: TaskContext, word: Settlement) -> None:
    seen, stands = (word.effect_digest, word.effect_state), (case.effect.effect_digest, case.effect.state)
    if seen != stands or not applies_to(case.kind, case.state):
        raise ConflictError(
            f"nothing was settled: what you read is not what stands now ({case.effect.tool} is {case.effect.state})",
            code=ErrorCode.STALE_TASK,
            effect_state=case.effect.state,
            task_id=case.task.task_id,
        )


def _take(tx: Tx, case: TaskContext, voter: Voter, word: Settlement) -> None:
    effect, task_id = case.effect, case.task.task_id
    detail = {"task_id": task_id, "answer": word.answer.value, "channel": word.channel}
    cause = TransitionReason(person_actor(voter.iss, voter.sub), "settled", detail)
    result = {} if word.result is None else {"result": word.result}
    set_columns(tx, effect, settlements=[*effect.settlements, _settlement(tx, case, voter, word)], **result)
    if word.answer is TaskAnswer.WITHDRAWN:
        withdraw_effect(tx, case.snapshot, effect, cause, (word.reason or "").strip())
    for to in transitions_for(case.state, word.answer, spent=effect.redeemed_by is not None):
        transition_effect(tx, effect, to, cause)
        apply_outcome(tx, case.snapshot, effect, cause)
    close_tasks(tx, effect, cause, case.kind)
    review = case.snapshot.review_of(effect)
    if case.kind is TaskKind.IMPOSSIBLE_QUORUM and review is not None:
        set_columns(tx, review, unanswerable=None)  # a person knows, and has said what to do about it
    if case.state is not EffectState.REVIEW and word.answer is not TaskAnswer.WITHDRAWN:
        sync_transaction_state(tx, case.snapshot, cause)


def _settlement(tx: Tx, case: TaskContext, voter: Voter, word: Settlement) -> dict[str, Any]:
    """The word as it is kept; the log holds who, when and which, the words of a person stay here."""
    told = {} if word.result is None else {"result": load(word.result)}
    return {
        "task_id": case.task.task_id,
        "kind": case.task.kind,
        "answer": word.answer.value,
        "person": voter.key,
        "name": voter.name,
        "assurance": voter.assurance,
        "reason": (word.reason or "").strip(),
        "at": time_text(tx.now),
        **told,
    }
