"""Slips within a condition: each sub-expression as it is, and as somebody might have meant to write it.

Pure over the engine's syntax tree; whether a slip still fits the schema is for the caller to ask.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

from cedarpy import PolicySet, pst

Variant = tuple[str, str, Any]
"""What was there, what is there instead, and the whole expression with it."""

_OTHER: Final[dict[str, pst.BinaryOpName]] = {
    "less": "less_eq",
    "less_eq": "less",
    "greater": "greater_eq",
    "greater_eq": "greater",
    "eq": "not_eq",
    "not_eq": "eq",
    "and": "or",
    "or": "and",
    "decimal_less_than": "decimal_less_eq",
    "decimal_less_eq": "decimal_less_than",
    "decimal_greater": "decimal_greater_eq",
    "decimal_greater_eq": "decimal_greater",
    "contains_all": "contains_any",
    "contains_any": "contains_all",
    "add": "sub",
    "sub": "add",
}
_TYPED: Final = frozenset({"datetime", "decimal", "duration", "ip"})
_LAST_NUMBER: Final = re.compile(r"(\d+)(?=\D*\Z)")
_INT64: Final = 2**63


def variants(expr: Any) -> Iterator[Variant]:
    """Every slip in an expression, at any depth."""
    yield from _here(expr)
    if isinstance(expr, pst.UnaryOp) and expr.op in _TYPED:
        return  # what is within is one value, changed as one
    for name, inner in _parts(expr):
        if isinstance(inner, tuple):
            for index, item in enumerate(inner):
                for was, now, changed in variants(item) if _is_expr(item) else ():
                    yield was, now, replace(expr, **{name: (*inner[:index], changed, *inner[index + 1 :])})
        elif _is_expr(inner):
            for was, now, changed in variants(inner):
                yield was, now, replace(expr, **{name: changed})


def negated(clause: pst.Clause) -> tuple[str, pst.Clause]:
    """The clause the other way round, and the word it then begins with."""
    if isinstance(clause, pst.When):
        return "unless", pst.Unless(clause.expr)
    return "when", pst.When(clause.expr)


def written(expr: Any) -> str:
    """An expression as Cedar writes it."""
    template = pst.Template(
        "x", "permit", pst.ScopeAny(), pst.ScopeAny(), pst.ScopeAny(), (pst.When(expr),), pst.FrozenMap()
    )
    text = str(PolicySet.from_pst(pst.PolicySet({}, {"x": template}, ())))
    inner = text[text.index("when {") + len("when {") : text.rindex("}")]
    return " ".join(inner.split())


def _here(expr: Any) -> Iterator[Variant]:
    for changed in _changed(expr):
        yield written(expr), written(changed), changed


def _changed(expr: Any) -> Iterator[Any]:
    match expr:
        case pst.BinaryOp(op=op, left=left, right=right):
            if op in _OTHER:
                yield pst.BinaryOp(_OTHER[op], left, right)
            if op in ("and", "or"):
                yield from (left, right)
        case pst.UnaryOp(op="not", arg=arg):
            yield arg
        case pst.UnaryOp(op=op, arg=pst.StringLit(value=text)) if op in _TYPED:
            yield from (replace(expr, arg=pst.StringLit(changed)) for changed in _counted(text))
        case pst.LongLit(value=value):
            yield from (pst.LongLit(near) for near in (value - 1, value + 1) if -_INT64 <= near < _INT64)
        case pst.StringLit(value=text):
            yield pst.StringLit(f"{text}~")
        case pst.BoolLit(value=value):
            yield pst.BoolLit(not value)
        case pst.Like(pattern=pattern):
            yield replace(expr, pattern=(*pattern, pst.Char("~")))
            yield from (
                replace(expr, pattern=(*pattern[:index], *pattern[index + 1 :]))
                for index, part in enumerate(pattern)
                if isinstance(part, pst.Wildcard)
            )
        case pst.Set(elements=elements) if len(elements) > 1:
            yield from (pst.Set((*elements[:i], *elements[i + 1 :])) for i in range(len(elements)))
        case pst.IfThenElse(then_expr=then, else_expr=other):
            yield replace(expr, then_expr=other, else_expr=then)


def _counted(text: str) -> Iterator[str]:
    """A typed value one more and one less in its last place: a duration, a decimal, a time."""
    match = _LAST_NUMBER.search(text)
    if match is None:
        return
    digits = match.group()
    for near in (int(digits) - 1, int(digits) + 1):
        if near >= 0:
            yield f"{text[: match.start()]}{near:0{len(digits)}d}{text[match.end() :]}"


def _parts(expr: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(expr, pst.Record | pst.EntityLit | pst.Like | pst.HasAttr):
        if isinstance(expr, pst.Like | pst.HasAttr):
            yield "base", expr.base
        return
    yield from ((field.name, getattr(expr, field.name)) for field in fields(expr))


def _is_expr(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, pst.EntityUid | pst.EntityType)
