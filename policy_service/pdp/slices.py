"""Policies by action. A policy whose action scope cannot match is neither satisfied nor erring, so it may be
left out.

That is exact, not an approximation: Cedar evaluates the scope before the conditions. The action hierarchy
must be the schema's own, so a slice belongs to one bundle; an action the bundle does not know has no slice at
all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cedarpy import PolicySet, pst


def actions_named(policy: pst.Template) -> frozenset[str] | None:
    """Ids of the actions and groups in a policy's scope; None when it is open to every action."""
    match policy.action:
        case pst.ActionEq(entity=entity):
            return frozenset({entity.id})
        case pst.ActionIn(entities=entities):
            return frozenset(entity.id for entity in entities)
    return None


def may_match(policy: pst.Template, action: str, groups: Iterable[str]) -> bool:
    """Whether this policy's action scope can match that action, itself or through one of its groups."""
    match policy.action:
        case pst.ActionEq(entity=entity):
            return bool(entity.id == action)
        case pst.ActionIn(entities=entities):
            reachable = {action, *groups}
            return any(entity.id in reachable for entity in entities)
    return True


def policy_set(policies: Mapping[str, pst.Template]) -> PolicySet:
    """A handle over these policies, whose reasons and errors then carry our ids."""
    return PolicySet.from_pst(pst.PolicySet(templates={}, static_policies=dict(policies), template_links=()))
