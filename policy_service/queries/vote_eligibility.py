"""Vote eligibility: who may vote, which groups a person is in now, what Cedar permits, and how votes count.

Groups from the bundle are read at every count, so a person who leaves a group stops counting. Groups from a
token were checked for age when the vote was cast and are kept with the vote.

The domain excludes the requester's side (the agent's owner and everybody who edited arguments) before Cedar
is asked, so no policy can allow it.

Break-glass signatures are evaluated the same way at every count. Without a policy that names signers, nothing
can be opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Literal, cast

from policy_service.domain.gates import Gate, merge
from policy_service.domain.person_actions import BREAK_GLASS, BREAK_GLASS_ALONE
from policy_service.domain.policy_request import AgentPrincipal
from policy_service.domain.quorum import (
    BallotVote,
    BreakGlassApproval,
    BreakGlassSignature,
    Tally,
    break_glass_approval,
    tally,
)
from policy_service.pap.bundle import Bundle
from policy_service.pdp.people import (
    Permission,
    PersonFacts,
    ReviewFacts,
    check_approve_rules,
    check_people_rules,
)
from policy_service.queries.context import Context
from policy_service.queries.repository import Snapshot
from policy_service.storage.tables import AgentRow, EffectRow, ReviewRow, TransactionRow, VoteRow


def person_key(iss: str, sub: str) -> str:
    """The canonical key of a person: issuer and subject."""
    return f"{iss}|{sub}"


def requesters_side(agent: AgentRow, about: ReviewRow | TransactionRow) -> frozenset[str]:
    """Who must not approve this, whatever the policies say: the agent's owner and everybody who edited the
    arguments.
    """
    return frozenset(about.edited_by) | (frozenset() if agent.owner is None else {agent.owner})


def current_groups(bundle: Bundle, person: str, from_token: frozenset[str] = frozenset()) -> frozenset[str]:
    """The groups of a person now, from the bundle and from their token."""
    return bundle.directory.groups_of(person) | from_token


def approval_permission(
    ctx: Context,
    bundle: Bundle,
    agent: AgentRow,
    review: ReviewRow,
    gates: Iterable[Gate],
    *,
    person: str,
    groups: frozenset[str],
    assurance: str,
    now: datetime,
) -> Permission:
    """What Cedar decides about this person approving this effect. Groups and gates are checked separately."""
    return check_approve_rules(
        bundle.rules,
        PersonFacts(person, groups, cast(Literal["oidc", "dev"], assurance)),
        review_facts(agent, review, gates),
        now=now,
        env=ctx.settings.environment,
    )


def review_facts(agent: AgentRow, review: ReviewRow, gates: Iterable[Gate]) -> ReviewFacts:
    """The review as Cedar sees it."""
    return ReviewFacts(
        review_id=review.review_id,
        agent=AgentPrincipal(agent.name, agent.owner, frozenset(agent.roles), frozenset(agent.teams)),
        tool=review.tool,
        risk=review.risk,
        gates=frozenset(gate.policy_id for gate in gates),
        opened_at=review.opened_at,
    )


def valid_ballots(
    ctx: Context, bundle: Bundle, snapshot: Snapshot, effect: EffectRow, agent: AgentRow, now: datetime
) -> list[BallotVote]:
    """The votes on an effect as they count now, in the order they were cast; without late and revoked ones."""
    review = snapshot.review_of(effect)
    if review is None:
        return []
    gates = [Gate.from_json(gate) for gate in effect.gates]
    return [
        _ballot(ctx, bundle, agent, review, gates, vote, now)
        for vote in snapshot.votes_on(effect)
        if not vote.late and vote.revoked_at is None and vote.verdict != BREAK_GLASS
    ]


def valid_votes_of(votes: Iterable[VoteRow], iss: str, sub: str) -> list[VoteRow]:
    """The votes of one person that were in time and not revoked, oldest first."""
    standing = (vote for vote in votes if not vote.late and vote.revoked_at is None)
    return [vote for vote in standing if (vote.iss, vote.sub) == (iss, sub)]


def counted_verdict(votes: Iterable[VoteRow], iss: str, sub: str) -> str | None:
    """The verdict of a person's newest valid vote. A break-glass signature is not a vote on a gate."""
    theirs = valid_votes_of(votes, iss, sub)
    return next((vote.verdict for vote in reversed(theirs) if vote.verdict != BREAK_GLASS), None)


def _ballot(
    ctx: Context,
    bundle: Bundle,
    agent: AgentRow,
    review: ReviewRow,
    gates: Iterable[Gate],
    vote: VoteRow,
    now: datetime,
) -> BallotVote:
    person = person_key(vote.iss, vote.sub)
    groups = current_groups(bundle, person, frozenset(vote.groups))
    permitted = approval_permission(
        ctx, bundle, agent, review, gates, person=person, groups=groups, assurance=vote.assurance, now=now
    )
    return BallotVote(
        vote_id=vote.vote_id,
        person=person,
        groups=groups,
        verdict=cast(Literal["approve", "deny"], vote.verdict),
        step_up=vote.step_up,
        permitted=bool(permitted),
    )


def break_glass_signatures(snapshot: Snapshot, effect: EffectRow) -> list[VoteRow]:
    """The valid break-glass signatures on this revision."""
    return [
        vote
        for vote in snapshot.votes_on(effect)
        if vote.verdict == BREAK_GLASS and not vote.late and vote.revoked_at is None
    ]


def break_glass_opening(
    ctx: Context,
    bundle: Bundle,
    snapshot: Snapshot,
    effect: EffectRow,
    agent: AgentRow,
    gates: Sequence[Gate],
    now: datetime,
) -> BreakGlassApproval | None:
    """What the break-glass signatures amount to now."""
    signed, review = (
        evaluated_signatures(ctx, bundle, snapshot, effect, agent, gates, now),
        snapshot.review_of(effect),
    )
    if not signed or review is None:
        return None
    return break_glass_approval(merge(gates), signed, excluded=requesters_side(agent, review))


def evaluated_signatures(
    ctx: Context,
    bundle: Bundle,
    snapshot: Snapshot,
    effect: EffectRow,
    agent: AgentRow,
    gates: Sequence[Gate],
    now: datetime,
) -> list[BreakGlassSignature]:
    """The valid signatures, each with what policy permits its person now."""
    review, found = snapshot.review_of(effect), list[BreakGlassSignature]()
    if review is None:
        return found
    for vote in break_glass_signatures(snapshot, effect):
        person = person_key(vote.iss, vote.sub)
        groups = current_groups(bundle, person, frozenset(vote.groups))
        may, alone = (
            policy_permits(ctx, bundle, agent, review, gates, action, person, groups, vote.assurance, now)
            for action in (BREAK_GLASS, BREAK_GLASS_ALONE)
        )
        found.append(BreakGlassSignature(vote.vote_id, person, vote.step_up, may, alone))
    return found


def policy_permits(
    ctx: Context,
    bundle: Bundle,
    agent: AgentRow,
    review: ReviewRow,
    gates: Sequence[Gate],
    action: str,
    person: str,
    groups: frozenset[str],
    assurance: str,
    now: datetime,
) -> bool:
    """Whether a policy names this person for the action. Without such a policy nobody is permitted."""
    who = PersonFacts(person, groups, cast(Literal["oidc", "dev"], assurance))
    what = review_facts(agent, review, gates)
    return bool(check_people_rules(bundle.rules, action, who, what, now=now, env=ctx.settings.environment))


def count_votes(
    ctx: Context,
    bundle: Bundle,
    snapshot: Snapshot,
    effect: EffectRow,
    agent: AgentRow,
    gates: Sequence[Gate],
    now: datetime,
) -> Tally:
    """Count the votes on an effect as of now: current groups, current permission, required step-up.

    The result also holds the break-glass opening, if there is one.
    """
    votes = valid_ballots(ctx, bundle, snapshot, effect, agent, now)
    review = snapshot.review_of(effect)
    asked = merge(gates, () if review is None else review.escalated)
    counted = tally(asked, votes, excluded=requesters_side(agent, snapshot.transaction))
    return replace(counted, opening=break_glass_opening(ctx, bundle, snapshot, effect, agent, gates, now))
