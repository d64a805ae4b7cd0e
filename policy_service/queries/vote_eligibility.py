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
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, cast

from sqlalchemy import Connection

from policy_service.domain.gates import Gate, merge
from policy_service.domain.person_actions import BREAK_GLASS, BREAK_GLASS_ALONE
from policy_service.domain.quorum import (
    BallotVote,
    BreakGlassSignature,
    Tally,
    break_glass_approval,
    counts_toward,
    is_eligible_for,
    tally,
)
from policy_service.identity.origin import relying_party_id
from policy_service.identity.passkeys import active_passkeys
from policy_service.identity.people import Person
from policy_service.pap.bundle import Bundle
from policy_service.pdp.people import (
    Permission,
    PersonFacts,
    ReviewFacts,
    check_approve_rules,
    check_people_rules,
)
from policy_service.queries.context import Context
from policy_service.queries.effects import gates_of, principal_of
from policy_service.queries.repository import Snapshot, is_valid_vote
from policy_service.queries.review_context import ReviewContext, not_in_groups_text
from policy_service.queries.review_models import StepUpStatus
from policy_service.storage.tables import AgentRow, EffectRow, PersonRow, ReviewRow, TransactionRow, VoteRow


def person_key(iss: str, sub: str) -> str:
    """The canonical key of a person: issuer and subject."""
    return f"{iss}|{sub}"


def requesters_side(agent: AgentRow, about: ReviewRow | TransactionRow) -> frozenset[str]:
    """Who must not approve this, even if a policy permits it: the owner and everybody who edited the arguments."""
    return frozenset(about.edited_by) | (frozenset() if agent.owner is None else {agent.owner})


def current_groups(bundle: Bundle, person: str, from_token: frozenset[str] = frozenset()) -> frozenset[str]:
    """The groups of a person now, from the bundle and from their token."""
    return bundle.directory.groups_of(person) | from_token


def valid_ballots(
    ctx: Context, bundle: Bundle, snapshot: Snapshot, effect: EffectRow, agent: AgentRow, now: datetime
) -> list[BallotVote]:
    """The votes on an effect as they count now, in the order they were cast; without late and revoked ones."""
    review = snapshot.review_of(effect)
    if review is None:
        return []
    found = []
    for vote in snapshot.votes_on(effect):
        if not is_valid_vote(vote) or vote.verdict == BREAK_GLASS:
            continue
        person = _facts_of_vote(bundle, vote)
        permitted = approval_permission(ctx, bundle, agent, review, gates_of(effect), person, now)
        verdict = cast(Literal["approve", "deny"], vote.verdict)
        found.append(
            BallotVote(vote.vote_id, person.person, person.groups, verdict, vote.step_up, bool(permitted))
        )
    return found


def valid_votes_of(votes: Iterable[VoteRow], iss: str, sub: str) -> list[VoteRow]:
    """The votes of one person that were in time and not revoked, oldest first."""
    return [vote for vote in votes if is_valid_vote(vote) and (vote.iss, vote.sub) == (iss, sub)]


def counted_verdict(votes: Iterable[VoteRow], iss: str, sub: str) -> str | None:
    """The verdict of a person's newest valid vote. A break-glass signature is not a vote on a gate."""
    theirs = valid_votes_of(votes, iss, sub)
    return next((vote.verdict for vote in reversed(theirs) if vote.verdict != BREAK_GLASS), None)


def break_glass_signatures(snapshot: Snapshot, effect: EffectRow) -> list[VoteRow]:
    """The valid break-glass signatures on this revision."""
    return [vote for vote in snapshot.votes_on(effect) if vote.verdict == BREAK_GLASS and is_valid_vote(vote)]


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
    review = snapshot.review_of(effect)
    if review is None:
        return []
    found = []
    for vote in break_glass_signatures(snapshot, effect):
        person = _facts_of_vote(bundle, vote)
        may, alone = _break_glass_rules(ctx, bundle, person, _review_facts(agent, review, gates), now)
        found.append(BreakGlassSignature(vote.vote_id, person.person, vote.step_up, may, alone))
    return found


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
    signed = evaluated_signatures(ctx, bundle, snapshot, effect, agent, gates, now)
    if not signed or review is None:
        return counted
    opening = break_glass_approval(merge(gates), signed, excluded=requesters_side(agent, review))
    return replace(counted, opening=opening)


def progress(counted: Tally) -> tuple[int, int]:
    """How many approvals count towards the gates, and how many they require."""
    have = sum(min(entry.have, entry.need) for entry in counted.per_gate)
    return have, sum(entry.need for entry in counted.per_gate)


def _review_facts(agent: AgentRow, review: ReviewRow, gates: Iterable[Gate]) -> ReviewFacts:
    return ReviewFacts(
        review_id=review.review_id,
        agent=principal_of(agent),
        tool=review.tool,
        risk=review.risk,
        gates=frozenset(gate.policy_id for gate in gates),
        opened_at=review.opened_at,
    )


def _facts_of_vote(bundle: Bundle, vote: VoteRow) -> PersonFacts:
    return person_facts(bundle, person_key(vote.iss, vote.sub), frozenset(vote.groups), vote.assurance)


def person_facts(bundle: Bundle, person: str, from_token: frozenset[str], assurance: str) -> PersonFacts:
    """A person as policies see them, in their current groups."""
    groups = current_groups(bundle, person, from_token)
    return PersonFacts(person, groups, cast(Literal["oidc", "dev"], assurance))


def _break_glass_rules(
    ctx: Context, bundle: Bundle, person: PersonFacts, facts: ReviewFacts, now: datetime
) -> tuple[bool, bool]:
    """Whether policies name this person for break-glass, and for break-glass alone; the default is no."""
    env = ctx.settings.environment
    may, alone = (
        bool(check_people_rules(bundle.rules, action, person, facts, now=now, env=env))
        for action in (BREAK_GLASS, BREAK_GLASS_ALONE)
    )
    return may, alone


@dataclass(frozen=True)
class Voter:
    """A signed-in person, as their session knows them."""

    iss: str
    sub: str
    name: str
    assurance: str
    groups: frozenset[str] = frozenset()  # from a recent token; groups of the bundle are read separately
    step_up: str | None = None
    groups_problem: str | None = None  # why groups of their provider are missing from the token

    @property
    def key(self) -> str:
        return person_key(self.iss, self.sub)

    def facts(self, bundle: Bundle) -> PersonFacts:
        """The person as policies see them."""
        return person_facts(bundle, self.key, self.groups, self.assurance)


def voter_from_person(person: Person) -> Voter:
    return Voter(
        person.iss,
        person.sub,
        person.name,
        person.assurance,
        person.groups,
        groups_problem=person.groups_problem,
    )


def with_groups_problem(refusal: str, voter: Voter) -> str:
    """The refusal, with the reason why groups are missing from the last sign-in, if there is one."""
    return refusal if voter.groups_problem is None else f"{refusal} ({voter.groups_problem})"


def hypothetical_approval(bundle: Bundle, voter: Voter) -> BallotVote:
    """The approval this person would give, for the domain to evaluate. Cedar is asked separately."""
    return BallotVote(
        "", voter.key, current_groups(bundle, voter.key, voter.groups), "approve", voter.step_up
    )


def approval_step_up(
    conn: Connection, ctx: Context, bundle: Bundle, case: ReviewContext, voter: Voter, now: datetime
) -> StepUpStatus:
    """Whether an approval by this person needs a passkey: if a gate they can serve does.

    ``missing`` means they have none that counts and every gate they can serve needs one.
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
    """Whether a break-glass signature needs a passkey: if any gate does, because signers rarely serve the
    gates.
    """
    if not any(gate.step_up for gate in case.asked):
        return "none"
    return "asked" if _has_passkey(conn, ctx, voter, now) else "missing"


def _has_passkey(conn: Connection, ctx: Context, voter: Voter, now: datetime) -> bool:
    permitted = relying_party_id(ctx.settings.public_url) is not None
    return permitted and bool(active_passkeys(conn, voter.iss, voter.sub, now))


def vote_refusal(
    ctx: Context,
    bundle: Bundle,
    agent: AgentRow,
    review: ReviewRow,
    gates: Sequence[Gate],
    voter: Voter,
    now: datetime,
) -> str | None:
    """Why this person's vote would not count, as a sentence; None if it would."""
    if voter.key == agent.owner:
        return f"you own {agent.name}, so you cannot approve what it asks for"
    if voter.key in requesters_side(agent, review):
        return "you changed its arguments, so you cannot approve it; somebody else must decide"
    mine, merged = hypothetical_approval(bundle, voter), merge(gates, review.escalated)
    if not any(is_eligible_for(gate, mine) for gate in merged):
        asked = {bundle.directory.title_of(group) for gate in merged for group in gate.voters}
        return with_groups_problem(not_in_groups_text(sorted(asked), "decide this"), voter)
    granted = approval_permission(ctx, bundle, agent, review, gates, voter.facts(bundle), now)
    if granted:
        return None
    return "the approval policy does not permit you" if granted.reason is None else granted.reason.text


def approval_permission(
    ctx: Context,
    bundle: Bundle,
    agent: AgentRow,
    review: ReviewRow,
    gates: Iterable[Gate],
    person: PersonFacts,
    now: datetime,
) -> Permission:
    """What Cedar decides about this person approving this effect. Groups and gates are checked separately."""
    facts, env = _review_facts(agent, review, gates), ctx.settings.environment
    return check_approve_rules(bundle.rules, person, facts, now=now, env=env)


@dataclass(frozen=True, slots=True)
class BreakGlassPermission:
    """``why_not`` is the reason why this person may not sign, ``alone`` whether their signature suffices."""

    why_not: str | None
    alone: bool = False


def break_glass_permission(
    ctx: Context, bundle: Bundle, case: ReviewContext, voter: Voter, now: datetime
) -> BreakGlassPermission:
    """Whether this person may sign to open this review by break-glass."""
    if voter.key in requesters_side(case.agent, case.review):
        return BreakGlassPermission(
            f"you own {case.agent.name} or edited its arguments, so you cannot open this"
        )
    facts = _review_facts(case.agent, case.review, case.gates)
    may, alone = _break_glass_rules(ctx, bundle, voter.facts(bundle), facts, now)
    if may or alone:
        return BreakGlassPermission(None, alone)
    return BreakGlassPermission(
        "no policy permits you to use break-glass here; ask somebody a policy names, or an operator"
    )


class KnownPeople:
    """Everybody known to the service, cached by the groups asked for."""

    def __init__(self, bundle: Bundle, signed_in: Iterable[PersonRow]) -> None:
        self.bundle = bundle
        self._by_token = {person_key(row.iss, row.sub): row for row in signed_in}
        self._asked: dict[frozenset[str], list[tuple[str, frozenset[str]]]] = {}

    def of(self, asked: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
        """The members of these groups, each with their current groups."""
        if asked not in self._asked:
            named = frozenset[str]().union(*(self.bundle.directory.members(group) for group in asked))
            known = ((person, self._groups(person)) for person in sorted(named | self._by_token.keys()))
            self._asked[asked] = [(person, groups) for person, groups in known if groups & asked]
        return self._asked[asked]

    def name_of(self, person: str) -> str | None:
        """The display name; None for people known by a key alone, which may be an email address."""
        row = self._by_token.get(person)
        signed_in = None if row is None or row.name == row.sub or "@" in row.name else row.name
        return self.bundle.directory.name_of(person) or signed_in

    def _groups(self, person: str) -> frozenset[str]:
        row = self._by_token.get(person)
        if row is None:
            return current_groups(self.bundle, person)
        return frozenset() if row.revoked_at else current_groups(self.bundle, person, frozenset(row.groups))


def is_permitted(
    ctx: Context, bundle: Bundle, case: ReviewContext, person: str, groups: frozenset[str], now: datetime
) -> bool:
    """Whether Cedar permits this person now, by any sign-in method of this service."""
    ways: list[Literal["dev", "oidc"]] = ["dev"] if ctx.settings.dev_signin else []
    if ctx.settings.providers or not ways:
        ways.append("oidc")
    people = (PersonFacts(person, groups, assurance) for assurance in ways)
    return any(
        approval_permission(ctx, bundle, case.agent, case.review, case.gates, each, now) for each in people
    )
