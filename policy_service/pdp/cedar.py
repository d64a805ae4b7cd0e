"""The one place where the policy engine is asked. Every way in which it may fail to answer comes back as an
error.

Rules kept here (reproduced in the tests): Cedar skips a policy that errs, so an erring forbid would let the
request through: errors are read every time. A request outside the schema is no decision, never an empty one.
Policies, entities and schema are handles made before; entities are always made with the schema, because
otherwise no action group ever matches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from cedarpy import Decision as CedarDecision
from cedarpy import Entities, PolicySet, Schema, is_authorized

Uid: TypeAlias = dict[str, str]

_FAILED_POLICY: Final = re.compile(r"error while evaluating policy `([A-Za-z0-9._-]+)`")


@dataclass(frozen=True, slots=True)
class Request:
    """Who, what, on which, in which context; `context` is JSON text, written once for both questions."""

    principal: Uid
    action: Uid
    resource: Uid
    context: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What the engine said of one policy set. Where `errors` is not empty, nothing else may be believed."""

    allowed: bool
    reasons: frozenset[str] = frozenset()
    errors: tuple[str, ...] = ()


def uid(kind: str, name: str) -> Uid:
    """An entity's id as data, safe for any characters."""
    return {"type": kind, "id": name}


def entity(of: Uid, attrs: Mapping[str, Any], parents: Sequence[Uid] = ()) -> dict[str, Any]:
    """One entity in Cedar's JSON."""
    return {"uid": of, "attrs": attrs, "parents": parents}


def entities_of(entities: Sequence[Mapping[str, Any]], schema: Schema) -> Entities:
    """The entities of one request, checked against the schema.

    Raises:
        ValueError: one of them does not fit: an attribute is missing, unknown or of another type.
    """
    return Entities.from_json_str(json.dumps(entities), schema)


def ask(policies: PolicySet, request: Request, entities: Entities, schema: Schema) -> Answer:
    """Ask one policy set. Any input the engine will not take is an answer with errors."""
    result = is_authorized(
        {
            "principal": request.principal,
            "action": request.action,
            "resource": request.resource,
            "context": request.context,
        },
        policies,
        entities,
        schema,
    )
    errors = tuple(result.diagnostics.errors)
    if result.decision not in (CedarDecision.Allow, CedarDecision.Deny):
        return Answer(False, errors=errors or ("the engine came to no decision and did not say why",))
    return Answer(result.decision is CedarDecision.Allow, frozenset(result.diagnostics.reasons), errors)


def failed_policies(errors: Sequence[str]) -> tuple[str, ...]:
    """Ids of the policies these errors are about."""
    return tuple(match.group(1) for error in errors if (match := _FAILED_POLICY.match(error)))
