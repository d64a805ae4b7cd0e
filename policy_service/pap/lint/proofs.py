"""Normalize conditions to disjunctive form, and prove that a conjunction is impossible.

Scope and clauses become one condition, which holds when all atoms of one conjunction hold. A condition above the limit
is skipped, not shortened. A conjunction is impossible only if no call can satisfy it; an atom that is not understood is
always possible. So a finding is never a false alarm, and the absence of one proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from cedarpy import pst

from policy_service.pap.lint.domains import Domain, Interval, bounds_of, path_of

MAX_CONJUNCTIONS: Final = 128
"""Conjunctions of one condition; each is checked for every version of every tool the policy is about."""

_TRUE: Final = pst.BoolLit(True)
_MIRRORED: Final[dict[str, pst.BinaryOpName]] = {"greater": "less", "greater_eq": "less_eq"}
_OPPOSITE: Final[dict[str, pst.BinaryOpName]] = {"less": "less_eq", "less_eq": "less"}


class TooComplexError(Exception):
    """A condition with more conjunctions than the limit."""


@dataclass(frozen=True, slots=True)
class Atom:
    """One basic expression and its truth value. Comparisons use only eq, less and less_eq."""

    expr: pst.Expr
    holds: bool


Conjunction: TypeAlias = frozenset[Atom]
Disjunction: TypeAlias = tuple[Conjunction, ...]


def policy_condition(policy: pst.Template) -> pst.Expr:
    """Principal scope, resource scope and clauses as one condition, in Cedar's order."""
    parts = [_scope(pst.Var("principal"), policy.principal), _scope(pst.Var("resource"), policy.resource)]
    parts += [
        pst.UnaryOp("not", clause.expr) if isinstance(clause, pst.Unless) else clause.expr
        for clause in policy.clauses
    ]
    return combine("and", [part for part in parts if part != _TRUE])


def combine(op: pst.BinaryOpName, parts: Iterable[pst.Expr]) -> pst.Expr:
    """Join the parts with `and` or `or`."""
    whole: pst.Expr | None = None
    for part in parts:
        whole = part if whole is None else pst.BinaryOp(op, whole, part)
    return whole if whole is not None else pst.BoolLit(op == "and")


def to_disjunction(expr: pst.Expr, holds: bool = True) -> Disjunction:
    """The conjunctions in which this is true, or false; none when it never is.

    Raises:
        TooComplexError: there are more than the limit.
    """
    match expr:
        case pst.BoolLit(value=value):
            return (frozenset(),) if value is holds else ()
        case pst.UnaryOp(op="not", arg=arg):
            return to_disjunction(arg, not holds)
        case pst.BinaryOp(op="and" | "or" as op, left=left, right=right):
            return _both(
                to_disjunction(left, holds), to_disjunction(right, holds), together=(op == "and") is holds
            )
        case pst.IfThenElse(cond=cond, then_expr=then, else_expr=other):
            yes = _both(to_disjunction(cond, True), to_disjunction(then, holds), together=True)
            return _both(
                yes,
                _both(to_disjunction(cond, False), to_disjunction(other, holds), together=True),
                together=False,
            )
        case pst.Is(base=base, entity_type=kind, in_expr=inside) if inside is not None:
            parts: list[pst.Expr] = [pst.Is(base, kind, None), pst.BinaryOp("in", base, inside)]
            return to_disjunction(combine("and", parts), holds)
        case pst.BinaryOp(op=op, left=left, right=right):
            return _comparison(op, left, right, holds)
    return (frozenset({Atom(expr, holds)}),)


def _comparison(op: pst.BinaryOpName, left: pst.Expr, right: pst.Expr, holds: bool) -> Disjunction:
    if op in _MIRRORED:
        return to_disjunction(pst.BinaryOp(_MIRRORED[op], right, left), holds)
    if op == "not_eq":
        return to_disjunction(pst.BinaryOp("eq", left, right), not holds)
    if op == "contains" and isinstance(left, pst.Set):
        return to_disjunction(combine("or", [pst.BinaryOp("eq", right, one) for one in left.elements]), holds)
    if op == "in" and isinstance(right, pst.Set):
        return to_disjunction(combine("or", [pst.BinaryOp("in", left, one) for one in right.elements]), holds)
    if op == "eq":
        left, right = _ordered(left, right)
        if isinstance(right, pst.BoolLit):
            return to_disjunction(left, right.value is holds)
    elif op in _OPPOSITE and not holds:
        return to_disjunction(pst.BinaryOp(_OPPOSITE[op], right, left), True)
    return (frozenset({Atom(pst.BinaryOp(op, left, right), holds)}),)


def _ordered(left: pst.Expr, right: pst.Expr) -> tuple[pst.Expr, pst.Expr]:
    """Literal on the right; otherwise a deterministic order."""
    literal = (pst.BoolLit, pst.LongLit, pst.StringLit, pst.EntityLit)
    if isinstance(left, literal) != isinstance(right, literal):
        return (right, left) if isinstance(left, literal) else (left, right)
    return (left, right) if repr(left) <= repr(right) else (right, left)


def _both(left: Disjunction, right: Disjunction, *, together: bool) -> Disjunction:
    if together:
        if len(left) * len(right) > MAX_CONJUNCTIONS**2:
            raise TooComplexError
        found = dict.fromkeys(one | other for one in left for other in right)
    else:
        found = dict.fromkeys((*left, *right))
    if len(found) > MAX_CONJUNCTIONS:
        raise TooComplexError
    return tuple(found)


def _scope(var: pst.Var, scope: pst.PrincipalOrResourceConstraint) -> pst.Expr:
    match scope:
        case pst.ScopeEq(entity=pst.EntityUid() as entity):
            return pst.BinaryOp("eq", var, pst.EntityLit(entity))
        case pst.ScopeIn(entity=pst.EntityUid() as entity):
            return pst.BinaryOp("in", var, pst.EntityLit(entity))
        case pst.ScopeIs(entity_type=kind):
            return pst.Is(var, kind, None)
        case pst.ScopeIsIn(entity_type=kind, entity=pst.EntityUid() as entity):
            return pst.Is(var, kind, pst.EntityLit(entity))
    return _TRUE


def is_impossible(case: Conjunction, domain: Domain) -> bool:
    """Whether no call of this domain satisfies all of these atoms."""
    if any(constant_truth(atom.expr, domain) is (not atom.holds) for atom in case):
        return True
    if any(Atom(atom.expr, not atom.holds) in case for atom in case):
        return True
    return _numbers_disagree(case, domain) or _values_disagree(case, domain) or _order_disagrees(case)


def constant_truth(expr: pst.Expr, domain: Domain) -> bool | None:
    """The truth value of an atom for every call of this domain; None when it varies or is unknown."""
    match expr:
        case pst.HasAttr(base=base, attrs=attrs):
            return _has(base, attrs, domain)
        case pst.Is(base=base, entity_type=kind, in_expr=None):
            entity = _entity_type(base, domain)
            return None if entity is None else entity == str(kind)
        case pst.BinaryOp(op="eq" | "less" | "less_eq" as op, left=left, right=right) if left == right:
            return op != "less"
        case pst.BinaryOp(op="in", left=left, right=pst.EntityLit(value=uid)):
            return _within(left, uid, domain)
        case pst.BinaryOp(op="eq", left=left, right=pst.EntityLit(value=uid)):
            return _is_entity(left, uid, domain)
        case pst.BinaryOp(op="eq", left=left, right=pst.StringLit(value=text)):
            texts = _texts(left, domain)
            return None if texts is None else _all_or_none(word == text for word in texts)
        case pst.Like(base=base, pattern=pattern):
            texts = _texts(base, domain)
            return None if texts is None else _all_or_none(matches_pattern(pattern, word) for word in texts)
        case pst.BinaryOp(op="eq" | "less" | "less_eq" as op, left=left, right=right):
            return _compared(op, bounds_of(left, domain, {}), bounds_of(right, domain, {}))
    path = path_of(expr)
    return None if path is None else domain.bools.get(path)


def implied_bounds(case: Iterable[Atom], domain: Domain) -> dict[pst.Expr, Interval]:
    """The bounds of every expression that this conjunction compares with a known number."""
    bounds: dict[pst.Expr, Interval] = {}
    for _ in range(_ROUNDS):
        before = dict(bounds)
        for atom in case:
            if isinstance(atom.expr, pst.BinaryOp):
                _narrow(bounds, atom.expr, atom.holds, domain)
        if bounds == before:
            break
    return bounds


_ROUNDS = 4  # each round may narrow the next; more rounds rarely find more


def matches_pattern(pattern: tuple[pst.PatternElem, ...], text: str) -> bool:
    """Whether Cedar's `like` holds."""
    reached = {0}
    for element in pattern:
        if isinstance(element, pst.Wildcard):
            reached = set(range(min(reached), len(text) + 1)) if reached else reached
        else:
            reached = {place + 1 for place in reached if place < len(text) and text[place] == element.value}
    return len(text) in reached


def _narrow(bounds: dict[pst.Expr, Interval], expr: pst.BinaryOp, holds: bool, domain: Domain) -> None:
    one, other = bounds_of(expr.left, domain, bounds), bounds_of(expr.right, domain, bounds)
    if one is None or other is None:
        return
    if expr.op in {"less", "less_eq"} and holds:
        step = 1 if expr.op == "less" else 0
        bounds[expr.left] = one[0], min(one[1], other[1] - step)
        bounds[expr.right] = max(other[0], one[0] + step), other[1]
    elif expr.op == "eq" and holds:
        bounds[expr.left] = bounds[expr.right] = max(one[0], other[0]), min(one[1], other[1])
    elif expr.op == "eq" and other[0] == other[1]:
        bounds[expr.left] = one[0] + (one[0] == other[0]), one[1] - (one[1] == other[1])


def _numbers_disagree(case: Conjunction, domain: Domain) -> bool:
    return any(low > high for low, high in implied_bounds(case, domain).values())


def _values_disagree(case: Conjunction, domain: Domain) -> bool:
    """Whether the literals an expression must equal and must not equal leave no value."""
    wanted: dict[pst.Expr, list[tuple[pst.Lit, bool]]] = {}
    patterns: dict[pst.Expr, list[tuple[tuple[pst.PatternElem, ...], bool]]] = {}
    for atom in case:
        match atom.expr:
            case pst.BinaryOp(op="eq", left=left, right=pst.StringLit() | pst.EntityLit() as literal):
                wanted.setdefault(left, []).append((literal, atom.holds))
            case pst.Like(base=base, pattern=pattern):
                patterns.setdefault(base, []).append((pattern, atom.holds))
    return any(
        _no_value_left(wanted.get(expr, []), patterns.get(expr, []), _texts(expr, domain))
        for expr in dict.fromkeys((*wanted, *patterns))
    )


def _no_value_left(
    wanted: list[tuple[pst.Lit, bool]],
    patterns: list[tuple[tuple[pst.PatternElem, ...], bool]],
    texts: frozenset[str] | None,
) -> bool:
    must = {literal for literal, holds in wanted if holds}
    left: set[pst.Lit] | None = set(must) if must else None
    if left is None and texts is not None:
        left = {pst.StringLit(text) for text in texts}
    if left is None:
        return False
    if len(must) > 1:
        return True
    left -= {literal for literal, holds in wanted if not holds}
    return not any(
        all(
            not isinstance(literal, pst.StringLit) or matches_pattern(pattern, literal.value) is holds
            for pattern, holds in patterns
        )
        for literal in left
    )


def _order_disagrees(case: Conjunction) -> bool:
    held = {
        (atom.expr.op, atom.expr.left, atom.expr.right)
        for atom in case
        if atom.holds and isinstance(atom.expr, pst.BinaryOp)
    }
    for op, left, right in held:
        if op == "less" and not held.isdisjoint(
            {
                ("less", right, left),
                ("less_eq", right, left),
                ("eq", left, right),
                ("eq", right, left),
            }
        ):
            return True
    return False


def _has(base: pst.Expr, attrs: tuple[str, ...], domain: Domain) -> bool | None:
    path = path_of(base)
    if path is None:
        return None
    answers: list[bool | None] = []
    for name in attrs:
        answers.append(domain.has(path, name))
        path = (*path, name)
    if False in answers:
        return False
    return True if all(answers) else None


def _entity_type(expr: pst.Expr, domain: Domain) -> str | None:
    path = path_of(expr)
    if path == ("action",):
        return "Action"
    kind = None if path is None else domain.type_of(path)
    return str(kind["name"]) if kind is not None and kind.get("type") == "Entity" else None


def _within(left: pst.Expr, uid: pst.EntityUid, domain: Domain) -> bool | None:
    entity = _entity_type(left, domain)
    if entity is None:
        return None
    if entity == "Action":
        return str(uid.type) == "Action" and uid.id in {domain.action, *domain.groups}
    if str(uid.type) not in domain.parents_of(entity):
        return False
    return _is_entity(left, uid, domain) if domain.parents_of(entity) == {entity} else None


def _is_entity(left: pst.Expr, uid: pst.EntityUid, domain: Domain) -> bool | None:
    entity = _entity_type(left, domain)
    if entity is None:
        return None
    if entity == "Action":
        return str(uid.type) == "Action" and uid.id == domain.action
    if str(uid.type) != entity:
        return False
    fixed = domain.resource_id if left == pst.Var("resource") else None
    return None if fixed is None else fixed == uid.id


def _texts(expr: pst.Expr, domain: Domain) -> frozenset[str] | None:
    if isinstance(expr, pst.StringLit):
        return frozenset({expr.value})
    path = path_of(expr)
    return None if path is None else domain.texts.get(path)


def _all_or_none(answers: Iterable[bool]) -> bool | None:
    found = set(answers)
    return found.pop() if len(found) == 1 else None


def _compared(op: str, one: Interval | None, other: Interval | None) -> bool | None:
    if one is None or other is None:
        return None
    if op == "eq":
        if one[1] < other[0] or other[1] < one[0]:
            return False
        return True if one == other and one[0] == one[1] else None
    strict = op == "less"
    if one[1] < other[0] or (not strict and one[1] <= other[0]):
        return True
    if one[0] > other[1] or (strict and one[0] >= other[1]):
        return False
    return None
