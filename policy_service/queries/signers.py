"""Who can still sign each gate of an open review, so that a person who cannot decide can ask somebody else.

Known people are the members of the bundle's groups and everybody who has signed in. People of another gate
are listed if a vote can move from there. People without a display name are counted only. The requester's side
(listed separately), people who have approved, and people Cedar does not permit are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from policy_service.domain.person_actions import BREAK_GLASS
from policy_service.domain.quorum import fillable_gates
from policy_service.identity.people import list_people
from policy_service.pap.bundle import Bundle
from policy_service.queries.context import Context
from policy_service.queries.repository import is_valid_vote
from policy_service.queries.review_context import ReviewContext
from policy_service.queries.vote_eligibility import (
    KnownPeople,
    Voter,
    is_permitted,
    person_key,
    requesters_side,
    valid_ballots,
)

MAX_NAMED: Final = 6
_MAX_EVALUATED: Final = (
    40  # people evaluated by Cedar for one gate; others of a larger group are only counted
)


@dataclass(frozen=True, slots=True)
class PossibleSigners:
    """People other than the reader: some names, how many more, and members who may not sign.

    `also` holds the groups of other gates whose members can sign here.
    """

    names: tuple[str, ...] = ()
    more: int = 0
    barred: tuple[str, ...] = ()
    also: frozenset[str] = frozenset()


def possible_signers(
    conn: Connection, ctx: Context, bundle: Bundle, case: ReviewContext, voter: Voter, now: datetime
) -> Mapping[str, PossibleSigners]:
    """By the key of each gate that is short of its quorum; empty if the review is settled."""
    if case.review.state != "open":
        return {}
    people = KnownPeople(bundle, list_people(conn))
    votes = [vote for vote in case.snapshot.votes_on(case.effect) if vote.verdict != BREAK_GLASS]
    out = {voter.key} | {person_key(v.iss, v.sub) for v in votes if is_valid_vote(v)}
    counted = valid_ballots(ctx, bundle, case.snapshot, case.effect, case.agent, now)
    excluded = requesters_side(case.agent, case.snapshot.transaction)
    voters = {gate.key: gate.voters for gate in case.asked}
    found = {}
    for key, helping in fillable_gates(case.asked, counted, excluded=excluded).items():
        groups = frozenset[str]().union(*(voters[each] for each in helping))
        found[key] = replace(_of_groups(ctx, people, case, out, groups, now), also=groups - voters[key])
    return found


def _of_groups(
    ctx: Context,
    people: KnownPeople,
    case: ReviewContext,
    out: set[str],
    asked: frozenset[str],
    now: datetime,
) -> PossibleSigners:
    side, members = requesters_side(case.agent, case.review), people.of(asked)
    barred = tuple(name for person, _ in members if person in side - out if (name := people.name_of(person)))
    left = [(person, groups) for person, groups in members if person not in side | out]
    left.sort(key=lambda member: people.name_of(member[0]) is None)  # people with a name first
    weighed = [
        person
        for person, groups in left[:_MAX_EVALUATED]
        if is_permitted(ctx, people.bundle, case, person, groups, now)
    ]
    names = [name for person in weighed if (name := people.name_of(person))][:MAX_NAMED]
    return PossibleSigners(tuple(names), len(weighed) - len(names) + len(left[_MAX_EVALUATED:]), barred)
