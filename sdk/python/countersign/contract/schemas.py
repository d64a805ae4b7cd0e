"""What a manifest's JSON Schema must promise before anyone reviews a call against it.

Unknown properties are refused by every object (an object taking free keys says so with a schema for them, and
is then "unseen" by policy), and references stay inside the document. Validating args is the service's work,
not done here.
"""

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
)


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
    for place, node in _walk(schema, "args"):
        _require_closed(place, node)


def _require_closed(place: str, node: Mapping[str, object]) -> None:
    for keyword in _REFUSED:
        if keyword in node:
            raise ManifestError(
                "open_schema", f"{place}: {keyword!r} is not allowed here; write the schema out"
            )
    reference = node.get("$ref")
    if reference is not None and not (isinstance(reference, str) and reference.startswith("#/")):
        raise ManifestError(
            "open_schema", f"{place}: $ref {reference!r} leaves the document; use '#/$defs/...'"
        )
    if _is_object(node) and not _says_what_else(node.get("additionalProperties")):
        raise ManifestError(
            "open_schema",
            f'{place}: an object needs "additionalProperties": false, or a schema when its keys are free',
        )


def _is_object(node: Mapping[str, object]) -> bool:
    kind = node.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in node


def _says_what_else(additional: object) -> bool:
    return additional is False or (isinstance(additional, dict) and bool(additional))


def _walk(node: object, place: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    if not isinstance(node, Mapping):
        return
    yield place, node
    for keyword in _SCHEMA_MAPS:
        members = node.get(keyword)
        for name, child in members.items() if isinstance(members, dict) else ():
            yield from _walk(child, f"{place}/{keyword}/{name}")
    for keyword in _SCHEMA_LISTS:
        branches = node.get(keyword)
        for index, child in enumerate(branches) if isinstance(branches, list) else ():
            yield from _walk(child, f"{place}/{keyword}/{index}")
    for keyword in _SCHEMA_ONES:
        yield from _walk(node.get(keyword), f"{place}/{keyword}")
