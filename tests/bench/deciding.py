"""D1: one decision of the policy engine, facts at hand, against one JSON round trip of the same arguments.

The bundle is the shipped support desk. `activating.py` asks the same of generated bundles.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from countersign.contract import Verdict
from policy_service.domain.policy_request import AgentPrincipal, PolicyRequest
from policy_service.pap.bundle import Bundle, load_bundle
from policy_service.pdp.engine import decide
from tests.bench.measuring import TIME, BenchError, Case, Group, Row, cpu_case
from tests.fakes.bundles import BundleFolder, pay_manifest

SUPPORT_DESK = Path(__file__).parents[2] / "policies"
NOW = datetime(2026, 11, 21, 22, 0, tzinfo=UTC)
AGENT = AgentPrincipal("desk", roles=frozenset({"support-agent"}))
MAIL = {"customer": "cus_1001", "to": "ada@example.com", "subject": "Your order", "body": "shipped " * 90}
PAYMENT = {"account": "a1", "amount": 100, "currency": "EUR"}
POLICIES = 1_000

ROWS = (
    Row(
        "D1",
        "a decision, support desk \N{DIVISION SIGN} json round trip",
        "decide, support desk",
        "json, mail",
        TIME,
    ),
)


def generated(folder: Path, tools: int, policies: int = POLICIES) -> Bundle:
    """So many policies: for each tool one permit, and gates that look at two arguments and do not fire."""
    bundle = BundleFolder(folder)
    bundle.write("tools/pay.json", pay_manifest())
    names = ["pay", *(f"pay{number}" for number in range(1, tools))]
    for name in names:
        bundle.write(f"tools/{name}.json", pay_manifest(tool=name))
    each = policies // tools
    for name in names:
        bundle.write(f"{name}.cedar", _policies(name, each))
    return bundle.load()


def _policies(tool: str, count: int) -> str:
    gates = (
        f'@id("{tool}-{n}") @approval("finance") forbid (principal, action == Action::"{tool}", resource) '
        f'when {{ context.input.amount > {1000 + n} && context.input.account != "b{n}" }};\n'
        for n in range(1, count)
    )
    return f'@id("{tool}") permit (principal, action == Action::"{tool}", resource);\n' + "".join(gates)


def question_about(name: str, bundle: Bundle, tool: str, args: dict[str, Any]) -> PolicyRequest:
    """A question this bundle lets through."""
    raw = json.dumps(args).encode()
    facts = asyncio.run(bundle.facts_for(tool, args, raw, agent=AGENT.name, now=NOW))
    question = PolicyRequest(AGENT, tool, bundle.manifests[tool].digest, args, facts, NOW)
    decision = decide(bundle.rules, question)
    if decision.outcome is not Verdict.RELEASE:
        raise BenchError(f"{name}: {decision.outcome} {decision.reasons}")
    return question


def decide_case(name: str, bundle: Bundle, tool: str, args: dict[str, Any]) -> Case:
    """One decision of this bundle."""
    question = question_about(name, bundle, tool, args)
    return cpu_case(name, lambda: decide(bundle.rules, question))


@contextmanager
def cases(folder: Path, wanted: frozenset[str]) -> Iterator[list[Case]]:
    """The bundle, loaded, and a question it lets through."""
    del folder, wanted
    yield [
        decide_case("decide, support desk", load_bundle(SUPPORT_DESK), "send_mail", MAIL),
        cpu_case("json, mail", lambda: json.loads(json.dumps(MAIL)), reference=True),
    ]


GROUP = Group(ROWS, cases)
