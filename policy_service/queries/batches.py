"""Pages on which several reviews are decided, each with its own vote: a batch of similar reviews, or one
transaction.

Reviews are similar if everything that decides is equal: the agent, the tool version, the gates, the
determining policies and their bundle. Batches contain only low-risk reviews (by the review and by the current
manifest) of transactions with one effect that is not a compensation, and none that `why_not_batched`
excludes.

The effects of a transaction fire together or not at all, and every vote names the digest of all of them;
still each effect needs votes by the members of its own gates. Effects of high risk, with warnings, or
excluded by `why_not_batched` are shown here and decided on their own page.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection, select
from sqlmodel import col

from countersign.contract import canonicalize
from policy_service.errors import InvalidRequestError
from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.effects import (
    ArgRow,
    Money,
    Piece,
    arg_rows,
    effect_sentence,
    first_money,
    manifest_for,
    tool_title,
)
from policy_service.queries.review_context import ReviewContext, read_review_context, read_review_contexts
from policy_service.queries.reviews import finality_text, owner_name, review_content
from policy_service.queries.view_digest import BATCH_RENDERER, view_of
from policy_service.queries.vote_eligibility import Voter, count_votes, progress, vote_refusal
from policy_service.storage.core import table
from policy_service.storage.tables import EffectRow, ReviewRow

MAX_BATCH_LINES = 50  # lines of a page, and votes of one form
_MAX_COMPARED = 200  # reviews of an agent's tool that are compared


def batch_kind(bundle: Bundle, case: ReviewContext) -> str:
    """The key by which similar reviews are grouped; "" if the review must be decided alone."""
    effect, review, decision = case.effect, case.review, case.snapshot.decisions[case.effect.decision_id]
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    if manifest is None or {review.risk, manifest.risk} != {"low"}:
        return ""
    if effect.kind != "effect" or len(case.snapshot.effects) != 1 or case.snapshot.superseded_by is not None:
        return ""
    if why_not_batched(case):
        return ""
    gates = sorted(gate.policy_id for gate in case.gates)
    deciding = [
        effect.agent,
        effect.tool,
        effect.tool_digest,
        gates,
        sorted(decision.policies),
        decision.bundle,
    ]
    return hashlib.sha256(canonicalize(deciding)).hexdigest()[:32]


async def batch_page(ctx: Context, voter: Voter, review_id: str) -> BatchPage:
    """The similar reviews that wait for this person, by deadline.

    Raises:
        NotFoundError: there is no such review.
        InvalidRequestError: it must be decided alone.
    """
    return await ctx.db.read(lambda conn: _batch(conn, ctx, voter, review_id))


def _batch(conn: Connection, ctx: Context, voter: Voter, review_id: str) -> BatchPage:
    bundle, first = ctx.active.current, read_review_context(conn, review_id)
    kind = batch_kind(bundle, first)
    if not kind:
        raise InvalidRequestError("this review must be decided alone: it is not part of a low-risk batch")
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
    return BatchPage(
        kind=kind,
        agent=first.review.agent,
        owner=owner_name(bundle, first.agent.owner),
        tool=first.review.tool,
        title=tool_title(bundle, first.effect),
        gates=first.gate_titles,
        finality=finality_text(first),
        lines=tuple(batch_line(ctx, bundle, case) for case in same),
        more=len(found) == _MAX_COMPARED,
    )


def _of_the_same_tool(conn: Connection, like: ReviewRow) -> list[ReviewRow]:
    query = (
        select(*table(ReviewRow).c)
        .where(col(ReviewRow.agent) == like.agent, col(ReviewRow.state) == "open")
        .where(col(ReviewRow.tool) == like.tool, col(ReviewRow.risk) == "low")
        .order_by(col(ReviewRow.answer_by), col(ReviewRow.review_id))
        .limit(_MAX_COMPARED)
    )
    return repository.rows(conn, ReviewRow, query)


_MAX_ARG_BYTES = 320  # a page folds longer values, and folded values are not decided in a batch


def why_not_batched(case: ReviewContext) -> str:
    """Why a review must be decided on its own page; "" if it need not."""
    decision = case.snapshot.decisions[case.effect.decision_id]
    reasons = {
        "a gate asks for a passkey": any(gate.step_up is not None for gate in case.gates),
        "a gate asks for a reason": any(gate.reason for gate in case.gates),
        "policies cannot evaluate all of its arguments": bool(decision.unseen),
        "it has a secret argument": bool(case.effect.secret),
        "its arguments are too long for a list": len(case.effect.args) > _MAX_ARG_BYTES,
    }
    return next((why for why, so in reasons.items() if so), "")


def batch_line(ctx: Context, bundle: Bundle, case: ReviewContext) -> BatchLine:
    """What the person signs, and what their ballot names."""
    effect, now = case.effect, ctx.clock()
    content = review_content(bundle, case)
    have, need = progress(count_votes(ctx, bundle, case.snapshot, effect, case.agent, case.gates, now))
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
        have=have,
        need=need,
        warned=bool(content.warnings),
    )


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One review of a batch: what the person signs, and what their ballot names."""

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
    warned: bool = False  # its own page shows a warning


@dataclass(frozen=True, slots=True)
class BatchPage:
    """Similar low-risk reviews that wait for one person."""

    kind: str
    agent: str
    owner: str | None
    tool: str
    title: str
    gates: tuple[str, ...]
    finality: str
    lines: Sequence[BatchLine]
    more: bool = False  # there may be more than were compared


@dataclass(frozen=True, slots=True)
class TransactionReviewPart:
    """One effect of a transaction: a line this person may decide here, or why there is none."""

    seq: int
    sentence: tuple[Piece, ...]
    args: tuple[ArgRow, ...]
    state: str
    review_id: str | None = None
    finality: str = ""  # set with `gates` if there is a review
    gates: tuple[str, ...] = ()
    line: BatchLine | None = None
    why_not_here: str = ""  # set for an open review without a line


@dataclass(frozen=True, slots=True)
class TransactionReviewPage:
    """A transaction of several effects, for one person who may approve all or some of it."""

    agent: str
    owner: str | None
    txn_digest: str
    parts: tuple[TransactionReviewPart, ...]

    @property
    def lines(self) -> tuple[BatchLine, ...]:
        """The effects this person may decide here."""
        return tuple(part.line for part in self.parts if part.line is not None)

    @property
    def bytes(self) -> int:
        """The size of the arguments shown."""
        return sum(row.bytes for part in self.parts for row in part.args)


async def transaction_review(ctx: Context, voter: Voter, review_id: str) -> TransactionReviewPage:
    """The transaction of a review, for this person.

    Raises:
        NotFoundError: there is no such review.
        InvalidRequestError: it has only this effect, or the revision is not the newest.
    """
    return await ctx.db.read(lambda conn: _transaction(conn, ctx, voter, review_id))


def _transaction(conn: Connection, ctx: Context, voter: Voter, review_id: str) -> TransactionReviewPage:
    bundle, first = ctx.active.current, read_review_context(conn, review_id)
    snapshot = first.snapshot
    if first.effect.kind != "effect" or len(snapshot.effects) == 1:
        raise InvalidRequestError(
            "this effect is the only one of its transaction: decide it on its review page"
        )
    if snapshot.superseded_by is not None:
        raise InvalidRequestError("this revision is not the newest: open the review again")
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
        gates=case.gate_titles,
    )
    if review.state != "open":
        return part
    if why := _why_not_here(conn, ctx, voter, bundle, case, ctx.clock()):
        return replace(part, why_not_here=why)
    line = batch_line(ctx, bundle, case)
    return replace(part, why_not_here="its page shows a warning") if line.warned else replace(part, line=line)


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
        return "the active bundle has no manifest of it"
    return "it is of high risk" if "high" in {review.risk, manifest.risk} else ""
