"""What a manifest's JSON Schema must promise before anyone reviews a call against it.

Unknown properties are refused by every object (an object taking free keys says so with a schema for them, and
is then "unseen" by policy). Whatever a validator may come to is met by the walk here: a reference names a definition of
the document, and keywords that would let in more, or another dialect, are refused. Validating args is the service's
work, not done here.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from .errors import ManifestError

_SCHEMA_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DEFINITIONS: Final = ("$defs", "definitions")
_SCHEMA_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMA_SINGLES: Final = (
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
MAX_SCHEMA_NODES: Final = 5_000
"""How many nodes one manifest's args may unfold to through references."""

MAX_SCHEMA_DEPTH: Final = 64
"""How many schemas may lie within each other, references written out: no args nest deeper."""

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
    if "$ref" in node and not is_definition_reference(node["$ref"]):
        raise ManifestError(
            "open_schema",
            f"{place}: $ref {node['$ref']!r} names no definition of the document; use '#/$defs/NAME'",
        )
    if _is_object(node) and not _closes_additional(node.get("additionalProperties")):
        raise ManifestError(
            "open_schema",
            f'{place}: an object needs "additionalProperties": false, or a schema when its keys are free',
        )


def is_definition_reference(reference: object) -> bool:
    """Whether a `$ref` is `#/$defs/NAME`. What another pointer names, no walk of the schema may have met."""
    return isinstance(reference, str) and _DEFINITION.fullmatch(reference) is not None


def _is_object(node: Mapping[str, object]) -> bool:
    kind = node.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in node


def _closes_additional(additional: object) -> bool:
    return additional is False or (isinstance(additional, dict) and bool(additional))


def schema_nodes(node: object, place: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Every schema in a schema, with where it stands."""
    if not isinstance(node, Mapping):
        return
    yield place, node
    for where, child in _parts(node, (*_SCHEMA_MAPS, *_SCHEMA_LISTS, *_SCHEMA_SINGLES)):
        yield from schema_nodes(child, place + where)


def require_bounded(schema: Mapping[str, object]) -> None:
    """Refuse a schema that its references unfold beyond any size or depth that a person could review.

    Raises:
        ManifestError: `bad_schema`.
    """
    keywords = [one for one in (*_SCHEMA_MAPS, *_SCHEMA_LISTS, *_SCHEMA_SINGLES) if one not in _DEFINITIONS]
    definitions = schema.get("$defs")
    seen, rest = 0, [(schema, frozenset[str](), 1)]
    while rest:
        node, within, depth = rest.pop()
        seen += 1
        if seen > MAX_SCHEMA_NODES or depth > MAX_SCHEMA_DEPTH:
            raise ManifestError(
                "bad_schema",
                f"args unfold to more than {MAX_SCHEMA_NODES} schema nodes or {MAX_SCHEMA_DEPTH} levels; use fewer "
                "references",
            )
        parts = [child for _, child in _parts(node, keywords)]
        name = str(node.get("$ref", "")).removeprefix("#/$defs/")
        if isinstance(definitions, dict) and name in definitions and name not in within:
            parts, within = [*parts, definitions[name]], within | {name}
        rest += [(child, within, depth + 1) for child in parts if isinstance(child, Mapping)]


def _parts(node: Mapping[str, object], keywords: Iterable[str]) -> Iterator[tuple[str, object]]:
    """The subschemas of these keywords, with where they stand in their schema."""
    for keyword in keywords:
        value = node.get(keyword)
        if keyword in _SCHEMA_SINGLES:
            yield f"/{keyword}", value
        elif isinstance(value, dict) and keyword in _SCHEMA_MAPS:
            yield from ((f"/{keyword}/{name}", child) for name, child in value.items())
        elif isinstance(value, list) and keyword in _SCHEMA_LISTS:
            yield from ((f"/{keyword}/{index}", child) for index, child in enumerate(value))
