"""`read`, the action group every bundle knows, and a bundle that has no tool yet."""

from pathlib import Path

import pytest

from countersign.contract import Verdict
from countersign.contract.manifest import PEOPLE_ACTIONS
from policy_service.domain.people import ABOUT
from tests.fakes.bundles import PAY, PERMIT_ALL, BundleFolder, pay_manifest

STARTER = (
    PERMIT_ALL
    + '@id("writes") @approval("finance") forbid (principal, action, resource)'
    + ' unless { action in Action::"read" };'
)


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    return BundleFolder(tmp_path).policies(STARTER)


def test_a_rule_may_name_reads_before_any_tool_is_one_and_undeclared_is_a_write(folder: BundleFolder) -> None:
    for group, verdict in (("", Verdict.REVIEW), ("money", Verdict.REVIEW), ("read", Verdict.RELEASE)):
        folder.write("tools/pay.json", pay_manifest(groups=group.split()))
        assert folder.problems() == []
        assert folder.decide(PAY).outcome is verdict


def test_a_tool_called_read_is_refused_for_each_rule_about_reads_would_mean_it(folder: BundleFolder) -> None:
    folder.write("tools/read.json", pay_manifest(tool="read"))
    (problem,) = folder.problems()
    assert problem.startswith("tools/read.json: ") and "'read' is the action group" in problem


def test_a_tool_and_a_group_of_one_name_are_refused(folder: BundleFolder) -> None:
    folder.write("tools/send.json", pay_manifest(tool="send"))
    folder.write("tools/pay.json", pay_manifest(groups=["send"]))
    assert folder.problems() == ["tools/send.json: 'send' is a tool and an action group; rename one"]


def test_the_actions_of_people_are_those_that_no_tool_may_be_called() -> None:
    assert frozenset(ABOUT) == PEOPLE_ACTIONS


def test_a_bundle_without_tools_loads_and_denies_and_has_its_policies_read(folder: BundleFolder) -> None:
    (folder.path / "tools/pay.json").unlink()
    assert folder.problems() == []
    assert folder.decide(PAY).code == "unknown_tool"
    assert "rules.cedar:1" in folder.policies("permit (principal, action, resource)").problems()[0]
