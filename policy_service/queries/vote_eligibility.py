"""Votes as the count sees them: who they are from, which groups stand now, what Cedar says of that person.

Group sources that can be read without the person (the bundle's file) are read at every count, so somebody who has left
a group leaves the count; groups a token carried were checked for age when the vote was cast, and then stand.

The domain refuses before Cedar is asked: the agent's owner is the requester's side and never counts, and neither does
whoever changed the arguments of anything in the transaction.

Break-glass signatures are evaluated the same way, at every count: policy names who may sign, and nobody by default. The
requester's side opens nothing, whatever the bundle says.
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
    """The one spelling of a person: issuer and subject."""
    return f"{iss}|{sub}"


def requesters_side(agent: AgentRow, about: ReviewRow | TransactionRow) -> frozenset[str]:
    """Who may never approve this for this agent, whatever the bundle says: its owner, and whoever edited the args."""
    return frozenset(about.edited_by) | (frozenset() if agent.owner is None else {agent.owner})


def current_groups(bundle: Bundle, person: str, from_token: frozenset[str] = frozenset()) -> frozenset[str]:
    """The groups that stand for a person at this moment."""
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
    """What Cedar says of this person approving this effect; groups and gates are counted apart."""
    return check_approve_rules(
        bundle.rules,
        PersonFacts(person, groups, cast(Literal["oidc", "dev"], assurance)),
        review_facts(agent, review, gates),
        now=now,
        env=ctx.settings.environment,
    )


def review_facts(agent: AgentRow, review: ReviewRow, gates: Iterable[Gate]) -> ReviewFacts:
    """The review as policies see it."""
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
    """The votes of a revision, in the order they were cast, as they stand now; late and revoked ones are left out."""
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
    """A person's votes among these that came in time and were not revoked, the oldest first."""
    standing = (vote for vote in votes if not vote.late and vote.revoked_at is None)
    return [vote for vote in standing if (vote.iss, vote.sub) == (iss, sub)]


def counted_verdict(votes: Iterable[VoteRow], iss: str, sub: str) -> str | None:
    """A person's counted answer among these votes; a signature for an emergency answers no gate."""
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
    """Who signed for an opening of this revision, in time and not revoked since."""
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
    """What the signatures come to now."""
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
    """The signatures that stand, each with what policy says of its person now."""
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
    """Whether policy names this person for it; a bundle that names nobody means nobody."""
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
    """Count the votes on an effect as they stand now: still in the group, still permitted, stepped up as asked. Beside
    them stands what was signed in an emergency."""
    votes = valid_ballots(ctx, bundle, snapshot, effect, agent, now)
    review = snapshot.review_of(effect)
    asked = merge(gates, () if review is None else review.escalated)
    counted = tally(asked, votes, excluded=requesters_side(agent, snapshot.transaction))
    return replace(counted, opening=break_glass_opening(ctx, bundle, snapshot, effect, agent, gates, now))
