"""What a manifest's JSON Schema must promise before anyone reviews a call against it.

Unknown properties are refused by every object (an object taking free keys says so with a schema for them, and
is then "unseen" by policy). Whatever a validator may come to is met by the walk here: a reference names a definition of
the document, and keywords that would let in more, or another dialect, are refused. Validating args is the service's
work, not done here.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from .errors import ManifestError

_SCHEMA_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMA_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMA_ONES: Final = (
    "items",
    "additionalProperties",
    "contains",
    "not",
    "if",
    "then",
    "else",
    "propertyNames",
)
_REFUSED: Final = (
    "$dynamicRef",
    "$recursiveRef",
    "$id",
    "$anchor",
    "$dynamicAnchor",
    "unevaluatedProperties",
    "unevaluatedItems",
)
_TOP: Final = "args"
_DEFINITION: Final = re.compile(r"#/\$defs/[^/%\s\x00-\x1f]+")
"""A reference to one definition. `%2F` is a slash to those who follow it, and a line break is nothing."""


def require_closed_schema(schema: Mapping[str, object]) -> None:
    """Refuse a schema of args that is not one closed object.

    Raises:
        ManifestError: `open_schema`, naming the place.
    """
    if schema.get("type") != "object":
        raise ManifestError("open_schema", 'args must be {"type": "object", ...}')
    if schema.get("additionalProperties") is not False:
        raise ManifestError(
            "open_schema", 'args need "additionalProperties": false, so unknown ones are refused'
        )
    for place, node in schema_nodes(schema, _TOP):
        _require_closed(place, node)


def _require_closed(place: str, node: Mapping[str, object]) -> None:
    # A validator takes another dialect at its word and goes on with that one's keywords, in place of ours.
    for keyword in (*_REFUSED, *(() if place == _TOP else ("$schema",))):
        if keyword in node:
            raise ManifestError(
                "open_schema", f"{place}: {keyword!r} is not allowed here; write the schema out"
            )
    if "$ref" in node and not names_definition(node["$ref"]):
        raise ManifestError(
            "open_schema",
            f"{place}: $ref {node['$ref']!r} names no definition of the document; use '#/$defs/NAME'",
        )
    if _is_object(node) and not _says_what_else(node.get("additionalProperties")):
        raise ManifestError(
            "open_schema",
            f'{place}: an object needs "additionalProperties": false, or a schema when its keys are free',
        )


def names_definition(reference: object) -> bool:
    """Whether a `$ref` is `#/$defs/NAME`. What another pointer names, no walk of the schema may have met."""
    return isinstance(reference, str) and _DEFINITION.fullmatch(reference) is not None


def _is_object(node: Mapping[str, object]) -> bool:
    kind = node.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in node


def _says_what_else(additional: object) -> bool:
    return additional is False or (isinstance(additional, dict) and bool(additional))


def schema_nodes(node: object, place: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Every schema in a schema, with where it stands."""
    if not isinstance(node, Mapping):
        return
    yield place, node
    for keyword in _SCHEMA_MAPS:
        members = node.get(keyword)
        for name, child in members.items() if isinstance(members, dict) else ():
            yield from schema_nodes(child, f"{place}/{keyword}/{name}")
    for keyword in _SCHEMA_LISTS:
        branches = node.get(keyword)
        for index, child in enumerate(branches) if isinstance(branches, list) else ():
            yield from schema_nodes(child, f"{place}/{keyword}/{index}")
    for keyword in _SCHEMA_ONES:
        yield from schema_nodes(node.get(keyword), f"{place}/{keyword}")
