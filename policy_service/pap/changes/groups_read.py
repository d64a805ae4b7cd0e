"""Whether somebody's leaving of a group can let anything through: which way each rule reads the group.

Rules kept here: a permit that asks for the group, and a forbid that spares it, can only become stricter; every other
rule that names the group is taken to open when somebody leaves, because nobody has proved that it does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cedarpy import policies_to_pst, pst

from policy_service.pap.bundle import Bundle
from policy_service.pap.changes.paths import path_of
from policy_service.pap.changes.reading import below

_OWN_GROUPS = (("agent",),)
"""In a rule about tools the principal is an agent: its groups are of its key, not of groups.toml."""


def opened_by_leaving(bundles: tuple[Bundle, Bundle]) -> dict[str, list[str]]:
    """The groups whose members some rule holds back, with the ids of those rules."""
    found: dict[str, list[str]] = {}
    for bundle in bundles:
        for name, policy in bundle.policies.items():
            tree: Any = next(iter(policies_to_pst(policy.text).static_policies.values()))
            ignored = () if policy.people_do else _OWN_GROUPS
            for group, asked in _groups(tree, ignored):
                held_back = asked is None or asked is (policy.effect == "forbid")
                if held_back and name not in found.setdefault(group, []):
                    found[group].append(name)
    return {group: names for group, names in found.items() if names}


def _groups(tree: Any, ignored: tuple[Any, ...]) -> Iterator[tuple[str, bool | None]]:
    """Each group a policy names, with whether it holds for its members (True), for others (False), or either."""
    entity = getattr(tree.principal, "entity", None)
    if ("agent",) not in ignored and isinstance(entity, pst.EntityUid) and _is_group(entity):
        yield entity.id, True
    for clause in tree.clauses:
        yield from _in(clause.expr, isinstance(clause, pst.When), ignored)


def _in(expr: Any, holds: bool | None, ignored: tuple[Any, ...]) -> Iterator[tuple[str, bool | None]]:
    match expr:
        case pst.BinaryOp(op="and" | "or", left=left, right=right):
            yield from _in(left, holds, ignored)
            yield from _in(right, holds, ignored)
        case pst.UnaryOp(op="not", arg=arg):
            yield from _in(arg, None if holds is None else not holds, ignored)
        case pst.BinaryOp(op="in", left=left, right=right):
            if path_of(left) not in ignored:
                yield from ((group, holds) for group in _named(right))
        case _:
            yield from ((group, None) for group in _named(expr))


def _named(expr: Any) -> list[str]:
    entities = [each.value for each in below(expr) if isinstance(each, pst.EntityLit)]
    return [entity.id for entity in entities if _is_group(entity)]


def _is_group(entity: pst.EntityUid) -> bool:
    return bool(entity.type.basename == "Group")
