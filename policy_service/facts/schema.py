"""The Cedar schema of a bundle, generated from its manifests, facts and meters.

There is one action per tool, in its manifest's groups, from `Agent` to the manifest's resource type, with exactly the
context of design section 4. Attributes are those facts.toml declares. Meters appear only in the actions they count, so
a rule that reads another tool's meter does not load. The group of reads always exists, so a rule may name it before a
tool does. Approval has its own schema, so a rule about tools with an open action does not also cover votes.

`schema_text` writes the schema in Cedar's syntax (`.cedarschema`), for editors and other Cedar engines, in a fixed
order. A name that is no plain identifier is quoted. The service itself uses only the JSON form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from countersign.contract import READ_GROUP, RESERVED_IDENTIFIERS
from policy_service.domain.person_actions import RESOURCE_TYPES
from policy_service.facts.config import AttributeType

_TEXT: Final = {"type": "String"}
_LONG: Final = {"type": "Long"}
_BOOL: Final = {"type": "Boolean"}
_DATETIME: Final = {"type": "Extension", "name": "datetime"}
_USER: Final = {"type": "Entity", "name": "User"}


@dataclass(frozen=True, slots=True)
class ToolShape:
    """What the schema needs of one tool."""

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
    # The group of reads always exists, so a rule may name it before a tool does.
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
    """The schema of people's actions: may this User approve this Review, settle this Task, begin this Stop?"""
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
        for action, about in RESOURCE_TYPES.items()
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


_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_BUILT_IN: Final = {"String": "__cedar::String", "Long": "__cedar::Long", "Boolean": "__cedar::Bool"}


def schema_text(schema: Mapping[str, Any]) -> str:
    """The text syntax of a schema in Cedar's JSON form."""
    blocks: list[str] = []
    for namespace, home in schema.items():
        lines = list(_declarations(home))
        if namespace:
            lines = [f"namespace {namespace} {{", *(f"  {line}".rstrip() for line in lines), "}"]
        blocks.append("\n".join(lines))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _declarations(home: Mapping[str, Any]) -> Iterator[str]:
    for name, entity in home["entityTypes"].items():
        parents = ", ".join(entity.get("memberOfTypes", ()))
        within = f" in [{parents}]" if parents else ""
        shape = entity.get("shape")
        attributes = f" = {_type(shape)}" if shape is not None else ""
        yield f"entity {name}{within}{attributes};"
    for name, action in home["actions"].items():
        yield from _action_text(name, action)


def _action_text(name: str, action: Mapping[str, Any]) -> Iterator[str]:
    parents = ", ".join(_quoted(parent["id"]) for parent in action.get("memberOf", ()))
    within = f" in [{parents}]" if parents else ""
    applies = action.get("appliesTo")
    if applies is None:
        yield f"action {_quoted(name)}{within};"
        return
    yield f"action {_quoted(name)}{within} appliesTo {{"
    yield f"  principal: [{', '.join(applies['principalTypes'])}],"
    yield f"  resource: [{', '.join(applies['resourceTypes'])}],"
    yield f"  context: {_type(applies['context'])}"
    yield "};"


def _type(kind: Mapping[str, Any]) -> str:
    match kind["type"]:
        case "Record":
            members = (
                f"{_name(name)}{'' if member.get('required', True) else '?'}: {_type(member)}"
                for name, member in kind["attributes"].items()
            )
            return "{" + ", ".join(members) + "}"
        case "Set":
            return f"Set<{_type(kind['element'])}>"
        case "Entity":
            return str(kind["name"])
        case "Extension":
            return f"__cedar::{kind['name']}"
    return _BUILT_IN[kind["type"]]


def _name(name: str) -> str:
    return name if _IDENTIFIER.match(name) and name not in RESERVED_IDENTIFIERS else _quoted(name)


def _quoted(name: str) -> str:
    """A string literal in Cedar, whose escapes are Rust's, not JSON's."""
    inside = "".join(
        {'"': '\\"', "\\": "\\\\"}.get(char, char if char.isprintable() else f"\\u{{{ord(char):x}}}")
        for char in name
    )
    return f'"{inside}"'
