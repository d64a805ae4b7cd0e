"""Whether the votes on a revision meet its gates: a pure function of (merged gates, votes).

Rules kept here (design section 4, I-5): a vote serves a gate when its person is in one of the gate's groups,
Cedar permits it, and its step-up suffices. Unshared gates get their quorums from a matching in which no vote
serves two; a shared gate stands outside it and counts every vote that serves it. A person counts once,
however often they voted; the requester's side never counts. Whoever could serve one of the gates may deny,
without step-up, and that is final. No gates at all is not met: an empty rule is a no.

When people may open what a gate holds without the people it asks: a pure function of (gates, signatures).

Rules kept here: two different people who may, or one who may do so alone; each with the step-up that every gate asks;
nobody of the requester's side. It stands in for the gates' quorums and for nothing else: a deny of policy's or of a
person's wins, and whoever counts it asks for that first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Literal, TypeAlias

from policy_service.domain.gates import MergedGate, is_stronger_step_up, satisfies_step_up

BREAK_GLASS_VALID_FOR: Final = timedelta(minutes=15)
"""How long a release may be used at most that came to be so: an emergency is over by then, or is none."""


@dataclass(frozen=True, slots=True)
class BreakGlassSignature:
    """One person's, with what policy says of them now."""

    vote_id: str
    person: str
    step_up: str | None
    may: bool  # as one of two
    alone: bool


@dataclass(frozen=True, slots=True)
class BreakGlassApproval:
    """The signatures an effect is opened by. Alone, it owes a review afterwards."""

    vote_ids: tuple[str, ...]
    alone: bool


def break_glass_approval(
    gates: Sequence[MergedGate],
    signatures: Sequence[BreakGlassSignature],
    *,
    excluded: frozenset[str] = frozenset(),
) -> BreakGlassApproval | None:
    """What these signatures, in the order they were given, come to; None while they are not enough."""
    by_person: dict[str, BreakGlassSignature] = {}
    for signature in signatures:
        proved = all(satisfies_step_up(signature.step_up, gate.step_up) for gate in gates)
        if gates and proved and signature.person not in excluded and (signature.may or signature.alone):
            by_person.setdefault(signature.person, signature)
    signed = tuple(by_person.values())
    if len(signed) > 1:
        return BreakGlassApproval(tuple(signature.vote_id for signature in signed), alone=False)
    return next((BreakGlassApproval((one.vote_id,), alone=True) for one in signed if one.alone), None)


VoteVerdict: TypeAlias = Literal["approve", "deny", "break_glass"]
"""A signature of break-glass serves no gate; `break_glass_opening` weighs it."""


@dataclass(frozen=True, slots=True)
class BallotVote:
    """One vote on this revision, with what its person is now. `permitted`: Cedar's answer for
    `Action::"approve"`.
    """

    vote_id: str
    person: str
    groups: frozenset[str]
    verdict: VoteVerdict
    step_up: str | None = None
    permitted: bool = True


@dataclass(frozen=True, slots=True)
class GateTally:
    """How far one gate is."""

    gate: MergedGate
    have: int
    need: int

    @property
    def met(self) -> bool:
        """Whether it has the people it asks for."""
        return self.have >= self.need


@dataclass(frozen=True, slots=True)
class Tally:
    """What the votes come to. `counted` are the approving votes in the matching or on a shared gate; `opening` are the
    signatures that stand in for the quorums, in an emergency.
    """

    met: bool
    per_gate: tuple[GateTally, ...]
    denied_by: str | None
    counted: tuple[str, ...]
    opening: BreakGlassApproval | None = None

    @property
    def opened(self) -> BreakGlassApproval | None:
        """What lets it go where its quorums do not: without them, and nobody denying."""
        return None if self.met or self.denied_by is not None else self.opening

    @property
    def permits_release(self) -> bool:
        """Whether people let it go: by every quorum, or in an emergency without them."""
        return self.met or self.opened is not None

    @property
    def signed(self) -> tuple[str, ...]:
        """The votes it goes by, or would."""
        return self.counted if self.opened is None else self.opened.vote_ids

    def counts(self, vote_id: str) -> bool:
        """Whether a vote matters now: an approval that is used, or the deny that ended it."""
        return vote_id in self.counted or vote_id in self.signed or vote_id == self.denied_by


def is_eligible_for(gate: MergedGate, vote: BallotVote) -> bool:
    """Whether this person is one the gate asks, step-up aside: enough to deny."""
    return vote.permitted and not gate.voters.isdisjoint(vote.groups)


def counts_toward(gate: MergedGate, vote: BallotVote) -> bool:
    """Whether this person's approval counts for the gate."""
    return is_eligible_for(gate, vote) and satisfies_step_up(vote.step_up, gate.step_up)


def tally(
    gates: Sequence[MergedGate], votes: Sequence[BallotVote], *, excluded: frozenset[str] = frozenset()
) -> Tally:
    """Count the votes, given in the order they were cast; `excluded` are the persons of the requester's side."""
    eligible = [vote for vote in votes if vote.person not in excluded]
    denied_by = _first_denial(gates, eligible)
    approving = _one_each(_still_approving(eligible))
    served = _match([gate for gate in gates if not gate.shared], approving)
    served |= {gate.key: _serving(gate, approving) for gate in gates if gate.shared}
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
    """For each gate short of its quorum, the keys of the gates of which one more person would fill a place of it.

    A person of another gate helps where a vote that gate holds can move: with `finance` and `cfo`, a vote of somebody
    in both may leave `cfo` short, and another person of `finance` fills it as well.
    """
    approving = _one_each(_still_approving([vote for vote in votes if vote.person not in excluded]))
    unshared = [gate for gate in gates if not gate.shared]
    held = _match(unshared, approving)
    placed = sum(map(len, held.values()))
    found = {
        gate.key: frozenset({gate.key})
        for gate in gates
        if gate.shared and len(_serving(gate, approving)) < gate.quorum
    }
    for short in (gate for gate in unshared if len(held[gate.key]) < gate.quorum):
        # Every other gate keeps the places it has filled and gets no further one.
        kept = [
            replace(gate, quorum=len(held[gate.key]))
            for gate in unshared
            if gate is not short and held[gate.key]
        ]
        places = [*kept, short]
        helping = (gate for gate in places if _placed(_with_one_less(places, gate), approving) == placed)
        found[short.key] = frozenset(gate.key for gate in helping)
    return found


def gates_needing_voters(
    gates: Sequence[MergedGate], votes: Sequence[BallotVote], *, excluded: frozenset[str] = frozenset()
) -> frozenset[str]:
    """The keys of the gates to which one more person of theirs alone would help; none when the votes are enough.

    Not those that some matching happens to leave short: where a person could take either of two places, both are.
    """
    return frozenset[str]().union(*fillable_gates(gates, votes, excluded=excluded).values())


def _placed(gates: Sequence[MergedGate], votes: Sequence[BallotVote]) -> int:
    return sum(map(len, _match(gates, votes).values()))


def _with_one_less(gates: Iterable[MergedGate], of: MergedGate) -> list[MergedGate]:
    """One more person of a gate's own takes one of its places."""
    others = [gate for gate in gates if gate is not of]
    return others if of.quorum == 1 else [*others, replace(of, quorum=of.quorum - 1)]


def _first_denial(gates: Sequence[MergedGate], votes: Iterable[BallotVote]) -> str | None:
    denials = (vote for vote in votes if vote.verdict == "deny")
    return next(
        (vote.vote_id for vote in denials if any(is_eligible_for(gate, vote) for gate in gates)), None
    )


def _still_approving(votes: Sequence[BallotVote]) -> list[BallotVote]:
    """Approvals of people who did not turn them into a deny, whether or not that deny could count."""
    turned = {vote.person for vote in votes if vote.verdict == "deny"}
    return [vote for vote in votes if vote.verdict == "approve" and vote.person not in turned]


def _one_each(votes: Sequence[BallotVote]) -> list[BallotVote]:
    """One vote a person: the one with the strongest step-up, the earliest of equals."""
    best: dict[str, BallotVote] = {}
    for vote in votes:
        held = best.get(vote.person)
        if held is None or _stronger(vote, held):
            best[vote.person] = vote
    return list(best.values())


def _stronger(vote: BallotVote, held: BallotVote) -> bool:
    return is_stronger_step_up(vote.step_up, held.step_up)


def _serving(gate: MergedGate, votes: Iterable[BallotVote]) -> set[str]:
    return {vote.vote_id for vote in votes if counts_toward(gate, vote)}


def _match(gates: Sequence[MergedGate], votes: Sequence[BallotVote]) -> dict[str, set[str]]:
    """A maximum matching of votes to the places of the gates, by augmenting paths (Kuhn): at most one place a
    vote.

    Greedy counting is wrong here: with `finance` and `finance|cfo`, a finance vote spent on the wide gate
    would leave the narrow one short although another person could have taken the wide one.
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
