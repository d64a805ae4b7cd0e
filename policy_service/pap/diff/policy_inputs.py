"""Extract the inputs of a policy: the paths it reads, and the literals at which its answer can change.

Comparisons with constants (`==`, `<`, `in`, `has`, `contains`, a Bool alone) are exact: trying every literal and the
values next to it covers every answer of the policy. Other expressions (two attributes compared, arithmetic, `like`) are
listed in ``inexact``, and their literals are still used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from cedarpy import pst

from policy_service.pap.diff.tool_side import CONSTANT, OPAQUE, PERSON_PATHS, Path, path_of, path_text
from policy_service.pap.policies import children, expressions

_COMPARES: Final = frozenset(
    {"eq", "not_eq", "less", "less_eq", "greater", "greater_eq"}
    | {"decimal_less_than", "decimal_less_eq", "decimal_greater", "decimal_greater_eq"}
)
_MEMBERS: Final = frozenset({"contains", "contains_all", "contains_any"})
_DURATION: Final = re.compile(r"(-?)(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?")
_TIMES: Final = frozenset({"to_date", "to_time"})


@dataclass
class PolicyInputs:
    """The paths that policies read, the literals each is compared with, and what is not exact."""

    literals: dict[Path, set[Any]] = field(default_factory=dict)
    inexact: list[str] = field(default_factory=list)
    relations: list[LinearExpression] = field(default_factory=list)
    related: list[frozenset[Path]] = field(default_factory=list)

    def record(self, path: Path | None, *values: Any) -> None:
        """Record a path, and values it is compared with."""
        if path is None or path == CONSTANT:
            return
        if path == OPAQUE:
            self.mark_inexact("an expression that is not followed")
            return
        self.literals.setdefault(path, set()).update(values)

    def mark_inexact(self, why: str) -> None:
        """Record that trying the literals does not cover every answer."""
        if why not in self.inexact:
            self.inexact.append(why)

    def add(self, other: PolicyInputs) -> None:
        """Merge the inputs of another policy."""
        for path, values in other.literals.items():
            self.record(path, *values)
        for why in other.inexact:
            self.mark_inexact(why)
        self.relations += other.relations
        self.related += other.related


def policy_inputs(tree: pst.Template) -> PolicyInputs:
    """The inputs of one policy."""
    read = PolicyInputs()
    _scope(tree.principal, ("agent",), read)
    _scope(tree.resource, ("resource",), read)
    for clause in tree.clauses:
        _visit(clause.expr, read)
    return read


def policies_inputs(trees: Iterable[pst.Template]) -> PolicyInputs:
    """The inputs of these policies together."""
    read = PolicyInputs()
    for tree in trees:
        read.add(policy_inputs(tree))
    return read


def literal_members(literals: Iterable[Any]) -> set[Any]:
    """The literals, with sets replaced by their members."""
    return {each for value in literals for each in (value if isinstance(value, frozenset) else (value,))}


def _scope(constraint: Any, path: Path, read: PolicyInputs) -> None:
    entity = getattr(constraint, "entity", None)
    if isinstance(entity, pst.EntityUid):
        _entity(path, entity, read)


def _entity(path: Path, entity: pst.EntityUid, read: PolicyInputs) -> None:
    kind = entity.type.basename
    if kind in ("Role", "Group") and path == ("agent",):
        read.record(("role" if kind == "Role" else "team", entity.id))
    elif kind in ("Role", "Group") and path == ("fact", "agent"):
        read.record(("agent-role" if kind == "Role" else "agent-team", entity.id))
    elif kind == "Group" and path in PERSON_PATHS:
        read.record(path, InGroup(entity.id))
    else:
        if kind == "Group":
            read.mark_inexact(f"groups of {path_text(path)}")
        read.record(path, entity.id)


@dataclass(frozen=True, slots=True)
class InGroup:
    """A member of this group, as a value to try."""

    group: str


@dataclass(frozen=True, slots=True)
class TimeOfDay:
    """A time of day, as a value to try."""

    since_midnight: timedelta


def _visit(expr: pst.Expr, read: PolicyInputs) -> None:  # noqa: C901 - one line for each form of the grammar
    match expr:
        case pst.BinaryOp(op="and" | "or", left=left, right=right):
            _visit(left, read)
            _visit(right, read)
        case pst.UnaryOp(op="not", arg=arg):
            _visit(arg, read)
        case pst.IfThenElse(cond=cond, then_expr=then, else_expr=other):
            for part in (cond, then, other):
                _visit(part, read)
        case pst.HasAttr(base=base, attrs=attrs):
            _has(path_of(base), base, attrs, read)
        case pst.Like(base=base, pattern=pattern):
            _like(base, pattern, read)
        case pst.Is(base=base, in_expr=inside):
            if inside is not None:
                _compare_in(base, inside, read)
        case pst.BinaryOp(op="in", left=left, right=right):
            _compare_in(left, right, read)
        case pst.BinaryOp(op=op, left=left, right=right) if op in _MEMBERS:
            _members(op, left, right, read)
        case pst.UnaryOp(op="is_empty", arg=arg):
            _path_or_inexact(arg, (frozenset(),), read)
        case pst.BinaryOp(op=op, left=left, right=right) if op in _COMPARES:
            _compare(left, right, read)
        case pst.BoolLit():
            pass
        case _ if path_of(expr) is not None:
            read.record(path_of(expr), True, False)
        case _:
            _everything(expr, f"{type(expr).__name__} {getattr(expr, 'op', '')}".strip(), read)


def _has(path: Path | None, base: pst.Expr, attrs: tuple[str, ...], read: PolicyInputs) -> None:
    if isinstance(base, pst.Var):
        for name in attrs[:1]:
            read.record(path_of(pst.GetAttr(base=base, attr=name)))
        return
    if path is None:
        _everything(base, "has", read)
        return
    for count in range(1, len(attrs) + 1):
        read.record((*path, *attrs[:count]) if path not in (CONSTANT, OPAQUE) else path)


def _like(base: pst.Expr, pattern: Any, read: PolicyInputs) -> None:
    parts = ["" if isinstance(each, pst.Wildcard) else each.value for each in pattern]
    filled = ["x" if isinstance(each, pst.Wildcard) else each.value for each in pattern]
    read.mark_inexact("like")
    _path_or_inexact(base, ("".join(parts), "".join(filled), "".join(parts)[1:], "".join(parts)[:-1]), read)


def _path_or_inexact(expr: pst.Expr, values: tuple[Any, ...], read: PolicyInputs) -> None:
    path = path_of(expr)
    if path is None:
        _everything(expr, "an expression", read)
    else:
        read.record(path, *values)


def _compare_in(left: pst.Expr, right: pst.Expr, read: PolicyInputs) -> None:
    path = path_of(left)
    elements = right.elements if isinstance(right, pst.Set) else (right,)
    named = [each.value for each in elements if isinstance(each, pst.EntityLit)]
    if path is None or len(named) < len(elements):
        _relate((left, right), "in of two attributes", read)
        return
    for entity in named:
        _entity(path, entity, read)


def _members(op: str, left: pst.Expr, right: pst.Expr, read: PolicyInputs) -> None:
    given, wanted = constant_value(left), constant_value(right)
    if given is not None and op == "contains" and path_of(right) is not None:
        read.record(path_of(right), *given)
    elif wanted is not None and path_of(left) is not None:
        values = wanted if isinstance(wanted, frozenset) else frozenset({wanted})
        read.record(path_of(left), *(frozenset({value}) for value in values), values)
    elif isinstance(left, pst.Set) and (path := path_of(right)) is not None and (named := _entities(left)):
        for entity in named:
            _entity(path, entity, read)
    else:
        _relate((left, right), f"{op} of two attributes", read)


def _entities(given: pst.Set) -> list[pst.EntityUid]:
    """The entities of a set; empty if it holds anything else."""
    named = [each.value for each in given.elements if isinstance(each, pst.EntityLit)]
    return named if len(named) == len(given.elements) else []


def _compare(left: pst.Expr, right: pst.Expr, read: PolicyInputs) -> None:
    for one, other in ((left, right), (right, left)):
        if isinstance(other, pst.EntityLit) and path_of(one) is not None:
            _entity(path_of(one) or OPAQUE, other.value, read)
            return
        value = constant_value(other)
        if value is not None and _against_constant(one, value, read):
            return
    if constant_value(left) is not None and constant_value(right) is not None:
        return
    relation = parse_linear(pst.BinaryOp(op="sub", left=left, right=right))
    if relation is not None and relation.factors:
        read.relations.append(relation)
    what = "two attributes against each other" if path_of(left) and path_of(right) else "arithmetic"
    _relate((left, right), what, read)


def _against_constant(expr: pst.Expr, value: Any, read: PolicyInputs) -> bool:
    """Record a comparison of one path with a constant; False when the expression is not a path."""
    path = path_of(expr)
    if path is not None:
        read.record(path, value)
        return True
    match expr:
        case pst.UnaryOp(op=op, arg=arg) if op in _TIMES and path_of(arg) is not None:
            read.record(path_of(arg), TimeOfDay(value) if isinstance(value, timedelta) else value)
            return True
        case pst.BinaryOp(op="duration_since", left=left, right=right):
            return _since(left, right, value, read)
    return False


def _since(left: pst.Expr, right: pst.Expr, value: Any, read: PolicyInputs) -> bool:
    if not isinstance(value, timedelta):
        return False
    try:
        if isinstance(start := constant_value(right), datetime) and path_of(left) is not None:
            read.record(path_of(left), start + value)
            return True
        if isinstance(end := constant_value(left), datetime) and path_of(right) is not None:
            read.record(path_of(right), end - value)
            return True
    except OverflowError:
        return False
    read.mark_inexact("time between two attributes")
    for path in _paths(left):
        read.record(path, OffsetTime(path_of(right) or OPAQUE, value))
    for path in _paths(right):
        read.record(path, OffsetTime(path_of(left) or OPAQUE, -value))
    return True


@dataclass(frozen=True, slots=True)
class OffsetTime:
    """A time relative to another path's time, as a value to try."""

    than: Path
    by: timedelta


def _relate(exprs: tuple[pst.Expr, ...], why: str, read: PolicyInputs) -> None:
    paths = frozenset(path for expr in exprs for path in _paths(expr) if path not in (CONSTANT, OPAQUE))
    if len(paths) > 1:
        read.related.append(paths)
    for expr in exprs:
        _everything(expr, why, read)


def _everything(expr: pst.Expr, why: str, read: PolicyInputs) -> None:
    """Record all paths in an expression, each with all its literals, as inexact."""
    if names := sorted({path_text(path) for path in _paths(expr)}):
        read.mark_inexact(f"{why} ({', '.join(names)})")
    values = [value for value in map(constant_value, expressions(expr)) if value is not None]
    entities = [each.value for each in expressions(expr) if isinstance(each, pst.EntityLit)]
    for path in _paths(expr):
        read.record(path, *values)
        for entity in entities:
            _entity(path, entity, read)


def _paths(expr: pst.Expr) -> Iterator[Path]:
    path = path_of(expr)
    if path is not None:
        yield path
        return
    for child in children(expr):
        yield from _paths(child)


def constant_value(expr: pst.Expr) -> Any:
    """The value of a constant expression; None if it reads a path or has an unsupported type."""
    match expr:
        case pst.BoolLit(value=value) | pst.LongLit(value=value) | pst.StringLit(value=value):
            return value
        case pst.UnaryOp(op="neg", arg=arg):
            value = constant_value(arg)
            return -value if isinstance(value, int) else None
        case pst.UnaryOp(op="decimal" | "datetime" | "duration" as op, arg=pst.StringLit(value=text)):
            return _typed(op, text)
        case pst.Set(elements=elements):
            values = [constant_value(each) for each in elements]
            return None if any(value is None for value in values) else frozenset(values)
    return None


def _typed(op: str, text: str) -> Any:
    try:
        if op == "decimal":
            return Decimal(text)
        if op == "duration":
            return _duration(text)
        moment = datetime.fromisoformat(text)
    except (ValueError, InvalidOperation, OverflowError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _duration(text: str) -> timedelta:
    """Parse Cedar's duration, with milliseconds and a sign."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    days, hours, minutes, seconds, ms = (int(part or 0) for part in found.groups()[1:])
    total = timedelta(days, seconds, hours=hours, minutes=minutes, milliseconds=ms)
    return -total if found[1] else total


@dataclass(frozen=True)
class LinearExpression:
    """``constant`` plus each path times its factor, compared with zero."""

    constant: int
    factors: Mapping[Path, int]

    def solve_for(self, path: Path, others: Mapping[Path, int]) -> int | None:
        """The value of ``path`` at which the sum is about zero; None when the sum does not depend on it."""
        factor = self.factors.get(path, 0)
        if factor == 0:
            return None
        rest = self.constant + sum(
            each * others.get(name, 0) for name, each in self.factors.items() if name != path
        )
        return -rest // factor

    def plus(self, other: LinearExpression, times: int = 1) -> LinearExpression:
        """``self + times * other``."""
        factors = dict(self.factors)
        for path, factor in other.factors.items():
            factors[path] = factors.get(path, 0) + times * factor
        return LinearExpression(self.constant + times * other.constant, factors)


def parse_linear(expr: pst.Expr) -> LinearExpression | None:
    """Parse a linear expression; None if it is not linear."""
    path = path_of(expr)
    if path in (CONSTANT, OPAQUE):
        return None
    if path is not None:
        return LinearExpression(0, {path: 1})
    match expr:
        case pst.LongLit(value=value):
            return LinearExpression(value, {})
        case pst.UnaryOp(op="neg", arg=arg):
            inner = parse_linear(arg)
            return None if inner is None else LinearExpression(0, {}).plus(inner, -1)
        case pst.BinaryOp(op="add" | "sub" | "mul" as op, left=left, right=right):
            return _both(op, parse_linear(left), parse_linear(right))
    return None


def _both(op: str, left: LinearExpression | None, right: LinearExpression | None) -> LinearExpression | None:
    if left is None or right is None:
        return None
    if op != "mul":
        return left.plus(right, 1 if op == "add" else -1)
    if not left.factors:
        left, right = right, left
    if right.factors:
        return None  # two paths multiplied
    return LinearExpression(0, {}).plus(left, right.constant)
