"""How much the cases cover: which policies they use, and which mutants of the policies they notice.

Rules kept here: whether a policy holds is asked of that policy alone, with the request and the entities of the case, so
that a forbid beside it hides nothing. Every case that holds on the bundle as written is asked of every mutant; a mutant
the schema refuses could never become active and is counted separately; only the sets a mutant can affect are made
anew, and it is dropped at the first case that notices it. An acknowledgement in cases/mutants.toml names one policy and
one mutant and says why; one whose mutant does not survive, or does not exist any more, is an error.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from typing import Any

from cedarpy import PolicySet, Schema, pst, validate_policies

from countersign.contract import ContractError
from policy_service.domain.decision import Decision
from policy_service.domain.policy_request import InvalidArgsError, PolicyRequest
from policy_service.pap.bundle import Bundle
from policy_service.pap.compile import compile_schema, people_rules, people_schema, tool_shapes, with_policies
from policy_service.pap.folder_reader import MUTANTS_FILE
from policy_service.pap.parts import read_parts
from policy_service.pap.policies import Policy, read_policies
from policy_service.pap.policy_tests.case import Case
from policy_service.pap.policy_tests.mutants import Mutant, generate_mutants
from policy_service.pap.policy_tests.runner import CaseResult, PreparedCase, determining_policies
from policy_service.pap.problems import BundleError, Problem, parse_problem
from policy_service.pdp.cedar import (
    CedarAnswer,
    build_entities,
    build_request,
    entities_json,
    evaluate_policies,
    missing_facts,
)
from policy_service.pdp.rules import UNSEEN, Rules, ToolRules, policy_set, scope_may_match

_MEMBERS = ("policy", "mutant", "why")

AcknowledgedMutants = Mapping[tuple[str, str], str]
"""Why, by policy and mutant."""


def read_acknowledged_mutants(files: Mapping[str, bytes]) -> AcknowledgedMutants:
    """What the file says; nothing where there is none.

    Raises:
        BundleError: it is not such a file.
    """
    if MUTANTS_FILE not in files:
        return {}
    try:
        table = tomllib.loads(files[MUTANTS_FILE].decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BundleError([parse_problem(MUTANTS_FILE, error)]) from None
    problems: list[Problem] = []
    if strange := sorted(table.keys() - {"survives"}):
        problems.append(_problem(f"{strange[0]!r} is nothing this file has; write [[survives]] tables"))
    entries = table.get("survives", [])
    read = [_entry(number, entry, problems) for number, entry in enumerate(_list(entries, problems), 1)]
    if problems:
        raise BundleError(problems)
    return {(policy, mutant): why for policy, mutant, why in read}


def unacknowledged_mutants(
    survived: Iterable[Mutant], acknowledged: AcknowledgedMutants
) -> tuple[list[Mutant], list[Problem]]:
    """The survivors nobody explained, and the explanations nothing needs."""
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
    close = get_close_matches(mutant, names, n=1)
    hint = (
        f"did you mean {close[0]!r}?"
        if close
        else "a case notices it, or the policy has changed; remove the entry"
    )
    return _problem(f"policy {policy!r}: no mutant {mutant!r} survives; {hint}")


def _problem(message: str) -> Problem:
    return Problem(MUTANTS_FILE, None, message)


@dataclass(frozen=True, slots=True)
class MutationResult:
    """What came of all mutants: how many some case noticed, how many fit no schema, and those that survived."""

    noticed: int
    refused: int
    survived: tuple[Mutant, ...]


def run_mutants(
    bundle: Bundle, prepared: Sequence[PreparedCase], answered: Sequence[CaseResult]
) -> MutationResult:
    """Try every mutant of every policy. `answered` are the same cases, asked of the bundle as written."""
    parts, _ = read_parts(bundle.source.files)
    policies, _ = read_policies(bundle.source.files, parts.directory.groups)
    tools, approving = compile_schema(tool_shapes(parts), parts.config), people_schema()
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
        for mutant in generate_mutants(policy, groups, _resource_types(bundle, policy)):
            if mutant.policy is not None and not _fits(mutant.policy, schema):
                refused += 1
            elif _is_noticed(bundle, {**policies}, mutant, ordered):
                noticed += 1
            else:
                survived.append(mutant)
    return MutationResult(noticed, refused, tuple(survived))


def _likely_first(policy: Policy, holding: Sequence[tuple[PreparedCase, CaseResult]]) -> list[PreparedCase]:
    """The cases this policy had a say in come first: one of them is the likeliest to notice."""

    def without_say(pair: tuple[PreparedCase, CaseResult]) -> bool:
        answer = pair[1].answer
        said = determining_policies(answer) if isinstance(answer, Decision) else frozenset(answer.policies)
        return policy.source.id not in said

    return [case for case, _ in sorted(holding, key=without_say)]


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

    def touches(self, prepared: PreparedCase) -> bool:
        """Whether the change can make a difference to this case at all."""
        if self._people or not isinstance(prepared.case, Case):
            return self._people and not isinstance(prepared.case, Case)
        tool = self._before.tools.get(prepared.case.tool)
        return tool is not None and any(
            scope_may_match(tree, tool.manifest.tool, tool.manifest.groups) for tree in self._trees
        )

    def for_case(self, prepared: PreparedCase) -> Rules:
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


def counted(mutation: MutationResult, acknowledged: int) -> str:
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
        told = asdict(self)
        del told["conditional"]
        return told | {"gap": self.gap}


def measure_coverage(
    bundle: Bundle, prepared: Sequence[PreparedCase], answered: Sequence[CaseResult]
) -> tuple[PolicyCoverage, ...]:
    """One row for each policy, in the order of the files."""
    parts, _ = read_parts(bundle.source.files)
    policies, _ = read_policies(bundle.source.files, parts.directory.groups)
    said = [_said(answer) for answer in answered]
    alone = {name: _alone(policy) for name, policy in policies.items()}
    counts = {name: [0, 0, 0] for name in policies}
    for case in prepared:
        _count(bundle.rules, case.question, policies, alone, counts)
    return tuple(
        PolicyCoverage(
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


def _said(answered: CaseResult) -> frozenset[str]:
    answer = answered.answer
    return determining_policies(answer) if isinstance(answer, Decision) else frozenset(answer.policies)


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
