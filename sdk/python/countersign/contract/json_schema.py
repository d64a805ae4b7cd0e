"""Validation of args by JSON Schema 2020-12, with the package `jsonschema`.

The service depends on that package, and so does the SDK extra `mcp`. It is imported on first use, so that the SDK works
without it. A reference out of the document is an error and never a request; patterns run in bounded time (patterns.py);
`multipleOf` counts in decimal digits; `uniqueItems` compares canonical bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal, localcontext
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

from .admission import RESERVED_KEYS
from .canonical import canonicalize
from .errors import ManifestError
from .patterns import pattern_keywords, require_patterns
from .pointers import pointer_to

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
