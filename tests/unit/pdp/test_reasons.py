"""Every deny names the command, the file or the policy line that would change it."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from countersign.contract import DenyCode
from policy_service.domain.policy_request import AgentPrincipal, Facts, Reason
from policy_service.pdp.rules import PolicySource
from tests.fakes.bundles import NOW, PAY, PERMIT_ALL, BundleFolder

ANY = "(principal, action, resource) when"
NEVER = f'@id("never") @doc("No.") forbid {ANY} {{ context.input.account == "a9" }};\n'
ERRS = f'@id("errs") permit {ANY} {{ context.input.amount * 9000000000000000 > 0 }};\n'
REMEDY = re.compile(r"`[^`]+`|[\w./]+\.(cedar|toml|json)(:\d+)?|GET /v1/")


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    return BundleFolder(tmp_path).policies(PERMIT_ALL + NEVER)


def denied(folder: BundleFolder, code: DenyCode) -> tuple[Reason, ...]:
    """A deny with this code."""
    match code:
        case DenyCode.UNKNOWN_TOOL:
            return folder.decide({}, tool="refund").reasons
        case DenyCode.TOOL_CHANGED:
            gone = folder.decide({}, tool="refund", reevaluated=True).reasons
            return (*folder.decide(PAY, tool_digest="f" * 64).reasons, *gone)
        case DenyCode.INVALID_ARGS:
            return folder.decide({}).reasons
        case DenyCode.FACTS_UNAVAILABLE:
            facts = Facts(folder.load().digest, failed="source 'x' could not be used")
            return folder.decide(PAY, facts=replace(facts)).reasons
        case DenyCode.POLICY_ERROR:
            return folder.policies(ERRS).decide({**PAY, "amount": 9_000_000}).reasons
        case DenyCode.FORBIDDEN_BY_POLICY:
            return folder.decide({**PAY, "account": "a9"}).reasons
        case _:
            return folder.policies("").decide(PAY, agent=AgentPrincipal("robot"), now=NOW).reasons


_OF_THE_WORKFLOW = "denied_by_person expired sibling superseded withdrawn".split()
OF_THE_POLICY = [code for code in DenyCode if code.value not in _OF_THE_WORKFLOW]


@pytest.mark.parametrize("code", OF_THE_POLICY)
def test_every_deny_names_a_remedy(folder: BundleFolder, code: DenyCode) -> None:
    reasons = denied(folder, code)
    assert reasons and {reason.code for reason in reasons} == {code.value}
    for reason in reasons:
        assert REMEDY.search(reason.advice or ""), reason


def test_all_deny_codes_are_covered() -> None:
    assert len(OF_THE_POLICY) == 7
    assert set(_OF_THE_WORKFLOW) < {code.value for code in DenyCode}


def test_erring_policy_and_forbid_are_named_by_file_and_line(folder: BundleFolder) -> None:
    (forbid,) = denied(folder, DenyCode.FORBIDDEN_BY_POLICY)
    assert "rules.cedar:2" in (forbid.advice or "") and '`@approval("...")`' in (forbid.advice or "")
    (error,) = denied(folder, DenyCode.POLICY_ERROR)
    assert "rules.cedar:1" in (error.advice or "") and "`policy-service check`" in (error.advice or "")


def test_removed_tool_does_not_refer_to_its_manifest(folder: BundleFolder) -> None:
    _, gone = denied(folder, DenyCode.TOOL_CHANGED)
    assert "GET /v1/tools" not in (gone.advice or "")
    assert "tools/refund.json back into the bundle" in (gone.advice or "")


ABOVE_1 = f"forbid {ANY} {{ context.input.amount > 1 }};\n"
THREE = PERMIT_ALL + "".join(f'@id("{name}") {ABOVE_1}' for name in "zyx")


class Walked(dict[str, PolicySource]):
    """Policies that must not be iterated."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("walked through")


def test_ids_are_in_file_order_without_iterating_all_policies(tmp_path: Path) -> None:
    folder = BundleFolder(tmp_path).policies(THREE)
    assert folder.decide(PAY).policies == ("z", "y", "x")
    rules = replace(folder.load().rules)
    object.__setattr__(rules, "policies", Walked(rules.policies))
    assert rules.in_order(["x", "gone", "z", "x"]) == ("z", "x")
