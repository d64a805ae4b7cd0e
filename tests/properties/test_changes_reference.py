"""Bundle diff against brute force: in a small closed world, no widening of an exhaustive tool is missed."""

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from policy_service.domain.policy_request import AgentPrincipal, Facts
from policy_service.pap.diff.compare import compare
from policy_service.pap.diff.findings import Direction, find_relaxations
from policy_service.pdp.engine import decide
from tests.fakes.bundles import BundleFolder
from tests.fakes.random_rules import LIMITS, TOOLS, random_folder, random_policies

PAIRS = 5


def mutated(text: str, dice: random.Random) -> str:
    """The rules with one of them dropped, loosened, tightened or replaced."""
    rules = text.splitlines()
    index = dice.randrange(len(rules))
    kind = dice.randrange(5)
    if kind == 0 and len(rules) > 1:
        del rules[index]
    elif kind == 1:
        rules[index] = rules[index].replace("> 50", "> 51").replace("> 5 ", "> 6 ").replace("> 20", "> 19")
    elif kind == 2:
        rules[index] = rules[index].replace('"finance"', '"finance|cfo"').replace("when", "unless")
    elif kind == 3:
        looser = rules[index].replace('principal in Role::"desk"', "principal")
        rules[index] = looser.replace('"EUR"', '"USD"')
    else:
        rules[index] = random_policies(dice, 1).replace('"p0"', f'"p{index}"')
    return "\n".join(rules)


def questions(folder: BundleFolder) -> Iterator[Any]:
    """Every question of a small world, about one bundle."""
    digest = folder.load().digest
    agents, places = product((True, False), ("robot", "other")), product(("production", "staging"), (1, 2))
    calls = product(TOOLS, LIMITS, [0, 5, 6, 50, 51], ("EUR", "USD", None))
    for (tool, account, amount, currency), (role, name), (env, size) in product(calls, agents, places):
        args = {"account": account, "amount": amount} | ({"currency": currency} if currency else {})
        agent = AgentPrincipal(name, roles=frozenset({"desk"}) if role else frozenset())
        facts = Facts(digest, resource=LIMITS[account])
        yield folder.question(args, tool=tool, facts=facts, agent=agent, env=env, txn_size=size)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, PAIRS))])
def test_every_widening_found_by_brute_force_is_reported(tmp_path: Path, seed: int) -> None:
    before = random_folder(tmp_path / "before", seed)
    text = (before.path / "rules.cedar").read_text()
    after = random_folder(tmp_path / "after", seed).policies(mutated(text, random.Random(seed)))

    report = compare(before.load(), after.load())
    found = {finding.subject for finding in report.in_direction(Direction.LOOSENING)}
    sampled = {one.tool for one in report.tools if one.how == "sampled"}

    assert widened_tools(before, after) - sampled <= found


def widened_tools(before: BundleFolder, after: BundleFolder) -> set[str]:
    """The tools for which some question is decided more loosely."""
    wide: set[str] = set()
    for old, new in zip(questions(before), questions(after), strict=True):
        if old.tool in wide:
            continue
        if find_relaxations(decide(before.load().rules, old), decide(after.load().rules, new)):
            wide.add(old.tool)
    return wide
