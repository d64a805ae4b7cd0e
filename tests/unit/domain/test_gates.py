"""Merging gates, as tables (design section 4, "Gates together")."""

from datetime import timedelta
from typing import Any

import pytest

from policy_service.domain.gates import Gate, merge, satisfies_step_up

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
CFO = frozenset({"cfo"})


def gate(policy_id: str, *groups: str, **fields: Any) -> Gate:
    return Gate(policy_id, frozenset(groups or ("finance",)), **fields)


MERGED_FIELDS: dict[str, tuple[list[Gate], str, object]] = {
    "the higher quorum counts": ([gate("a", quorum=1), gate("b", quorum=3), gate("c", quorum=2)], "quorum", 3),
    "one gate with a passkey makes all require it": ([gate("a"), gate("b", step_up="passkey")], "step_up", "passkey"),
    "no step-up where no gate requires one": ([gate("a"), gate("b")], "step_up", None),
    "shared only if all are shared": ([gate("a", shared=True), gate("b")], "shared", False),
    "shared when all are shared": ([gate("a", shared=True), gate("b", shared=True)], "shared", True),
    "the shortest time to answer": ([gate("a"), gate("b", answer_within=MINUTE)], "answer_within", MINUTE),
    "a day to answer by default": ([gate("a"), gate("b", answer_within=30 * HOUR)], "answer_within", 24 * HOUR),
    "the shortest validity": ([gate("a", valid_for=MINUTE), gate("b")], "valid_for", MINUTE),
    "the default validity is an hour": ([gate("a", valid_for=2 * HOUR), gate("b")], "valid_for", HOUR),
    "a reason if any requires one": ([gate("a", reason=True), gate("b")], "reason", True),
    "no reason if none requires one": ([gate("a"), gate("b")], "reason", False),
    "the shortest reminder": ([gate("a", remind=HOUR), gate("b", remind=MINUTE), gate("c")], "remind", MINUTE),
    "escalation to groups all name": ([gate("a", escalate=CFO | {"ceo"}), gate("b", escalate=CFO)], "escalate", CFO),
    "no escalation if one gate has none": ([gate("a", escalate=CFO), gate("b")], "escalate", frozenset()),
    "channels": ([gate(one, channel=f"#{to}") for one, to in zip("abc", "xyx", strict=True)], "channels", ("#x", "#y")),
    "the ids of all gates are kept": ([gate("a"), gate("b")], "gates", ("a", "b")),
    "a gate that fired twice unchanged counts once": ([gate("a"), gate("a")], "gates", ("a",)),
    "a gate edited between two firings keeps the stricter form": ([gate("a", quorum=3), gate("a")], "quorum", 3),
}  # fmt: skip


@pytest.mark.parametrize(("gates", "field", "expected"), MERGED_FIELDS.values(), ids=MERGED_FIELDS)
def test_gates_of_one_group_set_merge(gates: list[Gate], field: str, expected: object) -> None:
    for order in (gates, gates[::-1]):
        (merged,) = merge(order)
        value = getattr(merged, field)
        assert (tuple(sorted(value)) if isinstance(value, tuple) else value) == expected


HOW_MANY: dict[str, tuple[list[Gate], list[str]]] = {
    "nothing fired": ([], []),
    "in any order, with repeats": ([gate("a", "y", "x"), gate("b", "x", "y", "x")], ["x|y"]),
    "a subset is another set": ([gate("a", "x", "y"), gate("b", "y"), gate("c", "x")], ["x|y", "y", "x"]),
    "shared and unshared of one set are one": ([gate("a", shared=True), gate("b")], ["finance"]),
}  # fmt: skip


@pytest.mark.parametrize(("gates", "keys"), HOW_MANY.values(), ids=HOW_MANY)
def test_only_equal_group_sets_merge(gates: list[Gate], keys: list[str]) -> None:
    assert [merged.key for merged in merge(gates)] == keys


def test_escalation_adds_voters_and_nothing_else() -> None:
    (merged,) = merge([gate("a", escalate=frozenset({"cfo"}), quorum=2)])
    assert merged.voters == {"finance"}
    escalated = merged.escalated()
    assert escalated.voters == {"finance", "cfo"}
    assert (escalated.key, escalated.quorum, escalated.groups) == ("finance", 2, {"finance"})
    never_again = merge([gate("a", "finance", escalate=frozenset({"cfo"})), gate("b", "finance", "cfo")])
    assert [each.escalated().key for each in never_again] == ["finance", "cfo|finance"]


REFUSED: dict[str, dict[str, Any]] = {
    "no group, so no one could approve": {"groups": frozenset()},
    **{f"a quorum of {quorum}": {"quorum": quorum} for quorum in (0, -1, True)},
    "an unknown step-up": {"step_up": "shout"},
}


@pytest.mark.parametrize("fields", REFUSED.values(), ids=REFUSED)
def test_an_invalid_gate_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="gate 'g'"):
        Gate(**{"policy_id": "g", "groups": frozenset({"finance"}), **fields})


def test_a_gate_is_the_same_after_storage() -> None:
    times = {"remind": MINUTE, "valid_for": MINUTE, "answer_within": HOUR}
    asks = {"quorum": 2, "step_up": "passkey", "shared": True, "reason": True, "escalate": frozenset({"ceo"})}
    full = gate("a", "finance", "cfo", channel="#x", title="T", **asks, **times)
    for each in (full, gate("b")):
        assert Gate.from_json(each.to_json()) == each


def test_a_stored_gate_without_a_field_is_refused() -> None:
    stored = gate("a", quorum=2).to_json()
    del stored["quorum"]
    with pytest.raises(KeyError):
        Gate.from_json(stored)


# The step-up of a vote, the one required, and whether it suffices. An unknown method never does.
KEY = "passkey"
STEP_UPS = [(None, None, True), (KEY, None, True), (None, KEY, False), (KEY, KEY, True), ("face", KEY, False)]


@pytest.mark.parametrize(("have", "asked", "enough"), STEP_UPS)
def test_step_up_suffices(have: str | None, asked: str | None, enough: bool) -> None:
    assert satisfies_step_up(have, asked) is enough
