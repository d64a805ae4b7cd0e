"""Generate mutants of one policy: small mistakes in its conditions, scope or annotations.

A mutant differs from the policy in one place. Its name shows the old and the new text, and is stable while the policy
is unchanged, because acknowledgements refer to it. Changes that cannot affect any answer are not generated. The caller
checks whether a mutant fits the schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final

from cedarpy import PolicySet, pst

from policy_service.domain.gates import Gate
from policy_service.pap.policies import Policy

ExpressionMutation = tuple[str, str, Any]
"""The old text, the new text, and the whole changed expression."""

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


def mutated_expressions(expr: Any) -> Iterator[ExpressionMutation]:
    """Every mutation of an expression, at any depth."""
    yield from _here(expr)
    if isinstance(expr, pst.UnaryOp) and expr.op in _TYPED:
        return  # a typed value is mutated as a whole
    for name, inner in _parts(expr):
        if isinstance(inner, tuple):
            for index, item in enumerate(inner):
                for was, now, changed in mutated_expressions(item) if _is_expr(item) else ():
                    yield was, now, replace(expr, **{name: (*inner[:index], changed, *inner[index + 1 :])})
        elif _is_expr(inner):
            for was, now, changed in mutated_expressions(inner):
                yield was, now, replace(expr, **{name: changed})


def negated_clause(clause: pst.Clause) -> tuple[str, pst.Clause]:
    """The negated clause, and its keyword."""
    if isinstance(clause, pst.When):
        return "unless", pst.Unless(clause.expr)
    return "when", pst.When(clause.expr)


def expression_text(expr: Any) -> str:
    """An expression as Cedar writes it."""
    template = pst.Template(
        "x", "permit", pst.ScopeAny(), pst.ScopeAny(), pst.ScopeAny(), (pst.When(expr),), pst.FrozenMap()
    )
    text = str(PolicySet.from_pst(pst.PolicySet({}, {"x": template}, ())))
    inner = text[text.index("when {") + len("when {") : text.rindex("}")]
    return " ".join(inner.split())


def _here(expr: Any) -> Iterator[ExpressionMutation]:
    for changed in _changed(expr):
        yield expression_text(expr), expression_text(changed), changed


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
    """A duration, decimal or time, one more and one less in its last number."""
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


_QUORUMS = 50  # a larger quorum does not load


@dataclass(frozen=True, slots=True)
class Mutant:
    """One policy, changed in one place; `policy` is None when it is dropped."""

    of: Policy
    name: str
    policy: Policy | None

    @property
    def place(self) -> str:
        return self.of.source.place


def generate_mutants(policy: Policy, groups: Iterable[str], narrows: frozenset[str]) -> Iterator[Mutant]:
    """Every mutant of a policy, each once. `groups` are the existing groups. `narrows` are the resource types of its
    actions: a scope that names the only type narrows nothing.
    """
    yield Mutant(policy, "the policy is dropped", None)
    seen: set[Any] = {(policy.tree, policy.source.gate, policy.source.unseen)}
    names: dict[str, int] = {}
    for name, changed in _changes(policy, sorted(groups), narrows):
        key = (changed.tree, changed.source.gate, changed.source.unseen)
        if key in seen:
            continue
        seen.add(key)
        names[name] = names.get(name, 0) + 1
        yield Mutant(policy, name if names[name] == 1 else f"{name} #{names[name]}", changed)


def _changes(policy: Policy, groups: list[str], narrows: frozenset[str]) -> Iterator[tuple[str, Policy]]:
    yield from _effects(policy)
    for name, tree in (*_scopes(policy.tree, narrows), *_clauses(policy.tree)):
        yield name, replace(policy, tree=tree)
    if policy.source.gate is not None:
        for name, gate in _gates(policy.source.gate, groups, policy.source.annotations):
            yield name, replace(policy, source=replace(policy.source, gate=gate))
    if policy.source.unseen:
        yield "@unseen is dropped", replace(policy, source=replace(policy.source, unseen=frozenset()))


def _effects(policy: Policy) -> Iterator[tuple[str, Policy]]:
    source = policy.source
    if source.gate is not None:
        yield "@approval is dropped: nobody is asked", replace(policy, source=replace(source, gate=None))
        return
    other: pst.Effect = "forbid" if source.effect == "permit" else "permit"
    flipped = replace(source, effect=other, unseen=frozenset())
    yield (
        f"{source.effect} -> {other}",
        replace(policy, source=flipped, tree=replace(policy.tree, effect=other)),
    )


def _scopes(tree: pst.Template, narrows: frozenset[str]) -> Iterator[tuple[str, pst.Template]]:
    # A principal about tools is always an Agent, a person always a User, so a type alone narrows nothing.
    if not isinstance(tree.principal, pst.ScopeAny | pst.ScopeIs):
        yield "principal: anybody", replace(tree, principal=pst.ScopeAny())
    if isinstance(tree.action, pst.ActionIn) and len(tree.action.entities) > 1:
        for entity in tree.action.entities:
            rest = tuple(each for each in tree.action.entities if each != entity)
            yield f"action: without {entity}", replace(tree, action=pst.ActionIn(rest))
    resource = tree.resource
    if isinstance(resource, pst.ScopeIs) and narrows <= {str(resource.entity_type)}:
        return
    if not isinstance(resource, pst.ScopeAny):
        yield "resource: any", replace(tree, resource=pst.ScopeAny())


def _clauses(tree: pst.Template) -> Iterator[tuple[str, pst.Template]]:
    for index, clause in enumerate(tree.clauses):
        word = "when" if isinstance(clause, pst.When) else "unless"
        text = expression_text(clause.expr)
        before, after = tree.clauses[:index], tree.clauses[index + 1 :]
        yield f"{word} {{ {text} }} is dropped", replace(tree, clauses=(*before, *after))
        other, turned = negated_clause(clause)
        yield f"{word} -> {other}: {text}", replace(tree, clauses=(*before, turned, *after))
        for was, now, expr in mutated_expressions(clause.expr):
            changed = replace(clause, expr=expr)
            yield f"{was} -> {now}", replace(tree, clauses=(*before, changed, *after))


def _gates(gate: Gate, groups: list[str], annotations: Mapping[str, str]) -> Iterator[tuple[str, Gate]]:
    yield from _people(gate, groups)
    if gate.step_up is not None:
        yield "@step_up is dropped", replace(gate, step_up=None)
    for name in ("answer_within", "valid_for"):
        if name in annotations:  # a default cannot be mistyped
            longer = 2 * getattr(gate, name)
            yield f"@{name}: {getattr(gate, name)} -> {longer}", replace(gate, **{name: longer})
    if gate.reason:
        yield "@reason is dropped", replace(gate, reason=False)
    shared = "@shared is dropped" if gate.shared else "@shared is added"
    yield shared, replace(gate, shared=not gate.shared)


def _people(gate: Gate, groups: list[str]) -> Iterator[tuple[str, Gate]]:
    asked = "|".join(sorted(gate.groups))
    for group in sorted(gate.groups) if len(gate.groups) > 1 else ():
        left = gate.groups - {group}
        yield f"@approval: {asked} -> {'|'.join(sorted(left))}", replace(gate, groups=left)
    if other := next((group for group in groups if group not in gate.groups), None):
        yield f"@approval: {asked} -> {other}", replace(gate, groups=frozenset({other}))
    for quorum in (gate.quorum - 1, gate.quorum + 1):
        if 1 <= quorum <= _QUORUMS:
            yield f"@quorum: {gate.quorum} -> {quorum}", replace(gate, quorum=quorum)
