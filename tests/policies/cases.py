"""Reads and runs the cases of a bundle: decision, gates, people needed, reasons.

`python -m tests.policies.cases FOLDER` runs those of any bundle, for a policies repository of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from policy_service.domain.decision import Decision
from policy_service.domain.gates import merge
from policy_service.domain.question import AgentPrincipal, Question
from policy_service.pap.bundle import Bundle, load_bundle
from policy_service.pap.problems import BundleError
from policy_service.pdp.engine import decide
from tests.fakes.bundles import NOW


@dataclass(frozen=True)
class Case:
    """One expectation of a bundle's author."""

    it: str
    agent: AgentPrincipal
    tool: str
    args: dict[str, Any]
    expect: str
    gates: tuple[str, ...] = ()
    needs: dict[str, int] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    def decided_by(self, bundle: Bundle) -> Decision:
        """What the bundle says."""
        manifest = bundle.manifests.get(self.tool)
        raw = json.dumps(self.args).encode()
        facts = asyncio.run(bundle.facts_for(self.tool, self.args, raw, agent=self.agent.name, now=NOW))
        digest = manifest.digest if manifest else "0" * 64
        return decide(bundle.rules, Question(self.agent, self.tool, digest, self.args, facts, NOW))

    def differences(self, decision: Decision) -> list[str]:
        """In what the decision is not what the author expects; empty when it is."""
        needs = {merged.key: merged.quorum for merged in merge(decision.gates)}
        found = {
            "expect": decision.outcome.value,
            "gates": tuple(gate.policy_id for gate in decision.gates),
            "needs": needs,
            "reasons": tuple(reason.policy or reason.code for reason in decision.reasons),
            "alarms": decision.alarms,
        }
        expected = {
            "expect": self.expect, "gates": self.gates, "needs": self.needs, "reasons": self.reasons, "alarms": (),
        }  # fmt: skip
        return [
            f"{name}: {found[name]} is not {expected[name]}"
            for name in found
            if found[name] != expected[name]
        ]


def cases_of(folder: Path) -> Iterator[Case]:
    """Every case beside a bundle's policies."""
    for file in sorted((folder / "cases").glob("*.yaml")):
        told = yaml.safe_load(file.read_text())
        agents = {
            alias: AgentPrincipal(agent["name"], agent.get("owner"), frozenset(agent.get("roles", ())))
            for alias, agent in told["agents"].items()
        }
        for case in told["cases"]:
            gates, reasons = tuple(case.pop("gates", ())), tuple(case.pop("reasons", ()))
            yield Case(agent=agents[case.pop("agent")], gates=gates, reasons=reasons, **case)


def main(arguments: Sequence[str]) -> int:
    """Load a bundle and run its cases; 0 when it is valid, has cases and every one holds."""
    (folder,) = arguments
    try:
        bundle = load_bundle(Path(folder))
    except BundleError as error:
        print(error)
        return 1
    cases = list(cases_of(Path(folder)))
    wrong = [
        (case, differences) for case in cases if (differences := case.differences(case.decided_by(bundle)))
    ]
    for case, differences in wrong:
        print(f"does not hold: {case.it}: {'; '.join(differences)}")
    print(f"{len(cases) - len(wrong)} cases hold, {len(wrong)} do not")
    return 0 if cases and not wrong else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
