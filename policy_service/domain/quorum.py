"""Who belongs to each group, and whether their votes meet the gates or their signatures approve break-glass. Pure.

Votes (design section 4, I-5): a vote counts toward a gate if its person is in one of the gate's groups, Cedar permits
it, and its step-up suffices. A matching assigns each vote to at most one unshared gate; a shared gate counts every
eligible vote. A person counts once, and the requester's side never counts. Anyone eligible for one of the gates may
deny, without step-up, and a denial is final. With no gates the result is not met: an empty rule must not approve.

Break-glass: two permitted people, or one who is permitted to act alone, each with the step-up that every gate requires
and none of the requester's side. It replaces only the quorums. A denial by policy or by a person still wins.

Members that groups have from the external directory count while they are fresh, which is checked at each look-up;
afterwards those groups are empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Literal, TypeAlias

from policy_service.domain.gates import MergedGate, is_stronger_step_up, satisfies_step_up

BREAK_GLASS_VALID_FOR: Final = timedelta(minutes=15)
"""The longest validity of a break-glass release: emergency access must not outlast the emergency."""

VoteVerdict: TypeAlias = Literal["approve", "deny", "break_glass"]
"""A break-glass signature counts toward no gate; `break_glass_approval` evaluates it."""


@dataclass(frozen=True, slots=True)
class BreakGlassSignature:
    """A person's break-glass signature, with what policy permits them now."""

    vote_id: str
    person: str
    step_up: str | None
    may: bool  # as one of two
    alone: bool


@dataclass(frozen=True, slots=True)
class BreakGlassApproval:
    """The signatures that approve a break-glass release. One given alone requires a review afterwards."""

    vote_ids: tuple[str, ...]
    alone: bool


@dataclass(frozen=True, slots=True)
class BallotVote:
    """One vote, with its person's current groups. `permitted`: what Cedar says about `Action::"approve"`."""

    vote_id: str
    person: str
    groups: frozenset[str]
    verdict: VoteVerdict
    step_up: str | None = None
    permitted: bool = True


@dataclass(frozen=True, slots=True)
class GateTally:
    """How many votes one gate has and needs."""

    gate: MergedGate
    have: int
    need: int

    @property
    def met(self) -> bool:
        """Whether the quorum is reached."""
        return self.have >= self.need


@dataclass(frozen=True, slots=True)
class Tally:
    """The result of a count. `counted` are the approvals in the matching or on a shared gate; `opening` is the
    break-glass approval, if the signatures suffice.
    """

    met: bool
    per_gate: tuple[GateTally, ...]
    denied_by: str | None
    counted: tuple[str, ...]
    opening: BreakGlassApproval | None = None

    @property
    def opened(self) -> BreakGlassApproval | None:
        """The break-glass approval, if the release depends on it: the quorums are not met, and there is no denial."""
        return None if self.met or self.denied_by is not None else self.opening

    @property
    def permits_release(self) -> bool:
        """Whether the quorums or a break-glass approval permit a release."""
        return self.met or self.opened is not None

    @property
    def valid_for_limit(self) -> timedelta | None:
        """The longest validity this approval permits, or None for no limit of its own."""
        return None if self.opened is None else BREAK_GLASS_VALID_FOR

    @property
    def signed(self) -> tuple[str, ...]:
        """The votes that a release is or would be based on."""
        return self.counted if self.opened is None else self.opened.vote_ids

    def counts(self, vote_id: str) -> bool:
        """Whether a vote matters now: a used approval or signature, or the denial that ended the review."""
        return vote_id in self.counted or vote_id in self.signed or vote_id == self.denied_by


def break_glass_approval(
    gates: Sequence[MergedGate],
    signatures: Sequence[BreakGlassSignature],
    *,
    excluded: frozenset[str] = frozenset(),
) -> BreakGlassApproval | None:
    """The approval that these signatures give, in signing order, or None while they do not suffice."""
    by_person: dict[str, BreakGlassSignature] = {}
    for signature in signatures:
        proved = all(satisfies_step_up(signature.step_up, gate.step_up) for gate in gates)
        if gates and proved and signature.person not in excluded and (signature.may or signature.alone):
            by_person.setdefault(signature.person, signature)
    signed = tuple(by_person.values())
    if len(signed) > 1:
        return BreakGlassApproval(tuple(signature.vote_id for signature in signed), alone=False)
    return next((BreakGlassApproval((one.vote_id,), alone=True) for one in signed if one.alone), None)


def is_eligible_for(gate: MergedGate, vote: BallotVote) -> bool:
    """Whether this person may vote on the gate, apart from step-up. That is enough to deny."""
    return vote.permitted and not gate.voters.isdisjoint(vote.groups)


def counts_toward(gate: MergedGate, vote: BallotVote) -> bool:
    """Whether this person's approval counts toward the gate."""
    return is_eligible_for(gate, vote) and satisfies_step_up(vote.step_up, gate.step_up)


def tally(
    gates: Sequence[MergedGate], votes: Sequence[BallotVote], *, excluded: frozenset[str] = frozenset()
) -> Tally:
    """Count the votes, in the order they were cast. `excluded` are the people on the requester's side."""
    eligible = [vote for vote in votes if vote.person not in excluded]
    denied_by = _first_denial(gates, eligible)
    approving = _one_each(_still_approving(eligible))
    served = _match([gate for gate in gates if not gate.shared], approving)
    served |= {gate.key: _counting_vote_ids(gate, approving) for gate in gates if gate.shared}
    per_gate = tuple(GateTally(gate, len(served[gate.key]), gate.quorum) for gate in gates)
    used = {vote_id for vote_ids in served.values() for vote_id in vote_ids}
    return Tally(
        met=denied_by is None and bool(per_gate) and all(each.met for each in per_gate),
        per_gate=per_gate,
        denied_by=denied_by,
        counted=tuple(vote.vote_id for vote in approving if vote.vote_id in used),
    )


def fillable_gates(
    gates: Sequence[MergedGate], votes: Sequence[BallotVote], *, excluded: frozenset[str] = frozenset()
) -> dict[str, frozenset[str]]:
    """For each gate short of its quorum: the keys of the gates whose voters could fill one of its places.

    A voter of another gate helps if a vote assigned to that gate can move. With `finance` and `cfo`, the vote of a
    person in both groups may be assigned to `finance`; another `finance` voter then frees it for `cfo`.
    """
    approving = _one_each(_still_approving([vote for vote in votes if vote.person not in excluded]))
    unshared = [gate for gate in gates if not gate.shared]
    held = _match(unshared, approving)
    place_count = sum(map(len, held.values()))
    found = {
        gate.key: frozenset({gate.key})
        for gate in gates
        if gate.shared and len(_counting_vote_ids(gate, approving)) < gate.quorum
    }
    for short in (gate for gate in unshared if len(held[gate.key]) < gate.quorum):
        # Every other gate keeps its filled places and gets no additional one.
        kept = [
            replace(gate, quorum=len(held[gate.key]))
            for gate in unshared
            if gate is not short and held[gate.key]
        ]
        places = [*kept, short]
        helping = (
            gate for gate in places if _count_placed(_without_place(places, gate), approving) == place_count
        )
        found[short.key] = frozenset(gate.key for gate in helping)
    return found


def gates_needing_voters(
    gates: Sequence[MergedGate], votes: Sequence[BallotVote], *, excluded: frozenset[str] = frozenset()
) -> frozenset[str]:
    """The keys of the gates that another voter would help; empty if the votes suffice.

    This does not depend on the matching found: if one voter could fill a place of either of two gates, both are listed.
    """
    return frozenset[str]().union(*fillable_gates(gates, votes, excluded=excluded).values())


def _count_placed(gates: Sequence[MergedGate], votes: Sequence[BallotVote]) -> int:
    return sum(map(len, _match(gates, votes).values()))


def _without_place(gates: Iterable[MergedGate], of: MergedGate) -> list[MergedGate]:
    """The gates with one place of ``of`` removed, as another voter of its own would fill it."""
    others = [gate for gate in gates if gate is not of]
    return others if of.quorum == 1 else [*others, replace(of, quorum=of.quorum - 1)]


def _first_denial(gates: Sequence[MergedGate], votes: Iterable[BallotVote]) -> str | None:
    denials = (vote for vote in votes if vote.verdict == "deny")
    return next(
        (vote.vote_id for vote in denials if any(is_eligible_for(gate, vote) for gate in gates)), None
    )


def _still_approving(votes: Sequence[BallotVote]) -> list[BallotVote]:
    """Approvals of people who have not denied since, even if that denial does not count."""
    turned = {vote.person for vote in votes if vote.verdict == "deny"}
    return [vote for vote in votes if vote.verdict == "approve" and vote.person not in turned]


def _one_each(votes: Sequence[BallotVote]) -> list[BallotVote]:
    """One vote for each person: the one with the strongest step-up, and the earliest of equals."""
    best: dict[str, BallotVote] = {}
    for vote in votes:
        held = best.get(vote.person)
        if held is None or is_stronger_step_up(vote.step_up, held.step_up):
            best[vote.person] = vote
    return list(best.values())


def _counting_vote_ids(gate: MergedGate, votes: Iterable[BallotVote]) -> set[str]:
    return {vote.vote_id for vote in votes if counts_toward(gate, vote)}


def _match(gates: Sequence[MergedGate], votes: Sequence[BallotVote]) -> dict[str, set[str]]:
    """A maximum matching of votes to places of the gates, by augmenting paths (Kuhn). A vote fills at most one place.

    Greedy counting would be wrong: with `finance` and `finance|cfo`, a finance vote assigned to the wide gate would
    leave the narrow one short, although another voter could have filled the wide one.
    """
    takers = {vote.vote_id: [gate for gate in gates if counts_toward(gate, vote)] for vote in votes}
    holders: dict[str, set[str]] = {gate.key: set() for gate in gates}

    def place(vote_id: str, tried: set[str]) -> bool:
        for gate in takers[vote_id]:
            if gate.key in tried:
                continue
            tried.add(gate.key)
            held = holders[gate.key]
            if len(held) < gate.quorum:
                held.add(vote_id)
                return True
            for other in sorted(held):
                if place(other, tried):
                    held.remove(other)
                    held.add(vote_id)
                    return True
        return False

    for vote in votes:
        place(vote.vote_id, set())
    return holders


class GroupDirectory:
    """The bundle's groups and people. Immutable, except that members from the directory expire."""

    def __init__(
        self,
        members: Mapping[str, frozenset[str]],
        titles: Mapping[str, str],
        people: Mapping[str, str],
        elsewhere: Mapping[str, str] | None = None,
    ) -> None:
        """``elsewhere``: groups of the external directory, with its own names for them."""
        self._members = dict(members)
        self._titles = dict(titles)
        self._people = dict(people)
        self._groups_of = _by_person(self._members)
        self.elsewhere: Mapping[str, str] = dict(elsewhere or {})
        self._read: dict[str, frozenset[str]] = {}
        self._read_of: dict[str, frozenset[str]] = {}
        self._fresh: Callable[[], bool] = _never

    def with_directory(self, said: Mapping[str, frozenset[str]], fresh: Callable[[], bool]) -> GroupDirectory:
        """A copy with the members read from the directory, by its names; ``fresh`` is called at every look-up."""
        new = GroupDirectory(self._members, self._titles, self._people, self.elsewhere)
        new._read = {group: said.get(name, frozenset()) for group, name in self.elsewhere.items()}
        new._read_of = _by_person(new._read)
        new._fresh = fresh
        return new

    @property
    def groups(self) -> frozenset[str]:
        """Every known group."""
        return frozenset(self._members) | frozenset(self.elsewhere)

    @property
    def people(self) -> Mapping[str, str]:
        """Display names by person, for those in the file."""
        return dict(self._people)

    def members(self, group: str) -> frozenset[str]:
        """The members of a group; an unknown group has none."""
        if group in self.elsewhere:
            return self._read.get(group, frozenset()) if self._fresh() else frozenset()
        return self._members.get(group, frozenset())

    def groups_of(self, person: str) -> frozenset[str]:
        """The groups a person is in."""
        there = self._read_of.get(person)
        here = self._groups_of.get(person, frozenset())
        return here | there if there is not None and self._fresh() else here

    def name_of(self, person: str) -> str | None:
        """The display name of a person, if the file has one."""
        return self._people.get(person)

    def title_of(self, group: str) -> str:
        """A group's title, or its name."""
        return self._titles.get(group) or self.elsewhere.get(group) or group


def _never() -> bool:  # a function, because the loader process pickles the directory
    return False


def _by_person(members: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for group, persons in members.items():
        for person in persons:
            found.setdefault(person, set()).add(group)
    return {person: frozenset(groups) for person, groups in found.items()}
