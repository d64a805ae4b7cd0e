"""A generated Cedar schema as people write it (`.cedarschema`), for editors and other Cedar engines.

Rules kept here: it says exactly what the JSON form says, in a fixed order; every name that is no plain identifier is
quoted. The service itself uses the JSON form alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from countersign.contract import RESERVED_IDENTIFIERS

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_BUILT_IN: Final = {"String": "__cedar::String", "Long": "__cedar::Long", "Boolean": "__cedar::Bool"}


def schema_text(schema: Mapping[str, Any]) -> str:
    """The human syntax of a schema in Cedar's JSON form."""
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
        yield from _action(name, action)


def _action(name: str, action: Mapping[str, Any]) -> Iterator[str]:
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
    """A text as Cedar writes it: its escapes are Rust's, not JSON's."""
    inside = "".join(
        {'"': '\\"', "\\": "\\\\"}.get(char, char if char.isprintable() else f"\\u{{{ord(char):x}}}")
        for char in name
    )
    return f'"{inside}"'
