"""Reviews that may be decided together: one kind, one agent, low risk, each still a vote of its own.

A kind is told by what decides, never by how it reads: the agent, the tool at its digest, the gates, the policies that
were determining and the bundle they are of. Left out of every batch: a risk that is not low (by the review and by the
manifest in force), a transaction of several effects (its vote binds all of them; whole.py has those), a compensation,
and what is always decided on its own (batches.py).
"""

from __future__ import annotations

import hashlib

from sqlalchemy import Connection, select
from sqlmodel import col

from countersign.contract import canonicalize
from policy_service.errors import InvalidRequestError, NotFoundError
from policy_service.pap.bundle import Bundle
from policy_service.queries import records
from policy_service.queries.batches import batch_line, why_alone
from policy_service.queries.cases import Case, read_case, read_cases
from policy_service.queries.context import Context
from policy_service.queries.effects import manifest_for
from policy_service.queries.queue_models import AlikePage
from policy_service.queries.reviews import finality, owner_name
from policy_service.queries.voter import Voter, why_not
from policy_service.storage.core import table
from policy_service.storage.tables import ReviewRow

MAX_TOGETHER = 50  # lines a page shows, and votes of one form
_LOOKED_AT = 200  # reviews of an agent's tool, to find those of the kind


def kind_of(bundle: Bundle, case: Case) -> str:
    """The kind of a review, or nothing when it is to be decided on its own."""
    effect, review, decision = case.effect, case.review, case.snapshot.decisions[case.effect.decision_id]
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    if manifest is None or {review.risk, manifest.risk} != {"low"}:
        return ""
    if effect.kind != "effect" or len(case.snapshot.effects) != 1 or case.snapshot.superseded_by is not None:
        return ""
    if why_alone(case):
        return ""
    gates = sorted(gate.policy_id for gate in case.gates)
    told = [effect.agent, effect.tool, effect.tool_digest, gates, sorted(decision.policies), decision.bundle]
    return hashlib.sha256(canonicalize(told)).hexdigest()[:32]


async def alike(ctx: Context, voter: Voter, review_id: str) -> AlikePage:
    """The reviews of the kind of this one that wait for this person, those that expire first in front.

    Raises:
        NotFoundError: there is no such review.
        InvalidRequestError: it is to be decided on its own.
    """
    return await ctx.db.read(lambda conn: _alike(conn, ctx, voter, review_id))


def _alike(conn: Connection, ctx: Context, voter: Voter, review_id: str) -> AlikePage:
    if records.review_by_id(conn, review_id) is None:
        raise NotFoundError(f"there is no review {review_id!r} that you may see")
    bundle, first = ctx.active.current, read_case(conn, review_id)
    kind = kind_of(bundle, first)
    if not kind:
        raise InvalidRequestError(
            "this review is to be decided on its own: it is not one of a kind of low risk"
        )
    found = _of_the_same_tool(conn, first.review)
    answered = records.answered_among(conn, voter.iss, voter.sub, [review.review_id for review in found])
    now = ctx.clock()
    same = [
        case
        for case in read_cases(conn, [review for review in found if review.review_id not in answered])
        if kind_of(bundle, case) == kind
        and now < case.review.answer_by
        and why_not(ctx, bundle, case.agent, case.review, case.gates, voter, now) is None
    ]
    manifest = manifest_for(bundle, first.effect.tool, first.effect.tool_digest)
    return AlikePage(
        kind=kind,
        agent=first.review.agent,
        owner=owner_name(bundle, first.agent.owner),
        tool=first.review.tool,
        title=first.review.tool if manifest is None else manifest.title,
        gates=tuple(dict.fromkeys(gate.title or gate.policy_id for gate in first.gates)),
        finality=finality(first),
        lines=tuple(batch_line(ctx, bundle, case) for case in same),
        more=len(found) == _LOOKED_AT,
    )


def _of_the_same_tool(conn: Connection, like: ReviewRow) -> list[ReviewRow]:
    query = (
        select(*table(ReviewRow).c)
        .where(col(ReviewRow.agent) == like.agent, col(ReviewRow.state) == "open")
        .where(col(ReviewRow.tool) == like.tool, col(ReviewRow.risk) == "low")
        .order_by(col(ReviewRow.answer_by), col(ReviewRow.review_id))
        .limit(_LOOKED_AT)
    )
    return records.rows(conn, ReviewRow, query)
