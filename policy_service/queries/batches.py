"""Pages on which several reviews are decided, each by a vote of its own: reviews of one kind, or one whole transaction.

A kind is determined by what decides, never by how it reads: the agent, the tool at its digest, the gates, the
determining policies and their bundle. No batch of a kind holds a risk that is not low (by the review and by the
manifest in force), a transaction of several effects, a compensation, or what is always decided alone (`why_alone`).

The effects of a transaction fire together or not at all, and every vote names the digest of all of them; still each
effect is a vote of its own, by the people its own gates ask. Decided on the page of its own review, and only shown
here: what is of high risk, what its own page warns of, and what is always decided alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection, select
from sqlmodel import col

from countersign.contract import canonicalize
from policy_service.errors import InvalidRequestError, NotFoundError
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.effect_text import ArgRow, Money, Piece, arg_rows, effect_sentence, first_money
from policy_service.queries.effects import manifest_for
from policy_service.queries.review_context import ReviewContext, read_review_context, read_review_contexts
from policy_service.queries.reviews import finality_text, owner_name, review_content
from policy_service.queries.view_digest import BATCH_RENDERER, view_of
from policy_service.queries.vote_eligibility import count_votes
from policy_service.queries.voter import Voter, vote_refusal
from policy_service.storage.core import table
from policy_service.storage.tables import EffectRow, ReviewRow

MAX_BATCH_LINES = 50  # lines a page shows, and votes of one form
_LOOKED_AT = 200  # reviews of an agent's tool, to find those of the kind


def batch_kind(bundle: Bundle, case: ReviewContext) -> str:
    """The kind of a review, or nothing when it is to be decided on its own."""
    effect, review, decision = case.effect, case.review, case.snapshot.decisions[case.effect.decision_id]
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    if manifest is None or {review.risk, manifest.risk} != {"low"}:
        return ""
    if effect.kind != "effect" or len(case.snapshot.effects) != 1 or case.snapshot.superseded_by is not None:
        return ""
    if why_not_batched(case):
        return ""
    gates = sorted(gate.policy_id for gate in case.gates)
    told = [effect.agent, effect.tool, effect.tool_digest, gates, sorted(decision.policies), decision.bundle]
    return hashlib.sha256(canonicalize(told)).hexdigest()[:32]


async def batch_page(ctx: Context, voter: Voter, review_id: str) -> BatchPage:
    """The reviews of the kind of this one that wait for this person, those that expire first in front.

    Raises:
        NotFoundError: there is no such review.
        InvalidRequestError: it is to be decided on its own.
    """
    return await ctx.db.read(lambda conn: _alike(conn, ctx, voter, review_id))


def _alike(conn: Connection, ctx: Context, voter: Voter, review_id: str) -> BatchPage:
    if repository.review_by_id(conn, review_id) is None:
        raise NotFoundError(f"there is no review {review_id!r} that you may see")
    bundle, first = ctx.active.current, read_review_context(conn, review_id)
    kind = batch_kind(bundle, first)
    if not kind:
        raise InvalidRequestError(
            "this review is to be decided on its own: it is not one of a kind of low risk"
        )
    found = _of_the_same_tool(conn, first.review)
    answered = repository.answered_reviews(conn, voter.iss, voter.sub, [review.review_id for review in found])
    now = ctx.clock()
    same = [
        case
        for case in read_review_contexts(
            conn, [review for review in found if review.review_id not in answered]
        )
        if batch_kind(bundle, case) == kind
        and now < case.review.answer_by
        and vote_refusal(ctx, bundle, case.agent, case.review, case.gates, voter, now) is None
    ]
    manifest = manifest_for(bundle, first.effect.tool, first.effect.tool_digest)
    return BatchPage(
        kind=kind,
        agent=first.review.agent,
        owner=owner_name(bundle, first.agent.owner),
        tool=first.review.tool,
        title=first.review.tool if manifest is None else manifest.title,
        gates=tuple(dict.fromkeys(gate.title or gate.policy_id for gate in first.gates)),
        finality=finality_text(first),
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
    return repository.rows(conn, ReviewRow, query)


_MAX_ARG_BYTES = 320  # a page folds longer values; nothing that is folded is decided in a batch


def why_not_batched(case: ReviewContext) -> str:
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


def batch_line(ctx: Context, bundle: Bundle, case: ReviewContext) -> BatchLine:
    """All that is signed of a review, and all that a ballot names."""
    effect, now = case.effect, ctx.clock()
    content = review_content(bundle, case)
    counted = count_votes(ctx, bundle, case.snapshot, effect, case.agent, case.gates, now)
    return BatchLine(
        review_id=case.review.review_id,
        rev=effect.rev,
        effect_id=effect.effect_id,
        effect_digest=effect.effect_digest,
        txn_digest=case.snapshot.transaction.txn_digest,
        view_digest=view_of(content, BATCH_RENDERER).digest,
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


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One review of a batch: all that is signed, and all that a ballot names."""

    review_id: str
    rev: int
    effect_id: str
    effect_digest: str
    txn_digest: str
    view_digest: str
    sentence: tuple[Piece, ...]
    args: tuple[ArgRow, ...]
    canonical: bytes
    amount: Money | None
    answer_by: datetime
    opened_at: datetime
    have: int
    need: int
    warned: bool = False  # its own page warns of something


@dataclass(frozen=True, slots=True)
class BatchPage:
    """Reviews of one kind that wait for one person: one tool, one agent, one set of rules, low risk."""

    kind: str
    agent: str
    owner: str | None
    tool: str
    title: str
    gates: tuple[str, ...]
    finality: str
    lines: Sequence[BatchLine]
    more: bool = False  # there may be more of the kind than were looked at


@dataclass(frozen=True, slots=True)
class TransactionReviewPart:
    """One effect of a transaction: a line that this person may decide here, or why there is none."""

    seq: int
    sentence: tuple[Piece, ...]
    args: tuple[ArgRow, ...]
    state: str
    review_id: str | None = None
    finality: str = ""  # of one that people are asked about, and by which gates
    gates: tuple[str, ...] = ()
    line: BatchLine | None = None
    why_not_here: str = ""  # of an open review without a line


@dataclass(frozen=True, slots=True)
class TransactionReviewPage:
    """A transaction of several effects, in their order, for one person who may approve all or some of it."""

    agent: str
    owner: str | None
    txn_digest: str
    parts: tuple[TransactionReviewPart, ...]

    @property
    def lines(self) -> tuple[BatchLine, ...]:
        """What this person may decide here."""
        return tuple(part.line for part in self.parts if part.line is not None)

    @property
    def bytes(self) -> int:
        """Of the arguments that are drawn."""
        return sum(row.bytes for part in self.parts for row in part.args)


async def transaction_review(ctx: Context, voter: Voter, review_id: str) -> TransactionReviewPage:
    """The transaction that a review is of, as it stands for this person.

    Raises:
        NotFoundError: there is no such review.
        InvalidRequestError: nothing stands beside it, or another revision has taken its place.
    """
    return await ctx.db.read(lambda conn: _whole(conn, ctx, voter, review_id))


def _whole(conn: Connection, ctx: Context, voter: Voter, review_id: str) -> TransactionReviewPage:
    if repository.review_by_id(conn, review_id) is None:
        raise NotFoundError(f"there is no review {review_id!r} that you may see")
    bundle, first = ctx.active.current, read_review_context(conn, review_id)
    snapshot = first.snapshot
    if first.effect.kind != "effect" or len(snapshot.effects) == 1:
        raise InvalidRequestError("this effect stands alone: decide it on the page of its review")
    if snapshot.superseded_by is not None:
        raise InvalidRequestError("another revision of this transaction stands now: open the review again")
    return TransactionReviewPage(
        agent=first.review.agent,
        owner=owner_name(bundle, first.agent.owner),
        txn_digest=snapshot.transaction.txn_digest,
        parts=tuple(
            _part(conn, ctx, voter, bundle, first, effect)
            for effect in sorted(snapshot.effects, key=lambda effect: effect.seq)
        ),
    )


def _part(
    conn: Connection, ctx: Context, voter: Voter, bundle: Bundle, of: ReviewContext, effect: EffectRow
) -> TransactionReviewPart:
    review = of.snapshot.review_of(effect)
    part = TransactionReviewPart(
        seq=effect.seq,
        sentence=effect_sentence(bundle, effect),
        args=arg_rows(bundle, effect, of.snapshot.decisions[effect.decision_id].unseen),
        state=effect.state,
    )
    if review is None:
        return part
    case = ReviewContext(review, of.snapshot, effect, of.agent)
    part = replace(
        part,
        review_id=review.review_id,
        finality=finality_text(case),
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
    conn: Connection, ctx: Context, voter: Voter, bundle: Bundle, case: ReviewContext, now: datetime
) -> str:
    if repository.answered_reviews(conn, voter.iss, voter.sub, [case.review.review_id]):
        return "you have answered it"
    if now >= case.review.answer_by:
        return "its time is up"
    return (
        vote_refusal(ctx, bundle, case.agent, case.review, case.gates, voter, now)
        or _high_risk(bundle, case.effect, case.review)
        or why_not_batched(case)
    )


def _high_risk(bundle: Bundle, effect: EffectRow, review: ReviewRow) -> str:
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    if manifest is None:
        return "the policies in force have no manifest of it"
    return "it is of high risk" if "high" in {review.risk, manifest.risk} else ""
