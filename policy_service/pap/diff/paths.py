"""Paths: the places of a question that Cedar expressions read, named by us, and sums over them.

A path is a tuple of texts: `("input", "amount")`, `("fact", "account_state")` of the resource, `("agentfact", "tier")`,
`("agent",)`, `("owner",)`, `("role", "desk")`, `("team", "night")`, `("resource",)`, `("now",)`, `("history", "today")`
and so on. Flags of the manifest (`context.effect`) are constants of a bundle and have no path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from cedarpy import pst

Path: TypeAlias = tuple[str, ...]

CONSTANT: Final[Path] = ("constant",)
"""What the bundle itself settles: it never varies from call to call."""

OPAQUE: Final[Path] = ("opaque",)
"""What we do not follow, for example an attribute of what an `if` yields."""

PERSON_PATHS: Final = frozenset({("owner",), ("on_behalf_of",), ("person",), ("review", "owner")})
"""Paths whose values are persons, or nobody."""

_CONTEXT: Final = frozenset({"input", "history", "claimed"})
_PLAIN: Final = frozenset({"now", "env", "on_behalf_of", "assurance"})


def path_of(expr: pst.Expr) -> Path | None:
    """The path an expression reads; None for one that is more, or less, than reading."""
    steps: list[str] = []
    while isinstance(expr, pst.GetAttr):
        steps.append(expr.attr)
        expr = expr.base
    if not isinstance(expr, pst.Var):
        return OPAQUE if steps else None
    return _rooted(expr.name, tuple(reversed(steps)))


def _rooted(root: str, steps: tuple[str, ...]) -> Path:
    if root == "context":
        return _of_context(steps)
    if root == "principal":
        return _of_principal(steps)
    if root == "resource":
        return ("fact", *steps) if steps else ("resource",)
    return CONSTANT


def _of_context(steps: tuple[str, ...]) -> Path:
    if not steps:
        return OPAQUE
    if steps[0] in _CONTEXT or (len(steps) == 1 and steps[0] in _PLAIN):
        return steps
    if steps == ("txn", "size"):
        return ("txn",)
    return CONSTANT if steps[0] == "effect" else OPAQUE


def _of_principal(steps: tuple[str, ...]) -> Path:
    if not steps:
        return ("agent",)
    if steps in (("owner",), ("proof",)):
        return steps
    return ("agentfact", *steps) if steps[0] not in ("owner", "proof") else OPAQUE


def path_text(path: Path) -> str:
    """The path as an author would write it."""
    head, rest = path[0], path[1:]
    names = {
        "fact": "resource", "agentfact": "principal", "agent": "principal", "owner": "principal.owner",
        "proof": "principal.proof", "txn": "context.txn.size",
    }  # fmt: skip
    if head in ("role", "team"):
        return f'principal in {"Role" if head == "role" else "Group"}::"{rest[0]}"'
    if head in ("input", "history", "claimed", "now", "env", "on_behalf_of"):
        return ".".join(("context", *path))
    return ".".join((names.get(head, head), *rest))


@dataclass(frozen=True)
class LinearExpression:
    """``constant`` plus each path times its factor, compared with zero."""

    constant: int
    factors: Mapping[Path, int]

    def solve_for(self, path: Path, others: Mapping[Path, int]) -> int | None:
        """The value of ``path`` at which the sum is about zero; None where it does not depend on it."""
        factor = self.factors.get(path, 0)
        if factor == 0:
            return None
        rest = self.constant + sum(
            each * others.get(name, 0) for name, each in self.factors.items() if name != path
        )
        return -rest // factor

    def plus(self, other: LinearExpression, times: int = 1) -> LinearExpression:
        """The sum of the two, the other one ``times`` times."""
        factors = dict(self.factors)
        for path, factor in other.factors.items():
            factors[path] = factors.get(path, 0) + times * factor
        return LinearExpression(self.constant + times * other.constant, factors)


def parse_linear(expr: pst.Expr) -> LinearExpression | None:
    """The expression as such a sum; None where it is none."""
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
