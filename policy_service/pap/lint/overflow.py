"""Arithmetic that can leave 64 bits: the engine then errs, and an error denies the call.

Rules kept here: bounds are those of the manifest's JSON Schema, of the contract's whole numbers for other arguments,
and of 64 bits for facts; what a condition has asked before, to its left, in an earlier clause or in `if`, narrows them.
"""

from __future__ import annotations

from collections.abc import Iterator

from cedarpy import pst

from policy_service.pap.lint.domains import INT64, Domain
from policy_service.pap.lint.intervals import Narrowed, interval
from policy_service.pap.lint.logic import TooManyCasesError, cases
from policy_service.pap.lint.proofs import narrowed_by
from policy_service.pap.lint.subject import Subject, children
from policy_service.pap.problems import Problem

_SIGNS = {"add": "+", "sub": "-", "mul": "*"}


def overflowing(subject: Subject) -> Iterator[Problem]:
    """The first operation of a rule that can overflow, for some version of some tool."""
    for domain in subject.domains:
        found = next(_walk(subject.condition, domain, {}), None)
        if found is not None:
            yield subject.finding(
                "overflow",
                f"{found} can leave 64 bits for {domain.action!r}, and then every such call is denied; give the "
                "arguments a minimum and maximum in the manifest, or ask for a bound before (`x < 1000000 && ...`)",
            )
            return


def _walk(expr: pst.Expr, domain: Domain, narrowed: Narrowed) -> Iterator[str]:
    match expr:
        case pst.BinaryOp(op="and" | "or" as op, left=left, right=right):
            yield from _walk(left, domain, narrowed)
            yield from _walk(right, domain, _after(left, op == "and", domain, narrowed))
            return
        case pst.IfThenElse(cond=cond, then_expr=then, else_expr=other):
            yield from _walk(cond, domain, narrowed)
            yield from _walk(then, domain, _after(cond, True, domain, narrowed))
            yield from _walk(other, domain, _after(cond, False, domain, narrowed))
            return
    for child in children(expr):
        yield from _walk(child, domain, narrowed)
    if isinstance(expr, pst.BinaryOp) and expr.op in _SIGNS and _leaves(expr, domain, narrowed):
        yield f"`{_SIGNS[expr.op]}`"
    elif isinstance(expr, pst.UnaryOp) and expr.op == "neg" and _leaves(expr, domain, narrowed):
        yield "`-` of a fact"


def _leaves(expr: pst.Expr, domain: Domain, narrowed: Narrowed) -> bool:
    bounds = interval(expr, domain, narrowed)
    return bounds is not None and (bounds[0] < INT64[0] or bounds[1] > INT64[1])


def _after(asked: pst.Expr, holds: bool, domain: Domain, narrowed: Narrowed) -> Narrowed:
    """The bounds where this has been asked and answered so."""
    try:
        found = [narrowed_by(case, domain) for case in cases(asked, holds)]
    except TooManyCasesError:
        return narrowed
    if not found:
        return narrowed
    shared = set(found[0]).intersection(*found[1:])
    hull = {
        expr: (min(bounds[expr][0] for bounds in found), max(bounds[expr][1] for bounds in found))
        for expr in shared
    }
    merged = dict(narrowed)
    for expr, (low, high) in hull.items():
        known = merged.get(expr, INT64)
        merged[expr] = max(low, known[0]), min(high, known[1])
    return merged
