"""Conditions taken apart: a policy holds when all atoms of one of its cases do.

Rules kept here: scope and clauses become one condition; a case is a set of atoms, and a condition with more cases than
the limit is given up rather than shortened, so that whatever is said about the rest is exact. What an atom means is
asked elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from cedarpy import pst

MAX_CASES: Final = 128
"""Cases of one condition; each is looked at for every version of every tool the policy is about."""

_TRUE: Final = pst.BoolLit(True)
_MIRRORED: Final[dict[str, pst.BinaryOpName]] = {"greater": "less", "greater_eq": "less_eq"}
_OPPOSITE: Final[dict[str, pst.BinaryOpName]] = {"less": "less_eq", "less_eq": "less"}


class TooManyCasesError(Exception):
    """A condition that would take too long to look at whole."""


@dataclass(frozen=True, slots=True)
class Atom:
    """One question with an answer. Comparisons are written with eq, less and less_eq only."""

    expr: pst.Expr
    holds: bool


Case: TypeAlias = frozenset[Atom]
Cases: TypeAlias = tuple[Case, ...]


def condition_of(policy: pst.Template) -> pst.Expr:
    """When the policy holds for a call whose action its scope names: scopes and clauses in Cedar's order."""
    parts = [_scope(pst.Var("principal"), policy.principal), _scope(pst.Var("resource"), policy.resource)]
    parts += [
        pst.UnaryOp("not", clause.expr) if isinstance(clause, pst.Unless) else clause.expr
        for clause in policy.clauses
    ]
    return joined("and", [part for part in parts if part != _TRUE])


def joined(op: pst.BinaryOpName, parts: Iterable[pst.Expr]) -> pst.Expr:
    """All of these with `and`, or one of these with `or`."""
    whole: pst.Expr | None = None
    for part in parts:
        whole = part if whole is None else pst.BinaryOp(op, whole, part)
    return whole if whole is not None else pst.BoolLit(op == "and")


def cases(expr: pst.Expr, holds: bool = True) -> Cases:
    """The cases in which this is true, or false; none when it never is.

    Raises:
        TooManyCasesError: there are more than the limit.
    """
    match expr:
        case pst.BoolLit(value=value):
            return (frozenset(),) if value is holds else ()
        case pst.UnaryOp(op="not", arg=arg):
            return cases(arg, not holds)
        case pst.BinaryOp(op="and" | "or" as op, left=left, right=right):
            return _both(cases(left, holds), cases(right, holds), together=(op == "and") is holds)
        case pst.IfThenElse(cond=cond, then_expr=then, else_expr=other):
            yes = _both(cases(cond, True), cases(then, holds), together=True)
            return _both(yes, _both(cases(cond, False), cases(other, holds), together=True), together=False)
        case pst.Is(base=base, entity_type=kind, in_expr=inside) if inside is not None:
            parts: list[pst.Expr] = [pst.Is(base, kind, None), pst.BinaryOp("in", base, inside)]
            return cases(joined("and", parts), holds)
        case pst.BinaryOp(op=op, left=left, right=right):
            return _comparison(op, left, right, holds)
    return (frozenset({Atom(expr, holds)}),)


def _comparison(op: str, left: pst.Expr, right: pst.Expr, holds: bool) -> Cases:
    if op in _MIRRORED:
        return cases(pst.BinaryOp(_MIRRORED[op], right, left), holds)
    if op == "not_eq":
        return cases(pst.BinaryOp("eq", left, right), not holds)
    if op == "contains" and isinstance(left, pst.Set):
        return cases(joined("or", [pst.BinaryOp("eq", right, one) for one in left.elements]), holds)
    if op == "in" and isinstance(right, pst.Set):
        return cases(joined("or", [pst.BinaryOp("in", left, one) for one in right.elements]), holds)
    if op == "eq":
        left, right = _ordered(left, right)
        if isinstance(right, pst.BoolLit):
            return cases(left, right.value is holds)
    elif op in _OPPOSITE and not holds:
        return cases(pst.BinaryOp(_OPPOSITE[op], right, left), True)
    return (frozenset({Atom(pst.BinaryOp(_named(op), left, right), holds)}),)


def _named(op: str) -> pst.BinaryOpName:
    name: pst.BinaryOpName = op  # type: ignore[assignment]  # it was one before it was matched
    return name


def _ordered(left: pst.Expr, right: pst.Expr) -> tuple[pst.Expr, pst.Expr]:
    """A literal on the right; otherwise any order, but always the same one."""
    literal = (pst.BoolLit, pst.LongLit, pst.StringLit, pst.EntityLit)
    if isinstance(left, literal) != isinstance(right, literal):
        return (right, left) if isinstance(left, literal) else (left, right)
    return (left, right) if repr(left) <= repr(right) else (right, left)


def _both(left: Cases, right: Cases, *, together: bool) -> Cases:
    if together:
        if len(left) * len(right) > MAX_CASES**2:
            raise TooManyCasesError
        found = dict.fromkeys(one | other for one in left for other in right)
    else:
        found = dict.fromkeys((*left, *right))
    if len(found) > MAX_CASES:
        raise TooManyCasesError
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
