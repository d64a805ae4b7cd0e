"""The Cedar schema of a bundle, generated: nobody writes it by hand and nobody can leave a check out of it.

Rules kept here: one action per tool, in the groups of its manifest, from `Agent` to the manifest's resource
type, with exactly the context of design section 4; attributes only as facts.toml declares them, meters only in the
actions they count, so that a rule that reads another tool's meter does not load. The group of reads is always there,
so that a rule may name it before a tool does. Who may approve is a schema of its own, so that a rule about tools may
leave its action open without meaning people's votes as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from countersign.contract import READ_GROUP
from policy_service.domain.people import ABOUT
from policy_service.facts.attributes import AttributeType

_TEXT: Final = {"type": "String"}
_LONG: Final = {"type": "Long"}
_BOOL: Final = {"type": "Boolean"}
_DATETIME: Final = {"type": "Extension", "name": "datetime"}
_USER: Final = {"type": "Entity", "name": "User"}


@dataclass(frozen=True, slots=True)
class ToolShape:
    """What the schema needs to know of one tool."""

    tool: str
    groups: tuple[str, ...]
    resource_type: str
    input_type: Mapping[str, Any]
    meters: tuple[str, ...] = ()


def tools_schema(
    tools: Iterable[ToolShape],
    attributes: Mapping[str, Mapping[str, AttributeType]],
    resource_types: Iterable[str] = (),
) -> dict[str, Any]:
    """The schema of effects, in Cedar's JSON format. `attributes` are by entity type."""
    shapes = tuple(tools)
    # Every bundle knows the group of reads, so a rule may name it before a tool does.
    actions: dict[str, Any] = {READ_GROUP: {}} | {group: {} for shape in shapes for group in shape.groups}
    actions |= {shape.tool: _action(shape) for shape in shapes}
    agent = {"proof": _TEXT, **_attributes(attributes.get("Agent", {}))}
    namespaces: dict[str, Any] = {"": {"entityTypes": _people(agent), "actions": actions}}
    for resource_type in sorted({*resource_types, *(shape.resource_type for shape in shapes)}):
        namespace, _, name = resource_type.rpartition("::")
        home = namespaces.setdefault(namespace, {"entityTypes": {}, "actions": {}})
        home["entityTypes"][name] = {"shape": _record(_attributes(attributes.get(resource_type, {})))}
    return namespaces


def approval_schema() -> dict[str, Any]:
    """The schema of what people do: may this User approve this Review, settle this Task, begin this Stop?"""
    asked = {
        "agent": {"type": "Entity", "name": "Agent"},
        "tool": _TEXT,
        "risk": _TEXT,
        "gates": {"type": "Set", "element": _TEXT},
        "opened_at": _DATETIME,
    }
    shapes = {
        "Review": {"shape": _record(asked)},
        "Task": {"shape": _record({**asked, "kind": _TEXT})},
        "Stop": {"shape": _record({"what": _TEXT, "name": _TEXT})},
    }
    context = _record({"assurance": _TEXT, "now": _DATETIME, "env": _TEXT})
    actions = {
        action: {"appliesTo": {"principalTypes": ["User"], "resourceTypes": [about], "context": context}}
        for action, about in ABOUT.items()
    }
    return {"": {"entityTypes": {**_people({}), **shapes}, "actions": actions}}


def _people(agent_attributes: Mapping[str, Any]) -> dict[str, Any]:
    agent = {"owner": {**_USER, "required": False}, **agent_attributes}
    return {
        "Agent": {"memberOfTypes": ["Role", "Group"], "shape": _record(agent)},
        "User": {"memberOfTypes": ["Group"]},
        "Role": {},
        "Group": {},
    }


def _action(shape: ToolShape) -> dict[str, Any]:
    claimed = {name: {**_TEXT, "required": False} for name in ("purpose", "reasoning", "on_behalf_of")}
    context = {
        "input": shape.input_type,
        "effect": _record({"compensable": _BOOL, "idempotent": _BOOL}),
        "txn": _record({"size": _LONG}),
        "history": _record({name: {**_LONG, "required": True} for name in shape.meters}),
        "claimed": _record(claimed),
        "on_behalf_of": {**_USER, "required": False},
        "now": _DATETIME,
        "env": _TEXT,
    }
    applies_to = {
        "principalTypes": ["Agent"],
        "resourceTypes": [shape.resource_type],
        "context": _record(context),
    }
    return {"memberOf": [{"id": group} for group in dict.fromkeys(shape.groups)], "appliesTo": applies_to}


def _attributes(declared: Mapping[str, AttributeType]) -> dict[str, Any]:
    return {name: {**kind.cedar_type, "required": not kind.optional} for name, kind in declared.items()}


def _record(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "Record", "attributes": dict(attributes)}
