"""Lint proofs are true of the engine: for example, a rule that never matches matches none of many calls."""

import json
from random import Random
from typing import Any

import pytest
from cedarpy import PolicySet, is_authorized, policies_to_pst
from hypothesis import settings

from countersign.contract import JSON, ToolManifest
from policy_service.facts.config import FactsConfig
from policy_service.facts.manifests import InputCodec
from policy_service.pap.lint.domains import Domain, tool_domain
from policy_service.pap.lint.proofs import TooComplexError, is_impossible, policy_condition, to_disjunction
from policy_service.pap.parts import ToolVersion
from tests.fakes.bundles import pay_manifest

FIELDS: dict[str, Any] = {
    "account": {"type": "string"},
    "a": {"type": "integer", "minimum": 0, "maximum": 4},
    "b": {"type": "integer", "exclusiveMinimum": -3, "maximum": 2.5},
    "word": {"enum": ["red", "green", "blue"]},
}
ARGS = {"type": "object", "additionalProperties": False, "required": list(FIELDS)}
ARGS["properties"] = FIELDS | {"yes": {"type": "boolean"}}
MANIFEST = ToolManifest.model_validate(pay_manifest(args=ARGS, sentence="Pay"))
VERSION = ToolVersion("tools/pay.json", None, MANIFEST, InputCodec(MANIFEST))
CONDITIONS = 600 if settings().max_examples > 1_000 else 150  # HYPOTHESIS_PROFILE=long


@pytest.fixture(scope="module")
def domain() -> Domain:
    return tool_domain(VERSION, FactsConfig())


def calls() -> list[dict[str, JSON]]:
    """All calls that these conditions can distinguish."""
    return [
        {"account": "x", "a": a, "b": b, "word": word} | ({} if yes is None else {"yes": yes})
        for a in range(5)
        for b in range(-2, 3)
        for word in ("red", "green", "blue")
        for yes in (None, True, False)
    ]


def number(random: Random) -> str:
    match random.randrange(6):
        case 0 | 1:
            return str(random.randrange(-4, 7))
        case 2:
            return f"({number(random)} {random.choice('+-*')} {number(random)})"
    return f"context.input.{random.choice('ab')}"


def condition(random: Random, depth: int = 3) -> str:
    kind = random.randrange(10) if depth else random.randrange(6)
    words = [random.choice(["red", "green", "blue", "pink", "r*", "*e*"]) for _ in range(2)]
    match kind:
        case 0 | 1 | 2:
            return f"{number(random)} {random.choice(['<', '<=', '>', '>=', '==', '!='])} {number(random)}"
        case 3:
            return f'context.input.word {random.choice(["==", "!=", "like"])} "{words[0]}"'
        case 4:
            return f'["{words[0]}", "{words[1]}"].contains(context.input.word)'
        case 5:
            return random.choice(["context.input has yes", "(context.input has yes && context.input.yes)"])
        case 6:
            return f"!({condition(random, depth - 1)})"
        case 7:
            parts = [condition(random, depth - 1) for _ in range(3)]
            return f"(if {parts[0]} then {parts[1]} else {parts[2]})"
    left, word = condition(random, depth - 1), random.choice(["&&", "&&", "||"])
    return f"({left} {word} {condition(random, depth - 1)})"


ASKED = {"principal": 'Agent::"r"', "action": 'Action::"pay"', "resource": 'Account::"x"'}


def satisfied(text: str) -> set[int]:
    """The calls for which a policy with that condition holds."""
    policies = PolicySet.from_str(text)
    found = set()
    for index, call in enumerate(calls()):
        if is_authorized(ASKED | {"context": json.dumps({"input": call})}, policies, "[]").allowed:
            found.add(index)
    return found


def never(text: str, domain: Domain) -> bool | None:
    """Whether the lints prove that it never holds; None if it is too complex."""
    (tree,) = policies_to_pst(text).static_policies.values()
    try:
        return all(is_impossible(case, domain) for case in to_disjunction(policy_condition(tree)))
    except TooComplexError:
        return None


def test_rule_proved_unsatisfiable_holds_for_no_call(domain: Domain) -> None:
    random, proved = Random(20261122), 0
    for _ in range(CONDITIONS):
        text = f"permit (principal, action, resource) when {{ {condition(random)} }};"
        if never(text, domain):
            proved += 1
            assert satisfied(text) == set(), text
    assert proved > CONDITIONS // 20, "the conditions were too easy to say anything"


def test_simple_contradictions_are_always_found(domain: Domain) -> None:
    random, found = Random(7), 0
    for _ in range(CONDITIONS // 2):
        text = f"permit (principal, action, resource) when {{ {condition(random, 0)} }};"
        both = "input.a" in text and "input.b" in text
        several = both or any(sign in text for sign in ("*", " - ", " + "))
        if not several and not satisfied(text):
            found += 1
            assert never(text, domain), text
    assert found > CONDITIONS // 60
