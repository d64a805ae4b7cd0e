"""Every way in which Cedar would let a request through by failing, reproduced and closed (I-11).

A plain Cedar engine, used carelessly, answers each bundle here with Allow. `CARELESS` proves that, so that no guard is
removed because "the engine does that". Without a guard its row fails: reading errors (`combine_outcome`), the schema
of the call (`evaluate_policies`), the schema of the entities (`build_entities`), typing by the manifest (`InputCodec`),
and the entities that are always supplied (`entities_json`).
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import cedarpy
import pytest
from cedarpy import Entities

from countersign.contract import Resource, Verdict
from policy_service.domain.policy_request import Facts
from policy_service.pdp.engine import combine_outcome
from policy_service.pdp.rules import (
    CedarAnswer,
    build_entities,
    build_request,
    entities_json,
    evaluate_policies,
    failed_policy_ids,
)
from tests.fakes.bundles import NOW, PAY, PERMIT_ALL, BundleFolder, facts_of, pay_manifest

FACTS = facts_of("Account", "facts/s.json", limit="Long")


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    folder = BundleFolder(tmp_path).write("facts.toml", FACTS)
    return folder.write("facts/s.json", {"a1": {"limit": 2**53 - 1}})


def forbid(condition: str) -> str:
    return f'{PERMIT_ALL}@id("guard") forbid (principal, action, resource) when {{ {condition} }};'


def gate(condition: str) -> str:
    return forbid(condition).replace('@id("guard")', '@id("guard") @approval("finance")')


def careless(policies: str, context: dict[str, Any]) -> bool:
    """The answer of the plain engine when errors are ignored and no schema is passed."""
    call = {"principal": 'Agent::"robot"', "action": 'Action::"pay"', "resource": 'Account::"a1"'}
    return bool(cedarpy.is_authorized(call | {"context": context}, policies, []).allowed)


CARELESS: dict[str, tuple[str, dict[str, Any]]] = {
    "a missing attribute": ("context.input.amount > 100", {"account": "a1"}),
    "a text amount": ("context.input.amount > 100", {**PAY, "amount": "500"}),
    "an overflow": ("context.input.amount * 2 > 100", {**PAY, "amount": 2**62}),
    "an extension": ("context.input.amount > 100", {**PAY, "amount": {"__extn": {"fn": "unknown", "arg": "x"}}}),
    "an entity": ('context.input.account like "a*"', {**PAY, "account": {"__entity": {"type": "User", "id": "r"}}}),
    "null": ("context.input.amount > 100", {**PAY, "amount": None}),
}  # fmt: skip


@pytest.mark.parametrize("rules", [forbid, gate], ids=["a plain forbid", "a gate"])
@pytest.mark.parametrize(("condition", "args"), CARELESS.values(), ids=CARELESS)
def test_erring_policy_denies(folder: BundleFolder, rules: Any, condition: str, args: Any) -> None:
    injects_null = args.get("amount", 0) is None  # plain Cedar refuses null by itself
    assert careless(rules(condition), {"input": args}) is not injects_null
    decision = folder.policies(rules(condition)).decide(args)
    assert (decision.outcome, decision.code) == (Verdict.DENY, "invalid_args")


OVERFLOWS = {
    "a product with an argument": "context.input.amount * 9007199254740991 > 5",
    "a sum with a fact": "resource.limit * 1024 + context.input.amount > 5",
    "a negation": "-(resource.limit * 2000) < 5",
}
TOO_MUCH = "resource.limit * 2000 > 5"
ASKING = '@id("ask") @approval("finance") forbid (principal, action, resource);'
ERRING = {
    **{f"a plain forbid: {name}": forbid(condition) for name, condition in OVERFLOWS.items()},
    **{f"a gate: {name}": gate(condition) for name, condition in OVERFLOWS.items()},
    "a permit": f'{PERMIT_ALL}@id("guard") permit (principal, action, resource) when {{ {TOO_MUCH} }};',
    "a forbid and a gate that fired": forbid(TOO_MUCH) + ASKING,
    "a gate and a gate that fired": gate(TOO_MUCH) + ASKING,
    "a gate and a plain forbid": gate(TOO_MUCH) + '@id("never") forbid (principal, action, resource);',
}


@pytest.mark.parametrize("rules", ERRING.values(), ids=ERRING)
def test_overflow_names_the_policy(folder: BundleFolder, rules: str) -> None:
    decision = folder.policies(rules).decide({**PAY, "amount": 2**53 - 1})
    assert (decision.outcome, decision.code) == (Verdict.DENY, "policy_error")
    assert decision.reasons[0].policy == "guard"
    assert "overflow" in decision.alarms[0]
    assert "overflow" not in str(decision.reasons), "the engine's sentence is for the operator"


WRITES = PERMIT_ALL + '@id("guard") forbid (principal, action in Action::"writes", resource);'


def test_action_groups_match_because_entities_are_built_with_the_schema(folder: BundleFolder) -> None:
    folder.write("tools/pay.json", pay_manifest(groups=["writes"]))
    folder.policies(WRITES)
    question, rules = folder.question(PAY), folder.load().rules
    tool = rules.tools["pay"]
    encoded, resource = tool.codec.encode(PAY), tool.manifest.resource_of(PAY)
    request = build_request(question, tool, resource, encoded)
    entities = entities_json(question, rules, resource)
    blind = Entities.from_json_str(json.dumps(entities))  # without the schema
    assert evaluate_policies(tool.everything, request, blind, tool.schema).allowed, "the engine changed"
    known = build_entities(entities, tool.schema)
    assert not evaluate_policies(tool.everything, request, known, tool.schema).allowed
    assert folder.decide(PAY).code == "forbidden_by_policy"
    folder.policies(WRITES.replace("forbid", '@approval("cfo") forbid'))
    assert folder.decide(PAY).outcome is Verdict.REVIEW


def test_all_entities_are_supplied(folder: BundleFolder) -> None:
    rules = forbid("resource.limit > 5")
    assert careless(rules, {}), "the engine no longer fails this way"
    assert folder.policies(rules).decide(PAY).code == "forbidden_by_policy"
    entities = entities_json(folder.question(PAY), folder.load().rules, Resource("Account", "a1"))
    uids = {(each["uid"]["type"], each["uid"]["id"]) for each in entities}
    assert uids == {("Agent", "robot"), ("Account", "a1")}


BAD_FACTS: dict[str, dict[str, Any]] = {
    "an attribute that is missing": {},
    "an attribute of another type": {"limit": "much"},
    "an undeclared attribute": {"limit": 1, "extra": 1},
    "an extension where a number belongs": {"limit": {"__extn": {"fn": "unknown", "arg": "x"}}},
    "an entity where a number belongs": {"limit": {"__entity": {"type": "User", "id": "root"}}},
}


@pytest.mark.parametrize("attributes", BAD_FACTS.values(), ids=BAD_FACTS)
def test_entities_that_do_not_fit_the_schema_are_denied(folder: BundleFolder, attributes: Any) -> None:
    folder.policies(forbid("resource.limit > 5"))
    decision = folder.decide(PAY, facts=Facts(folder.load().digest, resource=attributes))
    assert decision.outcome is Verdict.DENY
    assert decision.code in ("facts_unavailable", "policy_error")


def test_request_outside_the_schema_is_an_error(folder: BundleFolder) -> None:
    question, rules = folder.policies(PERMIT_ALL).question(PAY), folder.load().rules
    tool = rules.tools["pay"]
    resource = tool.manifest.resource_of(PAY)
    entities = build_entities(entities_json(question, rules, resource), tool.schema)
    good = build_request(question, tool, resource, tool.codec.encode(PAY))
    assert evaluate_policies(tool.everything, good, entities, tool.schema).allowed
    fraction, more = good.context.replace('"amount": 100', '"amount": 1.5'), good.context[:-1] + ', "x": 1}'
    for context in ("{}", "not JSON", fraction, more):
        answer = evaluate_policies(tool.everything, replace(good, context=context), entities, tool.schema)
        assert answer.errors
        assert not answer.allowed
        assert combine_outcome(answer, frozenset()).verdict is Verdict.DENY


def test_answer_with_errors_is_a_deny() -> None:
    for allowed in (True, False):
        for fired in (frozenset[str](), frozenset({"g"})):
            outcome = combine_outcome(CedarAnswer(allowed, frozenset({"p"}), ("boom",)), fired)
            assert (outcome.verdict, outcome.errors) == (Verdict.DENY, ("boom",))


def test_failed_policy_is_parsed_from_the_engines_error() -> None:
    errors = ("error while evaluating policy `a.b-c_1`: integer overflow", "failed to build request: x `y`")
    assert failed_policy_ids(errors) == ("a.b-c_1",)


def test_naive_time_is_refused(folder: BundleFolder) -> None:
    facts = Facts(folder.policies(PERMIT_ALL).load().digest, resource={"limit": 1})
    with pytest.raises(ValueError, match="time zone"):
        folder.decide(PAY, facts=facts, now=NOW.replace(tzinfo=None))
