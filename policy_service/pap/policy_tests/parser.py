"""The cases files of a bundle, into cases: every problem with its file and line.

Rules kept here: an unknown key is refused, because a misspelt expectation would hold for ever; a review says who
is asked and a deny says why, because a case that any refusal satisfies tests nothing; two cases of one file have two
names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Final, Literal, cast

from countersign.contract import ContractError, TaskKind, canonicalize, load
from policy_service.domain.gates import STEP_UPS
from policy_service.domain.person_actions import RESOURCE_TYPES
from policy_service.domain.policy_request import AgentPrincipal, CallMethod, Claimed
from policy_service.pap.policy_tests import yaml_fields
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
from policy_service.pap.problems import BundleError, Problem

NO_AGENT = AgentPrincipal("")


def parse_agents(file: Fields, name: str, problems: list[Problem]) -> dict[str, AgentPrincipal]:
    """The aliases of a file."""
    agents: dict[str, AgentPrincipal] = {}
    for alias, value in file.take("agents", yaml_fields.table, Table(file.table.line)).items():
        if isinstance(value, Table):
            agents[alias] = _agent(name, value, problems)
        else:
            message = f"agents: {alias!r} is not a mapping; write it like {{ name: desk-agent, roles: [] }}"
            problems.append(Problem(name, file.table.line_of("agents"), message))
    return agents


def agent_reader(
    name: str, agents: Mapping[str, AgentPrincipal], problems: list[Problem]
) -> Callable[[Any], AgentPrincipal]:
    """What reads `agent:` of a case: one of the aliases, or a mapping."""

    def read(value: Any) -> AgentPrincipal:
        if isinstance(value, Table):
            return _agent(name, value, problems)
        alias = yaml_fields.text(value)
        if alias not in agents:
            close = get_close_matches(alias, agents, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "add it to `agents:`"
            raise ValueError(f"there is no agent {alias!r} in this file; {hint}")
        return agents[alias]

    return read


def _agent(name: str, table: Table, problems: list[Problem]) -> AgentPrincipal:
    agent = Fields(name, table, "an agent", problems)
    owner: str | None = agent.take("owner", yaml_fields.text, "") or None
    principal = AgentPrincipal(
        name=agent.need("name", yaml_fields.text, ""),
        owner=owner,
        roles=agent.take("roles", yaml_fields.texts, frozenset[str]()),
        teams=agent.take("teams", yaml_fields.texts, frozenset[str]()),
    )
    agent.finish()
    return principal


_METHODS = ("key", "api_key")


def parse_case(
    name: str, table: Table, agents: Mapping[str, AgentPrincipal], problems: list[Problem]
) -> Case:
    """The case; what is wrong with it is added to the problems."""
    case = Fields(name, table, "a case", problems)
    for key in ("matrix", "each"):  # have been read before, and are what a misspelt one is likened to
        case.take(key, lambda value: value, None)
    no_args: tuple[Any, bytes] = ({}, b"{}")
    args, args_bytes = case.take("args", _args, no_args)
    facts = case.take("facts", yaml_fields.table, None)
    claimed = case.take("claimed", yaml_fields.table, None)
    read = Case(
        file=name,
        line=table.line,
        it=case.need("it", yaml_fields.text, ""),
        agent=case.need("agent", agent_reader(name, agents, problems), NO_AGENT),
        tool=case.need("tool", yaml_fields.text, ""),
        args=args,
        args_bytes=args_bytes,
        expected=_expected(case, name, problems),
        now=case.take("now", yaml_fields.moment, DEFAULT_NOW),
        env=case.take("env", yaml_fields.text, "production"),
        txn_size=case.take("txn_size", yaml_fields.number(1), 1),
        claimed=Claimed() if claimed is None else _claimed(name, claimed, problems),
        on_behalf_of=case.take("on_behalf_of", yaml_fields.text, "") or None,
        method=cast("CallMethod", case.take("method", yaml_fields.one_of(*_METHODS), "key")),
        history=case.take("history", _history, {}),
        facts=None if facts is None else _facts(name, facts, problems),
    )
    case.finish()
    return read


def _args(value: Any) -> tuple[Any, bytes]:
    """The args as admission takes them, and their canonical bytes."""
    try:
        args = load(json.dumps(yaml_fields.table(value)).encode())
        return args, canonicalize(args)
    except ContractError as error:
        raise ValueError(f"{error}; a call like this is refused before any rule is asked") from error


def _history(value: Any) -> dict[str, int]:
    counted = yaml_fields.table(value)
    return {yaml_fields.text(meter): yaml_fields.number(0)(count) for meter, count in counted.items()}


def _claimed(name: str, table: Table, problems: list[Problem]) -> Claimed:
    said = Fields(name, table, "claimed", problems)
    claimed = Claimed(
        *(said.take(key, yaml_fields.text, "") or None for key in ("purpose", "reasoning", "on_behalf_of"))
    )
    said.finish()
    return claimed


def _facts(name: str, table: Table, problems: list[Problem]) -> GivenFacts:
    about = Fields(name, table, "facts", problems)
    empty = Table(table.line)
    facts = GivenFacts(
        about.take("resource", yaml_fields.table, empty), about.take("agent", yaml_fields.table, empty)
    )
    about.finish()
    return facts


# ------------------------------------------------------------------------------------------ expectations


def _expected(case: Fields, name: str, problems: list[Problem]) -> ExpectedDecision:
    expected = ExpectedDecision(
        outcome=case.need("expect", yaml_fields.one_of("release", "review", "deny"), ""),
        gates=case.take("gates", yaml_fields.some_texts, None),
        needs=case.take("needs", lambda value: _needs(value, name, problems), None),
        policies=case.take("policies", yaml_fields.some_texts, frozenset[str]()),
        reasons=case.take("reasons", yaml_fields.some_texts, None),
        errors=case.take("errors", yaml_fields.some_texts, None),
        step_up=case.take("step_up", yaml_fields.one_of(*STEP_UPS), "") or None,
        valid_for=case.take("valid_for", yaml_fields.duration, None),
        answer_within=case.take("answer_within", yaml_fields.duration, None),
    )
    _require_sense(case, expected)
    return expected


def _require_sense(case: Fields, expected: ExpectedDecision) -> None:
    about = {
        "gates": "review",
        "needs": "review",
        "step_up": "review",
        "answer_within": "review",
        "reasons": "deny",
    }
    for key, outcome in {**about, "errors": "deny"}.items():
        if key in case.table and expected.outcome not in (outcome, ""):
            case.refuse(key, f"{key}: belongs to `expect: {outcome}`, and this expects {expected.outcome}")
    if "valid_for" in case.table and expected.outcome == "deny":
        case.refuse("valid_for", "valid_for: a deny is no release, so nothing of it is valid")
    if expected.outcome == "review" and not {"gates", "needs"} & case.table.keys():
        case.refuse("expect", "a review says who is asked: add `gates: [...]` or `needs: { group: 1 }`")
    if expected.outcome == "deny" and not {"reasons", "policies", "errors"} & case.table.keys():
        message = "a deny says why, or any slip of the pen would do: add `reasons: [...]` (a policy's id, or a code)"
        case.refuse("expect", message)


def _needs(value: Any, name: str, problems: list[Problem]) -> dict[str, int | ExpectedGate]:
    needs: dict[str, int | ExpectedGate] = {}
    for groups, asked in yaml_fields.table(value).items():
        key = "|".join(sorted(group.strip() for group in groups.split("|")))
        needs[key] = (
            _asked(asked, name, problems) if isinstance(asked, Table) else yaml_fields.number(1)(asked)
        )
    if not needs:
        raise ValueError("an empty mapping expects nothing; leave it out")
    return needs


def _asked(table: Table, name: str, problems: list[Problem]) -> ExpectedGate:
    gate = Fields(name, table, "a need", problems)
    usual = ExpectedGate(1)
    asked = ExpectedGate(
        people=gate.need("people", yaml_fields.number(1), 1),
        step_up=gate.take("step_up", yaml_fields.one_of(*STEP_UPS), "") or None,
        reason=gate.take("reason", yaml_fields.flag, usual.reason),
        shared=gate.take("shared", yaml_fields.flag, usual.shared),
        answer_within=gate.take("answer_within", yaml_fields.duration, usual.answer_within),
    )
    gate.finish()
    return asked


_KINDS = tuple(kind.value for kind in TaskKind)
_STOPPABLE = ("everything", "tool", "agent")
_SOMEBODY = "urn:case|somebody"
_ROBOT = AgentPrincipal("agent")


def parse_people_case(
    name: str, table: Table, kind: str, agents: Mapping[str, AgentPrincipal], problems: list[Problem]
) -> PeopleCase:
    """The case; what is wrong with it is added to the problems."""
    case = Fields(name, table, f"a case of `{kind}:`", problems)
    for key in ("matrix", "each"):
        case.take(key, lambda value: value, None)
    now = case.take("now", yaml_fields.moment, DEFAULT_NOW)
    about = RESOURCE_TYPES[kind]
    of_effect = about != "Stop"
    read = PeopleCase(
        file=name,
        line=table.line,
        it=case.need("it", yaml_fields.text, ""),
        action=kind,
        person=case.take("person", yaml_fields.text, _SOMEBODY),
        groups=case.take("groups", yaml_fields.texts, frozenset[str]()),
        assurance=cast(
            "Literal['oidc', 'dev']", case.take("assurance", yaml_fields.one_of("oidc", "dev"), "oidc")
        ),
        agent=case.take("agent", agent_reader(name, agents, problems), _ROBOT) if of_effect else _ROBOT,
        tool=case.need("tool", yaml_fields.text, "") if of_effect else "",
        gates=case.take("asked_by", yaml_fields.texts, frozenset[str]()) if of_effect else frozenset(),
        kind=case.take("kind", yaml_fields.one_of(*_KINDS), _KINDS[0]) if about == "Task" else "",
        what="" if of_effect else case.take("what", yaml_fields.one_of(*_STOPPABLE), _STOPPABLE[0]),
        name="" if of_effect else case.take("name", yaml_fields.text, ""),
        now=now,
        opened_at=case.take("opened_at", yaml_fields.moment, now - timedelta(hours=1)),
        env=case.take("env", yaml_fields.text, "production"),
        allowed=case.need("expect", yaml_fields.one_of("allowed", "refused"), "refused") == "allowed",
        policies=case.take("policies", yaml_fields.some_texts, frozenset[str]()),
    )
    case.finish()
    return read


MAX_CASES: Final = 20_000
"""Cases of one bundle; each is one decision, at about a quarter of a millisecond."""

_DEFAULTS: Final = frozenset(
    "agent tool args facts history claimed now env txn_size on_behalf_of method person groups assurance".split()
)
_OF_PEOPLE: Final = frozenset("agent tool now env person groups assurance".split())
_LISTS: Final = ("cases", *RESOURCE_TYPES)


def read_cases(files: Mapping[str, bytes]) -> list[AnyCase]:
    """Every case of a bundle's files, in the order of files and lines.

    Raises:
        BundleError: everything that is wrong with them.
    """
    problems: list[Problem] = []
    cases: list[AnyCase] = []
    for name in sorted(
        name for name in files if name.startswith("cases/") and name.endswith((".yaml", ".yml"))
    ):
        try:
            cases += _read(name, read_yaml(name, files[name]), problems)
        except YamlError as error:
            problems.append(error.problem)
    if len(cases) > MAX_CASES:
        problems.append(Problem("cases", None, f"{len(cases)} cases; {MAX_CASES} is the limit"))
    if problems:
        raise BundleError(problems)
    return cases


def _read(name: str, document: Any, problems: list[Problem]) -> list[AnyCase]:
    if not isinstance(document, Table):
        problems.append(Problem(name, 1, "write a mapping with `cases:`, a list of them"))
        return []
    file = Fields(name, document, "a cases file", problems)
    agents = parse_agents(file, name, problems)
    defaults = file.take("defaults", yaml_fields.table, Table(document.line))
    for key in defaults:
        if key not in _DEFAULTS:
            file.refuse(
                "defaults", f"defaults: {key!r} has no default; known are {', '.join(sorted(_DEFAULTS))}"
            )
    none: list[Table] = []
    written = [(kind, table) for kind in _LISTS for table in file.take(kind, yaml_fields.tables, none)]
    file.finish()
    cases: list[AnyCase] = []
    for kind, table in written:
        cases += _cases(name, kind, _defaulted(kind, defaults), table, agents, problems)
    problems += _twins(cases)
    return cases


def _defaulted(kind: str, defaults: Table) -> Table:
    """The defaults that a case of this kind can have: one file may hold cases about calls and about people."""
    not_its = {"person", "groups", "assurance"} if kind == "cases" else _DEFAULTS - _OF_PEOPLE
    if RESOURCE_TYPES.get(kind) == "Stop":
        not_its = not_its | {"agent", "tool"}
    kept = Table(defaults.line)
    kept.update({key: value for key, value in defaults.items() if key not in not_its})
    kept.lines.update(defaults.lines)
    return kept


def _cases(
    name: str,
    kind: str,
    defaults: Table,
    table: Table,
    agents: Mapping[str, AgentPrincipal],
    problems: list[Problem],
) -> Iterator[AnyCase]:
    before = len(problems)
    try:
        spreads = list(expand_case(merge_tables(defaults, table)))
    except ValueError as error:
        problems.append(Problem(name, table.line, str(error)))
        return
    for one in spreads:
        case = (
            parse_case(name, one, agents, problems)
            if kind == "cases"
            else parse_people_case(name, one, kind, agents, problems)
        )
        if len(problems) > before:  # the other cases of a matrix have the same one
            return
        yield case


def _twins(cases: list[AnyCase]) -> Iterator[Problem]:
    seen: dict[tuple[str, str], AnyCase] = {}
    for case in cases:
        twin = seen.setdefault((type(case).__name__, case.it), case)
        if twin is not case:
            yield Problem(case.file, case.line, f"`it: {case.it}` is taken at {twin.place}; say what differs")
