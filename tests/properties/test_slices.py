"""A tool's policy set keeps the policies that may match; test_gates_reference.py proves that it decides the same."""

from pathlib import Path

import pytest
from cedarpy import policies_to_pst, pst

from policy_service.pdp.rules import scope_may_match
from tests.fakes.random_rules import TOOLS, random_folder


def test_guards_and_gates_partition_the_policy_set(tmp_path: Path) -> None:
    for seed in range(6):
        bundle = random_folder(tmp_path / str(seed), seed).load()
        for name, tool in bundle.rules.tools.items():
            guards = set(tool.guards.to_pst().static_policies)
            everything = set(tool.everything.to_pst().static_policies)
            assert guards | tool.gates == everything
            assert not guards & tool.gates
            assert {name for name in everything if bundle.policies[name].gate is not None} == tool.gates
            assert set(tool.permits) <= guards
            assert name in TOOLS


SCOPES: dict[str, tuple[str, bool]] = {
    "open to every action": ("action", True),
    "this action": ('action == Action::"pay"', True),
    "another action": ('action == Action::"refund"', False),
    "a group it is in": ('action in Action::"writes"', True),
    "a group it is not in": ('action in Action::"reads"', False),
    "itself as a group": ('action in Action::"pay"', True),
    "one of several groups": ('action in [Action::"reads", Action::"writes"]', True),
    "none of several": ('action in [Action::"reads", Action::"refund"]', False),
    "a group by equality, which no request has": ('action == Action::"writes"', False),
}


@pytest.mark.parametrize(("scope", "kept"), SCOPES.values(), ids=SCOPES)
def test_kept_policies(scope: str, kept: bool) -> None:
    tree = next(iter(_parsed(f"permit (principal, {scope}, resource);").static_policies.values()))
    assert scope_may_match(tree, "pay", ["writes"]) is kept


def _parsed(text: str) -> pst.PolicySet:
    parsed: pst.PolicySet = policies_to_pst(text)
    return parsed
