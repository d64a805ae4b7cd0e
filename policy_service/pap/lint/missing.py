"""Attributes and memberships of entities that are not there when a rule is asked.

The engine is given the agent, the resource and the people of the call, and nobody else. Reading an attribute of another
entity errs, which denies the call; asking for one with `has`, or for its groups, is quietly false.
"""

from __future__ import annotations

from collections.abc import Iterator

from cedarpy import pst

from policy_service.pap.lint.subject import Subject, expressions
from policy_service.pap.problems import Problem


def missing_entities(subject: Subject) -> Iterator[Problem]:
    """Every entity a rule names and asks something of."""
    for expr in dict.fromkeys(expressions(subject.condition)):
        named = _asked(expr)
        if named is not None and str(named.type) != "Action":
            yield subject.finding(
                "missing-entity",
                f"it asks something of {named}, and only the call's own agent, resource and people are known then; "
                "read the fact from `resource` or `principal`, or compare those with it",
            )


def _asked(expr: pst.Expr) -> pst.EntityUid | None:
    match expr:
        case pst.GetAttr(base=pst.EntityLit(value=uid)) | pst.HasAttr(base=pst.EntityLit(value=uid)):
            return uid
        case pst.BinaryOp(op="in" | "get_tag" | "has_tag", left=pst.EntityLit(value=uid)):
            return uid
    return None
