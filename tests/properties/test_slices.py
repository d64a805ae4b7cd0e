"""A tool's slice answers exactly as the whole bundle does: same decision, same reasons, same errors."""

from pathlib import Path

import pytest
from cedarpy import PolicySet, policies_to_pst, pst

from policy_service.pap.files import read_files
from policy_service.pap.parts import read_parts
from policy_service.pap.policies import Policy, read_policies
from policy_service.pdp.cedar import ask, entities_of
from policy_service.pdp.request import entities_for, request_for
from policy_service.pdp.slices import may_match, policy_set
from tests.fakes.bundles import BundleFolder
from tests.fakes.random_rules import CASES, TOOLS, random_folder, random_questions


def whole_set(folder: BundleFolder) -> tuple[PolicySet, dict[str, Policy]]:
    files = read_files(folder.path)
    parts, _ = read_parts(files)
    policies, problems = read_policies(files, parts.directory.groups)
    assert problems == []
    return policy_set({name: policy.tree for name, policy in policies.items()}), policies


@pytest.mark.deep
@pytest.mark.timeout(1_200)
def test_leaving_out_policies_of_other_actions_changes_no_answer(tmp_path: Path) -> None:
    left_out = asked = 0
    for seed in range(1000, 1000 + CASES // 40):
        folder = random_folder(tmp_path / str(seed), seed)
        bundle, (whole, policies) = folder.load(), whole_set(folder)
        for question in random_questions(folder, seed, 40):
            tool = bundle.rules.tools[question.tool]
            resource = tool.manifest.resource_of(question.args)
            request = request_for(question, tool, resource, tool.codec.encode(question.args))
            entities = entities_of(entities_for(question, bundle.rules, resource), tool.schema)
            sliced = ask(tool.everything, request, entities, tool.schema)
            full = ask(whole, request, entities, tool.schema)
            assert (sliced.allowed, sliced.reasons) == (full.allowed, full.reasons)
            assert sorted(sliced.errors) == sorted(full.errors)
            left_out += len(policies) - len(tool.everything)
            asked += 1
    assert asked == CASES
    assert left_out > CASES // 2


def test_guards_and_gates_are_the_whole_slice_and_share_nothing(tmp_path: Path) -> None:
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
def test_which_policies_are_kept(scope: str, kept: bool) -> None:
    tree = next(iter(_parsed(f"permit (principal, {scope}, resource);").static_policies.values()))
    assert may_match(tree, "pay", ["writes"]) is kept


def _parsed(text: str) -> pst.PolicySet:
    parsed: pst.PolicySet = policies_to_pst(text)
    return parsed


def test_an_empty_slice_permits_nothing() -> None:
    assert len(policy_set({})) == 0
