"""Arithmetic over paths as a sum: what a comparison of whole numbers turns on, solved for one of its paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cedarpy import pst

from policy_service.pap.changes.paths import CONSTANT, OPAQUE, Path, path_of


@dataclass(frozen=True)
class Linear:
    """``constant`` plus each path times its factor, compared with zero."""

    constant: int
    factors: Mapping[Path, int]

    def solved_for(self, path: Path, others: Mapping[Path, int]) -> int | None:
        """The value of ``path`` at which the sum is about zero; None where it does not depend on it."""
        factor = self.factors.get(path, 0)
        if factor == 0:
            return None
        rest = self.constant + sum(
            each * others.get(name, 0) for name, each in self.factors.items() if name != path
        )
        return -rest // factor

    def plus(self, other: Linear, times: int = 1) -> Linear:
        """The sum of the two, the other one ``times`` times."""
        factors = dict(self.factors)
        for path, factor in other.factors.items():
            factors[path] = factors.get(path, 0) + times * factor
        return Linear(self.constant + times * other.constant, factors)


def linear_of(expr: pst.Expr) -> Linear | None:
    """The expression as such a sum; None where it is none."""
    path = path_of(expr)
    if path in (CONSTANT, OPAQUE):
        return None
    if path is not None:
        return Linear(0, {path: 1})
    match expr:
        case pst.LongLit(value=value):
            return Linear(value, {})
        case pst.UnaryOp(op="neg", arg=arg):
            inner = linear_of(arg)
            return None if inner is None else Linear(0, {}).plus(inner, -1)
        case pst.BinaryOp(op="add" | "sub" | "mul" as op, left=left, right=right):
            return _both(op, linear_of(left), linear_of(right))
    return None


def _both(op: str, left: Linear | None, right: Linear | None) -> Linear | None:
    if left is None or right is None:
        return None
    if op != "mul":
        return left.plus(right, 1 if op == "add" else -1)
    if not left.factors:
        left, right = right, left
    if right.factors:
        return None  # two paths multiplied
    return Linear(0, {}).plus(left, right.constant)
