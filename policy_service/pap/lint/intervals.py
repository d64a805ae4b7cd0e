"""Between which whole numbers an expression lies, for every call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cedarpy import pst

from policy_service.pap.lint.domains import INT64, Domain, Interval, path_of

_TO_LONG: Final = frozenset({"to_milliseconds", "to_seconds", "to_minutes", "to_hours", "to_days"})

Narrowed = Mapping[pst.Expr, Interval]
"""Bounds that hold where an expression stands, because of what was asked before it."""


def interval(expr: pst.Expr, domain: Domain, narrowed: Narrowed) -> Interval | None:
    """The bounds of a Long before any overflow is refused; None for what is no Long or unknown."""
    found = _plain(expr, domain, narrowed)
    known = narrowed.get(expr)
    if found is None or known is None:
        return found or known
    return max(found[0], known[0]), min(found[1], known[1])


def _plain(expr: pst.Expr, domain: Domain, narrowed: Narrowed) -> Interval | None:
    match expr:
        case pst.LongLit(value=value):
            return value, value
        case pst.UnaryOp(op="neg", arg=arg):
            inner = interval(arg, domain, narrowed)
            return None if inner is None else (-inner[1], -inner[0])
        case pst.UnaryOp(op=op) if op in _TO_LONG:
            return INT64
        case pst.BinaryOp(op="add" | "sub" | "mul" as op, left=left, right=right):
            one, other = interval(left, domain, narrowed), interval(right, domain, narrowed)
            return None if one is None or other is None else _arithmetic(op, one, other)
        case pst.IfThenElse(then_expr=then, else_expr=other_expr):
            one, other = interval(then, domain, narrowed), interval(other_expr, domain, narrowed)
            return None if one is None or other is None else (min(one[0], other[0]), max(one[1], other[1]))
    path = path_of(expr)
    if path is None:
        return None
    kind = domain.type_of(path)
    return domain.longs.get(path, INT64) if kind is not None and kind.get("type") == "Long" else None


def _arithmetic(op: str, one: Interval, other: Interval) -> Interval:
    if op == "add":
        return one[0] + other[0], one[1] + other[1]
    if op == "sub":
        return one[0] - other[1], one[1] - other[0]
    products = [left * right for left in one for right in other]
    return min(products), max(products)
