"""Asks every case of every mutant: a mutant that no case notices is a rule that nothing holds.

Rules kept here: only cases that hold on the bundle as written are asked; a mutant the schema refuses could never become
active and is counted apart; only the slices a mutant can touch are made anew, and it is let go at the first case that
notices it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cedarpy import Schema, validate_policies

from policy_service.domain.decision import Decision
from policy_service.pap.bundle import Bundle
from policy_service.pap.cases.case import Case
from policy_service.pap.cases.comparing import determining
from policy_service.pap.cases.mutants import Mutant, mutants_of
from policy_service.pap.cases.running import Answered, Prepared
from policy_service.pap.compile import approving_schema, people_rules, schema_of, shapes_in, with_policies
from policy_service.pap.parts import read_parts
from policy_service.pap.policies import Policy, read_policies
from policy_service.pdp.rules import UNSEEN, Rules, ToolRules
from policy_service.pdp.slices import may_match, policy_set


@dataclass(frozen=True, slots=True)
class Mutation:
    """What came of all mutants: how many some case noticed, how many fit no schema, and those that survived."""

    noticed: int
    refused: int
    survived: tuple[Mutant, ...]


def mutate(bundle: Bundle, prepared: Sequence[Prepared], answered: Sequence[Answered]) -> Mutation:
    """Try every mutant of every policy. `answered` are the same cases, asked of the bundle as written."""
    parts, _ = read_parts(bundle.source.files)
    policies, _ = read_policies(bundle.source.files, parts.directory.groups)
    tools, approving = schema_of(shapes_in(parts), parts.config), approving_schema()
    holding = [(case, said) for case, said in zip(prepared, answered, strict=True) if said.holds]
    groups = parts.directory.groups - {UNSEEN}
    noticed, refused, survived = 0, 0, []
    for policy in policies.values():
        schema = approving if policy.about_people else tools
        # with a schema that is not the bundle's, every mutant would be refused quietly
        if not _fits(policy, schema):
            raise ValueError(
                f"{policy.source.place}: {policy.source.id!r} fits its bundle's schema no longer"
            )
        ordered = _likely_first(policy, holding)
        for mutant in mutants_of(policy, groups, _resource_types(bundle, policy)):
            if mutant.policy is not None and not _fits(mutant.policy, schema):
                refused += 1
            elif _is_noticed(bundle, {**policies}, mutant, ordered):
                noticed += 1
            else:
                survived.append(mutant)
    return Mutation(noticed, refused, tuple(survived))


def _likely_first(policy: Policy, holding: Sequence[tuple[Prepared, Answered]]) -> list[Prepared]:
    """The cases this policy had a say in come first: one of them is the likeliest to notice."""

    def without_say(pair: tuple[Prepared, Answered]) -> bool:
        answer = pair[1].answer
        said = determining(answer) if isinstance(answer, Decision) else frozenset(answer.policies)
        return policy.source.id not in said

    return [case for case, _ in sorted(holding, key=without_say)]


def _resource_types(bundle: Bundle, policy: Policy) -> frozenset[str]:
    return frozenset(
        manifest.resource.type
        for manifest in bundle.manifests.values()
        if may_match(policy.tree, manifest.tool, manifest.groups)
    )


def _fits(policy: Policy, schema: Schema) -> bool:
    text = str(policy_set({policy.source.id: policy.tree}))
    return bool(validate_policies(text, schema, release_gil=True).validation_passed)


def _is_noticed(
    bundle: Bundle, policies: dict[str, Policy], mutant: Mutant, prepared: Sequence[Prepared]
) -> bool:
    of = mutant.of.source.id
    if mutant.policy is None:
        del policies[of]
    else:
        policies[of] = mutant.policy
    rules = _Changed(bundle.rules, policies, mutant)
    return any(not case.ask(rules.for_case(case)).holds for case in prepared if rules.touches(case))


class _Changed:
    """The rules with one policy changed; a tool's sets are made when the first case asks for it."""

    def __init__(self, rules: Rules, policies: Mapping[str, Policy], mutant: Mutant) -> None:
        self._about_tools = {name: policy for name, policy in policies.items() if not policy.about_people}
        self._trees = [policy.tree for policy in (mutant.of, mutant.policy) if policy is not None]
        self._people = bool(mutant.of.about_people)
        self._before = rules
        self._tools: dict[str, Rules] = {}
        self._rules = replace(
            rules,
            policies={name: policy.source for name, policy in policies.items()},
            people=people_rules(policies) if self._people else rules.people,
        )

    def touches(self, prepared: Prepared) -> bool:
        """Whether the change can make a difference to this case at all."""
        if self._people or not isinstance(prepared.case, Case):
            return self._people and not isinstance(prepared.case, Case)
        tool = self._before.tools.get(prepared.case.tool)
        return tool is not None and any(
            may_match(tree, tool.manifest.tool, tool.manifest.groups) for tree in self._trees
        )

    def for_case(self, prepared: Prepared) -> Rules:
        """The rules as this case needs them."""
        if not isinstance(prepared.case, Case):
            return self._rules
        name = prepared.case.tool
        if name not in self._tools:
            tool: ToolRules = with_policies(self._before.tools[name], self._about_tools)
            self._tools[name] = replace(
                self._rules, tools={name: tool}, versions={(name, tool.manifest.digest): tool}
            )
        return self._tools[name]


def counted(mutation: Mutation, acknowledged: int) -> str:
    """The totals, as one line."""
    left = len(mutation.survived) - acknowledged
    told = f"{mutation.noticed} mutants are noticed, {left} survive"
    parts = [f"{acknowledged} acknowledged" if acknowledged else "", f"{mutation.refused} fit no schema"]
    return f"{told} ({', '.join(part for part in parts if part)})"


def noticing(mutant: Mutant) -> str:
    """What to do about a survivor, in words."""
    policy = mutant.of.source.id
    if mutant.policy is None:
        return f"write a case that {policy} decides and nothing else does"
    if mutant.name.startswith("@unseen"):
        return f"write a case with such a field that {policy} lets through"
    if mutant.name.startswith("@valid_for"):
        return f"write a case where {policy} fires, and say `valid_for:`"
    if mutant.name.startswith("@"):
        return f"write a case where {policy} fires, and write its `needs:` out: {{ group: {{ people: 1, ... }} }}"
    return f"write a case that {policy} answers one way as it stands, and another way with this change"
