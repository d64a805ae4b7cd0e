"""Counting votes and break-glass signatures, as tables (design section 4 and I-5)."""

from typing import Any

import pytest

from policy_service.domain.gates import Gate, MergedGate, merge
from policy_service.domain.quorum import (
    BallotVote,
    BreakGlassApproval,
    BreakGlassSignature,
    Tally,
    break_glass_approval,
    fillable_gates,
    gates_needing_voters,
    tally,
)

SPECIAL: dict[str, dict[str, Any]] = {"shared": {"shared": True}, "passkey": {"step_up": "passkey"}}


def gates(text: str) -> tuple[MergedGate, ...]:
    """Gates written as "finance|cfo 2, unseen 1 shared"."""
    made = []
    for index, spec in enumerate(text.split(", ") if text else []):
        groups, quorum, *more = spec.split()
        fields = SPECIAL[more[0]] if more else {}
        made.append(Gate(f"g{index}", frozenset(groups.split("|")), quorum=int(quorum), **fields))
    return merge(made)


def vote(person: str, groups: str, verdict: str = "approve", **fields: Any) -> BallotVote:
    vote_id = fields.pop("vote_id", f"v-{person}")
    return BallotVote(vote_id, person, frozenset(groups.split()), verdict, **fields)  # type: ignore[arg-type]


MAYA, TOMAS, ANA = vote("maya", "finance"), vote("tomas", "finance cfo"), vote("ana", "finance")
JO = vote("jo", "cfo")
WITH_PASSKEY = vote("maya", "finance", step_up="passkey")
BOTH, CHAIN = "finance 1, cfo 1", "a|b 1, b|c 1, c|d 1"
OWN_FIRST, ANY_FIRST = "finance 1, finance|cfo 1", "finance|cfo 1, finance 1"

COUNTED: dict[str, tuple[str, list[BallotVote], bool]] = {
    "no votes": ("finance 1", [], False),
    "one of one": ("finance 1", [MAYA], True),
    "one of two": ("finance 2", [MAYA], False),
    "two of two": ("finance 2", [MAYA, TOMAS], True),
    "more than asked": ("finance 1", [MAYA, TOMAS], True),
    "a vote from outside": ("finance 1", [vote("jo", "support")], False),
    "a person without any group": ("finance 1", [vote("jo", "")], False),
    "any of the groups counts": ("finance|cfo 1", [JO], True),
    "finance and finance|cfo need two people": (OWN_FIRST, [TOMAS], False),
    "two finance people serve finance and finance|cfo": (OWN_FIRST, [MAYA, ANA], True),
    "a vote that counts for both is assigned where it is needed": (ANY_FIRST, [TOMAS, JO], True),
    "the same with the votes in reverse order": (ANY_FIRST, [JO, TOMAS], True),
    "two votes that count for one gate only are one short": (BOTH, [MAYA, ANA], False),
    "a chain of moves finds the places": (CHAIN, [vote("p", "b"), vote("q", "b c"), vote("r", "a")], True),
    "no chain helps if a group has no vote": (CHAIN, [vote("p", "b"), vote("q", "b"), vote("r", "a")], False),
    "a place that only the last vote can fill": (CHAIN, [vote("p", "b"), vote("q", "b c"), vote("r", "c d")], True),
    "a shared gate counts any vote": ("finance 1, unseen 1 shared", [vote("maya", "finance unseen")], True),
    "a shared gate still needs its own group": ("finance 1, unseen 1 shared", [MAYA], False),
    "two shared gates share votes": ("a 2 shared, b 2 shared", [vote("p", "a b"), vote("q", "a b")], True),
    "a shared quorum still counts people": ("a 2 shared", [vote("p", "a")], False),
    "a passkey where one is required": ("finance 1 passkey", [WITH_PASSKEY], True),
    "no passkey where one is required": ("finance 1 passkey", [MAYA], False),
    "Cedar does not permit this person": ("finance 1", [vote("maya", "finance", permitted=False)], False),
    "the same person twice": ("finance 2", [MAYA, vote("maya", "finance", vote_id="again")], False),
    "the same person in two groups": (BOTH, [vote("tomas", "finance"), vote("tomas", "cfo", vote_id="v2")], False),
    "of two votes of one person the one with the passkey": (
        "finance 1 passkey", [MAYA, vote("maya", "finance", vote_id="v2", step_up="passkey")], True),
    "changed into a deny that does not count": ("finance 1", [MAYA, vote("maya", "", "deny", vote_id="later")], False),
    "no gates at all": ("", [MAYA], False),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "votes", "met"), COUNTED.values(), ids=COUNTED)
def test_votes_meet_gates(asked: str, votes: list[BallotVote], met: bool) -> None:
    assert tally(gates(asked), votes).met is met


DENY = vote("ana", "finance", "deny")
DENIALS: dict[str, tuple[str, list[BallotVote], str | None]] = {
    "an eligible person may deny": ("finance 1", [DENY], "v-ana"),
    "a deny after the quorum was reached in this count": ("finance 1", [MAYA, DENY], "v-ana"),
    "without step-up": ("finance 1 passkey", [DENY], "v-ana"),
    "for any one of the gates": ("cfo 1, finance 1", [DENY], "v-ana"),
    "the first deny is the one": ("finance 1", [DENY, vote("maya", "finance", "deny")], "v-ana"),
    "an outsider may not": ("finance 1", [vote("jo", "support", "deny")], None),
    "one Cedar forbids may not": ("finance 1", [vote("ana", "finance", "deny", permitted=False)], None),
}


@pytest.mark.parametrize(("asked", "votes", "denied_by"), DENIALS.values(), ids=DENIALS)
def test_who_may_deny(asked: str, votes: list[BallotVote], denied_by: str | None) -> None:
    counted = tally(gates(asked), votes)
    assert counted.denied_by == denied_by
    assert denied_by is None or not counted.met


def test_an_escalation_group_may_approve_and_deny() -> None:
    (asked,) = merge([Gate("g", frozenset({"finance"}), escalate=frozenset({"cfo"}))])
    assert not tally([asked], [JO]).met
    assert tally([asked.escalated()], [JO]).met
    assert tally([asked.escalated()], [vote("jo", "cfo", "deny")]).denied_by == "v-jo"


def test_the_requesters_side_may_neither_approve_nor_deny() -> None:
    asked = gates("finance 1")
    assert not tally(asked, [MAYA], excluded=frozenset({"maya"})).met
    assert tally(asked, [vote("maya", "finance", "deny")], excluded=frozenset({"maya"})).denied_by is None


def test_the_tally_lists_each_gate_and_the_counted_votes() -> None:
    counted = tally(gates("finance 2, cfo 1, unseen 1 shared"), [MAYA, vote("jo", "support"), TOMAS])
    per_gate = [(each.gate.key, each.have, each.need, each.met) for each in counted.per_gate]
    assert per_gate == [("finance", 2, 2, True), ("cfo", 0, 1, False), ("unseen", 0, 1, False)]
    assert counted.counted == ("v-maya", "v-tomas")


OPENS = [(False, None, True), (True, None, False), (False, "v-maya", False), (True, "v-maya", False)]


@pytest.mark.parametrize(("met", "denied", "opens"), OPENS)
def test_break_glass_needs_no_quorum_and_no_denial(met: bool, denied: str | None, opens: bool) -> None:
    opened = BreakGlassApproval(("s1", "s2"), alone=False)
    found = Tally(met, (), denied, ("v1",) if met else (), opened)
    assert (found.opened is opened) is opens
    assert found.signed == (("s1", "s2") if opens else found.counted)
    assert found.permits_release is (met or opens)


SHORT: dict[str, tuple[str, list[BallotVote], str]] = {
    "enough": ("finance 1", [MAYA], ""),
    "no votes": ("finance 2, cfo 1", [], "finance cfo"),
    "one of two": ("finance 2", [MAYA], "finance"),
    "only the other one": (BOTH, [MAYA], "cfo"),
    "both, if one voter could fill either": ("finance 1, cfo|finance 1", [MAYA], "finance cfo|finance"),
    "the same with the gates in reverse order": ("cfo|finance 1, finance 1", [MAYA], "finance cfo|finance"),
    "not a gate that is met": ("finance 1, legal 2", [MAYA, vote("ana", "legal")], "legal"),
    "a shared one by itself": ("finance 1, unseen 1 shared", [MAYA], "unseen"),
}


@pytest.mark.parametrize(("asked", "votes", "short"), SHORT.values(), ids=SHORT)
def test_gates_needing_voters(asked: str, votes: list[BallotVote], short: str) -> None:
    assert gates_needing_voters(gates(asked), votes) == set(short.split())


FILLED: dict[str, tuple[str, list[BallotVote], dict[str, set[str]]]] = {
    "nothing is short": ("finance 1", [MAYA], {}),
    "a vote that cannot move": (BOTH, [MAYA], {"cfo": {"cfo"}}),
    "a vote of a person in both can move": (BOTH, [TOMAS], {"cfo": {"finance", "cfo"}}),
    "the same with the gates reversed": ("cfo 1, finance 1", [TOMAS], {"finance": {"finance", "cfo"}}),
    "a chain of moves": ("a 1, b 1, c 1", [vote("p", "a b"), vote("q", "b c")], {"c": {"a", "b", "c"}}),
    "a shared gate takes no vote from another gate": ("finance 1, unseen 1 shared", [MAYA], {"unseen": {"unseen"}}),
    "a vote without the other gate's passkey": ("finance 1, cfo 1 passkey", [TOMAS], {"cfo": {"cfo"}}),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "votes", "filled"), FILLED.values(), ids=FILLED)
def test_fillable_gates(asked: str, votes: list[BallotVote], filled: dict[str, set[str]]) -> None:
    assert fillable_gates(gates(asked), votes) == filled


# -- break-glass

LARGE = merge([Gate("large", frozenset({"finance"}), quorum=2)])
KEYED = merge([Gate("large", frozenset({"finance"})), Gate("key", frozenset({"cfo"}), step_up="passkey")])
OWNER = "urn:test|owner"


def signed(vote: str, person: str = "ann", step_up: str | None = None, **kind: bool) -> BreakGlassSignature:
    may, alone = kind.get("may", True), kind.get("alone", False)
    return BreakGlassSignature(vote, f"urn:test|{person}", step_up, may, alone)


ONE, BO, ALONE = signed("v1"), signed("v2", "bo"), signed("v1", may=False, alone=True)
# Also of one person twice, of the owner, and of people that policy does not permit, or no longer.
BARRED = [signed(f"v{n}", who, may=False) for n, who in ((1, "ann"), (2, "bo"))]
NOT_ENOUGH: list[list[BreakGlassSignature]] = [[], [ONE], [ONE, signed("v2")], [ONE, BARRED[1]], BARRED]
NOT_ENOUGH += [[signed("v1", "owner"), signed("v2")], [signed("v1", "owner", alone=True)]]
SIGNED = [
    *((signatures, None) for signatures in NOT_ENOUGH),
    *((signatures, BreakGlassApproval(("v1", "v2"), alone=False)) for signatures in ([ONE, BO], [ALONE, BO])),
    ([ALONE], BreakGlassApproval(("v1",), alone=True)),
    ([ONE, BO, signed("v3", "cy")], BreakGlassApproval(("v1", "v2", "v3"), alone=False)),
]


@pytest.mark.parametrize(("signatures", "opened"), SIGNED)
def test_break_glass_approval(signatures: list[BreakGlassSignature], opened: Any) -> None:
    assert break_glass_approval(LARGE, signatures, excluded=frozenset({OWNER})) == opened
    assert break_glass_approval((), signatures) is None, "without gates there is nothing to approve"


KEY = "passkey"
KEYS = [(KEY, KEY, True), (KEY, None, False), (None, None, False), (KEY, "sms", False)]


@pytest.mark.parametrize(("one", "other", "opens"), KEYS)
def test_signatures_need_the_step_up_of_each_gate(one: str | None, other: str | None, opens: bool) -> None:
    approval = break_glass_approval(KEYED, [signed("v1", "ann", one), signed("v2", "bo", other)])
    assert bool(approval) is opens
