"""Wire models of transactions and effects. None of them authorizes anything; only a signed release token
does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias, cast

from countersign.contract import (
    JSON,
    DenyCode,
    EffectState,
    Mode,
    Outcome,
    Resource,
    TaskAnswer,
    TaskKind,
    TxnState,
    Verdict,
    load,
)
from countersign.contract.wire import (
    CompensationRef,
    DecisionView,
    EffectView,
    EvaluatedEffect,
    EvaluationView,
    Need,
    OutcomeView,
    ProposalView,
    QuestionView,
    Reason,
    ReviewSummary,
    Settlement,
    TransactionView,
)
from policy_service.domain.gates import Gate, merge
from policy_service.domain.policy_request import Decision
from policy_service.domain.quorum import Tally
from policy_service.errors import NotFoundError
from policy_service.identity.agents import Caller
from policy_service.queries.context import Context
from policy_service.queries.effects import args_of, gates_of, without_secrets
from policy_service.queries.repository import Snapshot
from policy_service.queries.vote_eligibility import count_votes, person_key
from policy_service.storage.review_tables import ProposalRow
from policy_service.storage.tables import AgentRow, DecisionRow, EffectRow, ReviewRow, TransactionRow

ProposalState: TypeAlias = Literal["open", "accepted", "declined", "lapsed"]
_OUTCOMES = {outcome.value for outcome in Outcome}
_ONCE_RELEASED = frozenset(EffectState) - {EffectState.REVIEW, EffectState.DENIED}
_ENDS_SIBLINGS = {
    EffectState.DENIED: "was denied",
    EffectState.EXPIRED: "expired",
    EffectState.REVOKED: "was revoked",
}


def transaction_view(
    ctx: Context,
    agent: AgentRow,
    snapshot: Snapshot,
    *,
    releases: Sequence[str] = (),
    receipt: str | None = None,
) -> TransactionView:
    """A transaction for its agent, with tokens only where requested.

    A redeemed transaction names its attempt, so that a redeemer that lost the response recognizes it.
    """
    row = snapshot.transaction
    return TransactionView(
        txn=row.txn,
        rev=row.rev,
        state=TxnState(row.state),
        agent=row.agent,
        run_key=row.run_key,
        txn_digest=row.txn_digest,
        aud=row.aud,
        submitted_at=row.submitted_at,
        valid_until=row.valid_until,
        superseded_by=snapshot.superseded_by,
        effects=tuple(effect_view(ctx, agent, snapshot, effect) for effect in snapshot.effects),
        releases=tuple(releases),
        receipt=receipt,
        attempt_id=snapshot.effects[0].redeemed_by,
        questions=question_views(snapshot),
    )


def question_views(snapshot: Snapshot) -> tuple[QuestionView, ...]:
    """The questions to the agent about this revision, oldest first."""
    asked = [
        (review, one)
        for review in snapshot.reviews.values()
        for one in snapshot.comments.get(review.review_id, [])
        if one.kind == "question"
    ]
    return tuple(
        QuestionView(
            question_id=one.comment_id,
            review_id=review.review_id,
            effect_id=review.effect_id,
            text=one.text,
            asked_by=one.name,
            asked_at=one.written_at,
            answer=one.answer,
            answered_at=one.answered_at,
        )
        for review, one in sorted(asked, key=lambda pair: pair[1].comment_id)
    )


def effect_view(
    ctx: Context,
    agent: AgentRow,
    snapshot: Snapshot,
    effect: EffectRow,
    *,
    counted: Tally | None = None,
    for_people: bool = False,
) -> EffectView:
    """One effect or compensation. ``for_people`` hides its secrets.

    ``counted`` is the vote count if the caller has it already.
    """
    args = args_of(effect)
    undo = next((c for c in snapshot.compensations if c.compensates == effect.effect_id), None)
    return EffectView(
        effect_id=effect.effect_id,
        seq=effect.seq,
        tool=effect.tool,
        tool_digest=effect.tool_digest,
        resource=Resource(effect.resource_type, effect.resource_id),
        args_digest=effect.args_digest,
        effect_digest=effect.effect_digest,
        call_key=effect.call_key,
        state=EffectState(effect.state),
        args=without_secrets(args, effect.secret) if for_people else args,
        decision=_decision(snapshot, effect),
        review=_review(ctx, agent, snapshot, effect, counted, for_people=for_people),
        outcome=_outcome(effect),
        compensation=None
        if undo is None
        else CompensationRef(
            effect_id=undo.effect_id,
            state=EffectState(undo.state),
            settlements=_settlements(undo, for_people=for_people),
        ),
        settlements=_settlements(effect, for_people=for_people),
        edits=tuple(proposal_view(effect, row, for_people=for_people) for row in snapshot.edits_of(effect)),
    )


def proposal_view(effect: EffectRow, row: ProposalRow, *, for_people: bool = False) -> ProposalView:
    """Proposed arguments for an effect. ``for_people`` hides its secrets."""
    args = cast("dict[str, JSON]", load(row.args))
    return ProposalView(
        proposal_id=row.proposal_id,
        effect_id=row.effect_id,
        rev=row.rev,
        state=cast(ProposalState, row.state),
        args=without_secrets(args, effect.secret) if for_people else args,
        args_digest=row.args_digest,
        reason=row.reason,
        person=person_key(row.iss, row.sub),
        name=row.name,
        proposed_at=row.proposed_at,
        decided_by=row.decided_by,
        decided_at=row.decided_at,
        became_rev=row.became_rev,
    )


def _settlements(effect: EffectRow, *, for_people: bool) -> tuple[Settlement, ...]:
    return tuple(settlement_view(said, for_people=for_people) for said in effect.settlements)


def settlement_view(said: Mapping[str, Any], *, for_people: bool = False) -> Settlement:
    """What a person settled. The tool's result is left out for people: only the agent knows what in it is
    secret.
    """
    shown = {name: value for name, value in said.items() if not (for_people and name == "result")}
    return Settlement(
        **{
            **shown,
            "kind": TaskKind(said["kind"]),
            "answer": TaskAnswer(said["answer"]),
            "at": datetime.fromisoformat(said["at"]),
        }
    )


def _decision(snapshot: Snapshot, effect: EffectRow) -> DecisionView:
    row = snapshot.decisions[effect.decision_id]
    state = EffectState(effect.state)
    review = snapshot.review_of(effect)
    opened = review is not None and review.break_glass_at is not None
    mode = Mode.BREAK_GLASS if opened else Mode.REVIEW if effect.gates else Mode.AUTO
    return DecisionView(
        decision_id=row.decision_id,
        outcome=Verdict(row.outcome),
        mode=mode if state in _ONCE_RELEASED and row.outcome != Verdict.DENY.value else None,
        policies=tuple(row.policies),
        gates=tuple(dict.fromkeys(gate.policy_id for gate in gates_of(effect))),
        reasons=(*_reasons(row), *_waiting_reasons(effect), *_ending_reasons(snapshot, effect)),
        bundle=row.bundle,
        commit=row.commit,
        unseen=tuple(row.unseen),
    )


def _reasons(row: DecisionRow) -> tuple[Reason, ...]:
    return tuple(Reason(**reason) for reason in row.reasons)


def _waiting_reasons(effect: EffectRow) -> tuple[Reason, ...]:
    """One reason for each gate that waits for approval."""
    if EffectState(effect.state) is not EffectState.REVIEW:
        return ()
    return tuple(
        Reason(
            code="needs_approval",
            text=f"{gate.title or gate.policy_id}: waits for {', '.join(sorted(gate.groups))}",
            policy=gate.policy_id,
        )
        for gate in gates_of(effect)
    )


def _ending_reasons(snapshot: Snapshot, effect: EffectRow) -> tuple[Reason, ...]:
    state = EffectState(effect.state)
    if state is EffectState.DENIED:
        denies = [v for v in snapshot.votes_on(effect) if v.verdict == "deny" and not v.late]
        return tuple(
            Reason(
                code=DenyCode.DENIED_BY_PERSON.value,
                text=f"{vote.name} denied it: {vote.reason}",
                advice="do not resubmit it reworded; change what was objected to, under another run key",
            )
            for vote in denies
        )
    if state is EffectState.WITHDRAWN:
        return (_why_withdrawn(snapshot),)
    if state is EffectState.EXPIRED:
        text = "it was neither answered nor used in time; submit it again"
        return (Reason(code=DenyCode.EXPIRED.value, text=text, advice=_deadline_advice(effect)),)
    return ()


def _deadline_advice(effect: EffectRow) -> str:
    """The annotations that extend the deadlines, and the gates to put them on."""
    asked = ", ".join(dict.fromkeys(repr(gate.policy_id) for gate in gates_of(effect)))
    where = f"on the gate {asked}" if asked else "on a gate of its tool"
    return f"more time is `@answer_within(...)` for people and `@valid_for(...)` for the agent, {where}"


def _why_withdrawn(snapshot: Snapshot) -> Reason:
    """Why the effects of a transaction were withdrawn: one of them ended, or the agent withdrew them."""
    for effect in snapshot.effects:
        if (ended := _ENDS_SIBLINGS.get(EffectState(effect.state))) is not None:
            advice = "correct what its reason names, or make the effects independent: transaction(independent=True)"
            return Reason(
                code=DenyCode.SIBLING.value, text=f"another effect of its transaction {ended}", advice=advice
            )
    if snapshot.superseded_by is not None:
        text = f"revision {snapshot.superseded_by} replaced it"
        return Reason(
            code=DenyCode.SUPERSEDED.value,
            text=text,
            advice="the newer list is what counts; for another intent take another run key",
        )
    words = next((effect.taken_back for effect in snapshot.effects if effect.taken_back is not None), None)
    text = "it was taken back" if words is None else f"it was taken back: {words}"
    return Reason(
        code=DenyCode.WITHDRAWN.value,
        text=text,
        advice="to ask once more, submit it again under the same run key",
    )


def review_url(ctx: Context, review: ReviewRow) -> str:
    """The page on which people decide a review."""
    return f"{ctx.settings.public_url}/reviews/{review.review_id}"


def _review(
    ctx: Context,
    agent: AgentRow,
    snapshot: Snapshot,
    effect: EffectRow,
    counted: Tally | None,
    *,
    for_people: bool,
) -> ReviewSummary | None:
    review = snapshot.review_of(effect)
    if review is None:
        return None
    if counted is None:
        bundle, gates = ctx.active.current, gates_of(effect)
        counted = count_votes(ctx, bundle, snapshot, effect, agent, gates, ctx.clock())
    return ReviewSummary(
        review_id=review.review_id,
        state=review.state,
        url=review_url(ctx, review),
        answer_by=review.answer_by,
        needs=need_views(counted),
        escalated_at=escalated_at(review),
        reminded_at=review.reminded_at,
        unanswerable=review.unanswerable if review.state == "open" else None,
        proposals=tuple(
            proposal_view(effect, row, for_people=for_people) for row in snapshot.open_proposals_of(effect)
        ),
    )


def escalated_at(review: ReviewRow) -> datetime | None:
    """When a review was first escalated."""
    return min(map(datetime.fromisoformat, review.escalated.values()), default=None)


def need_views(counted: Tally) -> tuple[Need, ...]:
    """What each merged gate requires and what it has."""
    return tuple(
        Need(
            gates=entry.gate.gates,
            groups=tuple(sorted(entry.gate.voters)),
            quorum=entry.need,
            have=entry.have,
            step_up=entry.gate.step_up,
            shared=entry.gate.shared,
            added=tuple(sorted(entry.gate.added - entry.gate.groups)),
        )
        for entry in counted.per_gate
    )


def _outcome(effect: EffectRow) -> OutcomeView | None:
    if effect.state not in _OUTCOMES:
        return None
    return OutcomeView(outcome=Outcome(effect.state), at=effect.changed_at, error=effect.error)


def evaluation_view(evaluated: Sequence[tuple[str, Decision]]) -> EvaluationView:
    """The result of a dry run. Nothing is stored, so the decisions have no id."""
    return EvaluationView(
        effects=tuple(
            EvaluatedEffect(tool=tool, decision=_dry_run_decision(d), needs=_needs_before_votes(d.gates))
            for tool, d in evaluated
        )
    )


def _needs_before_votes(gates: Sequence[Gate]) -> tuple[Need, ...]:
    """What a review of these gates would require, without votes and before any escalation."""
    return tuple(
        Need(
            gates=gate.gates,
            groups=tuple(sorted(gate.groups)),
            quorum=gate.quorum,
            have=0,
            step_up=gate.step_up,
            shared=gate.shared,
        )
        for gate in merge(gates)
    )


def _dry_run_decision(decision: Decision) -> DecisionView:
    return DecisionView(
        decision_id="dry-run",
        outcome=decision.outcome,
        policies=decision.policies,
        gates=tuple(gate.policy_id for gate in decision.gates),
        reasons=tuple(
            Reason(code=r.code, text=r.text, policy=r.policy, advice=r.advice) for r in decision.reasons
        ),
        bundle=decision.bundle,
        commit=decision.commit,
        unseen=decision.unseen,
    )


def require_visible(caller: Caller, transaction: TransactionRow) -> None:
    """Refuse callers other than the agent and the redeemer, without revealing that the transaction exists.

    Raises:
        NotFoundError: the transaction belongs to other agents.
    """
    if caller.agent not in {transaction.agent, transaction.aud}:
        raise NotFoundError(f"there is no transaction {transaction.txn!r}")
