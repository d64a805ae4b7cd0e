"""Parse the case files of a bundle into cases; every problem has its file and line.

An unknown key is refused, because a misspelt expectation would always hold. A review must name its gates and a deny its
reasons, because a case that any refusal satisfies tests nothing. Names of cases are unique in a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, Literal, cast

from countersign.contract import ContractError, TaskKind, canonicalize, load
from policy_service.domain.gates import STEP_UPS
from policy_service.domain.person_actions import RESOURCE_TYPES
from policy_service.domain.policy_request import AgentPrincipal, CallMethod, Claimed
from policy_service.pap.policy_tests import yaml_fields as fields
from policy_service.pap.policy_tests.case import (
    DEFAULT_NOW,
    AnyCase,
    Case,
    ExpectedDecision,
    ExpectedGate,
    GivenFacts,
    PeopleCase,
    expand_case,
    merge_tables,
)
from policy_service.pap.policy_tests.yaml_fields import Fields, Table, YamlError, read_yaml
from policy_service.pap.problems import BundleError, Problem, did_you_mean

MAX_CASES: Final = 20_000
"""Cases of one bundle; each is one decision of about 0.25 ms."""

_DEFAULTS: Final = frozenset(
    "agent tool args facts history claimed now env txn_size on_behalf_of method person groups assurance".split()
)
_OF_PEOPLE: Final = frozenset("agent tool now env person groups assurance".split())
_LISTS: Final = ("cases", *RESOURCE_TYPES)
_EXPECTED_OF: Final = {
    "gates": "review",
    "needs": "review",
    "step_up": "review",
    "answer_within": "review",
    "reasons": "deny",
    "errors": "deny",
}
_METHODS: Final = ("key", "api_key")
_KINDS: Final = tuple(kind.value for kind in TaskKind)
_STOPPABLE: Final = ("everything", "tool", "agent")
_SOMEBODY: Final = "urn:case|somebody"
_ROBOT: Final = AgentPrincipal("agent")
_NO_AGENT: Final = AgentPrincipal("")


def read_cases(files: Mapping[str, bytes]) -> list[AnyCase]:
    """Every case of a bundle's files, in the order of files and lines.

    Raises:
        BundleError: all problems of them.
    """
    problems: list[Problem] = []
    cases: list[AnyCase] = []
    for name in sorted(files):
        if name.startswith("cases/") and name.endswith((".yaml", ".yml")):
            try:
                cases += _CaseFile(name, problems).read(read_yaml(name, files[name]))
            except YamlError as error:
                problems.append(error.problem)
    if len(cases) > MAX_CASES:
        problems.append(Problem("cases", None, f"{len(cases)} cases; {MAX_CASES} is the limit"))
    if problems:
        raise BundleError(problems)
    return cases


class _CaseFile:
    """Parses one case file; problems are appended to the list."""

    def __init__(self, name: str, problems: list[Problem]) -> None:
        self._name, self._problems = name, problems
        self._agents: dict[str, AgentPrincipal] = {}

    def read(self, document: Any) -> list[AnyCase]:
        if not isinstance(document, Table):
            self._problems.append(Problem(self._name, 1, "write a mapping with `cases:`, a list of them"))
            return []
        none: list[Table] = []
        with self._fields(document, "a cases file") as file:
            for alias, value in file.take("agents", fields.table, Table(document.line)).items():
                if isinstance(value, Table):
                    self._agents[alias] = self._new_agent(value)
                else:
                    form = "write it like { name: desk-agent, roles: [] }"
                    file.refuse("agents", f"agents: {alias!r} is not a mapping; {form}")
            defaults = file.take("defaults", fields.table, Table(document.line))
            for key in defaults:
                if key not in _DEFAULTS:
                    known = ", ".join(sorted(_DEFAULTS))
                    file.refuse("defaults", f"defaults: {key!r} has no default; known are {known}")
            written = [(kind, table) for kind in _LISTS for table in file.take(kind, fields.tables, none)]
        cases: list[AnyCase] = []
        for kind, table in written:
            cases += self._cases(kind, _defaulted(kind, defaults), table)
        self._problems += _twins(cases)
        return cases

    def _fields(self, table: Table, what: str) -> Fields:
        return Fields(self._name, table, what, self._problems)

    def _cases(self, kind: str, defaults: Table, table: Table) -> Iterator[AnyCase]:
        before = len(self._problems)
        try:
            expanded = list(expand_case(merge_tables(defaults, table)))
        except ValueError as error:
            self._problems.append(Problem(self._name, table.line, str(error)))
            return
        for one in expanded:
            case = self._case(one) if kind == "cases" else self._people_case(kind, one)
            if len(self._problems) > before:  # the other cases of a matrix would repeat it
                return
            yield case

    def _agent(self, value: Any) -> AgentPrincipal:
        """A case's `agent:`: one of the aliases, or a mapping."""
        if isinstance(value, Table):
            return self._new_agent(value)
        alias = fields.text(value)
        if alias not in self._agents:
            hint = did_you_mean(alias, self._agents, "add it to `agents:`")
            raise ValueError(f"there is no agent {alias!r} in this file; {hint}")
        return self._agents[alias]

    def _new_agent(self, table: Table) -> AgentPrincipal:
        with self._fields(table, "an agent") as agent:
            owner: str | None = agent.take("owner", fields.text, "") or None
            return AgentPrincipal(
                name=agent.need("name", fields.text, ""),
                owner=owner,
                roles=agent.take("roles", fields.texts, frozenset[str]()),
                teams=agent.take("teams", fields.texts, frozenset[str]()),
            )

    def _case(self, table: Table) -> Case:
        no_args: tuple[Any, bytes] = ({}, b"{}")
        with self._fields(table, "a case") as case:
            case.know("matrix", "each")
            args, args_bytes = case.take("args", _args, no_args)
            facts = case.take("facts", fields.table, None)
            claimed = case.take("claimed", fields.table, None)
            return Case(
                file=self._name,
                line=table.line,
                it=case.need("it", fields.text, ""),
                agent=case.need("agent", self._agent, _NO_AGENT),
                tool=case.need("tool", fields.text, ""),
                args=args,
                args_bytes=args_bytes,
                expected=self._expected(case),
                now=case.take("now", fields.moment, DEFAULT_NOW),
                env=case.take("env", fields.text, "production"),
                txn_size=case.take("txn_size", fields.number(1), 1),
                claimed=Claimed() if claimed is None else self._claimed(claimed),
                on_behalf_of=case.take("on_behalf_of", fields.text, "") or None,
                method=cast("CallMethod", case.take("method", fields.one_of(*_METHODS), "key")),
                history=case.take("history", _history, {}),
                facts=None if facts is None else self._facts(facts),
            )

    def _claimed(self, table: Table) -> Claimed:
        with self._fields(table, "claimed") as claimed:
            keys = ("purpose", "reasoning", "on_behalf_of")
            return Claimed(*(claimed.take(key, fields.text, "") or None for key in keys))

    def _facts(self, table: Table) -> GivenFacts:
        empty = Table(table.line)
        with self._fields(table, "facts") as about:
            return GivenFacts(*(about.take(key, fields.table, empty) for key in ("resource", "agent")))

    def _expected(self, case: Fields) -> ExpectedDecision:
        expected = ExpectedDecision(
            outcome=case.need("expect", fields.one_of("release", "review", "deny"), ""),
            gates=case.take("gates", fields.some_texts, None),
            needs=case.take("needs", self._needs, None),
            policies=case.take("policies", fields.some_texts, frozenset[str]()),
            reasons=case.take("reasons", fields.some_texts, None),
            errors=case.take("errors", fields.some_texts, None),
            step_up=case.take("step_up", fields.one_of(*STEP_UPS), "") or None,
            valid_for=case.take("valid_for", fields.duration, None),
            answer_within=case.take("answer_within", fields.duration, None),
        )
        _require_sense(case, expected.outcome)
        return expected

    def _needs(self, value: Any) -> dict[str, int | ExpectedGate]:
        needs: dict[str, int | ExpectedGate] = {}
        for groups, asked in fields.table(value).items():
            key = "|".join(sorted(group.strip() for group in groups.split("|")))
            needs[key] = self._gate(asked) if isinstance(asked, Table) else fields.number(1)(asked)
        if not needs:
            raise ValueError("an empty mapping expects nothing; leave it out")
        return needs

    def _gate(self, table: Table) -> ExpectedGate:
        usual = ExpectedGate(1)
        with self._fields(table, "a need") as gate:
            return ExpectedGate(
                people=gate.need("people", fields.number(1), 1),
                step_up=gate.take("step_up", fields.one_of(*STEP_UPS), "") or None,
                reason=gate.take("reason", fields.flag, usual.reason),
                shared=gate.take("shared", fields.flag, usual.shared),
                answer_within=gate.take("answer_within", fields.duration, usual.answer_within),
            )

    def _people_case(self, kind: str, table: Table) -> PeopleCase:
        about = RESOURCE_TYPES[kind]
        of_effect = about != "Stop"
        empty = frozenset[str]()
        with self._fields(table, f"a case of `{kind}:`") as case:
            case.know("matrix", "each")
            now = case.take("now", fields.moment, DEFAULT_NOW)
            assurance = case.take("assurance", fields.one_of("oidc", "dev"), "oidc")
            return PeopleCase(
                file=self._name,
                line=table.line,
                it=case.need("it", fields.text, ""),
                action=kind,
                person=case.take("person", fields.text, _SOMEBODY),
                groups=case.take("groups", fields.texts, empty),
                assurance=cast("Literal['oidc', 'dev']", assurance),
                agent=case.take("agent", self._agent, _ROBOT) if of_effect else _ROBOT,
                tool=case.need("tool", fields.text, "") if of_effect else "",
                gates=case.take("asked_by", fields.texts, empty) if of_effect else empty,
                kind=case.take("kind", fields.one_of(*_KINDS), _KINDS[0]) if about == "Task" else "",
                what="" if of_effect else case.take("what", fields.one_of(*_STOPPABLE), _STOPPABLE[0]),
                name="" if of_effect else case.take("name", fields.text, ""),
                now=now,
                opened_at=case.take("opened_at", fields.moment, now - timedelta(hours=1)),
                env=case.take("env", fields.text, "production"),
                allowed=case.need("expect", fields.one_of("allowed", "refused"), "refused") == "allowed",
                policies=case.take("policies", fields.some_texts, empty),
            )


def _args(value: Any) -> tuple[Any, bytes]:
    """The args as admission accepts them, and their canonical bytes."""
    try:
        args = load(json.dumps(fields.table(value)).encode())
        return args, canonicalize(args)
    except ContractError as error:
        raise ValueError(f"{error}; such a call is refused before any rule is evaluated") from error


def _history(value: Any) -> dict[str, int]:
    counted = fields.table(value)
    return {fields.text(meter): fields.number(0)(count) for meter, count in counted.items()}


def _require_sense(case: Fields, outcome: str) -> None:
    for key, expected in _EXPECTED_OF.items():
        if key in case.table and outcome not in (expected, ""):
            case.refuse(key, f"{key}: belongs to `expect: {expected}`, and this expects {outcome}")
    if "valid_for" in case.table and outcome == "deny":
        case.refuse("valid_for", "valid_for: a deny releases nothing, so it has no validity")
    if outcome == "review" and not {"gates", "needs"} & case.table.keys():
        case.refuse("expect", "a review must say who is asked: add `gates: [...]` or `needs: { group: 1 }`")
    if outcome == "deny" and not {"reasons", "policies", "errors"} & case.table.keys():
        advice = "add `reasons: [...]` (a policy's id, or a code)"
        case.refuse("expect", f"a deny must say why, else any denial passes: {advice}")


def _defaulted(kind: str, defaults: Table) -> Table:
    """The defaults that apply to this kind of case: one file may hold cases about calls and about people."""
    not_its = {"person", "groups", "assurance"} if kind == "cases" else _DEFAULTS - _OF_PEOPLE
    if RESOURCE_TYPES.get(kind) == "Stop":
        not_its = not_its | {"agent", "tool"}
    kept = Table(defaults.line)
    kept.update({key: value for key, value in defaults.items() if key not in not_its})
    kept.lines.update(defaults.lines)
    return kept


def _twins(cases: list[AnyCase]) -> Iterator[Problem]:
    seen: dict[tuple[str, str], AnyCase] = {}
    for case in cases:
        twin = seen.setdefault((type(case).__name__, case.it), case)
        if twin is not case:
            yield Problem(case.file, case.line, f"`it: {case.it}` is taken at {twin.place}; say what differs")
