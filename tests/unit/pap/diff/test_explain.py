"""The explanation of a decision, and what would release the call."""

from pathlib import Path
from typing import Any

from countersign.contract import Verdict
from policy_service.domain.policy_request import AgentPrincipal
from policy_service.pap.diff.explain import HIDDEN_VALUE, Explanation, explain
from tests.fakes.bundles import PAY, BundleFolder, pay_manifest

RULES = """
@id("desk") permit (principal in Role::"desk", action, resource);
@id("large") @approval("finance") forbid (principal, action, resource)
when { context.input has currency && context.input.currency == "EUR" && context.input.amount > 50 };
"""
DESK = AgentPrincipal("robot", roles=frozenset({"desk"}))


def explanation_of(path: Path, args: Any, agent: AgentPrincipal = DESK, **changes: Any) -> Explanation:
    """The explanation of one call; no argument of it is secret."""
    folder = BundleFolder(path).policies(RULES)
    return explain(folder.load(), folder.question(args, agent=agent, **changes), lambda _pointer: False)


def test_review_names_gate_people_and_smallest_change(tmp_path: Path) -> None:
    explained = explanation_of(tmp_path, PAY | {"currency": "EUR", "amount": 900})
    assert explained.decision.outcome is Verdict.REVIEW
    assert {one.id: one.held for one in explained.policies} == {"desk": True, "large": True}
    assert "1 of finance" in explained.asks[0] and "Maya" in explained.asks[0]
    assert "context.input.amount = 50" in explained.release
    assert explained.read["context.input.amount"] == "900"


def test_first_failing_condition_is_named(tmp_path: Path) -> None:
    explained = explanation_of(tmp_path, PAY | {"currency": "EUR"}, AgentPrincipal("stranger"))
    failed = {one.id: one.failed for one in explained.policies}
    assert failed["desk"] == "the scope's principal does not match"
    assert explained.other_facts and 'principal in Role::"desk"' in explained.other_facts[0]


def test_first_failing_condition_is_evaluated_by_the_engine(tmp_path: Path) -> None:
    explained = explanation_of(tmp_path, PAY | {"currency": "EUR", "amount": 3})
    failed = {one.id: one.failed for one in explained.policies}["large"]
    assert explained.decision.outcome is Verdict.RELEASE
    assert failed is not None and "> 50" in failed


def test_secret_value_is_not_shown(tmp_path: Path) -> None:
    folder = BundleFolder(tmp_path).policies(RULES.replace("amount > 50", 'account == "hunter2"'))
    folder.write("tools/pay.json", pay_manifest(secret=["/account"]))
    question = folder.question({"account": "hunter2", "amount": 1, "currency": "EUR"}, agent=DESK)
    explained = explain(folder.load(), question, lambda pointer: pointer == "/account")
    assert explained.read["context.input.account"] == HIDDEN_VALUE
    assert "another context.input.account" in explained.release
    assert "hunter2" not in str(explained.release) + str(dict(explained.read))


def test_unknown_tool_is_a_deny_with_its_reason(tmp_path: Path) -> None:
    explained = explanation_of(tmp_path, {}, tool="fly")
    assert (explained.decision.code, explained.policies) == ("unknown_tool", ())
