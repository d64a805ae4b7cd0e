"""JSON Schema 2020-12 of a tool's args: what a schema must promise, its patterns, and validation against it.

Validation uses the package `jsonschema`, which the service brings, and so does the extra `mcp` of the SDK; it is
imported on first use, so that the SDK works without it. Rules: a reference out of the document is an error and never a
request; `multipleOf` counts in decimal digits; `uniqueItems` compares canonical bytes.

Patterns run in time that grows with the text and no faster. A pattern in a manifest was written by a stranger or comes
from an MCP server, and what it is held against comes from a model. Python's `re` takes back steps, and a pattern like
`^(a+)+$` stops a process for years. Nothing but the engine here (pydantic's, which never takes back a step) runs such a
pattern; what it cannot compute (lookaround, references to a group, too large a repetition) is refused when the schema
is read, by its place, and never tried another way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal, localcontext
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

from pydantic_core import SchemaError, SchemaValidator, core_schema

from .admission import RESERVED_KEYS
from .canonical import canonicalize
from .errors import ContractError, ManifestError
from .pointers import pointer_to

_SCHEMA_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_DEFINITIONS: Final = ("$defs", "definitions")
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
    for where, child in _parts(node, (*_SCHEMA_MAPS, *_SCHEMA_LISTS, *_SCHEMA_ONES)):
        yield from schema_nodes(child, place + where)


def require_bounded(schema: Mapping[str, object]) -> None:
    """Refuse a schema that its references unfold beyond any size or depth that a person could review.

    Raises:
        ManifestError: `bad_schema`.
    """
    keywords = [one for one in (*_SCHEMA_MAPS, *_SCHEMA_LISTS, *_SCHEMA_ONES) if one not in _DEFINITIONS]
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
        if keyword in _SCHEMA_ONES:
            yield f"/{keyword}", value
        elif isinstance(value, dict) and keyword in _SCHEMA_MAPS:
            yield from ((f"/{keyword}/{name}", child) for name, child in value.items())
        elif isinstance(value, list) and keyword in _SCHEMA_LISTS:
            yield from ((f"/{keyword}/{index}", child) for index, child in enumerate(value))


_MAX_QUOTED: Final = 200  # characters of a message, which quotes what it is about
_DIGITS: Final = 700  # the largest float over the smallest has a quotient of 633 digits


def require_json_schema(schema: Mapping[str, Any], place: str = "args") -> None:
    """Refuse args that are no JSON Schema 2020-12, or that no call could be held against.

    Raises:
        ManifestError: `bad_schema`, naming the place.
        ContractError: `bad_pattern`, as `require_patterns`.
    """
    jsonschema = import_module("jsonschema")
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        where = place + "".join(pointer_to(str(part)) for part in error.absolute_path)
        message = error.message[:_MAX_QUOTED]
        raise ManifestError("bad_schema", f"{where} is not JSON Schema 2020-12: {message}") from error
    require_patterns(schema, place)
    for node in _objects(schema):
        properties = node.get("properties")
        if isinstance(properties, dict) and (reserved := RESERVED_KEYS.intersection(properties)):
            raise ManifestError(
                "bad_schema", f"property {min(reserved)!r} is reserved by the policy engine; rename it"
            )


def validator_of(schema: Mapping[str, Any]) -> Any:
    """A `jsonschema` validator that holds args against a schema by the rules above."""
    # An empty registry: a reference out of the document is an error here, never a request to somewhere.
    return _validator_class()(schema, registry=import_module("referencing").Registry())


@lru_cache(maxsize=1)
def _validator_class() -> Any:
    jsonschema = import_module("jsonschema")
    refused = jsonschema.ValidationError

    def multiple_of(validator: Any, divisor: float, instance: Any, schema: Any) -> Iterator[Exception]:
        """`multipleOf` on decimal digits: in binary floating point 0.07 is no multiple of 0.01."""
        if validator.is_type(instance, "number") and not _divides(divisor, instance):
            yield refused(f"{instance!r} is not a multiple of {divisor!r}")

    def unique_items(validator: Any, wanted: bool, instance: Any, schema: Any) -> Iterator[Exception]:
        """By canonical bytes: linear, where comparing each with each would let a list stop the service."""
        if not wanted or not validator.is_type(instance, "array"):
            return
        if len({canonicalize(item) for item in instance}) != len(instance):
            yield refused("the items are not unique")

    keywords = {"multipleOf": multiple_of, "uniqueItems": unique_items, **pattern_keywords(refused)}
    return jsonschema.validators.extend(jsonschema.Draft202012Validator, keywords)


def _divides(divisor: float, instance: float) -> bool:
    with localcontext() as context:
        context.prec = _DIGITS
        return Decimal(repr(instance)) % Decimal(repr(divisor)) == 0


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        yield value
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        yield from _objects(child)


_KEPT: Final = 128  # compiled patterns of one process; the engine bounds each to 10 MiB
_MAX_TOLD: Final = 100  # characters of a pattern, and of the engine's words


@lru_cache(maxsize=_KEPT)
def found_by(pattern: str) -> Callable[[str], bool]:
    """A function that tells whether the pattern is found anywhere in a text, as JSON Schema means it.

    Raises:
        ContractError: `bad_pattern`, in the engine's words.
    """
    try:
        return SchemaValidator(
            core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")
        ).isinstance_python
    except SchemaError as error:
        why = " ".join(str(error).split()).rpartition(": ")[2]
        raise ContractError(
            "bad_pattern",
            f"{ascii(pattern)[:_MAX_TOLD]} cannot be run in bounded time ({why[:_MAX_TOLD]}); write it without "
            "lookaround and references to groups, and with smaller repetitions",
        ) from None


def require_patterns(schema: Mapping[str, Any], place: str = "args") -> None:
    """Refuse a schema that holds a pattern this engine cannot compute.

    Raises:
        ContractError: `bad_pattern`, naming the place.
    """
    for where, node in schema_nodes(schema, place):
        named = node.get("patternProperties")
        for keyword, patterns in (("pattern", [node.get("pattern")]), ("patternProperties", named)):
            for pattern in patterns if isinstance(patterns, list | dict) else ():
                try:
                    found_by(pattern) if isinstance(pattern, str) else None
                except ContractError as error:
                    raise ContractError(error.code, f"{where}/{keyword}: {error}") from None


def pattern_keywords(refused: Callable[[str], Exception]) -> dict[str, Any]:
    """What the package jsonschema calls for each keyword that runs a pattern, in place of its own; `refused` makes its
    error.
    """

    def pattern(validator: Any, wanted: str, instance: Any, schema: Any) -> Iterator[Exception]:
        if validator.is_type(instance, "string") and not found_by(wanted)(instance):
            yield refused(f"{instance!r} does not match {wanted!r}")

    def properties(
        validator: Any, named: Mapping[str, Any], instance: Any, schema: Any
    ) -> Iterator[Exception]:
        for one, part in named.items() if validator.is_type(instance, "object") else ():
            for name in filter(found_by(one), instance):
                yield from validator.descend(instance[name], part, path=name, schema_path=one)

    def additional(validator: Any, more: Any, instance: Any, schema: Any) -> Iterator[Exception]:
        if not validator.is_type(instance, "object"):
            return
        for name in _not_named(instance, schema):
            if validator.is_type(more, "object"):
                yield from validator.descend(instance[name], more, path=name)
            elif more is False:
                yield refused(f"Additional properties are not allowed ({name!r} was unexpected)")

    def unevaluated(validator: Any, more: Any, instance: Any, schema: Any) -> Iterator[Exception]:
        """A belt: such a schema is refused where it is read, and the package's own would run patterns with `re`."""
        yield refused("what other keywords left over is not run here; write the schema out")

    return {
        "pattern": pattern,
        "patternProperties": properties,
        "additionalProperties": additional,
        "unevaluatedProperties": unevaluated,
        "unevaluatedItems": unevaluated,
    }


def _not_named(instance: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    """The properties that a schema names neither whole nor by a pattern."""
    named, tests = (
        schema.get("properties", {}),
        [found_by(one) for one in schema.get("patternProperties", {})],
    )
    return [name for name in instance if name not in named and not any(test(name) for test in tests)]
