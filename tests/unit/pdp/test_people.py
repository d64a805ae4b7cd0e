"""Rules about approving narrow who may approve, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from policy_service.domain.policy_request import AgentPrincipal
from policy_service.pdp.people import Permission, PersonFacts, ReviewFacts, check_approve_rules
from tests.fakes.bundles import NOW, PERMIT_ALL, BundleFolder

APPROVE = '(principal, action == Action::"approve", resource)'
OPEN = f'@id("anyone") permit {APPROVE};'
AGENT = AgentPrincipal("robot", owner="urn:test|tomas", roles=frozenset({"desk"}))


FINANCE = frozenset({"finance"})


def ask(folder: BundleFolder, env: str = "production", **changes: Any) -> Permission:
    review = ReviewFacts("rev_1", AGENT, "pay", "high", frozenset({"big"}), NOW)
    person = PersonFacts(**{"person": "urn:test|maya", "groups": FINANCE, "assurance": "oidc"} | changes)
    return check_approve_rules(folder.load().rules, person, review, now=NOW, env=env)


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    return BundleFolder(tmp_path)


@pytest.mark.parametrize("rules", ["", PERMIT_ALL, '@id("freeze") forbid (principal, action, resource);'])
def test_no_rule_about_approving_narrows_nothing(folder: BundleFolder, rules: str) -> None:
    assert ask(folder.policies(rules))


CONDITIONS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "the person": ('principal == User::"urn:test|maya"', {}, True),
    "another person": ('principal == User::"urn:test|maya"', {"person": "urn:test|ana"}, False),
    "a group they are in now": ('principal in Group::"finance"', {}, True),
    "a group they left": ('principal in Group::"finance"', {"groups": frozenset()}, False),
    "how sure we are of them": ('context.assurance == "oidc"', {"assurance": "dev"}, False),
    "the tool and the risk": ('resource.tool == "pay" && resource.risk == "high"', {}, True),
    "the gate that asks": ('resource.gates.contains("big")', {}, True),
    "the agent": ('resource.agent in Role::"desk"', {}, True),
    "the agent's owner": ('resource.agent has owner && resource.agent.owner in Group::"cfo"', {}, True),
    "the agent's owner as the voter": (
        "resource.agent has owner && resource.agent.owner == principal", {"person": "urn:test|tomas"}, True),
    "the time": ('context.now.durationSince(resource.opened_at) == duration("0ms")', {}, True),
    "the environment": ('context.env == "staging"', {"env": "staging"}, True),
}  # fmt: skip


@pytest.mark.parametrize(("condition", "changes", "granted"), CONDITIONS.values(), ids=CONDITIONS)
def test_permit_narrows(folder: BundleFolder, condition: str, changes: Any, granted: bool) -> None:
    folder.policies(f'@id("who") permit {APPROVE} when {{ {condition} }};')
    permission = ask(folder, **changes)
    assert bool(permission) is granted
    assert permission.policies == (("who",) if granted else ())
    assert (permission.reason is None) is granted


def test_forbid_overrides_permit(folder: BundleFolder) -> None:
    in_dev = 'context.assurance == "dev"'
    forbid = f'@id("not-dev") @doc("Sign in for real.") forbid {APPROVE} when {{ {in_dev} }};'
    folder.policies(f"{OPEN}\n{forbid}")
    assert ask(folder)
    refused = ask(folder, assurance="dev")
    assert (refused.policies, refused.reason and refused.reason.text) == (("not-dev",), "Sign in for real.")
    permission = ask(folder.policies(forbid))
    assert not permission and permission.reason is not None and permission.reason.code == "not_eligible"


def test_erring_rule_refuses_and_alarms(folder: BundleFolder) -> None:
    erring = f'@id("odd") forbid {APPROVE} when {{ 9223372036854775807 + resource.gates.isEmpty() == 1 }};'
    assert folder.policies(OPEN + erring).problems(), "the schema catches what it can"
    shift = 'context.now.offset(duration("9223372036854775807ms")) > context.now'
    folder.policies(f'{OPEN}@id("odd") forbid {APPROVE} when {{ {shift} }};')
    permission = ask(folder)
    assert not permission and permission.alarms
    assert permission.reason is not None and permission.reason.code == "policy_error"


def test_rules_about_approving_decide_no_effects(folder: BundleFolder) -> None:
    assert folder.policies(OPEN).decide({"account": "a1", "amount": 1}).code == "no_permit"
