"""Regular expressions of other people, run in time that grows with the text and no faster.

A pattern in a manifest was written by a stranger or comes from an MCP server, and what it is held against comes from a
model. Python's `re` takes back steps, and a pattern like `^(a+)+$` stops a process for years. Rule: nothing but the
engine here (pydantic's, which never takes back a step) runs such a pattern; what it cannot compute (lookaround,
references to a group, too large a repetition) is refused when the schema is read, by its place, and never tried another
way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from pydantic_core import SchemaError, SchemaValidator, core_schema

from .errors import ContractError
from .schema_rules import schema_nodes

_KEPT: Final = 128  # compiled patterns of one process; the engine bounds each to 10 MiB
_MAX_QUOTED: Final = 100  # characters of a pattern, and of the engine's words


@lru_cache(maxsize=_KEPT)
def pattern_searcher(pattern: str) -> Callable[[str], bool]:
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
            f"{ascii(pattern)[:_MAX_QUOTED]} cannot be run in bounded time ({why[:_MAX_QUOTED]}); write it without "
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
                    pattern_searcher(pattern) if isinstance(pattern, str) else None
                except ContractError as error:
                    raise ContractError(error.code, f"{where}/{keyword}: {error}") from None


def pattern_keywords(refused: Callable[[str], Exception]) -> dict[str, Any]:
    """What the package jsonschema calls for each keyword that runs a pattern, in place of its own; `refused` makes its
    error.
    """

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
        """A belt: such a schema is refused where it is read, and the package's own would run patterns with `re`."""
        yield refused("what other keywords left over is not run here; write the schema out")

    return {
        "pattern": pattern,
        "patternProperties": properties,
        "additionalProperties": additional,
        "unevaluatedProperties": unevaluated,
        "unevaluatedItems": unevaluated,
    }


def _unnamed_properties(instance: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    """The properties that a schema names neither whole nor by a pattern."""
    named, tests = (
        schema.get("properties", {}),
        [pattern_searcher(one) for one in schema.get("patternProperties", {})],
    )
    return [name for name in instance if name not in named and not any(test(name) for test in tests)]
