"""What stands on a page where several reviews are decided, each by a vote of its own: a line of it, and what is not
decided there but on the page of its review.
"""

from __future__ import annotations

from policy_service.pap.bundle import Bundle
from policy_service.queries.cases import Case
from policy_service.queries.context import Context
from policy_service.queries.describing import first_money
from policy_service.queries.openings import count
from policy_service.queries.queue_models import BatchLine
from policy_service.queries.reviews import content_of
from policy_service.queries.shown import BATCH, view_of

_MAX_ARG_BYTES = 320  # a page folds longer values; nothing that is folded is decided in a batch


def why_alone(case: Case) -> str:
    """Why a review is decided on its own page whatever stands beside it; empty where nothing says so."""
    decision = case.snapshot.decisions[case.effect.decision_id]
    reasons = {
        "a gate asks for a passkey": any(gate.step_up is not None for gate in case.gates),
        "a gate asks for a reason": any(gate.reason for gate in case.gates),
        "policy cannot weigh all of its arguments": bool(decision.unseen),
        "it has a secret argument": bool(case.effect.secret),
        "its arguments are too long for a list": len(case.effect.args) > _MAX_ARG_BYTES,
    }
    return next((why for why, so in reasons.items() if so), "")


def batch_line(ctx: Context, bundle: Bundle, case: Case) -> BatchLine:
    """All that is signed of a review, and all that a ballot names."""
    effect, now = case.effect, ctx.clock()
    content = content_of(bundle, case)
    counted = count(ctx, bundle, case.snapshot, effect, case.agent, case.gates, now)
    return BatchLine(
        review_id=case.review.review_id,
        rev=effect.rev,
        effect_id=effect.effect_id,
        effect_digest=effect.effect_digest,
        txn_digest=case.snapshot.transaction.txn_digest,
        view_digest=view_of(content, BATCH).digest,
        sentence=content.sentence,
        args=content.args,
        canonical=effect.args,
        amount=first_money(bundle, effect),
        answer_by=case.review.answer_by,
        opened_at=case.review.opened_at,
        have=sum(min(entry.have, entry.need) for entry in counted.per_gate),
        need=sum(entry.need for entry in counted.per_gate),
        warned=bool(content.warnings),
    )
