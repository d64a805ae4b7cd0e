"""Candidate values of a path: every literal it is compared with, the adjacent values, and one other value.

For a path that is only compared with constants, these values cover every region of the answer. A value that neither
manifest accepts is left out, because no call can carry it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import combinations, islice, product
from typing import Any, Final

from policy_service.facts.config import AGENT, AttributeType
from policy_service.pap.diff.policy_inputs import (
    InGroup,
    LinearExpression,
    OffsetTime,
    PolicyInputs,
    TimeOfDay,
    literal_members,
)
from policy_service.pap.diff.tool_side import (
    ABSENT,
    BASE_NOW,
    PERSON_PATHS,
    SAMPLE_TEXTS,
    Path,
    ToolSide,
    sample_value,
)
from policy_service.pap.parts import schema_node

UNNAMED_TEXT: Final = "something-else"
"""Start of a text that no rule names (see `unnamed_text`)."""

ENVIRONMENTS: Final = ("production", "staging", "dev")
"""All environments, so all are tried."""

_MILLISECOND: Final = timedelta(milliseconds=1)
_STEP: Final = Decimal("0.0001")
_MAX_SUBSETS_OF: Final = 4
_INT64: Final = 2**63
_MAX_SOLVED: Final = 60


def unnamed_text(taken: Iterable[Any], start: str = UNNAMED_TEXT) -> str:
    """A text that is not among these."""
    known = frozenset(each for each in taken if isinstance(each, str))
    while start in known:
        start += "q"
    return start


def literals_for(read: PolicyInputs, path: Path, sides: Sequence[ToolSide]) -> set[Any]:
    """The literals that a path is compared with, also as the resource's id."""
    found = set(read.literals.get(path, ()))
    if any(side.resource_path() == path for side in sides):
        found |= read.literals.get(("resource",), set())
    return found


def candidate_values(
    read: PolicyInputs, sides: Sequence[ToolSide], base: dict[str, Any]
) -> dict[Path, list[Any]]:
    """The values to try for each path that the rules read."""
    literals = {path: set(values) for path, values in read.literals.items() if path != ("resource",)}
    for path, values in read.literals.items():
        if path == ("resource",):
            for target in filter(None, (side.resource_path() for side in sides)):
                literals.setdefault(target, set()).update(values)
    for related in read.related:
        shared = set().union(*(literals.get(path, set()) for path in related))
        for path in related & literals.keys():
            literals[path] |= shared
    tried = {path: _values(path, values, sides, base) for path, values in literals.items()}
    for relation in read.relations:
        if all(cedar_type_at(path, sides) == "Long" for path in relation.factors):
            _solve(relation, tried, sides, base)
    return tried


def _values(path: Path, literals: set[Any], sides: Sequence[ToolSide], base: dict[str, Any]) -> list[Any]:
    kind = cedar_type_at(path, sides)
    if path in PERSON_PATHS:
        return _people(literals, sides, absent=path != ("person",))
    found = _of_kind(kind, literals)
    if path == ("agent",):
        found.append(unnamed_text(found, "some-agent"))
    elif path == ("proof",):
        found = ["key", "api_key"]
    elif path == ("env",):
        found = list(ENVIRONMENTS)
    elif path == ("txn",):
        found = [value for value in found if value >= 1] or [1]
    elif path[0] == "input":
        return _of_args(path, found, sides, base)
    if path[0] == "history":
        found = [value for value in found if value >= 0] or [0]
    if _may_be_absent(path, sides):
        found.append(ABSENT)
    return _once(found)


def cedar_type_at(path: Path, sides: Sequence[ToolSide]) -> str:
    """The Cedar type at a path, by its name in facts.toml."""
    head = path[0]
    fixed = {"role": "Bool", "team": "Bool", "history": "Long", "txn": "Long", "now": "datetime"}
    found: Iterable[str | None] = [fixed.get(head)]
    if head in ("fact", "agentfact"):
        found = (None if kind is None else kind.name for kind in _declared(path, sides))
    elif head == "input":
        found = (_kind_of_arg(side, path) for side in sides)
    return next((name for name in found if name is not None), "String")


def _declared(path: Path, sides: Sequence[ToolSide]) -> list[AttributeType | None]:
    """The type of a fact on each side, None where it is not declared."""
    entities = [AGENT if path[0] == "agentfact" else side.manifest.resource.type for side in sides]
    return [
        side.config.attribute_types(entity).get(path[1]) for side, entity in zip(sides, entities, strict=True)
    ]


def _node(side: ToolSide, path: Path) -> Mapping[str, Any]:
    root = side.manifest.args
    node: Mapping[str, Any] = root
    for step in path[1:]:
        node = schema_node(schema_node(node, root).get("properties", {}).get(step), root)
    return node


def _kind_of_arg(side: ToolSide, path: Path) -> str | None:
    node = _node(side, path)
    kind = node.get("type")
    if isinstance(kind, list):
        kind = kind[0]
    if kind is None and (values := node.get("enum") or [node.get("const")]):
        kind = {bool: "boolean", int: "integer", str: "string"}.get(type(values[0]))
    kinds = {
        "string": "String",
        "integer": "Long",
        "number": "decimal",
        "boolean": "Bool",
        "array": "Set<String>",
    }
    return "Record" if kind == "object" else kinds.get(str(kind))


def _of_kind(kind: str, literals: Iterable[Any]) -> list[Any]:
    match kind:
        case "Bool":
            return [False, True]
        case "Long":
            numbers = sorted({value for each in literals if (value := _whole_number(each)) is not None})
            near = (number + step for number in numbers or [0] for step in (-1, 0, 1))
            return [value for value in _once(near) if -_INT64 <= value < _INT64]
        case "decimal":
            given = sorted({value for value in literals if isinstance(value, Decimal)}) or [Decimal(1)]
            steps = (-1, Decimal("-0.01"), -_STEP, 0, _STEP, Decimal("0.01"), 1)
            return _once(value + step for value in given for step in steps)
        case "datetime":
            return candidate_times(literals)
        case "Set<String>":
            return candidate_sets(literals)
        case "Record":
            return []
    texts = sorted({value for value in literals if isinstance(value, str)})
    return [*texts, unnamed_text([*texts, *SAMPLE_TEXTS])]


def _whole_number(literal: Any) -> int | None:
    """An integer literal, or a resource id that is an integer."""
    if isinstance(literal, str) and literal.lstrip("-").isdecimal() and len(literal) < 20:
        return int(literal)
    return literal if type(literal) is int else None


def candidate_times(literals: Iterable[Any]) -> list[datetime]:
    """Times around the compared ones, on the same day, the day before and the day after."""
    literals = list(literals)
    moments = [value for value in literals if isinstance(value, datetime)]
    moments += [BASE_NOW + value.by for value in literals if isinstance(value, OffsetTime)]
    clock = {value.since_midnight for value in literals if isinstance(value, TimeOfDay)}
    clock |= {value for value in literals if isinstance(value, timedelta)}
    near = [moment + step * _MILLISECOND for moment in moments for step in (-1, 0, 1)]
    days = [moment + timedelta(days=step) for moment in moments for step in (-1, 0, 1)]
    midnights = {each.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) for each in days}
    midnights |= {BASE_NOW.replace(hour=0)}
    hours = [each + step * _MILLISECOND for each in clock for step in (-1, 0, 1)]
    hours = [each for each in hours if timedelta() <= each < timedelta(days=1)] or [timedelta(hours=12)]
    return _once([*near, *(midnight + hour for midnight in sorted(midnights) for hour in hours), BASE_NOW])


def candidate_sets(literals: Iterable[Any]) -> list[list[Any]]:
    """Sets of the named members, with and without an unnamed one."""
    members: set[Any] = {value for value in literal_members(literals) if isinstance(value, str | int)}
    ordered = sorted(members, key=lambda each: (str(type(each)), str(each)))
    sizes = range(len(ordered) + 1) if len(ordered) <= _MAX_SUBSETS_OF else (0, 1, 2, len(ordered))
    chosen = [list(each) for size in sizes for each in combinations(ordered, size)]
    fresh: Any = unnamed_text(members)
    if members and all(isinstance(each, int) for each in members):
        fresh = max(members) + 1
    return [*chosen, *([*each, fresh] for each in chosen)]


def covers_all_sets(path: Path, literals: set[Any], sides: Sequence[ToolSide]) -> bool:
    """Whether the candidates cover every region at this path: not for sets compared with many members."""
    if cedar_type_at(path, sides) != "Set<String>":
        return True
    return len(literal_members(literals)) <= _MAX_SUBSETS_OF


def _people(literals: set[Any], sides: Sequence[ToolSide], *, absent: bool) -> list[Any]:
    named = sorted({value for value in literals if isinstance(value, str)})
    groups = {value.group for value in literals if isinstance(value, InGroup)}
    people = sorted(
        {person for side in sides for group in groups for person in side.bundle.directory.members(group)}
    )
    by_groups: dict[Any, str] = {}
    for person in people:
        key = tuple(frozenset(side.bundle.rules.groups_of(person) & groups) for side in sides)
        by_groups.setdefault(key, person)
    known = _all_members(sides)
    fresh = unnamed_text({*named, *people, *known}, "someone|else")
    return _once([*named, *by_groups.values(), fresh, *([ABSENT] if absent else [])])


def _all_members(sides: Sequence[ToolSide]) -> set[str]:
    directories = [side.bundle.directory for side in sides]
    return {person for each in directories for group in each.groups for person in each.members(group)}


def _may_be_absent(path: Path, sides: Sequence[ToolSide]) -> bool:
    if path[0] in ("fact", "agentfact"):
        return any(kind is None or kind.optional for kind in _declared(path, sides))
    return path[0] == "claimed"


def _of_args(path: Path, found: list[Any], sides: Sequence[ToolSide], base: dict[str, Any]) -> list[Any]:
    found = [float(value) if isinstance(value, Decimal) else value for value in found]
    literals = list(found)
    for side in sides:
        node = _node(side, path)
        if node.get("type") == "object" or "properties" in node:
            found.append(sample_value(node, side.manifest.args))
        found += [node[key] for key in ("minimum", "maximum", "const", "default") if key in node]
        found += [
            node[key] + step
            for key in ("exclusiveMinimum", "exclusiveMaximum")
            if key in node
            for step in (-1, 1)
        ]
        found += [value for value in node.get("enum", ()) if not isinstance(value, list | dict)]
        if isinstance(step := node.get("multipleOf"), int | float):
            found += [
                value // step * step + n * step
                for value in literals
                if _is_number(value)
                for n in (-1, 0, 1, 2)
            ]
    if (current := _base_value(base, path)) is not None:
        found.append(current)
    found.append(ABSENT)
    fitting = [value for value in _once(found) if any(_fits(side, base, path, value) for side in sides)]
    if cedar_type_at(path, sides) == "String":
        fresh = (text for text in SAMPLE_TEXTS if text not in literals)
        fitting += [text for text in fresh if any(_fits(side, base, path, text) for side in sides)][:1]
    return _once(fitting)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _base_value(base: dict[str, Any], path: Path) -> Any:
    value: Any = base
    for step in path[1:]:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _fits(side: ToolSide, base: dict[str, Any], path: Path, value: Any) -> bool:
    args = side.question(base, {path: value}).args
    return isinstance(args, dict) and side.encoded(args) is not None


def _solve(
    relation: LinearExpression, tried: dict[Path, list[Any]], sides: Sequence[ToolSide], base: dict[str, Any]
) -> None:
    """Add the values at which a linear comparison changes its answer."""
    numbers = {path: [v for v in tried.get(path, ()) if type(v) is int] or [0] for path in relation.factors}
    for path in relation.factors:
        if path not in tried:
            continue
        others = [name for name in relation.factors if name != path]
        solved: list[Any] = []
        for combination in islice(product(*(_few(numbers[name]) for name in others)), _MAX_SOLVED):
            value = relation.solve_for(path, dict(zip(others, combination, strict=True)))
            solved += [] if value is None else [value - 1, value, value + 1]
        fitting = [v for v in _once(solved) if -_INT64 <= v < _INT64]
        if path[0] == "input":
            fitting = [v for v in fitting if any(_fits(side, base, path, v) for side in sides)]
        elif path[0] in ("history", "txn"):
            fitting = [v for v in fitting if v >= (1 if path[0] == "txn" else 0)]
        tried[path] = _once([*tried[path], *fitting])


def _few(numbers: list[int]) -> list[int]:
    ordered = sorted(set(numbers))
    return (
        ordered
        if len(ordered) <= _MAX_SUBSETS_OF
        else [ordered[0], *ordered[len(ordered) // 2 :][:2], ordered[-1]]
    )


def _once(values: Iterable[Any]) -> list[Any]:
    kept: dict[Any, Any] = {}
    for value in values:
        kept.setdefault((type(value).__name__, repr(value)), value)
    return list(kept.values())
