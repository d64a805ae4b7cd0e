"""Ids in the order of the files, at the price of the ids that are asked about and not of the bundle."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from policy_service.pdp.rules import PolicySource
from tests.fakes.bundles import PAY, PERMIT_ALL, BundleFolder

RULES = PERMIT_ALL + "".join(
    f'@id("{name}") forbid (principal, action, resource) when {{ context.input.amount > 1 }};\n'
    for name in "zyx"
)


class Walked(dict[str, PolicySource]):
    """Policies through which nobody walks."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("walked through")


def test_ids_come_in_the_order_of_the_files_once_each_without_a_walk(tmp_path: Path) -> None:
    folder = BundleFolder(tmp_path).policies(RULES)
    assert folder.decide(PAY).policies == ("z", "y", "x")
    rules = replace(folder.load().rules)
    object.__setattr__(rules, "policies", Walked(rules.policies))
    assert rules.in_order(["x", "gone", "z", "x"]) == ("z", "x")
