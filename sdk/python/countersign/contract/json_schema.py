"""Validation of args by JSON Schema 2020-12, with the package `jsonschema`, and patterns run in linear time.

The service depends on that package, and so does the SDK extra `mcp`. It is imported on first use, so that the SDK works
without it. A reference out of the document is an error and never a request; `multipleOf` counts in decimal digits;
`uniqueItems` compares canonical bytes.

Patterns and the texts they match are untrusted. Python's `re` backtracks, and a pattern like `^(a+)+$` blocks a process
for years. Such a pattern therefore runs only in pydantic's engine, which never backtracks. What it cannot run
(lookaround, backreferences, a repetition that is too large) is refused when the schema is loaded, with its location,
and never tried another way.

"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, localcontext
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

from pydantic_core import SchemaError, SchemaValidator, core_schema

from .admission import RESERVED_KEYS
from .digests import canonicalize
from .errors import ContractError, ManifestError
from .pointers import pointer_to
from .schema_rules import schema_nodes

_MAX_QUOTED: Final = 200  # characters of a message, which quotes the offending value
_DIGITS: Final = 700  # the largest float divided by the smallest has 633 digits


def require_json_schema(schema: Mapping[str, Any], place: str = "args") -> None:
    """Refuse an args schema that is not valid JSON Schema 2020-12, or that no call could be validated against.

    Raises:
        ManifestError: `bad_schema`, naming the location.
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
    """A `jsonschema` validator that applies the rules above."""
    # An empty registry: a reference out of the document is an error, never a network request.
    return _validator_class()(schema, registry=import_module("referencing").Registry())


@lru_cache(maxsize=1)
def _validator_class() -> Any:
    jsonschema = import_module("jsonschema")
    refused = jsonschema.ValidationError

    def multiple_of(validator: Any, divisor: float, instance: Any, schema: Any) -> Iterator[Exception]:
        """`multipleOf` on decimal digits: in binary floating point 0.07 is not a multiple of 0.01."""
        if validator.is_type(instance, "number") and not _divides(divisor, instance):
            yield refused(f"{instance!r} is not a multiple of {divisor!r}")

    def unique_items(validator: Any, wanted: bool, instance: Any, schema: Any) -> Iterator[Exception]:
        """Compare canonical bytes: linear time. Comparing every pair would let a long list block the service."""
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


_KEPT: Final = 128  # compiled patterns per process; the engine bounds each to 10 MiB
_MAX_PATTERN: Final = 100  # characters of a pattern, and of the engine's message


@lru_cache(maxsize=_KEPT)
def pattern_searcher(pattern: str) -> Callable[[str], bool]:
    """A function that searches a text for the pattern, unanchored, as JSON Schema requires.

    Raises:
        ContractError: `bad_pattern`, with the engine's message.
    """
    try:
        return SchemaValidator(
            core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")
        ).isinstance_python
    except SchemaError as error:
        why = " ".join(str(error).split()).rpartition(": ")[2]
        raise ContractError(
            "bad_pattern",
            f"{ascii(pattern)[:_MAX_PATTERN]} cannot be run in bounded time ({why[:_MAX_PATTERN]}); write it without "
            "lookaround and references to groups, and with smaller repetitions",
        ) from None


def require_patterns(schema: Mapping[str, Any], place: str = "args") -> None:
    """Refuse a schema that contains a pattern this engine cannot run.

    Raises:
        ContractError: `bad_pattern`, naming the location.
    """
    for where, node in schema_nodes(schema, place):
        named = node.get("patternProperties")
        for keyword, patterns in (("pattern", [node.get("pattern")]), ("patternProperties", named)):
            for pattern in patterns if isinstance(patterns, list | dict) else ():
                try:
                    pattern_searcher(pattern) if isinstance(pattern, str) else None
                except ContractError as error:
                    raise ContractError(error.code, f"{where}/{keyword}: {error}") from None


def pattern_keywords(refused: Callable[[str], Exception]) -> dict[str, Any]:
    """Replacements for the `jsonschema` keywords that run a pattern; `refused` creates the error."""

    def pattern(validator: Any, wanted: str, instance: Any, schema: Any) -> Iterator[Exception]:
        if validator.is_type(instance, "string") and not pattern_searcher(wanted)(instance):
            yield refused(f"{instance!r} does not match {wanted!r}")

    def properties(
        validator: Any, named: Mapping[str, Any], instance: Any, schema: Any
    ) -> Iterator[Exception]:
        for one, part in named.items() if validator.is_type(instance, "object") else ():
            for name in filter(pattern_searcher(one), instance):
                yield from validator.descend(instance[name], part, path=name, schema_path=one)

    def additional(validator: Any, more: Any, instance: Any, schema: Any) -> Iterator[Exception]:
        if not validator.is_type(instance, "object"):
            return
        for name in _unnamed_properties(instance, schema):
            if validator.is_type(more, "object"):
                yield from validator.descend(instance[name], more, path=name)
            elif more is False:
                yield refused(f"Additional properties are not allowed ({name!r} was unexpected)")

    def unevaluated(validator: Any, more: Any, instance: Any, schema: Any) -> Iterator[Exception]:
        """Defence in depth: such a schema is refused when it is loaded, and the package's own keyword would run
        patterns with `re`.
        """
        yield refused("what other keywords left over is not run here; write the schema out")

    return {
        "pattern": pattern,
        "patternProperties": properties,
        "additionalProperties": additional,
        "unevaluatedProperties": unevaluated,
        "unevaluatedItems": unevaluated,
    }


def _unnamed_properties(instance: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    """The properties that a schema names neither literally nor by a pattern."""
    named, tests = (
        schema.get("properties", {}),
        [pattern_searcher(one) for one in schema.get("patternProperties", {})],
    )
    return [name for name in instance if name not in named and not any(test(name) for test in tests)]
