"""The queue and the review page, as read models.

A person sees every review of the deployment; whether they may vote, and why not, is worked out by the same rules the
vote itself applies.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, cast

from sqlalchemy import Connection

from policy_service.domain.gates import Gate
from policy_service.domain.quorum import GateTally, Tally
from policy_service.identity.people import names_of
from policy_service.pap.bundle import Bundle
from policy_service.pdp.rules import UNKNOWN_TOOL
from policy_service.storage.tables import DecisionRow, EffectRow, ReviewRow, VoteRow
from policy_service.workflow import records
from policy_service.workflow.asking import count, manifest_for
from policy_service.workflow.cases import Case, read_case, read_cases
from policy_service.workflow.context import Context
from policy_service.workflow.cursors import read_cursor
from policy_service.workflow.describing import arguments, first_money, sentence
from policy_service.workflow.edit_views import edit_cards, may_propose, open_cards, since_staged
from policy_service.workflow.history import of_transaction
from policy_service.workflow.reading import (
    EventLine,
    FactLine,
    GateView,
    QueuePage,
    QueueRow,
    ReviewPage,
    Risk,
    Sibling,
    VoteView,
)
from policy_service.workflow.records import Snapshot
from policy_service.workflow.rule_changes import changes_of
from policy_service.workflow.stops import list_stops
from policy_service.workflow.timeline import event_line, person_of
from policy_service.workflow.vote import Voter, why_not

_COUNT_CAP = 1_000  # exact counts are linear; nobody reads more than this


async def open_reviews(ctx: Context, voter: Voter, cursor: str | None, limit: int) -> QueuePage:
    """A page of open reviews, those that expire first in front.

    Raises:
        InvalidRequestError: the cursor is not one of ours.
    """
    after, now = read_cursor(cursor), ctx.clock()
    return await ctx.db.read(lambda conn: _page(conn, ctx, voter, after, limit, now))


async def open_cases(ctx: Context, cursor: str | None, limit: int) -> tuple[list[Case], str | None]:
    """The cases of a page of open reviews, and the cursor of the next.

    Raises:
        InvalidRequestError: the cursor is not one of ours.
    """
    after = read_cursor(cursor)
    return await ctx.db.read(lambda conn: _cases(conn, after, limit))


def _cases(conn: Connection, after: tuple[datetime, str] | None, limit: int) -> tuple[list[Case], str | None]:
    found = records.open_reviews(conn, after=after, limit=limit + 1)
    shown = found[:limit]
    following = _write_cursor(shown[-1].answer_by, shown[-1].review_id) if len(found) > limit else None
    return read_cases(conn, shown), following


def _page(
    conn: Connection,
    ctx: Context,
    voter: Voter,
    after: tuple[datetime, str] | None,
    limit: int,
    now: datetime,
) -> QueuePage:
    bundle = ctx.active.current
    cases, following = _cases(conn, after, limit)
    questions = records.open_questions(conn, _COUNT_CAP + 1)
    waiting = _waiting_for(conn, ctx, bundle, voter, questions[:_COUNT_CAP], now)
    return QueuePage(
        rows=tuple(_row(ctx, bundle, case, now, case.review.review_id in waiting) for case in cases),
        next_cursor=following,
        total=min(len(questions), _COUNT_CAP),
        total_capped=len(questions) > _COUNT_CAP,
        votable=len(waiting),
        frozen=tuple(stop.words for stop in list_stops(conn)),
    )


def _waiting_for(
    conn: Connection,
    ctx: Context,
    bundle: Bundle,
    voter: Voter,
    questions: Sequence[tuple[ReviewRow, list[dict[str, Any]]]],
    now: datetime,
) -> set[str]:
    """Which of these reviews wait for this person: they may vote on it, and have not."""
    agents = records.agents_of(conn, [review.agent for review, _ in questions])
    answered = records.answered_by(conn, voter.iss, voter.sub)
    return {
        review.review_id
        for review, stored in questions
        if review.review_id not in answered
        and why_not(
            ctx, bundle, agents[review.agent], review, [Gate.from_json(gate) for gate in stored], voter, now
        )
        is None
    }


def _write_cursor(answer_by: datetime, review_id: str) -> str:
    return f"{answer_by.isoformat()}~{review_id}"


def _row(ctx: Context, bundle: Bundle, case: Case, now: datetime, waits: bool) -> QueueRow:
    review, effect = case.review, case.effect
    gates = case.gates
    counted = count(ctx, bundle, case.snapshot, effect, case.agent, gates, now)
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    return QueueRow(
        review_id=review.review_id,
        effect_id=effect.effect_id,
        rev=effect.rev,
        txn=effect.txn,
        tool=effect.tool,
        title=effect.tool if manifest is None else manifest.title,
        sentence=sentence(bundle, effect),
        risk=cast(Risk, review.risk),
        agent=effect.agent,
        owner=owner_name(bundle, case.agent.owner),
        gates=tuple(dict.fromkeys(gate.title or gate.policy_id for gate in gates)),
        amount=first_money(bundle, effect),
        have=sum(min(entry.have, entry.need) for entry in counted.per_gate),
        need=sum(entry.need for entry in counted.per_gate),
        answer_by=review.answer_by,
        opened_at=review.opened_at,
        can_vote=waits,
    )


def owner_name(bundle: Bundle, owner: str | None) -> str | None:
    """The owner as people know them, or the bare key."""
    return None if owner is None else bundle.directory.name_of(owner) or owner


async def review_page(ctx: Context, voter: Voter, review_id: str) -> ReviewPage | None:
    """One review, open or settled; None when there is no such review."""
    now = ctx.clock()
    return await ctx.db.read(lambda conn: _review_page(conn, ctx, voter, review_id, now))


def _review_page(
    conn: Connection, ctx: Context, voter: Voter, review_id: str, now: datetime
) -> ReviewPage | None:
    if records.review_by_id(conn, review_id) is None:
        return None
    bundle, case = ctx.active.current, read_case(conn, review_id)
    review, effect, snapshot = case.review, case.effect, case.snapshot
    decision = snapshot.decisions[effect.decision_id]
    manifest = manifest_for(bundle, effect.tool, effect.tool_digest)
    counted = count(ctx, bundle, snapshot, effect, case.agent, case.gates, now)
    votes = snapshot.votes_on(effect)
    why = why_not(ctx, bundle, case.agent, review, case.gates, voter, now) if review.state == "open" else None
    return ReviewPage(
        review_id=review.review_id,
        effect_id=effect.effect_id,
        rev=effect.rev,
        state=review.state,
        txn=effect.txn,
        txn_digest=snapshot.transaction.txn_digest,
        effect_digest=effect.effect_digest,
        effect_state=effect.state,
        sentence=sentence(bundle, effect),
        finality=_finality(case),
        risk=cast(Risk, review.risk),
        tool=effect.tool,
        tool_title=effect.tool if manifest is None else manifest.title,
        args=arguments(bundle, effect, decision.unseen),
        canonical=effect.args,
        gates=_gates(bundle, case, counted),
        votes=tuple(vote_view(vote, counted) for vote in votes),
        answer_by=review.answer_by,
        opened_at=review.opened_at,
        agent=effect.agent,
        agent_owner=owner_name(bundle, case.agent.owner),
        agent_roles=tuple(case.agent.roles),
        key_kid=snapshot.transaction.jkt,
        claimed=dict(snapshot.transaction.claimed),
        facts=_facts(decision),
        siblings=siblings_of(bundle, snapshot, effect),
        commit=decision.commit,
        bundle=decision.bundle,
        timeline=timeline_of(conn, bundle, effect),
        why_not=why,
        warnings=_warnings(bundle, case),
        superseded_by=snapshot.superseded_by,
        seq=effect.seq,
        undoable=effect.compensation is not None,
        reason_required=any(gate.reason for gate in case.gates),
        my_verdict=_my_verdict(votes, voter),
        rule_changes=changes_of(conn, bundle, effect),
        proposals=open_cards(bundle, case, voter),
        edits=edit_cards(conn, bundle, case, voter),
        since_staged=since_staged(conn, bundle, case),
        may_propose=may_propose(bundle, case, why),
    )


def _finality(case: Case) -> str:
    if case.effect.kind == "compensate":
        return "This takes back what fired before."
    if case.effect.compensation is not None:
        return f"This can be taken back by {case.effect.compensation['tool']}."
    return "This cannot be undone."


def _gates(bundle: Bundle, case: Case, counted: Tally) -> tuple[GateView, ...]:
    titles = {gate.policy_id: gate.title for gate in case.gates}
    return tuple(
        _gate_view(bundle, entry, policy_id, titles[policy_id])
        for entry in counted.per_gate
        for policy_id in dict.fromkeys(entry.gate.gates)
    )


def _gate_view(bundle: Bundle, entry: GateTally, policy_id: str, title: str) -> GateView:
    source = bundle.describe(policy_id)
    return GateView(
        policy_id=policy_id,
        title=title,
        groups=tuple(bundle.directory.title_of(group) for group in sorted(entry.gate.voters)),
        quorum=entry.need,
        have=entry.have,
        step_up=entry.gate.step_up,
        shared=entry.gate.shared,
        cedar_text="(no longer in the bundle in force)" if source is None else source.text,
        file="" if source is None else source.file,
        line=0 if source is None else source.line,
        doc="" if source is None else source.doc,
    )


def vote_view(vote: VoteRow, counted: Tally) -> VoteView:
    """One vote, and whether it matters now."""
    return VoteView(
        person_name=vote.name,
        verdict=cast(Literal["approve", "deny"], vote.verdict),
        reason=vote.reason or "",
        at=vote.cast_at,
        counted=counted.counts(vote.vote_id),
        assurance=vote.assurance,
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
            sentence=sentence(bundle, effect),
            state=effect.state,
            review_id=review.review_id if (review := snapshot.review_of(effect)) is not None else None,
        )
        for effect in others
    )


def timeline_of(conn: Connection, bundle: Bundle, effect: EffectRow) -> tuple[EventLine, ...]:
    """What happened to an effect and its transaction, told from the log."""
    rows = of_transaction(conn, effect.txn, effect.rev)
    mine = [row for row in rows if row.effect_id in {None, effect.effect_id}]
    names = names_of(conn, {key for row in mine if (key := person_of(row)) is not None})
    lines = (event_line(bundle, row, names) for row in mine)
    return tuple(line for line in lines if line is not None)


def _warnings(bundle: Bundle, case: Case) -> tuple[str, ...]:
    if case.effect.tool not in bundle.manifests and any(g.policy_id == UNKNOWN_TOOL for g in case.gates):
        return (
            f"UNKNOWN TOOL. No bundle describes {case.effect.tool}: nobody has reviewed what it does, and no policy "
            "has weighed these arguments. You are asked because this service runs in dev; elsewhere it is denied.",
        )
    if manifest_for(bundle, case.effect.tool, case.effect.tool_digest) is None:
        return (
            "The bundle in force no longer holds this version of the tool: it cannot be released as it is.",
        )
    return ()


def _my_verdict(votes: list[VoteRow], voter: Voter) -> Literal["approve", "deny"] | None:
    standing = (vote for vote in votes if not vote.late and vote.revoked_at is None)
    mine = [vote for vote in standing if (vote.iss, vote.sub) == (voter.iss, voter.sub)]
    return cast(Literal["approve", "deny"], mine[-1].verdict) if mine else None
