"""Which policies the cases ever use: which determined an answer, which gates fired, which conditions went both ways.

Rules kept here: what an answer says of itself is believed; whether a policy holds is asked of that policy alone, with
the request and the entities of the case, so that a forbid beside it hides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cedarpy import PolicySet, pst

from countersign.contract import ContractError
from policy_service.domain.decision import Decision
from policy_service.domain.question import ArgsRefusedError, Question
from policy_service.pap.bundle import Bundle
from policy_service.pap.cases.running import Answered, Prepared, determining
from policy_service.pap.parts import read_parts
from policy_service.pap.policies import Policy, read_policies
from policy_service.pdp.cedar import Answer, ask, entities_for, entities_of, missing_facts, request_for
from policy_service.pdp.rules import Rules, ToolRules, may_match, policy_set

_HELD, _NOT_HELD, _ERRED = range(3)


@dataclass(frozen=True, slots=True)
class Covered:
    """How often the cases used one policy. `held`, `not_held` and `erred` count the cases about its actions."""

    policy: str
    place: str
    kind: str
    determined: int
    held: int
    not_held: int
    erred: int
    conditional: bool

    @property
    def gap(self) -> str:
        """What no case shows; empty where nothing is missing."""
        if not self.determined:
            return "never decides"
        if self.kind != "people" and not self.held:
            return "never holds"
        if self.kind != "people" and self.conditional and not self.not_held:
            return "always holds"
        return ""

    def to_json(self) -> dict[str, Any]:
        """One row, for programs."""
        return {
            "policy": self.policy,
            "place": self.place,
            "kind": self.kind,
            "determined": self.determined,
            "held": self.held,
            "not_held": self.not_held,
            "erred": self.erred,
            "gap": self.gap,
        }


def coverage_of(
    bundle: Bundle, prepared: Sequence[Prepared], answered: Sequence[Answered]
) -> tuple[Covered, ...]:
    """One row for each policy, in the order of the files."""
    parts, _ = read_parts(bundle.source.files)
    policies, _ = read_policies(bundle.source.files, parts.directory.groups)
    said = [_said(answer) for answer in answered]
    alone = {name: _alone(policy) for name, policy in policies.items()}
    counts = {name: [0, 0, 0] for name in policies}
    for case in prepared:
        _count(bundle.rules, case.question, policies, alone, counts)
    return tuple(
        Covered(
            policy=name,
            place=policy.source.place,
            kind=_kind(policy),
            determined=sum(name in ids for ids in said),
            held=counts[name][_HELD],
            not_held=counts[name][_NOT_HELD],
            erred=counts[name][_ERRED],
            conditional=_conditional(policy),
        )
        for name, policy in policies.items()
    )


def table(rows: Sequence[Covered]) -> str:
    """The rows for people."""
    widest = max((len(row.policy) for row in rows), default=6)
    lines = [f"{'policy':{widest}}  kind    decides  holds  not  errs"]
    lines += [
        f"{row.policy:{widest}}  {row.kind:6}  {row.determined:7}  {row.held:5}  {row.not_held:3}  {row.erred:4}"
        f"{'  ' + row.gap if row.gap else ''}"
        for row in rows
    ]
    return "\n".join(lines)


def _said(answered: Answered) -> frozenset[str]:
    answer = answered.answer
    return determining(answer) if isinstance(answer, Decision) else frozenset(answer.policies)


def _kind(policy: Policy) -> str:
    if policy.about_people:
        return "people"
    return "gate" if policy.source.gate is not None else policy.source.effect


def _conditional(policy: Policy) -> bool:
    tree = policy.tree
    scopes = (tree.principal, tree.resource)
    return bool(tree.clauses) or any(not isinstance(scope, pst.ScopeAny | pst.ScopeIs) for scope in scopes)


def _alone(policy: Policy) -> PolicySet:
    """As a permit: it then holds exactly when the engine allows."""
    return policy_set({policy.source.id: replace(policy.tree, effect="permit")})


def _count(
    rules: Rules,
    question: Question | None,
    policies: Mapping[str, Policy],
    alone: Mapping[str, PolicySet],
    counts: dict[str, list[int]],
) -> None:
    tool = None if question is None else rules.tools.get(question.tool)
    if question is None or tool is None or missing_facts(question, tool):
        return
    for name, policy in policies.items():
        if may_match(policy.tree, tool.manifest.tool, tool.manifest.groups):
            answer = _ask_alone(rules, question, tool, alone[name])
            if answer is None:
                return
            counts[name][_ERRED if answer.errors else _HELD if answer.allowed else _NOT_HELD] += 1


def _ask_alone(rules: Rules, question: Question, tool: ToolRules, policies: PolicySet) -> Answer | None:
    """What one policy says of a case; None where the call never reaches the rules."""
    try:
        encoded = tool.codec.encode(question.args)
        resource = tool.manifest.resource_of(question.args)
        entities = entities_of(entities_for(question, rules, resource), tool.schema)
    except (ArgsRefusedError, ContractError, ValueError):
        return None
    return ask(policies, request_for(question, tool, resource, encoded), entities, tool.schema)
