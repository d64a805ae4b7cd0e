"""The tally against a brute-force assignment of votes to gates, and the laws that every tally obeys."""

from dataclasses import replace
from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policy_service.domain.gates import Gate, MergedGate, merge
from policy_service.domain.quorum import (
    BallotVote,
    counts_toward,
    fillable_gates,
    gates_needing_voters,
    is_eligible_for,
    tally,
)

GROUPS = ("finance", "cfo", "unseen")
PERSONS = ("maya", "tomas", "ana", "jo")

group_sets = st.frozensets(st.sampled_from(GROUPS), min_size=1, max_size=3)
step_ups = st.sampled_from([None, "passkey"])
fired = st.lists(
    st.builds(
        Gate, policy_id=st.sampled_from(["a", "b", "c", "d"]), groups=group_sets, quorum=st.integers(1, 3),
        step_up=st.sampled_from([None, None, "passkey"]), shared=st.booleans(),
    ),
    max_size=4,
)  # fmt: skip


def votes_of(verdict: st.SearchStrategy[str], **more: Any) -> st.SearchStrategy[BallotVote]:
    """Votes of anybody."""
    return st.builds(
        BallotVote, vote_id=st.uuids().map(str), person=st.sampled_from(PERSONS), verdict=verdict, step_up=step_ups,
        groups=st.frozensets(st.sampled_from(GROUPS), max_size=3), **more,
    )  # fmt: skip


verdicts = st.sampled_from(["approve", "approve", "approve", "deny"])
ballots = st.lists(votes_of(verdicts, permitted=st.sampled_from([True, True, True, False])), max_size=6)
one_vote_each = st.lists(votes_of(st.just("approve")), max_size=4, unique_by=lambda vote: vote.person)


def brute_force_met(gates: tuple[MergedGate, ...], votes: list[BallotVote]) -> bool:
    """Try every way to send each person's vote to one unshared gate or to none."""
    if not gates or any(v.verdict == "deny" and any(is_eligible_for(g, v) for g in gates) for v in votes):
        return False
    deniers = {vote.person for vote in votes if vote.verdict == "deny"}
    approvals = [vote for vote in votes if vote.verdict == "approve" and vote.person not in deniers]
    people = sorted({vote.person for vote in approvals})
    choices = [[v for v in approvals if v.person == person] for person in people]
    shared = [gate for gate in gates if gate.shared]
    places = [None, *(gate for gate in gates if not gate.shared)]
    for chosen in product(*choices):
        if not all(sum(counts_toward(gate, vote) for vote in chosen) >= gate.quorum for gate in shared):
            continue
        for assigned in product(places, repeat=len(chosen)):
            counts = {gate.key: 0 for gate in gates if not gate.shared}
            for vote, gate in zip(chosen, assigned, strict=True):
                if gate is not None and counts_toward(gate, vote):
                    counts[gate.key] += 1
            if all(counts[gate.key] >= gate.quorum for gate in gates if not gate.shared):
                return True
    return False


def same_groups_per_person(votes: list[BallotVote]) -> list[BallotVote]:
    """A person has the same groups in all votes, as when votes are counted again."""
    first: dict[str, BallotVote] = {}
    for vote in votes:
        first.setdefault(vote.person, vote)
    same = {person: {"groups": one.groups, "permitted": one.permitted} for person, one in first.items()}
    return [replace(vote, **same[vote.person]) for vote in votes]


@given(fired, ballots)
def test_matching_equals_brute_force(gates: list[Gate], votes: list[BallotVote]) -> None:
    merged, votes = merge(gates), same_groups_per_person(votes)
    assert tally(merged, votes).met is brute_force_met(merged, votes)


def brute_force_places(gates: tuple[MergedGate, ...], votes: list[BallotVote]) -> set[tuple[int, ...]]:
    """Every way to fill the places of the unshared gates, as the number of votes of each gate."""
    unshared = [gate for gate in gates if not gate.shared]
    found = set()
    for assigned in product([None, *unshared], repeat=len(votes)):
        sent = [(vote, gate) for vote, gate in zip(votes, assigned, strict=True) if gate is not None]
        counts = tuple(sum(1 for _, gate in sent if gate is each) for each in unshared)
        fits = all(count <= gate.quorum for count, gate in zip(counts, unshared, strict=True))
        if fits and all(counts_toward(gate, vote) for vote, gate in sent):
            found.add(counts)
    return found


@given(fired, one_vote_each, st.frozensets(st.sampled_from(GROUPS), min_size=1), step_ups)
def test_one_more_person_helps_if_one_more_vote_fills_a_place(
    gates: list[Gate], votes: list[BallotVote], groups: frozenset[str], step_up: str | None
) -> None:
    merged = merge(gates)
    newcomer = BallotVote("new", "newcomer", groups, "approve", step_up)
    joined = [*votes, newcomer]
    before, after = (max(map(sum, brute_force_places(merged, those))) for those in (votes, joined))
    shared = [gate for gate in merged if gate.shared and counts_toward(gate, newcomer)]
    unmet = [gate for gate in shared if sum(counts_toward(gate, vote) for vote in votes) < gate.quorum]
    raised = after > before or bool(unmet)
    short = gates_needing_voters(merged, votes)
    assert raised is any(counts_toward(gate, newcomer) and gate.key in short for gate in merged)


@given(fired, one_vote_each)
def test_place_is_filled_by_an_eligible_vote(gates: list[Gate], votes: list[BallotVote]) -> None:
    merged, found = merge(gates), fillable_gates(merge(gates), votes)
    per_gate = {entry.gate.key: entry for entry in tally(merged, votes).per_gate}
    assert found.keys() == {key for key, entry in per_gate.items() if not entry.met}
    unshared = [gate for gate in merged if not gate.shared]
    for short in merged:
        if short.key not in found or short.shared:
            continue
        wanted = tuple(per_gate[gate.key].have + (gate is short) for gate in unshared)
        helping = set()
        for gate in unshared:
            here = frozenset({"only here"})
            newcomer = BallotVote("new", "newcomer", here, "approve", "passkey")
            widened = tuple(replace(each, added=here) if each is gate else each for each in merged)
            if wanted in brute_force_places(widened, [*votes, newcomer]):
                helping.add(gate.key)
        assert found[short.key] == helping


@given(fired, ballots)
def test_counted_votes_are_approvals_of_different_people(gates: list[Gate], votes: list[BallotVote]) -> None:
    by_id = {vote.vote_id: vote for vote in votes}
    counted = [by_id[vote_id] for vote_id in tally(merge(gates), votes).counted]
    assert all(vote.verdict == "approve" and vote.permitted for vote in counted)
    assert len({vote.person for vote in counted}) == len(counted)
