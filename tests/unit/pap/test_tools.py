"""Several versions of a tool, file names for tools of any name, and the built-in group `read`."""

from pathlib import Path
from typing import Any

import pytest

from countersign.contract import ToolManifest, Verdict, manifest_file
from countersign.contract.manifest import PEOPLE_ACTIONS
from policy_service.domain.person_actions import RESOURCE_TYPES
from tests.fakes import bundles
from tests.fakes.bundles import PAY, PAY_ARGS, PERMIT_ALL, BundleFolder, pay_args, pay_manifest

OLD_ARGS = PAY_ARGS | {"properties": {k: v for k, v in PAY_ARGS["properties"].items() if k != "currency"}}
OLD: dict[str, Any] = pay_manifest(args=OLD_ARGS)
OLD_DIGEST = ToolManifest.model_validate(OLD).digest

EUROS = '@id("no-euros") forbid (principal, action, resource) when {{ {}context.input.currency == "EUR" }};'


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    return BundleFolder(tmp_path).policies(PERMIT_ALL).write("tools/pay@1.json", OLD)


def test_call_is_decided_by_its_tool_version(folder: BundleFolder) -> None:
    euros, bundle = PAY | {"currency": "EUR"}, folder.load()
    assert "currency" in bundle.manifests["pay"].properties
    files = [(version.file, version.label) for version in bundle.tools]
    assert files == [("tools/pay.json", None), ("tools/pay@1.json", "1")], "the plain file is the current one"
    assert folder.decide(PAY, tool_digest=OLD_DIGEST).outcome is Verdict.RELEASE
    assert folder.decide(euros).outcome is Verdict.RELEASE
    refused = folder.decide(euros, tool_digest=OLD_DIGEST)
    assert (refused.outcome, refused.code) == (Verdict.DENY, "invalid_args")
    (folder.path / "tools/pay@1.json").unlink()
    gone = BundleFolder(folder.path).policies(PERMIT_ALL).decide(PAY, tool_digest=OLD_DIGEST)
    assert (gone.outcome, gone.code) == (Verdict.DENY, "tool_changed")


def test_field_missing_in_another_version_needs_has(folder: BundleFolder) -> None:
    required = PAY_ARGS | {"required": [*PAY_ARGS["required"], "currency"]}
    folder.write("tools/pay.json", pay_manifest(args=required))
    (problem,) = folder.policies(PERMIT_ALL + EUROS.format("")).problems()
    assert "rules.cedar:2" in problem and "in tools/pay@1.json, a version still in force" in problem
    assert folder.policies(PERMIT_ALL + EUROS.format("context.input has currency && ")).problems() == []


WRONG_FILES = {
    "no current one": ("tools/other@1.json", pay_manifest(tool="other"), "this tool has no current manifest"),
    "the same again": ("tools/pay@2.json", pay_manifest(), "is the same manifest as tools/pay.json"),
    **{
        file: (file, OLD | {"title": "P"}, "names no version")
        for file in ("tools/pay@.json", "tools/pay@1@2.json")
    },
    "another tool's name": ("tools/refund@1.json", OLD | {"title": "P"}, "name the file after it: pay.json"),
}


@pytest.mark.parametrize(("file", "content", "message"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_invalid_version_is_refused(folder: BundleFolder, file: str, content: Any, message: str) -> None:
    problems = folder.write(file, content).problems()
    assert any(problem.startswith(file) and message in problem for problem in problems), problems


def test_too_many_versions_are_refused(folder: BundleFolder) -> None:
    for number in range(2, 9):
        folder.write(f"tools/pay@{number}.json", OLD | {"title": f"Pay {number}"})
    assert folder.problems() == ["tools/pay.json: 9 versions of this tool; 8 is the limit"]


FILES = {"mail.send": "mail.send.json", "0-day": "0-day.json", ".hidden": "%2Ehidden.json"}
FILES |= {"a/b": "a%2Fb.json", "srv:tool": "srv%3Atool.json", "..a/...": "%2E.a%2F....json"}


@pytest.mark.parametrize(("tool", "file"), FILES.items(), ids=FILES)
def test_tool_with_any_name_has_a_safe_file_name_and_is_decided(tmp_path: Path, tool: str, file: str) -> None:
    assert manifest_file(tool) == file
    folder = BundleFolder(tmp_path).write(f"tools/{file}", pay_manifest(tool=tool))
    folder.policies(f'@id("it") permit (principal, action == Action::"{tool}", resource);')
    assert folder.decide(PAY, tool=tool).outcome is Verdict.RELEASE
    assert folder.decide(PAY).outcome is Verdict.DENY


def metered(folder: BundleFolder, amount: dict[str, Any]) -> BundleFolder:
    """A current version that a meter counts, and another version with this amount."""
    folder.policies(PERMIT_ALL + bundles.CAP).write("meters.toml", bundles.SPENT)
    folder.write("tools/pay.json", bundles.COUNTED)
    return folder.write("tools/pay@1.json", pay_manifest(title="Pay, before", args=pay_args(amount=amount)))


def test_every_version_spends_from_the_meter(folder: BundleFolder) -> None:
    bundle = metered(folder, {"type": "integer", "minimum": 0}).load()
    digest = next(version for version in bundle.tools if version.label == "1").manifest.digest
    assert folder.decide(PAY, tool_digest=digest).outcome == "release"
    assert folder.decide(PAY, tool_digest=digest, history={"spent": 101}).policies == ("cap",)
    (problem,) = metered(folder, {"type": "integer"}).problems()
    assert problem.startswith("tools/pay@1.json: the meter 'spent' counts it: sum: '/amount' of 'pay' may be")


WRITES = '@id("writes") @approval("finance") forbid (principal, action, resource)'
STARTER = PERMIT_ALL + WRITES + ' unless { action in Action::"read" };'


@pytest.fixture
def starter(tmp_path: Path) -> BundleFolder:
    return BundleFolder(tmp_path).policies(STARTER)


def test_rule_may_name_read_group_without_read_tools(starter: BundleFolder) -> None:
    for group, verdict in (("", Verdict.REVIEW), ("money", Verdict.REVIEW), ("read", Verdict.RELEASE)):
        starter.write("tools/pay.json", pay_manifest(groups=group.split()))
        assert starter.problems() == []
        assert starter.decide(PAY).outcome is verdict


def test_tool_named_read_is_refused(starter: BundleFolder) -> None:
    starter.write("tools/read.json", pay_manifest(tool="read"))
    (problem,) = starter.problems()
    assert problem.startswith("tools/read.json: ") and "'read' is the action group" in problem


def test_actions_of_people_are_reserved_tool_names() -> None:
    assert frozenset(RESOURCE_TYPES) == PEOPLE_ACTIONS


def test_bundle_without_tools_loads_and_denies(starter: BundleFolder) -> None:
    (starter.path / "tools/pay.json").unlink()
    assert (starter.problems(), starter.decide(PAY).code) == ([], "unknown_tool")
    assert "rules.cedar:1" in starter.policies("permit (principal, action, resource)").problems()[0]
