"""The decision of design section 4: release, review, deny, and actionable reasons."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from countersign.contract import Verdict
from policy_service.domain.policy_request import AgentPrincipal, Claimed, Facts
from policy_service.pdp.engine import decide
from tests.fakes.bundles import NOW, PAY, PERMIT_ALL, BundleFolder, facts_of, pay_manifest

ANY = "(principal, action, resource) when"
BIG = f'@id("big") @approval("finance") @valid_for("10m") forbid {ANY} {{ context.input.amount > 1000 }};'
HUGE = BIG.replace('@valid_for("10m")', '@quorum("2")').replace("big", "huge").replace("1000", "100000")
NEVER = f'@id("never") @doc("Nothing goes to a9.") forbid {ANY} {{ context.input.account == "a9" }};'
RULES = "\n".join([PERMIT_ALL, BIG, HUGE, NEVER])


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    return BundleFolder(tmp_path).policies(RULES)


@pytest.fixture(scope="module")
def standard(tmp_path_factory: pytest.TempPathFactory) -> BundleFolder:
    """The rules above, in a folder that no test changes."""
    return BundleFolder(tmp_path_factory.mktemp("standard")).policies(RULES)


TABLE: dict[str, tuple[dict[str, Any], Verdict, tuple[str, ...], tuple[str, ...]]] = {
    "a permit and nothing else": (PAY, Verdict.RELEASE, ("all",), ()),
    "exactly at the limit": ({**PAY, "amount": 1000}, Verdict.RELEASE, ("all",), ()),
    "one above the limit": ({**PAY, "amount": 1001}, Verdict.REVIEW, ("all", "big"), ("big",)),
    "both gates fire": ({**PAY, "amount": 100001}, Verdict.REVIEW, ("all", "big", "huge"), ("big", "huge")),
    "a plain forbid": ({**PAY, "account": "a9"}, Verdict.DENY, ("never",), ()),
    "a plain forbid and a gate": ({"account": "a9", "amount": 100001}, Verdict.DENY, ("never",), ()),
}  # fmt: skip


@pytest.mark.parametrize(("args", "verdict", "policies", "gates"), TABLE.values(), ids=TABLE)
def test_decision_table(standard: BundleFolder, args: Any, verdict: Any, policies: Any, gates: Any) -> None:
    decision = standard.decide(args)
    assert (decision.outcome, decision.policies) == (verdict, policies)
    assert tuple(gate.policy_id for gate in decision.gates) == gates
    assert (decision.bundle, decision.commit) == (standard.load().digest, standard.load().commit)
    assert decision.alarms == ()


def test_gate_without_a_permit_is_a_deny(folder: BundleFolder) -> None:
    decision = folder.policies(BIG).decide({**PAY, "amount": 5000})
    assert (decision.outcome, decision.code, decision.gates) == (Verdict.DENY, "no_permit", ())


def test_shortest_validity_of_the_fired_gates_counts(standard: BundleFolder) -> None:
    assert standard.decide(PAY).valid_for == timedelta(hours=1)
    assert standard.decide({**PAY, "amount": 5000}).valid_for == timedelta(minutes=10)


def test_decisions_are_deterministic(standard: BundleFolder) -> None:
    question = standard.question({**PAY, "amount": 100001})
    assert len({str(decide(standard.load().rules, question)) for _ in range(50)}) == 1


# ------------------------------------------------------------------------------------------------ denials


OTHER = {"tool_digest": "f" * 64}
GONE = {"tool": "refund", "reevaluated": True}
DENIED: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "an unknown tool": ({}, {"tool": "refund"}, "unknown_tool", "countersign tools export"),
    "a tool that left the bundle": ({}, GONE, "tool_changed", ""),
    "such a tool in dev": ({}, {**GONE, "env": "dev"}, "tool_changed", ""),
    "another manifest in dev": (PAY, {**OTHER, "env": "dev"}, "tool_changed", "GET /v1/tools/pay"),
    "another manifest than the reviewed one": (PAY, OTHER, "tool_changed", "GET /v1/tools/pay"),
    "and asked again": (PAY, {**OTHER, "reevaluated": True}, "tool_changed", "GET /v1/tools/pay"),
    "no resource": ({"account": "", "amount": 1}, {}, "invalid_args", ""),
}


@pytest.mark.parametrize(("args", "changes", "code", "advice"), DENIED.values(), ids=DENIED)
def test_invalid_question_is_denied_before_policy(
    standard: BundleFolder, args: Any, changes: Any, code: str, advice: str
) -> None:
    decision = standard.decide(args, **changes)
    assert (decision.outcome, decision.code) == (Verdict.DENY, code)
    assert advice in (decision.reasons[0].advice or "")


@pytest.mark.parametrize("env", ["production", "staging"])
@pytest.mark.parametrize("reviewed", [True, False])
def test_unknown_tools_are_denied_outside_dev(standard: BundleFolder, env: str, reviewed: bool) -> None:
    for again, code in ((False, "unknown_tool"), (True, "tool_changed")):
        asked: dict[str, Any] = {"reevaluated": again, "reviewed_as_unknown": reviewed}
        decision = standard.decide({}, tool="refund", env=env, **asked)
        assert (decision.outcome, decision.code) == (Verdict.DENY, code)


def test_unknown_tool_asks_people_in_dev(standard: BundleFolder) -> None:
    decision = standard.decide({"any": [None]}, tool="refund", env="dev")
    (gate,) = decision.gates
    assert (decision.outcome, decision.policies) == (Verdict.REVIEW, ("unknown-tool",))
    assert gate.groups == {"unseen"} and gate.title.startswith("UNKNOWN TOOL")
    source = standard.load().describe("unknown-tool")
    assert source is not None and "countersign tools export" in source.doc
    again = {"reevaluated": True, "reviewed_as_unknown": True}
    assert standard.decide({"any": [None]}, tool="refund", env="dev", **again) == decision


def test_invalid_args_are_denied_with_their_place(standard: BundleFolder) -> None:
    decision = standard.decide({"account": "a1", "amount": "100"})
    assert (decision.code, decision.reasons[0].text[:8]) == ("invalid_args", "amount: ")


def test_every_forbid_that_holds_is_a_reason(folder: BundleFolder) -> None:
    folder.policies(RULES + '@id("also") @title("Also not") forbid (principal, action, resource);')
    never, also = folder.decide({**PAY, "account": "a9"}).reasons
    assert (never.code, never.policy, also.policy) == ("forbidden_by_policy", "never", "also")
    assert (never.text, also.text) == ("Nothing goes to a9.", "Also not")
    assert "rules.cedar:5" in (never.advice or "")


def test_no_permit_names_the_permits_and_the_missing_line(folder: BundleFolder) -> None:
    folder.policies('@id("boss-only") permit (principal in Role::"boss", action == Action::"pay", resource);')
    (reason,) = folder.decide(PAY, agent=AgentPrincipal('rob"ot')).reasons
    assert reason.code == "no_permit"
    assert "boss-only (rules.cedar:1)" in reason.text
    line = 'permit (principal == Agent::"rob\\"ot", action == Action::"pay", resource);'
    assert line in (reason.advice or "")
    folder.policies(f'@id("new") {line}')
    assert folder.decide(PAY, agent=AgentPrincipal('rob"ot')).outcome is Verdict.RELEASE


def test_failed_facts_are_a_deny_with_an_alarm(standard: BundleFolder) -> None:
    digest, alarm = standard.load().digest, "timeout at db.internal"
    decision = standard.decide(PAY, facts=Facts(digest, failed="source 'db' could not be used", alarm=alarm))
    assert (decision.code, decision.alarms) == ("facts_unavailable", (alarm,))
    assert "db.internal" not in str(decision.reasons)
    assert standard.decide(PAY, facts=Facts("0" * 64)).code == "facts_unavailable", "of another bundle"


def test_missing_required_fact_is_a_deny(folder: BundleFolder) -> None:
    folder.write("facts.toml", facts_of("Account", state="String")).write("facts/accounts.json", {})
    decision = folder.decide(PAY, facts=Facts(folder.load().digest))
    assert decision.code == "facts_unavailable"
    assert "'state'" in decision.reasons[0].text


# ------------------------------------------------------------------------------------- what policy sees


def releases_when(folder: BundleFolder, condition: str, **changes: Any) -> bool:
    folder.policies(f'@id("p") permit (principal, action, resource) when {{ {condition} }};')
    decision = folder.decide(changes.pop("args", PAY), **changes)
    assert decision.code in (None, "no_permit"), decision
    return decision.outcome is Verdict.RELEASE


OWNED = AgentPrincipal("robot", owner="urn:test|tomas", roles=frozenset({"desk"}), teams=frozenset({"night"}))
ARGS = {**PAY, "currency": "EUR", "tags": ["y"]}
CALL = {"args": ARGS, "txn_size": 3, "env": "staging", "method": "api_key"}
OF_CALL = """\
context.input.account == "a1" && context.input.amount == 100
context.input has currency && context.input.currency == "EUR"
context.input has tags && context.input.tags.containsAny(["x", "y"])
resource == Account::"a1" && context.now == datetime("2026-11-21T22:00:00Z")
!context.effect.compensable && !context.effect.idempotent
context.txn.size == 3 && context.env == "staging" && principal.proof == "api_key"
"""
OF_OWNED = """\
principal == Agent::"robot" && principal in Role::"desk" && principal in Group::"night"
principal has owner && principal.owner == User::"urn:test|tomas" && principal.owner in Group::"cfo"
context has on_behalf_of && context.on_behalf_of in Group::"finance"
"""
OF_CLAIM = """\
!(principal has owner) && !(context has on_behalf_of)
context.claimed has purpose && context.claimed.purpose == "x"
"""
VISIBLE: list[tuple[dict[str, Any], str]] = [
    (CALL, OF_CALL),
    ({"agent": OWNED, "on_behalf_of": "urn:test|maya"}, OF_OWNED),
    ({"claimed": Claimed(purpose="x", on_behalf_of="urn:test|maya")}, OF_CLAIM),
]


@pytest.mark.parametrize(("changes", "conditions"), VISIBLE)
def test_policy_sees(folder: BundleFolder, changes: dict[str, Any], conditions: str) -> None:
    whole = " && ".join(f"({one})" for one in conditions.splitlines())
    assert releases_when(folder, whole, **changes)
    assert not releases_when(folder, f"!({whole})", **changes)


def test_policy_sees_the_flags_of_the_manifest(folder: BundleFolder) -> None:
    compensation = {"tool": "unpay", "map": {"account": "args:/account", "amount": "args:/amount"}}
    folder.write("tools/unpay.json", pay_manifest(tool="unpay"))
    folder.write("tools/pay.json", pay_manifest(idempotent=True, compensation=compensation))
    assert releases_when(folder, "context.effect.compensable && context.effect.idempotent")


def test_policy_sees_typed_facts_about_resource_and_agent(folder: BundleFolder) -> None:
    types = {
        "state": ("String", "open", 'resource.state == "open"'),
        "count": ("Long", 3, "resource.count == 3"),
        "ok": ("Bool", True, "resource.ok"),
        "rate": ("decimal", "1.5", 'resource.rate.lessThan(decimal("2.0"))'),
        "since": ("datetime", "2026-01-01T00:00:00Z", "resource.since < context.now"),
        "flags": ("Set<String>", ["a", "b"], 'resource.flags.contains("b")'),
        "maybe": ("Long?", None, "!(resource has maybe)"),
    }
    declared = facts_of("Account", **{name: kind for name, (kind, _, _) in types.items()})
    folder.write("facts.toml", declared + facts_of("Agent", "facts/agents.json", limit="Long"))
    folder.write("facts/accounts.json", {"a1": {name: value for name, (_, value, _) in types.items()}})
    folder.write("facts/agents.json", {"robot": {"limit": 100}})
    conditions = [condition for _, _, condition in types.values()]
    assert releases_when(folder, " && ".join([*conditions, "context.input.amount <= principal.limit"]))


def test_hostile_names_are_data(folder: BundleFolder) -> None:
    folder.policies(f'{PERMIT_ALL}@id("no") forbid (principal, action, resource == Account::"a1");')
    for text in ('a"] || true || ["', "a\x00b", "\u2028", "🙂", "a" * 500, '{"__entity": 1}'):
        asked = folder.decide({**PAY, "account": text}, agent=AgentPrincipal(text))
        assert asked.outcome is Verdict.RELEASE
        assert folder.decide(PAY, agent=AgentPrincipal(text)).outcome is Verdict.DENY


# ----------------------------------------------------------------------------------------------- unseen


def named(*names: str, policy_id: str = "named", when: str = "true") -> str:
    listed = ",".join(names)
    return f'@id("{policy_id}") @unseen("{listed}") permit (principal, action, resource) when {{ {when} }};'


ITEMS, NOTE = {**PAY, "items": ["x"]}, {**PAY, "note": None}
BOTH = {**ITEMS, **NOTE}
UNSEEN: dict[str, tuple[str, dict[str, Any], Verdict]] = {
    "nothing unseen": (PERMIT_ALL, PAY, Verdict.RELEASE),
    "an unseen field asks people": (PERMIT_ALL, ITEMS, Verdict.REVIEW),
    "a null asks people": (PERMIT_ALL, NOTE, Verdict.REVIEW),
    "a satisfied permit names it": (named("items"), ITEMS, Verdict.RELEASE),
    "a permit in addition to the one that names it": (PERMIT_ALL + named("items"), ITEMS, Verdict.RELEASE),
    "an unsatisfied permit names it": (PERMIT_ALL + named("items", when="false"), ITEMS, Verdict.REVIEW),
    "a permit that names another": (named("note"), ITEMS, Verdict.REVIEW),
    "one permit names both": (named("items", "note"), BOTH, Verdict.RELEASE),
    "two permits name one each": (named("items") + named("note", policy_id="half"), BOTH, Verdict.REVIEW),
    "a permit that names more than is there": (named("items", "note"), ITEMS, Verdict.RELEASE),
}  # fmt: skip


@pytest.mark.parametrize(("rules", "args", "verdict"), UNSEEN.values(), ids=UNSEEN)
def test_unseen_fields_ask_people(folder: BundleFolder, rules: str, args: Any, verdict: Verdict) -> None:
    decision = folder.policies(rules).decide(args)
    assert decision.outcome is verdict
    assert set(decision.unseen) == {name for name in ("items", "note") if name in args}
    if verdict is Verdict.REVIEW:
        (gate,) = decision.gates
        assert (gate.policy_id, gate.shared, gate.quorum, gate.groups) == ("unseen", True, 1, {"unseen"})
        assert decision.policies[-1] == "unseen"


def test_built_in_gate_with_other_gates_and_a_forbid(standard: BundleFolder) -> None:
    decision = standard.decide({**ITEMS, "amount": 5000})
    assert [gate.policy_id for gate in decision.gates] == ["big", "unseen"]
    assert decision.valid_for == timedelta(minutes=10)
    decision = standard.decide({**ITEMS, "account": "a9"})
    assert (decision.outcome, decision.unseen) == (Verdict.DENY, ("items",))


def test_unknown_fired_gate_is_a_deny(standard: BundleFolder) -> None:
    rules = standard.load().rules
    without = {name: policy for name, policy in rules.policies.items() if name != "big"}
    decision = decide(replace(rules, policies=without), standard.question({**PAY, "amount": 5000}))
    assert (decision.outcome, decision.code) == (Verdict.DENY, "policy_error")
    assert decision.alarms


def test_now_comes_from_the_question(folder: BundleFolder) -> None:
    condition = 'context.now < datetime("2026-11-22T00:00:00Z")'
    assert releases_when(folder, condition, now=NOW)
    assert not releases_when(folder, condition, now=datetime(2026, 11, 22, tzinfo=UTC))
