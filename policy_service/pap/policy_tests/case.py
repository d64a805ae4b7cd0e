"""Cases: one question to the rules with the expected answer; and the expansion of `matrix:` and `each:`.

A case depends neither on the clock nor on the machine. `args`, `facts`, `history` and `claimed` are merged key by key;
other keys are replaced. A second `expect` replaces the whole expectation, so that no gate of the first remains. Every
case has its own name.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from policy_service.domain.gates import DEFAULT_ANSWER_WITHIN
from policy_service.domain.policy_request import AgentPrincipal, CallMethod, Claimed
from policy_service.pap.policy_tests.yaml_fields import Table

DEFAULT_NOW: Final = datetime(2026, 1, 14, 12, 0, tzinfo=UTC)
"""The default time of a case: a Wednesday, at noon."""


@dataclass(frozen=True, slots=True)
class ExpectedGate:
    """What one merged gate must ask for, in full."""

    people: int
    step_up: str | None = None
    reason: bool = False
    shared: bool = False
    answer_within: timedelta = DEFAULT_ANSWER_WITHIN


@dataclass(frozen=True, slots=True)
class ExpectedDecision:
    """The expected decision. A field that is None was not written and is not compared.

    `needs` maps a set of groups (`finance`, `cfo|finance`) to a number of people, or to a full gate.
    """

    outcome: str
    gates: frozenset[str] | None = None
    needs: Mapping[str, int | ExpectedGate] | None = None
    policies: frozenset[str] = frozenset()
    reasons: frozenset[str] | None = None
    errors: frozenset[str] | None = None
    step_up: str | None = None
    valid_for: timedelta | None = None
    answer_within: timedelta | None = None


@dataclass(frozen=True, slots=True)
class GivenFacts:
    """Facts written in a case. They override the bundle's own files, and no other source is queried."""

    resource: Mapping[str, Any] = field(default_factory=dict)
    agent: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Named:
    file: str
    line: int
    it: str

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Case(_Named):
    """One call by one agent. `args_bytes` is the canonical form of its args."""

    agent: AgentPrincipal
    tool: str
    args: Any
    args_bytes: bytes
    expected: ExpectedDecision
    now: datetime = DEFAULT_NOW
    env: str = "production"
    txn_size: int = 1
    claimed: Claimed = field(default_factory=Claimed)
    on_behalf_of: str | None = None
    method: CallMethod = "key"
    history: Mapping[str, int] = field(default_factory=dict)
    facts: GivenFacts | None = None


@dataclass(frozen=True, slots=True)
class PeopleCase(_Named):
    """One action of a person: approve an effect, settle its task, stop its tool."""

    action: str  # as `Action::"..."` names it
    person: str
    groups: frozenset[str]
    assurance: Literal["oidc", "dev"]
    agent: AgentPrincipal
    tool: str
    gates: frozenset[str]
    kind: str  # of a task
    what: str  # of a stop
    name: str
    now: datetime
    opened_at: datetime
    env: str
    allowed: bool
    policies: frozenset[str] = frozenset()


AnyCase = Case | PeopleCase


EXPECTATION_KEYS: Final = frozenset(
    {"expect", "gates", "needs", "policies", "reasons", "errors", "step_up", "valid_for", "answer_within"}
)
MERGED_KEYS: Final = frozenset({"args", "facts", "history", "claimed"})
MAX_EXPANDED_CASES: Final = 1_000
"""Cases that one written case may expand to."""


def merge_tables(below: Mapping[str, Any], above: Table) -> Table:
    """Merge one table over another; each key keeps the line where it was written."""
    both = Table(above.line)
    lines = {**getattr(below, "lines", {}), **above.lines}
    for key, value in itertools.chain(below.items(), above.items()):
        if key in EXPECTATION_KEYS and key not in above and "expect" in above:
            continue
        both[key] = _merged(both.get(key), value) if key in MERGED_KEYS else value
        if key in lines:
            both.lines[key] = lines[key]
    return both


def expand_case(written: Table) -> Iterator[Table]:
    """Expand `matrix:` and `each:` of a written case; the case itself if it has neither.

    Raises:
        ValueError: they have the wrong form.
    """
    base = Table(written.line)
    base.update({key: value for key, value in written.items() if key not in {"matrix", "each"}})
    base.lines.update(written.lines)
    rows, products = _rows(written.get("matrix", [None])), list(_products(written))
    if len(rows) * len(products) > MAX_EXPANDED_CASES:
        raise ValueError(
            f"expands to {len(rows) * len(products)} cases; {MAX_EXPANDED_CASES} is the limit, write several"
        )
    for number, row in enumerate(rows, 1):
        case = base if row is None else _named(base, row, str(row.get("it", number)))
        for product, name in products:
            yield case if not product else _named(case, product, name)


def _named(base: Table, above: Table, suffix: str) -> Table:
    both = merge_tables(base, above)
    if "it" in base:
        both["it"] = f"{base['it']} ({suffix})"
    return both


def _rows(matrix: Any) -> list[Any]:
    if (
        not isinstance(matrix, list)
        or not matrix
        or not all(row is None or isinstance(row, Table) for row in matrix)
    ):
        raise ValueError("matrix: write a list, one `- { args: { ... }, expect: ... }` for each case")
    return matrix


def _products(written: Table) -> Iterator[tuple[Table, str]]:
    each = written.get("each", {})
    if not isinstance(each, dict) or not all(isinstance(values, list) and values for values in each.values()):
        raise ValueError("each: write a list of values for each place, like `args.currency: [USD, EUR]`")
    count = 1
    for values in each.values():
        count *= len(values)
    if count > MAX_EXPANDED_CASES:  # before any of them is built
        raise ValueError(f"each: expands to {count} cases; {MAX_EXPANDED_CASES} is the limit, write several")
    for values in itertools.product(*each.values()):
        table = Table(written.line)
        chosen = dict(zip(each, values, strict=True))
        for path, value in chosen.items():
            _put(table, path, value, written.line_of("each"))
        yield (
            table,
            ", ".join(f"{path}={json.dumps(value, ensure_ascii=False)}" for path, value in chosen.items()),
        )


def _put(table: Table, path: str, value: Any, line: int) -> None:
    first, _, rest = path.partition(".")
    table.lines[first] = line
    if not rest:
        table[first] = value
        return
    inner = table.setdefault(first, Table(line))
    if not isinstance(inner, Table):
        raise ValueError(f"each: {path!r} and {first!r} name the same place; keep one")
    _put(inner, rest, value, line)


def _merged(below: Any, above: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(above, Table):
        return above
    both = Table(above.line)
    both.update(below)
    both.lines.update({**getattr(below, "lines", {}), **above.lines})
    for key, value in above.items():
        both[key] = _merged(below.get(key), value)
    return both
