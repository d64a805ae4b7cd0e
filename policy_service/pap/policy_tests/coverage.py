"""Measure how well cases cover a bundle: which policies they exercise, and which mutants they detect.

Each policy is evaluated alone on the request and entities of a case, so that no forbid hides another policy. Every
passing case runs against every mutant that can affect it, until one detects the mutant. Only the affected policy sets
are compiled again. A mutant that the schema refuses could never be activated and is counted separately. An
acknowledgement in cases/mutants.toml names one policy, one mutant and the reason. One whose mutant is detected or no
longer exists is an error.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cedarpy import PolicySet, Schema, validate_policies

from countersign.contract import ContractError
from policy_service.domain.policy_request import InvalidArgsError, PolicyRequest
from policy_service.pap.bundle import Bundle
from policy_service.pap.compile import (
    compile_people_rules,
    compile_schema,
    people_policies,
    people_schema,
    tool_shapes,
    with_policies,
)
from policy_service.pap.folder_reader import MUTANTS_FILE
from policy_service.pap.parts import read_parts
from policy_service.pap.policies import Policy, is_unconditional, read_policies
from policy_service.pap.policy_tests.case import Case
from policy_service.pap.policy_tests.mutants import Mutant, generate_mutants
from policy_service.pap.policy_tests.runner import CaseResult, PreparedCase
from policy_service.pap.problems import BundleError, Problem, did_you_mean, parse_problem
from policy_service.pdp.rules import (
    UNSEEN,
    CedarAnswer,
    Rules,
    ToolRules,
    build_entities,
    build_request,
    entities_json,
    evaluate_policies,
    missing_facts,
    policy_set,
    scope_may_match,
)

_MEMBERS = ("policy", "mutant", "why")

AcknowledgedMutants = Mapping[tuple[str, str], str]
"""The reason, by policy and mutant."""


def read_acknowledged_mutants(files: Mapping[str, bytes]) -> AcknowledgedMutants:
    """The acknowledged mutants of the file; none if there is no file.

    Raises:
        BundleError: the file has the wrong format.
    """
    if MUTANTS_FILE not in files:
        return {}
    try:
        table = tomllib.loads(files[MUTANTS_FILE].decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BundleError([parse_problem(MUTANTS_FILE, error)]) from None
    problems: list[Problem] = []
    if strange := sorted(table.keys() - {"survives"}):
        problems.append(_problem(f"{strange[0]!r} is not a key of this file; write [[survives]] tables"))
    entries = table.get("survives", [])
    read = [_entry(number, entry, problems) for number, entry in enumerate(_list(entries, problems), 1)]
    if problems:
        raise BundleError(problems)
    return {(policy, mutant): why for policy, mutant, why in read}


def unacknowledged_mutants(
    survived: Iterable[Mutant], acknowledged: AcknowledgedMutants
) -> tuple[list[Mutant], list[Problem]]:
    """The survivors without an acknowledgement, and the acknowledgements without a survivor."""
    names = {(mutant.of.source.id, mutant.name): mutant for mutant in survived}
    left = [mutant for name, mutant in names.items() if name not in acknowledged]
    return left, [_stale(name, left) for name in acknowledged if name not in names]


def _list(entries: Any, problems: list[Problem]) -> list[Any]:
    if isinstance(entries, list):
        return entries
    problems.append(_problem("write [[survives]], in two brackets, for each mutant"))
    return []


def _entry(number: int, entry: Any, problems: list[Problem]) -> tuple[str, str, str]:
    found = entry if isinstance(entry, dict) else {}
    problems += [
        _problem(f"[[survives]] number {number} needs {name} = a text")
        for name in _MEMBERS
        if not isinstance(found.get(name), str) or not found[name].strip()
    ]
    if strange := sorted(found.keys() - set(_MEMBERS)):
        message = f"[[survives]] number {number}: {strange[0]!r} is unknown; known are {', '.join(_MEMBERS)}"
        problems.append(_problem(message))
    policy, mutant, why = (str(found.get(name)) for name in _MEMBERS)
    return policy, mutant, why


def _stale(name: tuple[str, str], left: Iterable[Mutant]) -> Problem:
    policy, mutant = name
    names = [each.name for each in left if each.of.source.id == policy]
    hint = did_you_mean(mutant, names, "a case detects it, or the policy has changed; remove the entry")
    return _problem(f"policy {policy!r}: no mutant {mutant!r} survives; {hint}")


def _problem(message: str) -> Problem:
    return Problem(MUTANTS_FILE, None, message)


@dataclass(frozen=True, slots=True)
class MutationResult:
    """The number of mutants that a case detected and that the schema refused, and the survivors."""

    noticed: int
    refused: int
    survived: tuple[Mutant, ...]


def run_mutants(
    bundle: Bundle, prepared: Sequence[PreparedCase], answered: Sequence[CaseResult]
) -> MutationResult:
    """Run every mutant of every policy. `answered` are the results of the same cases on the unchanged bundle."""
    parts, _ = read_parts(bundle.source.files)
    policies, _ = read_policies(bundle.source.files, parts.directory.groups)
    tools, approving = compile_schema(tool_shapes(parts), parts.config), people_schema()
    passing = [
        (case, result.policies) for case, result in zip(prepared, answered, strict=True) if result.holds
    ]
    groups = parts.directory.groups - {UNSEEN}
    noticed, refused, survived = 0, 0, []
    for policy in policies.values():
        schema = approving if policy.about_people else tools
        # Against a wrong schema every mutant would be refused silently.
        if not _fits(policy, schema):
            raise ValueError(
                f"{policy.source.place}: {policy.source.id!r} no longer fits its bundle's schema"
            )
        # Cases that this policy determined run first, as they are the likeliest to detect a mutant.
        ordered = [case for case, ids in sorted(passing, key=lambda pair: policy.source.id not in pair[1])]
        for mutant in generate_mutants(policy, groups, _resource_types(bundle, policy)):
            if mutant.policy is not None and not _fits(mutant.policy, schema):
                refused += 1
            elif _is_noticed(bundle, {**policies}, mutant, ordered):
                noticed += 1
            else:
                survived.append(mutant)
    return MutationResult(noticed, refused, tuple(survived))


def _resource_types(bundle: Bundle, policy: Policy) -> frozenset[str]:
    return frozenset(
        manifest.resource.type
        for manifest in bundle.manifests.values()
        if scope_may_match(policy.tree, manifest.tool, manifest.groups)
    )


def _fits(policy: Policy, schema: Schema) -> bool:
    text = str(policy_set({policy.source.id: policy.tree}))
    return bool(validate_policies(text, schema, release_gil=True).validation_passed)


def _is_noticed(
    bundle: Bundle, policies: dict[str, Policy], mutant: Mutant, prepared: Sequence[PreparedCase]
) -> bool:
    if mutant.policy is None:
        del policies[mutant.of.source.id]
    else:
        policies[mutant.of.source.id] = mutant.policy
    rules = _Changed(bundle.rules, policies, mutant)
    return any(not case.ask(rules.for_case(case)).holds for case in prepared if rules.touches(case))


class _Changed:
    """The rules with one policy changed; a tool's policy sets are compiled on first use."""

    def __init__(self, rules: Rules, policies: Mapping[str, Policy], mutant: Mutant) -> None:
        self._about_tools = {name: policy for name, policy in policies.items() if not policy.about_people}
        self._trees = [policy.tree for policy in (mutant.of, mutant.policy) if policy is not None]
        self._people = bool(mutant.of.about_people)
        self._before = rules
        self._tools: dict[str, Rules] = {}
        self._rules = replace(
            rules,
            policies={name: policy.source for name, policy in policies.items()},
            people=compile_people_rules(people_policies(policies)) if self._people else rules.people,
        )

    def touches(self, prepared: PreparedCase) -> bool:
        """Whether the change can affect this case."""
        if self._people or not isinstance(prepared.case, Case):
            return self._people and not isinstance(prepared.case, Case)
        tool = self._before.tools.get(prepared.case.tool)
        return tool is not None and any(
            scope_may_match(tree, tool.manifest.tool, tool.manifest.groups) for tree in self._trees
        )

    def for_case(self, prepared: PreparedCase) -> Rules:
        """The rules to run this case with."""
        if not isinstance(prepared.case, Case):
            return self._rules
        name = prepared.case.tool
        if name not in self._tools:
            tool: ToolRules = with_policies(self._before.tools[name], self._about_tools)
            self._tools[name] = replace(
                self._rules, tools={name: tool}, versions={(name, tool.manifest.digest): tool}
            )
        return self._tools[name]


def counted(mutation: MutationResult, acknowledged: int) -> str:
    """The totals, as one line."""
    left = len(mutation.survived) - acknowledged
    summary = f"{mutation.noticed} mutants are detected, {left} survive"
    parts = [f"{acknowledged} acknowledged" if acknowledged else "", f"{mutation.refused} fit no schema"]
    return f"{summary} ({', '.join(part for part in parts if part)})"


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
    return f"write a case that {policy} answers one way unchanged, and another way with this change"


_HELD, _NOT_HELD, _ERRED = range(3)


@dataclass(frozen=True, slots=True)
class PolicyCoverage:
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
        row = asdict(self)
        del row["conditional"]
        return row | {"gap": self.gap}


def measure_coverage(
    bundle: Bundle, prepared: Sequence[PreparedCase], answered: Sequence[CaseResult]
) -> tuple[PolicyCoverage, ...]:
    """One row for each policy, in the order of the files."""
    parts, _ = read_parts(bundle.source.files)
    policies, _ = read_policies(bundle.source.files, parts.directory.groups)
    determining = [result.policies for result in answered]
    # As a permit, a policy holds exactly when the engine allows.
    alone = {
        name: policy_set({name: replace(policy.tree, effect="permit")}) for name, policy in policies.items()
    }
    counts = {name: [0, 0, 0] for name in policies}
    for case in prepared:
        _count(bundle.rules, case.question, policies, alone, counts)
    return tuple(
        PolicyCoverage(
            policy=name,
            place=policy.source.place,
            kind="people" if policy.about_people else policy.source.kind,
            determined=sum(name in ids for ids in determining),
            held=counts[name][_HELD],
            not_held=counts[name][_NOT_HELD],
            erred=counts[name][_ERRED],
            conditional=not is_unconditional(policy.tree),
        )
        for name, policy in policies.items()
    )


def coverage_table(rows: Sequence[PolicyCoverage]) -> str:
    """The rows for people."""
    widest = max((len(row.policy) for row in rows), default=6)
    lines = [f"{'policy':{widest}}  kind    decides  holds  not  errs"]
    lines += [
        f"{row.policy:{widest}}  {row.kind:6}  {row.determined:7}  {row.held:5}  {row.not_held:3}  {row.erred:4}"
        f"{'  ' + row.gap if row.gap else ''}"
        for row in rows
    ]
    return "\n".join(lines)


def _count(
    rules: Rules,
    question: PolicyRequest | None,
    policies: Mapping[str, Policy],
    alone: Mapping[str, PolicySet],
    counts: dict[str, list[int]],
) -> None:
    tool = None if question is None else rules.tools.get(question.tool)
    if question is None or tool is None or missing_facts(question, tool):
        return
    for name, policy in policies.items():
        if scope_may_match(policy.tree, tool.manifest.tool, tool.manifest.groups):
            answer = _ask_alone(rules, question, tool, alone[name])
            if answer is None:
                return
            counts[name][_ERRED if answer.errors else _HELD if answer.allowed else _NOT_HELD] += 1


def _ask_alone(
    rules: Rules, question: PolicyRequest, tool: ToolRules, policies: PolicySet
) -> CedarAnswer | None:
    """What one policy says of a case; None where the call never reaches the rules."""
    try:
        encoded = tool.codec.encode(question.args)
        resource = tool.manifest.resource_of(question.args)
        entities = build_entities(entities_json(question, rules, resource), tool.schema)
    except (InvalidArgsError, ContractError, ValueError):
        return None
    return evaluate_policies(
        policies, build_request(question, tool, resource, encoded), entities, tool.schema
    )
