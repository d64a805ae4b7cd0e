"""Ids in the order of the files, at the price of the ids that are asked about and not of the bundle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from policy_service.pdp.rules import PolicySource, Rules
from tests.fakes.bundles import PAY, PERMIT_ALL, BundleFolder

RULES = PERMIT_ALL + "".join(
    f'@id("{name}") forbid (principal, action, resource) when {{ context.input.amount > 1 }};\n'
    for name in "zyx"
)


class Walked(dict[str, PolicySource]):
    """Policies that say when somebody walks through them."""

    walks = 0

    def __iter__(self) -> Iterator[str]:
        Walked.walks += 1
        return super().__iter__()


def test_reasons_come_in_the_order_of_the_files(tmp_path: Path) -> None:
    decision = BundleFolder(tmp_path).policies(RULES).decide(PAY)
    assert decision.policies == ("z", "y", "x")


def test_what_is_not_there_is_left_out_and_nothing_comes_twice(tmp_path: Path) -> None:
    rules = BundleFolder(tmp_path).policies(RULES).load().rules
    assert rules.in_order(["x", "gone", "z", "x"]) == ("z", "x")


def test_a_decision_walks_through_no_other_tools_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = BundleFolder(tmp_path).policies(RULES).load().rules
    walked = Rules(**{name: getattr(rules, name) for name in ("digest", "commit", "tools", "versions", "groups_of")},
                   policies=Walked(rules.policies))  # fmt: skip
    monkeypatch.setattr(Walked, "walks", 0)
    assert walked.in_order(["x", "z"]) == ("z", "x")
    assert Walked.walks == 0
