"""Votes as the count sees them: who they are from, which groups stand now, what Cedar says of that person.

Group sources that can be read without the person (the bundle's file) are read at every count, so somebody who has left
a group leaves the count; groups a token carried were checked for age when the vote was cast, and then stand.

The domain refuses before Cedar is asked: the agent's owner is the requester's side and never counts, and neither does
whoever changed the arguments of anything in the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal, cast

from policy_service.domain.gates import Gate
from policy_service.domain.people import BREAK_GLASS
from policy_service.domain.question import AgentPrincipal
from policy_service.domain.quorum import BallotVote
from policy_service.pap.bundle import Bundle
from policy_service.pdp.approve import Approver, Permission, ReviewFacts, can_approve
from policy_service.queries.context import Context
from policy_service.queries.records import Snapshot
from policy_service.storage.tables import AgentRow, EffectRow, ReviewRow, TransactionRow, VoteRow


def person_key(iss: str, sub: str) -> str:
    """The one spelling of a person: issuer and subject."""
    return f"{iss}|{sub}"


def requesters_side(agent: AgentRow, about: ReviewRow | TransactionRow) -> frozenset[str]:
    """Who may never approve this for this agent, whatever the bundle says: its owner, and whoever edited the args."""
    return frozenset(about.edited_by) | (frozenset() if agent.owner is None else {agent.owner})


def groups_now(bundle: Bundle, person: str, from_token: frozenset[str] = frozenset()) -> frozenset[str]:
    """The groups that stand for a person at this moment."""
    return bundle.directory.groups_of(person) | from_token


def permission(
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
    return can_approve(
        bundle.rules,
        Approver(person, groups, cast(Literal["oidc", "dev"], assurance)),
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


def ballots(
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


def standing_of(votes: Iterable[VoteRow], iss: str, sub: str) -> list[VoteRow]:
    """A person's votes among these that came in time and were not revoked, the oldest first."""
    standing = (vote for vote in votes if not vote.late and vote.revoked_at is None)
    return [vote for vote in standing if (vote.iss, vote.sub) == (iss, sub)]


def standing_verdict(votes: Iterable[VoteRow], iss: str, sub: str) -> str | None:
    """A person's counted answer among these votes; a signature for an emergency answers no gate."""
    theirs = standing_of(votes, iss, sub)
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
    groups = groups_now(bundle, person, frozenset(vote.groups))
    permitted = permission(
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
