"""Who votes, and whether a vote of theirs would count: asked by the vote, and by every page that shows a button."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from policy_service.domain.gates import Gate, merge
from policy_service.domain.person_actions import BREAK_GLASS, BREAK_GLASS_ALONE
from policy_service.domain.quorum import BallotVote, counts_toward, is_eligible_for
from policy_service.identity.passkeys import active_passkeys
from policy_service.identity.people import Person
from policy_service.pap.bundle import Bundle
from policy_service.queries.context import Context
from policy_service.queries.messages import not_in_groups_text
from policy_service.queries.review_context import ReviewContext
from policy_service.queries.review_models import StepUpStatus
from policy_service.queries.vote_eligibility import (
    approval_permission,
    current_groups,
    person_key,
    policy_permits,
    requesters_side,
)
from policy_service.storage.tables import AgentRow, ReviewRow


@dataclass(frozen=True)
class Voter:
    """Who votes, as their session knows them."""

    iss: str
    sub: str
    name: str
    assurance: str
    groups: frozenset[str] = frozenset()  # from the token, fresh enough; readable sources are asked apart
    step_up: str | None = None
    groups_problem: str | None = None  # why groups of their provider are missing from the token

    @property
    def key(self) -> str:
        """Issuer and subject."""
        return person_key(self.iss, self.sub)


def voter_from_person(person: Person) -> Voter:
    """Somebody who is signed in, as a voter."""
    return Voter(
        person.iss,
        person.sub,
        person.name,
        person.assurance,
        person.groups,
        groups_problem=person.groups_problem,
    )


def with_groups_problem(refusal: str, voter: Voter) -> str:
    """The refusal, and why groups of their provider are missing, where the last sign-in says so."""
    return refusal if voter.groups_problem is None else f"{refusal} ({voter.groups_problem})"


def hypothetical_approval(bundle: Bundle, voter: Voter) -> BallotVote:
    """The approval this person would give, for the domain to judge; Cedar is asked apart."""
    return BallotVote(
        "", voter.key, current_groups(bundle, voter.key, voter.groups), "approve", voter.step_up
    )


def approval_step_up(
    conn: Connection, ctx: Context, bundle: Bundle, case: ReviewContext, voter: Voter, now: datetime
) -> StepUpStatus:
    """Whether an approval by this person asks for a passkey: where a gate they could serve does. ``missing``: and they
    have none that counts, and nothing they could serve does without.
    """
    mine, merged = hypothetical_approval(bundle, voter), case.asked
    if not any(is_eligible_for(gate, mine) and gate.step_up for gate in merged):
        return "none"
    if _has_passkey(conn, ctx, voter, now):
        return "asked"
    return "none" if any(counts_toward(gate, mine) for gate in merged) else "missing"


def break_glass_step_up(
    conn: Connection, ctx: Context, case: ReviewContext, voter: Voter, now: datetime
) -> StepUpStatus:
    """The same for a signature of break-glass, which every gate's step-up holds for: those who sign are seldom the
    people the gates ask."""
    if not any(gate.step_up for gate in case.asked):
        return "none"
    return "asked" if _has_passkey(conn, ctx, voter, now) else "missing"


def _has_passkey(conn: Connection, ctx: Context, voter: Voter, now: datetime) -> bool:
    return ctx.settings.rp_id is not None and bool(active_passkeys(conn, voter.iss, voter.sub, now))


def vote_refusal(
    ctx: Context,
    bundle: Bundle,
    agent: AgentRow,
    review: ReviewRow,
    gates: Sequence[Gate],
    voter: Voter,
    now: datetime,
) -> str | None:
    """The sentence that tells this person why their vote would not count, or None when it would."""
    if voter.key == agent.owner:
        return f"you own {agent.name}; nobody approves their own side"
    if voter.key in requesters_side(agent, review):
        return "you changed its arguments; nobody approves what they wrote, so somebody else decides this one"
    mine, merged = hypothetical_approval(bundle, voter), merge(gates, review.escalated)
    if not any(is_eligible_for(gate, mine) for gate in merged):
        asked = {bundle.directory.title_of(group) for gate in merged for group in gate.voters}
        return with_groups_problem(not_in_groups_text(sorted(asked), "decide this"), voter)
    granted = approval_permission(
        ctx,
        bundle,
        agent,
        review,
        gates,
        person=voter.key,
        groups=mine.groups,
        assurance=voter.assurance,
        now=now,
    )
    if not granted:
        return (
            granted.reason.text if granted.reason is not None else "the approval policy does not permit you"
        )
    return None


@dataclass(frozen=True, slots=True)
class BreakGlassPermission:
    """What one person may do in an emergency: ``why_not`` is the sentence that tells them why nothing, ``alone``
    whether their signature is enough by itself, with a review afterwards.
    """

    why_not: str | None
    alone: bool = False


def break_glass_permission(
    ctx: Context, bundle: Bundle, case: ReviewContext, voter: Voter, now: datetime
) -> BreakGlassPermission:
    """What this person may do about this review."""
    if voter.key in requesters_side(case.agent, case.review):
        return BreakGlassPermission(
            f"you own {case.agent.name}, or changed what it asks; nobody opens what their own side asks for"
        )
    groups, assurance = current_groups(bundle, voter.key, voter.groups), voter.assurance
    as_one, alone = (
        policy_permits(
            ctx, bundle, case.agent, case.review, case.gates, action, voter.key, groups, assurance, now
        )
        for action in (BREAK_GLASS, BREAK_GLASS_ALONE)
    )
    if as_one or alone:
        return BreakGlassPermission(None, alone)
    return BreakGlassPermission(
        "no policy lets you open this in an emergency; ask somebody whom one names, or an operator"
    )
