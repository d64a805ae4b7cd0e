"""Random bundles and questions: rules over one amount, two accounts, roles, action groups and a fact, some of
which err.

Conditions are drawn so that permits, plain forbids, gates and errors all happen often, in every mixture. A
seed names one bundle for ever.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from policy_service.domain.policy_request import AgentPrincipal, Facts, PolicyRequest
from tests.fakes.bundles import BundleFolder, facts_of, pay_manifest

CASES: Final = 10_000 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 400
"""How many questions a comparison of two ways to decide asks; `make test-long` asks the larger number."""

FACTS = facts_of("Account", "facts/s.json", limit="Long")
LIMITS = {"a1": {"limit": 10}, "a2": {"limit": 2**53 - 1}}
TOOLS = {"pay": ["writes", "money"], "refund": ["writes"], "look_up": []}

SCOPE_ACTIONS = [
    "action", 'action == Action::"pay"', 'action == Action::"refund"', 'action in Action::"writes"',
    'action in [Action::"money", Action::"look_up"]', 'action == Action::"look_up"',
]  # fmt: skip
SCOPE_PRINCIPALS = ["principal", "principal", 'principal in Role::"desk"', 'principal == Agent::"robot"']
CONDITIONS = [
    "true", "context.input.amount > 5", "context.input.amount > 50", 'resource == Account::"a1"',
    "resource.limit > 20", "context.input.amount > resource.limit", 'context.env == "production"',
    "context.txn.size > 1", 'context.input has currency && context.input.currency == "EUR"',
]  # fmt: skip
ERRING = "resource.limit * 2000 > context.input.amount"  # leaves 64 bits for a2
GROUPS = ["finance", "cfo", "finance|cfo"]


def random_policies(dice: random.Random, count: int) -> str:
    """That many policies, each a permit, a plain forbid or a gate."""
    return "\n".join(_policy(dice, f"p{index}") for index in range(count))


def random_folder(path: Path, seed: int) -> BundleFolder:
    """The bundle this seed names."""
    dice = random.Random(seed)
    folder = BundleFolder(path)
    for tool, groups in TOOLS.items():
        folder.write(f"tools/{tool}.json", pay_manifest(tool=tool, groups=groups))
    folder.write("facts.toml", FACTS).write("facts/s.json", LIMITS)
    return folder.policies(random_policies(dice, dice.randint(1, 8)))


def random_questions(folder: BundleFolder, seed: int, count: int) -> Iterator[PolicyRequest]:
    """That many questions about the folder's tools."""
    dice = random.Random(-seed - 1)
    known = {account: Facts(folder.load().digest, resource=fact) for account, fact in LIMITS.items()}
    for _ in range(count):
        args: dict[str, Any] = {"account": dice.choice(["a1", "a2"])}
        args["amount"] = dice.choice([0, 5, 6, 51, 2**53 - 1])
        if dice.random() < 0.5:
            args["currency"] = dice.choice(["EUR", "USD"])
        roles = frozenset({"desk"}) if dice.random() < 0.6 else frozenset[str]()
        agent = AgentPrincipal(dice.choice(["robot", "other"]), roles=roles)
        env = dice.choice(["production", "staging"])
        facts = known[args["account"]]
        tool, size = dice.choice(list(TOOLS)), dice.randint(1, 2)
        yield folder.question(args, tool=tool, facts=facts, agent=agent, env=env, txn_size=size)


def _policy(dice: random.Random, policy_id: str) -> str:
    kind = dice.choice(["permit", "permit", "permit", "forbid", "gate", "gate", "gate"])
    annotation = f'@approval("{dice.choice(GROUPS)}") ' if kind == "gate" else ""
    effect = "permit" if kind == "permit" else "forbid"
    scope = f"{dice.choice(SCOPE_PRINCIPALS)}, {dice.choice(SCOPE_ACTIONS)}, resource"
    return f'@id("{policy_id}") {annotation}{effect} ({scope}) {_clause(dice, kind)};'


def _clause(dice: random.Random, kind: str) -> str:
    condition = ERRING if dice.random() < 0.09 else dice.choice(CONDITIONS)
    if kind == "permit" and dice.random() < 0.6:
        condition = "true"
    return f"{dice.choice(['when', 'when', 'unless'] if condition not in ('true',) else ['when'])} {{ {condition} }}"
