"""What a policy compares with what: the literals around which its answer can change, found in the engine's tree.

Rules kept here: what is compared with constants alone (`==`, `<`, `in`, `has`, `contains`, a Bool by itself) is read
exactly, and trying every literal with its neighbours then tries every answer the policy has; whatever else stands
there (two attributes against each other, arithmetic, `like`) is named in ``inexact``, and its literals are still used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from cedarpy import pst

from policy_service.pap.diff.paths import (
    CONSTANT,
    OPAQUE,
    PERSON_PATHS,
    LinearExpression,
    Path,
    parse_linear,
    path_of,
    path_text,
)
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
    """The paths of some policies, with the literals each is compared with, and what could not be read exactly."""

    literals: dict[Path, set[Any]] = field(default_factory=dict)
    inexact: list[str] = field(default_factory=list)
    relations: list[LinearExpression] = field(default_factory=list)
    alike: list[frozenset[Path]] = field(default_factory=list)

    def see(self, path: Path | None, *values: Any) -> None:
        """Note a path, and values it is compared with."""
        if path is None or path == CONSTANT:
            return
        if path == OPAQUE:
            self.doubt("an expression that is not followed")
            return
        self.literals.setdefault(path, set()).update(values)

    def doubt(self, why: str) -> None:
        """Note that something is tried and not proved."""
        if why not in self.inexact:
            self.inexact.append(why)

    def add(self, other: PolicyInputs) -> None:
        """Take over everything another one has read."""
        for path, values in other.literals.items():
            self.see(path, *values)
        for why in other.inexact:
            self.doubt(why)
        self.relations += other.relations
        self.alike += other.alike


def policy_inputs(tree: pst.Template) -> PolicyInputs:
    """Everything one policy looks at."""
    read = PolicyInputs()
    _scope(tree.principal, ("agent",), read)
    _scope(tree.resource, ("resource",), read)
    for clause in tree.clauses:
        _visit(clause.expr, read)
    return read


def policies_inputs(trees: Iterable[pst.Template]) -> PolicyInputs:
    """Everything these policies look at."""
    read = PolicyInputs()
    for tree in trees:
        read.add(policy_inputs(tree))
    return read


def literal_members(literals: Iterable[Any]) -> set[Any]:
    """What is compared with, sets by their members."""
    return {each for value in literals for each in (value if isinstance(value, frozenset) else (value,))}


def _scope(constraint: Any, path: Path, read: PolicyInputs) -> None:
    entity = getattr(constraint, "entity", None)
    if isinstance(entity, pst.EntityUid):
        _entity(path, entity, read)


def _entity(path: Path, entity: pst.EntityUid, read: PolicyInputs) -> None:
    kind = entity.type.basename
    if kind in ("Role", "Group") and path == ("agent",):
        read.see(("role" if kind == "Role" else "team", entity.id))
    elif kind in ("Role", "Group") and path == ("fact", "agent"):
        read.see(("agent-role" if kind == "Role" else "agent-team", entity.id))
    elif kind == "Group" and path in PERSON_PATHS:
        read.see(path, InGroup(entity.id))
    else:
        if kind == "Group":
            read.doubt(f"groups of {path_text(path)}")
        read.see(path, entity.id)


@dataclass(frozen=True, slots=True)
class InGroup:
    """A person of this group, as a value to try."""

    group: str


@dataclass(frozen=True, slots=True)
class TimeOfDay:
    """How long after midnight, as a value to try."""

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
            _simple_or_doubt(arg, (frozenset(),), read)
        case pst.BinaryOp(op=op, left=left, right=right) if op in _COMPARES:
            _compare(left, right, read)
        case pst.BoolLit():
            pass
        case _ if path_of(expr) is not None:
            read.see(path_of(expr), True, False)
        case _:
            _everything(expr, f"{type(expr).__name__} {getattr(expr, 'op', '')}".strip(), read)


def _has(path: Path | None, base: pst.Expr, attrs: tuple[str, ...], read: PolicyInputs) -> None:
    if isinstance(base, pst.Var):
        for name in attrs[:1]:
            read.see(path_of(pst.GetAttr(base=base, attr=name)))
        return
    if path is None:
        _everything(base, "has", read)
        return
    for count in range(1, len(attrs) + 1):
        read.see((*path, *attrs[:count]) if path not in (CONSTANT, OPAQUE) else path)


def _like(base: pst.Expr, pattern: Any, read: PolicyInputs) -> None:
    parts = ["" if isinstance(each, pst.Wildcard) else each.value for each in pattern]
    filled = ["x" if isinstance(each, pst.Wildcard) else each.value for each in pattern]
    read.doubt("like")
    _simple_or_doubt(base, ("".join(parts), "".join(filled), "".join(parts)[1:], "".join(parts)[:-1]), read)


def _simple_or_doubt(expr: pst.Expr, values: tuple[Any, ...], read: PolicyInputs) -> None:
    path = path_of(expr)
    if path is None:
        _everything(expr, "an expression", read)
    else:
        read.see(path, *values)


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
        read.see(path_of(right), *given)
    elif wanted is not None and path_of(left) is not None:
        values = wanted if isinstance(wanted, frozenset) else frozenset({wanted})
        read.see(path_of(left), *(frozenset({value}) for value in values), values)
    elif isinstance(left, pst.Set) and (path := path_of(right)) is not None and (named := _entities(left)):
        for entity in named:
            _entity(path, entity, read)
    else:
        _relate((left, right), f"{op} of two attributes", read)


def _entities(given: pst.Set) -> list[pst.EntityUid]:
    """The entities of a set that holds nothing else."""
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
    """Note what one path is compared with; False where the expression is more than a path."""
    path = path_of(expr)
    if path is not None:
        read.see(path, value)
        return True
    match expr:
        case pst.UnaryOp(op=op, arg=arg) if op in _TIMES and path_of(arg) is not None:
            read.see(path_of(arg), TimeOfDay(value) if isinstance(value, timedelta) else value)
            return True
        case pst.BinaryOp(op="duration_since", left=left, right=right):
            return _since(left, right, value, read)
    return False


def _since(left: pst.Expr, right: pst.Expr, value: Any, read: PolicyInputs) -> bool:
    if not isinstance(value, timedelta):
        return False
    try:
        if isinstance(start := constant_value(right), datetime) and path_of(left) is not None:
            read.see(path_of(left), start + value)
            return True
        if isinstance(end := constant_value(left), datetime) and path_of(right) is not None:
            read.see(path_of(right), end - value)
            return True
    except OverflowError:
        return False
    read.doubt("time between two attributes")
    for path in _paths(left):
        read.see(path, OffsetTime(path_of(right) or OPAQUE, value))
    for path in _paths(right):
        read.see(path, OffsetTime(path_of(left) or OPAQUE, -value))
    return True


@dataclass(frozen=True, slots=True)
class OffsetTime:
    """A time that much later than another path's, as a value to try."""

    than: Path
    by: timedelta


def _relate(exprs: tuple[pst.Expr, ...], why: str, read: PolicyInputs) -> None:
    paths = frozenset(path for expr in exprs for path in _paths(expr) if path not in (CONSTANT, OPAQUE))
    if len(paths) > 1:
        read.alike.append(paths)
    for expr in exprs:
        _everything(expr, why, read)


def _everything(expr: pst.Expr, why: str, read: PolicyInputs) -> None:
    """All paths below, each with all literals below: tried, not proved."""
    if names := sorted({path_text(path) for path in _paths(expr)}):
        read.doubt(f"{why} ({', '.join(names)})")
    values = [value for value in map(constant_value, expressions(expr)) if value is not None]
    entities = [each.value for each in expressions(expr) if isinstance(each, pst.EntityLit)]
    for path in _paths(expr):
        read.see(path, *values)
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
    """The value of an expression without paths; None where it has one, or is no value we try."""
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
    """Cedar's own spelling of a duration, with milliseconds and a sign."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    days, hours, minutes, seconds, ms = (int(part or 0) for part in found.groups()[1:])
    total = timedelta(days, seconds, hours=hours, minutes=minutes, milliseconds=ms)
    return -total if found[1] else total
