"""Guards and gates, evaluated separately, against one standard Cedar policy set with the gates in plain Cedar.

The reference appends `unless { context.cleared.contains("<gate id>") }` to every gate through the syntax tree and
evaluates it twice: unchanged, and with the gates among the reasons cleared. `make test-long` runs 10,000 random
questions, the fast suite fewer, without a disagreement. In this form another Cedar engine can evaluate a bundle too.
"""

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
from cedarpy import Decision as CedarDecision
from cedarpy import Entities, PolicySet, Schema, is_authorized, pst

from countersign.contract import Verdict
from policy_service.domain.policy_request import Decision, PolicyRequest
from policy_service.pap.bundle import Bundle
from policy_service.pap.compile import cedar_schema_json, tool_shape
from policy_service.pap.parts import read_parts
from policy_service.pap.policies import read_policies
from policy_service.pap.source import read_files
from policy_service.pdp.engine import decide
from policy_service.pdp.rules import build_request, entities_json
from tests.fakes.bundles import BundleFolder
from tests.fakes.random_rules import CASES, random_folder, random_questions

QUESTIONS: Final = 40
BUNDLES: Final = CASES // QUESTIONS


@dataclass(frozen=True)
class Reference:
    """One standard Cedar policy set, and its schema with `context.cleared` in it."""

    policies: PolicySet
    gates: frozenset[str]
    schema: Schema

    @classmethod
    def of(cls, folder: BundleFolder) -> "Reference":
        files = read_files(folder.path)
        parts, _ = read_parts(files)
        policies, _ = read_policies(files, parts.directory.groups)
        gates = frozenset(name for name, policy in policies.items() if policy.source.gate is not None)
        trees = {name: _with_cleared(p.tree) if name in gates else p.tree for name, p in policies.items()}
        schema = cedar_schema_json([tool_shape(version) for version in parts.tools], parts.config)
        for action in schema[""]["actions"].values():
            if "appliesTo" in action:
                cleared = {"type": "Set", "element": {"type": "String"}}
                action["appliesTo"]["context"]["attributes"]["cleared"] = cleared
        handle = PolicySet.from_pst(pst.PolicySet(templates={}, static_policies=trees, template_links=()))
        return cls(handle, gates, Schema.from_json_str(json.dumps(schema)))

    def verdict(self, bundle: Bundle, question: PolicyRequest) -> tuple[Verdict, frozenset[str], bool]:
        """The verdict, the gates that fired, and whether the engine erred."""
        first = self._ask(bundle, question, frozenset())
        if first.diagnostics.errors or first.decision is CedarDecision.NoDecision:
            return Verdict.DENY, frozenset(), True
        if first.allowed:
            return Verdict.RELEASE, frozenset(), False
        fired = self.gates.intersection(first.diagnostics.reasons)
        what_if = self._ask(bundle, question, fired)
        if what_if.allowed and not what_if.diagnostics.errors:
            return Verdict.REVIEW, fired, False
        return Verdict.DENY, frozenset(), bool(what_if.diagnostics.errors)

    def _ask(self, bundle: Bundle, question: PolicyRequest, cleared: frozenset[str]) -> Any:
        tool = bundle.rules.tools[question.tool]
        resource = tool.manifest.resource_of(question.args)
        request = build_request(question, tool, resource, tool.codec.encode(question.args))
        context = json.loads(request.context) | {"cleared": sorted(cleared)}
        known = json.dumps(entities_json(question, bundle.rules, resource))
        entities = Entities.from_json_str(known, self.schema)
        asked = {name: getattr(request, name) for name in ("principal", "action", "resource")}
        asked["context"] = context
        return is_authorized(asked, self.policies, entities, self.schema)


def _with_cleared(gate: pst.Template) -> pst.Template:
    cleared = pst.GetAttr(pst.Var("context"), "cleared")
    contains = pst.BinaryOp("contains", cleared, pst.StringLit(gate.annotations["id"]))
    return replace(gate, clauses=(*gate.clauses, pst.Unless(contains)))


def agree(decision: Decision, reference: tuple[Verdict, frozenset[str], bool]) -> bool:
    verdict, fired, erred = reference
    gates = frozenset(gate.policy_id for gate in decision.gates)
    return (decision.outcome, gates, decision.code == "policy_error") == (verdict, fired, erred)


@pytest.mark.deep
@pytest.mark.timeout(1_200)
def test_guards_and_gates_agree_with_standard_cedar(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(BUNDLES):
        folder = random_folder(tmp_path / str(seed), seed)
        bundle, reference = folder.load(), Reference.of(folder)
        for question in random_questions(folder, seed, QUESTIONS):
            decision = decide(bundle.rules, question)
            expected = reference.verdict(bundle, question)
            assert agree(decision, expected), (seed, question, decision, expected)
            seen[decision.code or decision.outcome.value] += 1
    assert sum(seen.values()) == BUNDLES * QUESTIONS
    # a mix in which every outcome is common: otherwise the agreement would say little
    for outcome in ("release", "review", "no_permit", "forbidden_by_policy", "policy_error"):
        assert seen[outcome] > CASES / 25, seen
