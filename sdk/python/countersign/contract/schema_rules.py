"""The rules that a manifest's JSON Schema must satisfy before people review calls against it.

Every object refuses unknown properties; an object with free keys must give them a schema, and policy cannot see them.
The walk here reaches every schema that a validator can reach: a reference must name a definition of the document, and
keywords that would admit more, or select another dialect, are refused. Args are validated by the service, not here.
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
"""Maximum number of schema nodes of one manifest's args after expanding references."""

MAX_SCHEMA_DEPTH: Final = 64
"""Maximum nesting of schemas after expanding references: args do not nest deeper."""

_DEFINITION: Final = re.compile(r"#/\$defs/[^/%\s\x00-\x1f]+")
"""A reference to one definition. Some readers decode `%2F` to a slash, and line breaks are ambiguous."""


def require_closed_schema(schema: Mapping[str, object]) -> None:
    """Refuse a schema of args that is not one closed object.

    Raises:
        ManifestError: `open_schema`, naming the location.
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
    # A validator would follow another dialect and apply its keywords in place of ours.
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
    """Whether a `$ref` is `#/$defs/NAME`. A schema walk might not have visited the target of another pointer."""
    return isinstance(reference, str) and _DEFINITION.fullmatch(reference) is not None


def _is_object(node: Mapping[str, object]) -> bool:
    kind = node.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in node


def _closes_additional(additional: object) -> bool:
    return additional is False or (isinstance(additional, dict) and bool(additional))


def schema_nodes(node: object, place: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Every subschema, with its location."""
    if not isinstance(node, Mapping):
        return
    yield place, node
    for where, child in _parts(node, (*_SCHEMA_MAPS, *_SCHEMA_LISTS, *_SCHEMA_SINGLES)):
        yield from schema_nodes(child, place + where)


def require_bounded(schema: Mapping[str, object]) -> None:
    """Refuse a schema whose references expand beyond a size or depth that a person could review.

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
    """The subschemas under these keywords, with their location."""
    for keyword in keywords:
        value = node.get(keyword)
        if keyword in _SCHEMA_SINGLES:
            yield f"/{keyword}", value
        elif isinstance(value, dict) and keyword in _SCHEMA_MAPS:
            yield from ((f"/{keyword}/{name}", child) for name, child in value.items())
        elif isinstance(value, list) and keyword in _SCHEMA_LISTS:
            yield from ((f"/{keyword}/{index}", child) for index, child in enumerate(value))
