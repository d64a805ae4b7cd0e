"""Why a call came to what it did, and what would release it."""

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


def told_of(path: Path, args: dict[str, Any], agent: AgentPrincipal = DESK, **changes: Any) -> Explanation:
    """The explanation of one call; no argument of it is secret."""
    folder = BundleFolder(path).policies(RULES)
    question = folder.question(args, agent=agent, **changes)
    return explain(folder.load(), question, lambda _pointer: False)


def test_a_review_names_its_gate_its_people_and_the_smallest_change(tmp_path: Path) -> None:
    told = told_of(tmp_path, PAY | {"currency": "EUR", "amount": 900})
    assert told.decision.outcome is Verdict.REVIEW
    assert {one.id: one.held for one in told.policies} == {"desk": True, "large": True}
    assert "1 of finance" in told.asks[0] and "Maya" in told.asks[0]
    assert "context.input.amount = 50" in told.release
    assert told.read["context.input.amount"] == "900"


def test_a_rule_that_did_not_hold_names_its_first_failing_condition(tmp_path: Path) -> None:
    told = told_of(tmp_path, PAY | {"currency": "EUR"}, AgentPrincipal("stranger"))
    assert {one.id: one.failed for one in told.policies}["desk"] == "the scope's principal is not so"
    assert told.beside and 'principal in Role::"desk"' in told.beside[0]


def test_the_first_failing_condition_is_evaluated_by_the_engine(tmp_path: Path) -> None:
    told = told_of(tmp_path, PAY | {"currency": "EUR", "amount": 3})
    failed = {one.id: one.failed for one in told.policies}["large"]
    assert told.decision.outcome is Verdict.RELEASE
    assert failed is not None and "> 50" in failed


def test_a_secret_is_named_and_not_told(tmp_path: Path) -> None:
    folder = BundleFolder(tmp_path).policies(RULES.replace("amount > 50", 'account == "hunter2"'))
    folder.write("tools/pay.json", pay_manifest(secret=["/account"]))
    question = folder.question({"account": "hunter2", "amount": 1, "currency": "EUR"}, agent=DESK)
    told = explain(folder.load(), question, lambda pointer: pointer == "/account")
    assert told.read["context.input.account"] == HIDDEN_VALUE
    assert "another context.input.account" in told.release
    assert "hunter2" not in str(told.release) + str(dict(told.read))


def test_an_unknown_tool_is_a_deny_with_its_reason(tmp_path: Path) -> None:
    told = told_of(tmp_path, {}, tool="fly")
    assert (told.decision.code, told.policies) == ("unknown_tool", ())
