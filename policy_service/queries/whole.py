"""The effects of one transaction on one page, so that a plan is read and approved as a whole.

They fire together or not at all, and every vote names the digest of all of them; still each effect is a vote of its
own, by whom its own gates ask. Decided on the page of its review, and only shown here: what is of high risk, what its
own page warns of, and what is always decided on its own (batches.py).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection

from policy_service.errors import InvalidRequestError, NotFoundError
from policy_service.pap.bundle import Bundle
from policy_service.queries import records
from policy_service.queries.batches import batch_line, why_alone
from policy_service.queries.cases import Case, read_case
from policy_service.queries.context import Context
from policy_service.queries.describing import arguments, sentence
from policy_service.queries.effects import manifest_for
from policy_service.queries.queue_models import WholePage, WholePart
from policy_service.queries.reviews import finality, owner_name
from policy_service.queries.voter import Voter, why_not
from policy_service.storage.tables import EffectRow, ReviewRow


async def whole(ctx: Context, voter: Voter, review_id: str) -> WholePage:
    """The transaction that a review is of, as it stands for this person.

    Raises:
        NotFoundError: there is no such review.
        InvalidRequestError: nothing stands beside it, or another revision has taken its place.
    """
    return await ctx.db.read(lambda conn: _whole(conn, ctx, voter, review_id))


def _whole(conn: Connection, ctx: Context, voter: Voter, review_id: str) -> WholePage:
    if records.review_by_id(conn, review_id) is None:
        raise NotFoundError(f"there is no review {review_id!r} that you may see")
    bundle, first = ctx.active.current, read_case(conn, review_id)
    snapshot = first.snapshot
    if first.effect.kind != "effect" or len(snapshot.effects) == 1:
        raise InvalidRequestError("this effect stands alone: decide it on the page of its review")
    if snapshot.superseded_by is not None:
        raise InvalidRequestError("another revision of this transaction stands now: open the review again")
    return WholePage(
        agent=first.review.agent,
        owner=owner_name(bundle, first.agent.owner),
        txn_digest=snapshot.transaction.txn_digest,
        parts=tuple(
            _part(conn, ctx, voter, bundle, first, effect)
            for effect in sorted(snapshot.effects, key=lambda effect: effect.seq)
        ),
    )


def _part(
    conn: Connection, ctx: Context, voter: Voter, bundle: Bundle, of: Case, effect: EffectRow
) -> WholePart:
    review = of.snapshot.review_of(effect)
    part = WholePart(
        seq=effect.seq,
        sentence=sentence(bundle, effect),
        args=arguments(bundle, effect, of.snapshot.decisions[effect.decision_id].unseen),
        state=effect.state,
    )
    if review is None:
        return part
    case = Case(review, of.snapshot, effect, of.agent)
    part = replace(
        part,
        review_id=review.review_id,
        finality=finality(case),
        gates=tuple(dict.fromkeys(gate.title or gate.policy_id for gate in case.gates)),
    )
    if review.state != "open":
        return part
    if why := _why_not_here(conn, ctx, voter, bundle, case, ctx.clock()):
        return replace(part, why_not_here=why)
    line = batch_line(ctx, bundle, case)
    return (
        replace(part, why_not_here="its page warns of something") if line.warned else replace(part, line=line)
    )


def _why_not_here(
    conn: Connection, ctx: Context, voter: Voter, bundle: Bundle, case: Case, now: datetime
) -> str:
    if records.answered_among(conn, voter.iss, voter.sub, [case.review.review_id]):
        return "you have answered it"
    if now >= case.review.answer_by:
        return "its time is up"
    return (
        why_not(ctx, bundle, case.agent, case.review, case.gates, voter, now)
        or _high_risk(bundle, case.effect, case.review)
        or why_alone(case)
    )


def _high_risk(bundle: Bundle, effect: EffectRow, review: ReviewRow) -> str:
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    if manifest is None:
        return "the policies in force have no manifest of it"
    return "it is of high risk" if "high" in {review.risk, manifest.risk} else ""
