"""Counting votes, as tables; the sentences are design section 4 and I-5."""

from typing import Any

import pytest

from policy_service.domain.break_glass import Opening
from policy_service.domain.gates import Gate, MergedGate, merge
from policy_service.domain.quorum import BallotVote, Tally, fillers, short_gates, tally


def gates(*specs: tuple[str, int] | tuple[str, int, dict[str, Any]]) -> tuple[MergedGate, ...]:
    """Gates written as ("finance|cfo", quorum)."""
    return merge(
        Gate(
            f"g{index}", frozenset(spec[0].split("|")), quorum=spec[1], **(spec[2] if len(spec) == 3 else {})
        )
        for index, spec in enumerate(specs)
    )


def vote(person: str, groups: str, verdict: str = "approve", **fields: Any) -> BallotVote:
    vote_id = fields.pop("vote_id", f"v-{person}")
    return BallotVote(vote_id, person, frozenset(groups.split()), verdict, **fields)  # type: ignore[arg-type]


MAYA, TOMAS, ANA = vote("maya", "finance"), vote("tomas", "finance cfo"), vote("ana", "finance")
SHARED = {"shared": True}
PASSKEY = {"step_up": "passkey"}

COUNTED: dict[str, tuple[tuple[MergedGate, ...], list[BallotVote], bool]] = {
    "no votes": (gates(("finance", 1)), [], False),
    "one of one": (gates(("finance", 1)), [MAYA], True),
    "one of two": (gates(("finance", 2)), [MAYA], False),
    "two of two": (gates(("finance", 2)), [MAYA, TOMAS], True),
    "more than asked": (gates(("finance", 1)), [MAYA, TOMAS], True),
    "a vote from outside": (gates(("finance", 1)), [vote("jo", "support")], False),
    "a person without any group": (gates(("finance", 1)), [vote("jo", "")], False),
    "any of the groups serves": (gates(("finance|cfo", 1)), [vote("jo", "cfo")], True),
    "finance and finance|cfo need two people": (gates(("finance", 1), ("finance|cfo", 1)), [TOMAS], False),
    "two finance people serve finance and finance|cfo": (
        gates(("finance", 1), ("finance|cfo", 1)), [MAYA, ANA], True),
    "who can serve both is placed where they are needed": (
        gates(("finance|cfo", 1), ("finance", 1)), [TOMAS, vote("jo", "cfo")], True),
    "the same with the votes the other way round": (
        gates(("finance|cfo", 1), ("finance", 1)), [vote("jo", "cfo"), TOMAS], True),
    "two who can only serve the same place are one short": (
        gates(("finance", 1), ("cfo", 1)), [MAYA, ANA], False),
    "a chain of moves finds the places": (
        gates(("a|b", 1), ("b|c", 1), ("c|d", 1)), [vote("p", "b"), vote("q", "b c"), vote("r", "a")], True),
    "no chain of moves helps where a group is missing": (
        gates(("a|b", 1), ("b|c", 1), ("c|d", 1)), [vote("p", "b"), vote("q", "b"), vote("r", "a")], False),
    "a place that only the last vote can take": (
        gates(("a|b", 1), ("b|c", 1), ("c|d", 1)), [vote("p", "b"), vote("q", "b c"), vote("r", "c d")], True),
    "a shared gate counts a vote that serves another too": (
        gates(("finance", 1), ("unseen", 1, SHARED)), [vote("maya", "finance unseen")], True),
    "a shared gate still needs its own group": (gates(("finance", 1), ("unseen", 1, SHARED)), [MAYA], False),
    "two shared gates may share everybody": (
        gates(("a", 2, SHARED), ("b", 2, SHARED)), [vote("p", "a b"), vote("q", "a b")], True),
    "a shared quorum still counts people": (gates(("a", 2, SHARED)), [vote("p", "a")], False),
    "a passkey where one is asked": (
        gates(("finance", 1, PASSKEY)), [vote("maya", "finance", step_up="passkey")], True),
    "no passkey where one is asked": (gates(("finance", 1, PASSKEY)), [MAYA], False),
    "Cedar does not permit this person": (
        gates(("finance", 1)), [vote("maya", "finance", permitted=False)], False),
    "the same person twice": (gates(("finance", 2)), [MAYA, vote("maya", "finance", vote_id="again")], False),
    "the same person from two accounts' groups": (
        gates(("finance", 1), ("cfo", 1)), [vote("tomas", "finance"), vote("tomas", "cfo", vote_id="again")], False),
    "of two votes of one person the one with the passkey": (
        gates(("finance", 1, PASSKEY)), [MAYA, vote("maya", "finance", vote_id="v2", step_up="passkey")], True),
    "no gates at all": ((), [MAYA], False),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "votes", "met"), COUNTED.values(), ids=COUNTED)
def test_votes_meet_gates(asked: tuple[MergedGate, ...], votes: list[BallotVote], met: bool) -> None:
    assert tally(asked, votes).met is met


DENIALS: dict[str, tuple[tuple[MergedGate, ...], list[BallotVote], str | None]] = {
    "whoever could serve may deny": (gates(("finance", 1)), [vote("ana", "finance", "deny")], "v-ana"),
    "a deny after the quorum was reached in this count": (
        gates(("finance", 1)), [MAYA, vote("ana", "finance", "deny")], "v-ana"),
    "without step-up": (gates(("finance", 1, PASSKEY)), [vote("ana", "finance", "deny")], "v-ana"),
    "for any one of the gates": (gates(("cfo", 1), ("finance", 1)), [vote("ana", "finance", "deny")], "v-ana"),
    "the first deny is the one": (
        gates(("finance", 1)), [vote("ana", "finance", "deny"), vote("maya", "finance", "deny")], "v-ana"),
    "an outsider may not": (gates(("finance", 1)), [vote("jo", "support", "deny")], None),
    "whom Cedar does not permit may not": (
        gates(("finance", 1)), [vote("ana", "finance", "deny", permitted=False)], None),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "votes", "denied_by"), DENIALS.values(), ids=DENIALS)
def test_who_may_deny(asked: tuple[MergedGate, ...], votes: list[BallotVote], denied_by: str | None) -> None:
    counted = tally(asked, votes)
    assert counted.denied_by == denied_by
    assert denied_by is None or not counted.met


def test_after_escalation_the_added_group_serves_and_may_deny() -> None:
    (asked,) = merge([Gate("g", frozenset({"finance"}), escalate=frozenset({"cfo"}))])
    jo = vote("jo", "cfo")
    assert not tally([asked], [jo]).met
    assert tally([asked.escalated()], [jo]).met
    assert tally([asked.escalated()], [vote("jo", "cfo", "deny")]).denied_by == "v-jo"


def test_the_requesters_side_neither_counts_nor_denies() -> None:
    asked = gates(("finance", 1))
    assert not tally(asked, [MAYA], excluded=frozenset({"maya"})).met
    assert tally(asked, [vote("maya", "finance", "deny")], excluded=frozenset({"maya"})).denied_by is None


def test_an_approval_turned_into_a_deny_no_longer_counts_even_when_the_deny_cannot() -> None:
    turned = [MAYA, vote("maya", "", "deny", vote_id="later")]
    assert not tally(gates(("finance", 1)), turned).met


def test_the_tally_says_how_far_each_gate_is_and_which_votes_counted() -> None:
    counted = tally(
        gates(("finance", 2), ("cfo", 1), ("unseen", 1, SHARED)), [MAYA, vote("jo", "support"), TOMAS]
    )
    assert [(each.gate.key, each.have, each.need, each.met) for each in counted.per_gate] == [
        ("finance", 2, 2, True), ("cfo", 0, 1, False), ("unseen", 0, 1, False),
    ]  # fmt: skip
    assert counted.counted == ("v-maya", "v-tomas")


@pytest.mark.parametrize(
    ("met", "denied", "opens"),
    [(False, None, True), (True, None, False), (False, "v-maya", False), (True, "v-maya", False)],
)
def test_an_opening_stands_in_where_the_quorums_do_not_and_nobody_denied(
    met: bool, denied: str | None, opens: bool
) -> None:
    opening = Opening(("s1", "s2"), alone=False)
    found = Tally(met, (), denied, ("v1",) if met else (), opening)
    assert (found.opened is opening) is opens
    assert found.signed == (("s1", "s2") if opens else found.counted)
    assert found.lets_go is (met or opens)


SHORT: dict[str, tuple[tuple[MergedGate, ...], list[BallotVote], set[str]]] = {
    "enough": (gates(("finance", 1)), [MAYA], set()),
    "nobody": (gates(("finance", 2), ("cfo", 1)), [], {"finance", "cfo"}),
    "one of two": (gates(("finance", 2)), [MAYA], {"finance"}),
    "only the other one": (gates(("finance", 1), ("cfo", 1)), [MAYA], {"cfo"}),
    "either, where one person could take both": (
        gates(("finance", 1), ("cfo|finance", 1)), [MAYA], {"finance", "cfo|finance"}),
    "the same with the gates the other way round": (
        gates(("cfo|finance", 1), ("finance", 1)), [MAYA], {"finance", "cfo|finance"}),
    "not one that nobody of its own would help": (
        gates(("finance", 1), ("legal", 2)), [MAYA, vote("ana", "legal")], {"legal"}),
    "a shared one by itself": (gates(("finance", 1), ("unseen", 1, SHARED)), [MAYA], {"unseen"}),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "votes", "short"), SHORT.values(), ids=SHORT)
def test_which_gates_one_more_person_would_help(
    asked: tuple[MergedGate, ...], votes: list[BallotVote], short: set[str]
) -> None:
    assert short_gates(asked, votes) == short


FILLED: dict[str, tuple[tuple[MergedGate, ...], list[BallotVote], dict[str, set[str]]]] = {
    "nothing is short": (gates(("finance", 1)), [MAYA], {}),
    "a vote that cannot move": (gates(("finance", 1), ("cfo", 1)), [MAYA], {"cfo": {"cfo"}}),
    "a vote of a person in both can move": (
        gates(("finance", 1), ("cfo", 1)), [TOMAS], {"cfo": {"finance", "cfo"}}),
    "the same with the gates the other way round": (
        gates(("cfo", 1), ("finance", 1)), [TOMAS], {"finance": {"finance", "cfo"}}),
    "a chain of moves": (
        gates(("a", 1), ("b", 1), ("c", 1)), [vote("p", "a b"), vote("q", "b c")], {"c": {"a", "b", "c"}}),
    "a shared gate takes nobody's place": (
        gates(("finance", 1), ("unseen", 1, SHARED)), [MAYA], {"unseen": {"unseen"}}),
    "a vote without the passkey that the other gate asks for": (
        gates(("finance", 1), ("cfo", 1, PASSKEY)), [TOMAS], {"cfo": {"cfo"}}),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "votes", "filled"), FILLED.values(), ids=FILLED)
def test_a_place_can_be_filled_by_the_people_of_another_gate_whose_vote_moves(
    asked: tuple[MergedGate, ...], votes: list[BallotVote], filled: dict[str, set[str]]
) -> None:
    assert fillers(asked, votes) == filled
