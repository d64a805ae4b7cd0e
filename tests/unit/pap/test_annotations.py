"""Annotations: where each is allowed. A mistake is a load error with its line, never a weaker rule."""

from datetime import timedelta
from itertools import product

import pytest

from policy_service.pap.policies import (
    GATE_ANNOTATIONS,
    PERMIT_ANNOTATIONS,
    POLICY_ANNOTATIONS,
    Policy,
    read_policies,
)
from policy_service.pdp.rules import PolicySource

GROUPS = frozenset({"finance", "cfo"})
SCOPE = "(principal, action, resource);"


def read(annotations: str, effect: str = "forbid") -> tuple[Policy | None, list[str]]:
    text = f'@id("rule")\n{annotations}\n{effect} {SCOPE}'
    policies, problems = read_policies({"x.cedar": text.encode()}, GROUPS)
    return policies.get("rule"), [str(problem) for problem in problems]


def sound(annotations: str, effect: str = "forbid") -> PolicySource:
    policy, problems = read(annotations, effect)
    assert problems == [] and policy is not None
    return policy.source


GATES: dict[str, tuple[str, str, object]] = {
    "absent quorum is one": ("", "quorum", 1),
    "a quorum": ('@quorum("2")', "quorum", 2),
    "the largest quorum": ('@quorum("50")', "quorum", 50),
    "a step-up": ('@step_up("passkey")', "step_up", "passkey"),
    "shared, written bare": ("@shared", "shared", True),
    "shared, written out": ('@shared("true")', "shared", True),
    "not shared": ("", "shared", False),
    "a day to answer when nothing is said": ("", "answer_within", timedelta(hours=24)),
    "four hours to answer": ('@answer_within("4h")', "answer_within", timedelta(hours=4)),
    "an hour's validity when nothing is said": ("", "valid_for", timedelta(hours=1)),
    "ten minutes' validity": ('@valid_for("10m")', "valid_for", timedelta(minutes=10)),
    "a channel": ('@channel("#finance")', "channel", "#finance"),
    "a reminder": ('@remind("30m")', "remind", timedelta(minutes=30)),
    "escalation": ('@escalate("cfo|finance")', "escalate", frozenset({"cfo", "finance"})),
    "a reason": ("@reason", "reason", True),
    "a title": ('@title("Ask finance")', "title", "Ask finance"),
}


@pytest.mark.parametrize(("annotations", "field", "value"), GATES.values(), ids=GATES)
def test_gate_has_the_values_of_its_annotations(annotations: str, field: str, value: object) -> None:
    assert getattr(sound(f'@approval("finance")\n{annotations}').gate, field) == value


def test_annotations_of_gate_forbid_and_permit() -> None:
    gate = sound('@approval("finance | cfo|finance")').gate
    assert gate is not None and gate.groups == {"finance", "cfo"}
    assert sound('@title("t")\n@doc("d")').gate is None
    assert sorted(sound('@unseen("items, note")', "permit").unseen) == ["items", "note"]


# The effect, or a gate; what is written on it; and a part of the message.
GATE = "gate"
QUORUMS = ("@quorum", '@quorum("２")', '@quorum("51")')
CHANNELS = ("", "finance", "#a,#b")
MISSPELT = ('@aproval("finance")', '@aproval("finance")\n@quorum("2")', '@Approval("finance")')
REFUSED: list[tuple[str, str, str]] = [
    (GATE, '@quorum("0")', "x.cedar:3: @quorum: '0' is not a number"),
    *((GATE, quorum, "is not a number of people") for quorum in QUORUMS),
    ("forbid", '@approval("finanse")', "x.cedar:2: @approval: there is no group 'finanse'; did"),
    ("forbid", '@approval("finance|board")', "add [groups.board] to groups.toml"),
    *(("forbid", approval, "names no group") for approval in ("@approval", '@approval("finance||cfo")')),
    (GATE, '@escalate("boss")', "@escalate: there is no"),
    (GATE, '@step_up("retina")', "known are passkey"),
    *((GATE, time, "not a duration") for time in ('@answer_within("soon")', '@remind("")')),
    (GATE, '@valid_for("PT1H")', "write a whole number"),
    *((GATE, bare, "write it bare") for bare in ('@shared("false")', '@reason("always")')),
    *((GATE, f'@channel("{name}")', f"@channel: '{name}' is not a Slack channel") for name in CHANNELS),
    ("forbid", '@title("")', "@title: write 1 to"),
    ("permit", '@approval("finance")', "x.cedar:2: @approval belongs on a gate, which is"),
    ("permit", '@quorum("2")', "@quorum belongs on a gate"),
    ("forbid", '@quorum("2")', 'add @approval("group"), or drop it'),
    *(("forbid", misspelt, "did you mean @approval?") for misspelt in MISSPELT),
    ("forbid", '@severity("high")', "is not an annotation we know; known are"),
    *((effect, '@unseen("items")', "@unseen belongs on a permit") for effect in ("forbid", GATE)),
    *(("permit", unseen, "names no field") for unseen in ("@unseen", '@unseen("items,,note")')),
]


@pytest.mark.parametrize(("effect", "annotations", "message"), REFUSED)
def test_invalid_annotation_is_reported_with_its_line(effect: str, annotations: str, message: str) -> None:
    gate, effect = ('@approval("finance")\n', "forbid") if effect == GATE else ("", effect)
    _, problems = read(gate + annotations, effect)
    assert any(message in problem for problem in problems), problems
    assert all(problem.startswith("x.cedar:") for problem in problems)


def test_gate_annotations_are_refused_on_other_policies() -> None:
    for name, effect in product(GATE_ANNOTATIONS - {"approval"}, ("permit", "forbid")):
        _, problems = read(f'@{name}("1h")', effect)
        assert any(f"@{name} belongs on a gate" in problem for problem in problems), (name, effect)
    every = [*POLICY_ANNOTATIONS, *GATE_ANNOTATIONS, *PERMIT_ANNOTATIONS]
    assert len(set(every)) == len(every)


NO_ID, NOT_PLAIN = "every policy needs an id", "may hold letters"
ODD_IDS = ['@id("a`b")', '@id("a b")', '@id("a\\n")', '@id("-a")', f'@id("{"a" * 101}")', '@id("рule")']
IDS = dict.fromkeys(["", '@id("")', "@id"], NO_ID) | dict.fromkeys(ODD_IDS, NOT_PLAIN)
IDS |= {'@id("unseen")': "built-in"}


@pytest.mark.parametrize(("annotation", "message"), IDS.items())
def test_id_is_required_and_restricted(annotation: str, message: str) -> None:
    _, problems = read_policies({"x.cedar": f"\n{annotation} permit {SCOPE}".encode()}, GROUPS)
    assert any(message in problem.message for problem in problems)
    assert problems[0].line == 2


def test_id_is_unique_across_files() -> None:
    files = {"a.cedar": f'@id("x") permit {SCOPE}'.encode(), "b.cedar": f'\n@id("x") forbid {SCOPE}'.encode()}
    _, problems = read_policies(files, GROUPS)
    assert [str(problem) for problem in problems] == ["b.cedar:2: @id 'x' is taken at a.cedar:1"]
