"""Reviews as the page, Slack and the view digest present them, and pages of open reviews.

Everybody who is signed in can read every review. Whether somebody may vote is computed with the rules of the
vote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from types import MappingProxyType
from typing import cast

from sqlalchemy import Connection

from policy_service.domain.gates import Gate, MergedGate
from policy_service.domain.person_actions import BREAK_GLASS
from policy_service.domain.quorum import Tally
from policy_service.identity.people import names_of
from policy_service.pap.bundle import Bundle
from policy_service.pdp.rules import UNKNOWN_TOOL
from policy_service.queries import repository
from policy_service.queries.audit_log import rows_of_effect
from policy_service.queries.context import Context
from policy_service.queries.context_panel import (
    ContextPanel,
    MeterLine,
    RedemptionProof,
    is_meter_fact,
    meter_lines,
    read_precedents,
)
from policy_service.queries.cursors import format_cursor, parse_cursor
from policy_service.queries.effects import arg_rows, effect_sentence, manifest_for, tool_title
from policy_service.queries.proposal_views import (
    accepted_proposal_cards,
    changes_since_staged,
    may_propose,
    open_proposal_cards,
)
from policy_service.queries.repository import Snapshot
from policy_service.queries.review_context import (
    RecentDenials,
    ReviewContext,
    lookback_period,
    read_review_contexts,
    review_context_of,
)
from policy_service.queries.review_models import (
    BreakGlassView,
    CommentLine,
    EventLine,
    FactLine,
    GateView,
    ReviewContent,
    ReviewPage,
    Risk,
    Sibling,
    VoteLine,
    VoteVerdict,
)
from policy_service.queries.signers import PossibleSigners, possible_signers
from policy_service.queries.timeline import event_line, person_of, rule_changes_of
from policy_service.queries.vote_eligibility import (
    Voter,
    approval_step_up,
    break_glass_permission,
    break_glass_signatures,
    break_glass_step_up,
    count_votes,
    counted_verdict,
    person_key,
    requesters_side,
    vote_refusal,
)
from policy_service.storage.core import find_one
from policy_service.storage.tables import (
    CommentRow,
    DecisionRow,
    EffectRow,
    RedemptionRow,
    ReviewRow,
    VoteRow,
)

TIMELINE_LINES = 500  # rows of the audit log on one page


async def open_review_contexts(
    ctx: Context, cursor: str | None, limit: int
) -> tuple[list[ReviewContext], str | None]:
    """The contexts of a page of open reviews, and the cursor of the next page.

    Raises:
        InvalidRequestError: the cursor is invalid.
    """
    after = parse_cursor(cursor)
    return await ctx.db.read(lambda conn: _cases(conn, after, limit))


def _cases(
    conn: Connection, after: tuple[datetime, str] | None, limit: int
) -> tuple[list[ReviewContext], str | None]:
    found = repository.list_open_reviews(conn, after=after, limit=limit + 1)
    shown = found[:limit]
    following = format_cursor(shown[-1].answer_by, shown[-1].review_id) if len(found) > limit else None
    return read_review_contexts(conn, shown), following


def owner_name(bundle: Bundle, owner: str | None) -> str | None:
    """The owner's display name, or their key."""
    return None if owner is None else bundle.directory.name_of(owner) or owner


async def review_page(ctx: Context, voter: Voter, review_id: str) -> ReviewPage | None:
    """One review, open or settled; None if it does not exist."""
    now = ctx.clock()
    return await ctx.db.read(lambda conn: read_review_page(conn, ctx, voter, review_id, now))


def review_content(
    bundle: Bundle,
    case: ReviewContext,
    have: Mapping[str, int] = MappingProxyType({}),
    signers: Mapping[str, PossibleSigners] = MappingProxyType({}),
) -> ReviewContent:
    """The part of a review that the view digest covers.

    ``have`` and ``signers`` are by gate key: the number of counted approvals, and who could sign.
    """
    effect, snapshot = case.effect, case.snapshot
    decision = snapshot.decisions[effect.decision_id]
    return ReviewContent(
        review_id=case.review.review_id,
        rev=effect.rev,
        txn_digest=snapshot.transaction.txn_digest,
        effect_digest=effect.effect_digest,
        sentence=effect_sentence(bundle, effect),
        finality=finality_text(case),
        risk=cast(Risk, case.review.risk),
        tool=effect.tool,
        tool_title=tool_title(bundle, effect),
        args=arg_rows(bundle, effect, decision.unseen),
        gates=_gates(bundle, case, have, signers),
        agent=effect.agent,
        agent_owner=owner_name(bundle, case.agent.owner),
        claimed=dict(snapshot.transaction.claimed),
        facts=tuple(
            fact for fact in _facts(decision) if not is_meter_fact(fact.source, bundle, effect, decision)
        ),
        siblings=siblings_of(bundle, snapshot, effect),
        warnings=_warnings(bundle, case),
    )


def read_review_page(
    conn: Connection, ctx: Context, voter: Voter, review_id: str, now: datetime
) -> ReviewPage | None:
    row = repository.review_by_id(conn, review_id)
    if row is None:
        return None
    bundle, case = ctx.active.current, review_context_of(conn, row)
    review, effect, snapshot = case.review, case.effect, case.snapshot
    decision = snapshot.decisions[effect.decision_id]
    counted = count_votes(ctx, bundle, snapshot, effect, case.agent, case.gates, now)
    votes = snapshot.votes_on(effect)
    barred = vote_refusal(ctx, bundle, case.agent, review, case.gates, voter, now)
    have = {entry.gate.key: entry.have for entry in counted.per_gate}
    content = review_content(bundle, case, have, possible_signers(conn, ctx, bundle, case, voter, now))
    return ReviewPage(
        **{each.name: getattr(content, each.name) for each in fields(content)},
        effect_id=effect.effect_id,
        state=review.state,
        txn=effect.txn,
        effect_state=effect.state,
        canonical=effect.args,
        votes=tuple(vote_line(vote, counted) for vote in votes if vote.verdict != BREAK_GLASS),
        answer_by=review.answer_by,
        opened_at=review.opened_at,
        agent_roles=tuple(case.agent.roles),
        key_kid=snapshot.transaction.jkt,
        commit=decision.commit,
        bundle=decision.bundle,
        timeline=timeline_of(conn, bundle, effect),
        why_not=barred if review.state == "open" else None,
        superseded_by=snapshot.superseded_by,
        replaced_by="" if snapshot.superseded_by is None else _newest(conn, case),
        seq=effect.seq,
        undoable=effect.compensation is not None,
        reason_required=any(gate.reason for gate in case.gates),
        my_verdict=cast(VoteVerdict | None, counted_verdict(votes, voter.iss, voter.sub)),
        rule_changes=rule_changes_of(conn, bundle, effect),
        panel=_context_panel(conn, bundle, effect, meter_lines(bundle, effect, decision)),
        proposals=open_proposal_cards(bundle, case, voter),
        edits=accepted_proposal_cards(conn, bundle, case, voter),
        since_staged=changes_since_staged(conn, bundle, case),
        may_propose=may_propose(bundle, case, barred),
        comments=tuple(comment_line(one) for one in snapshot.comments_on(effect)),
        may_comment=review.state == "open"
        and (barred is None or voter.key in requesters_side(case.agent, review)),
        may_ask=review.state == "open" and barred is None,
        reminded_at=review.reminded_at,
        unanswerable=review.unanswerable if review.state == "open" else None,
        break_glass=_break_glass(conn, ctx, bundle, case, counted, voter, now),
        denied_before=RecentDenials(conn, [case], lookback_period(ctx)).before(case),
        step_up=approval_step_up(conn, ctx, bundle, case, voter, now),
    )


def _newest(conn: Connection, case: ReviewContext) -> str:
    """The id of the review of this effect at the newest revision; "" if there is none."""
    head = repository.require_transaction(conn, case.review.txn)
    current = head.find(case.effect.effect_id)
    review = None if current is None else head.review_of(current)
    return "" if review is None else review.review_id


def _break_glass(
    conn: Connection,
    ctx: Context,
    bundle: Bundle,
    case: ReviewContext,
    counted: Tally,
    voter: Voter,
    now: datetime,
) -> BreakGlassView | None:
    """The break-glass signatures and what this person may do; None if there is nothing to show."""
    signed = break_glass_signatures(case.snapshot, case.effect)
    asked = break_glass_permission(ctx, bundle, case, voter, now)
    may = case.review.state == "open" and asked.why_not is None
    if not signed and not may:
        return None
    return BreakGlassView(
        signed=tuple(vote_line(vote, counted) for vote in signed),
        opened_at=case.review.break_glass_at,
        may=may and all((vote.iss, vote.sub) != (voter.iss, voter.sub) for vote in signed),
        alone=asked.alone,
        step_up=break_glass_step_up(conn, ctx, case, voter, now),
    )


def comment_line(one: CommentRow) -> CommentLine:
    return CommentLine(
        person_name=one.name,
        text=one.text,
        at=one.written_at,
        channel=one.channel,
        assurance=one.assurance,
        question=one.kind == "question",
        for_requester=one.for_requester,
        answer=one.answer,
        answered_at=one.answered_at,
        comment_id=one.comment_id,
        person=person_key(one.iss, one.sub),
    )


def _context_panel(
    conn: Connection, bundle: Bundle, effect: EffectRow, meters: tuple[MeterLine, ...]
) -> ContextPanel:
    last, past = read_precedents(conn, bundle, effect)
    spent = find_one(conn, RedemptionRow, effect_id=effect.effect_id, rev=effect.rev)
    if spent is None:
        return ContextPanel(last, past, meters)
    proof = RedemptionProof(spent.redeemer, spent.attempt_id, spent.redeemed_at, spent.jti, effect.fire_by)
    return ContextPanel(last, past, meters, proof)


def finality_text(case: ReviewContext) -> str:
    """Whether the effect can be undone, and whether the transaction continues if it fails."""
    if case.effect.kind == "compensate":
        return "This undoes an earlier effect."
    undo = case.effect.compensation
    text = "This cannot be undone." if undo is None else f"This can be undone by {undo['tool']}."
    return f"{text} {_MAY_FAIL}" if case.effect.may_fail else text


_MAY_FAIL = "If it fails, the other effects of its transaction continue."


def _gates(
    bundle: Bundle, case: ReviewContext, have: Mapping[str, int], signers: Mapping[str, PossibleSigners]
) -> tuple[GateView, ...]:
    fired = {gate.policy_id: gate for gate in case.gates}
    return tuple(
        _gate_view(
            bundle, case.review, merged, fired[policy_id], have.get(merged.key, 0), signers.get(merged.key)
        )
        for merged in case.asked
        for policy_id in dict.fromkeys(merged.gates)
    )


def _gate_view(
    bundle: Bundle,
    review: ReviewRow,
    merged: MergedGate,
    gate: Gate,
    have: int,
    signers: PossibleSigners | None,
) -> GateView:
    source, since = bundle.describe(gate.policy_id), review.escalated.get(merged.key)
    could = signers or PossibleSigners()
    return GateView(
        policy_id=gate.policy_id,
        title=gate.title or gate.policy_id,
        groups=_titles(bundle, merged.voters),
        quorum=merged.quorum,
        have=have,
        step_up=merged.step_up,
        shared=merged.shared,
        cedar_text="(not in the active bundle)" if source is None else source.text,
        file="" if source is None else source.file,
        line=0 if source is None else source.line,
        own_quorum=gate.quorum,
        own_step_up=gate.step_up,
        doc="" if source is None else source.doc,
        could_sign=could.names,
        could_sign_more=could.more,
        barred=could.barred,
        also=_titles(bundle, could.also),
        added=_titles(bundle, merged.added - merged.groups),
        added_at=None if since is None else datetime.fromisoformat(since),
    )


def _titles(bundle: Bundle, groups: frozenset[str]) -> tuple[str, ...]:
    return tuple(bundle.directory.title_of(group) for group in sorted(groups))


def vote_line(vote: VoteRow, counted: Tally) -> VoteLine:
    """One vote, and whether it counts now."""
    return VoteLine(
        person_name=vote.name,
        verdict=cast(VoteVerdict, vote.verdict),
        reason=vote.reason or "",
        at=vote.cast_at,
        counted=counted.counts(vote.vote_id),
        assurance=vote.assurance,
        step_up=vote.step_up,
        vote_id=vote.vote_id,
        person=person_key(vote.iss, vote.sub),
        view_digest=vote.view_digest,
    )


def _facts(decision: DecisionRow) -> tuple[FactLine, ...]:
    return tuple(
        FactLine(
            label=fact["label"],
            value=fact["value"],
            source=fact["source"],
            age=max(
                decision.decided_at - datetime.fromisoformat(fact["as_of"]),
                decision.decided_at - decision.decided_at,
            ),
        )
        for fact in decision.facts
    )


def siblings_of(bundle: Bundle, snapshot: Snapshot, of: EffectRow) -> tuple[Sibling, ...]:
    """The other effects of the transaction."""
    others = [effect for effect in snapshot.effects if effect.effect_id != of.effect_id]
    return tuple(
        Sibling(
            seq=effect.seq,
            sentence=effect_sentence(bundle, effect),
            state=effect.state,
            review_id=review.review_id if (review := snapshot.review_of(effect)) is not None else None,
            args=arg_rows(bundle, effect, snapshot.decisions[effect.decision_id].unseen),
        )
        for effect in others
    )


def timeline_of(conn: Connection, bundle: Bundle, effect: EffectRow) -> tuple[EventLine, ...]:
    """The events of an effect and its transaction from the audit log; the newest ones if there are many."""
    rows = rows_of_effect(conn, effect, TIMELINE_LINES)
    names = names_of(conn, {key for row in rows if (key := person_of(row)) is not None})
    lines = (event_line(bundle, row, names) for row in rows)
    return tuple(line for line in lines if line is not None)


def _warnings(bundle: Bundle, case: ReviewContext) -> tuple[str, ...]:
    if case.effect.tool not in bundle.manifests and any(g.policy_id == UNKNOWN_TOOL for g in case.gates):
        return (
            f"UNKNOWN TOOL. No bundle describes {case.effect.tool}: its manifest was never reviewed, and no "
            "policy has evaluated these arguments. This review exists only because the service runs in dev.",
        )
    if manifest_for(bundle, case.effect.tool, case.effect.tool_digest) is None:
        return (
            "The active bundle does not contain this version of the tool: the effect cannot be released.",
        )
    return ()
