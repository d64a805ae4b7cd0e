"""The cases files of a bundle, into cases: every problem with its file and line, so that all are mended at once.

Rules kept here: a key nobody reads is refused, because a misspelt expectation would hold for ever; a review says what
is asked and a deny says why, because a case that any refusal satisfies holds nothing; two cases of one file have two
names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from policy_service.domain.people import ABOUT
from policy_service.domain.question import AgentPrincipal
from policy_service.pap.cases import fields
from policy_service.pap.cases.agents import agents_of
from policy_service.pap.cases.case import AnyCase
from policy_service.pap.cases.effects import case_of
from policy_service.pap.cases.fields import Fields
from policy_service.pap.cases.matrix import laid_over, spread
from policy_service.pap.cases.people import people_case_of
from policy_service.pap.cases.yaml import Table, YamlError, read_yaml
from policy_service.pap.problems import BundleError, Problem

MAX_CASES: Final = 20_000
"""Cases of one bundle; each is one decision, at about a quarter of a millisecond."""

_DEFAULTS: Final = frozenset(
    "agent tool args facts history claimed now env txn_size on_behalf_of method person groups assurance".split()
)
_OF_PEOPLE: Final = frozenset("agent tool now env person groups assurance".split())
_LISTS: Final = ("cases", *ABOUT)


def cases_in(files: Mapping[str, bytes]) -> list[AnyCase]:
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
    agents = agents_of(file, name, problems)
    defaults = file.take("defaults", fields.table, Table(document.line))
    for key in defaults:
        if key not in _DEFAULTS:
            file.refuse(
                "defaults", f"defaults: {key!r} has no default; known are {', '.join(sorted(_DEFAULTS))}"
            )
    none: list[Table] = []
    written = [(kind, table) for kind in _LISTS for table in file.take(kind, fields.tables, none)]
    file.finish()
    cases: list[AnyCase] = []
    for kind, table in written:
        cases += _cases(name, kind, _defaulted(kind, defaults), table, agents, problems)
    problems += _twins(cases)
    return cases


def _defaulted(kind: str, defaults: Table) -> Table:
    """The defaults that a case of this kind can have: one file may hold cases about calls and about people."""
    not_its = {"person", "groups", "assurance"} if kind == "cases" else _DEFAULTS - _OF_PEOPLE
    if ABOUT.get(kind) == "Stop":
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
        spreads = list(spread(laid_over(defaults, table)))
    except ValueError as error:
        problems.append(Problem(name, table.line, str(error)))
        return
    for one in spreads:
        case = (
            case_of(name, one, agents, problems)
            if kind == "cases"
            else people_case_of(name, one, kind, agents, problems)
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
