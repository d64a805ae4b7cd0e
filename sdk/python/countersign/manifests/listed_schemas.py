"""Schemas of MCP tools: which apply to one value, and a copy without what does not affect validation.

Which schemas apply follows JSON Schema 2020-12 core, section 10.2. The copy drops annotations and unused definitions.

"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from countersign.contract.json_schema import pattern_searcher
from countersign.contract.pointers import pointer_to
from countersign.manifests.drafts import ANNOTATION_KEYWORDS

BRANCHES: Final = ("allOf", "anyOf", "oneOf")
IN_PLACE: Final = frozenset({*BRANCHES, "not", "if", "then", "else", "dependentSchemas", "$ref"})
_OF_NAMES: Final = frozenset({"properties", "patternProperties", "required"})
_HOW: Final = ("always", "branch", "test")


@dataclass(frozen=True, slots=True)
class ApplicableSchema:
    """A schema that applies to the values at one location: `always`, in a `branch` that a value may choose, or as a
    `test` (`not`, `if`) that admits nothing by itself.
    """

    schema: Any
    at: str
    how: Literal["always", "branch", "test"] = "always"

    def part(
        self, schema: Any, at: str, how: Literal["always", "branch", "test"] = "always"
    ) -> ApplicableSchema:
        """A subschema, which applies at most as often as this one."""
        return ApplicableSchema(schema, self.at + at, max(self.how, how, key=_HOW.index))


def is_object(node: Mapping[str, Any]) -> bool:
    """Whether it is a schema of objects, by its type or its properties, as in the contract."""
    kind = node.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in node


def is_open(more: Any) -> bool:
    """Whether free keys may hold any value."""
    return more is True or (isinstance(more, dict) and more.keys() <= ANNOTATION_KEYWORDS)


def is_free(here: list[ApplicableSchema]) -> bool:
    """Whether a branch accepts any keys: it has a schema for unlisted ones, or lists none at all."""
    listed = any(_OF_NAMES & one.schema.keys() for one in here if one.how == "always")
    for one in here:
        more = one.schema.get("additionalProperties", True)
        if one.how != "test" and isinstance(more, dict) and not is_open(more):
            return True
        lists_none = (
            is_object(one.schema) and is_open(more) and not (_OF_NAMES | IN_PLACE) & one.schema.keys()
        )
        if one.how == "branch" and lists_none and not listed:
            return True
    return False


def same_value_schemas(one: ApplicableSchema) -> Iterator[ApplicableSchema]:
    """The subschemas that apply to the same value, except references."""
    for key in BRANCHES:
        for index, child in enumerate(one.schema.get(key, ())):
            yield one.part(child, f"/{key}/{index}", "always" if key == "allOf" else "branch")
    for key in ("then", "else", "if", "not"):
        if key in one.schema:
            yield one.part(one.schema[key], f"/{key}", "branch" if key in {"then", "else"} else "test")
    for name, child in one.schema.get("dependentSchemas", {}).items():
        yield one.part(child, f"/dependentSchemas{pointer_to(name)}", "branch")


def property_names(here: list[ApplicableSchema]) -> list[str]:
    """Every property name in these schemas, in order."""
    names: dict[str, None] = {}
    for one in here:
        names |= dict.fromkeys(one.schema.get("properties", ()))
    for one in here:
        names |= dict.fromkeys(one.schema.get("required", ()))
        names |= dict.fromkeys(one.schema.get("dependentSchemas", ()))
        for name, then in one.schema.get("dependentRequired", {}).items():
            names |= dict.fromkeys([name, *then])
        for value in [one.schema.get("const"), *one.schema.get("enum", ())]:
            names |= dict.fromkeys(value if isinstance(value, dict) else ())
    return list(names)


def property_patterns(here: list[ApplicableSchema]) -> list[str]:
    """Every property name pattern in these schemas."""
    return list(dict.fromkeys(pattern for one in here for pattern in one.schema.get("patternProperties", ())))


def schemas_for_property(name: str, here: list[ApplicableSchema]) -> Iterator[ApplicableSchema]:
    """The schemas that apply to the property of this name."""
    for one in here:
        listed, patterns = one.schema.get("properties", {}), one.schema.get("patternProperties", {})
        named = [pattern for pattern in patterns if pattern_searcher(pattern)(name)]
        if name in listed:
            yield one.part(listed[name], f"/properties{pointer_to(name)}")
        for pattern in named:
            yield one.part(patterns[pattern], f"/patternProperties{pointer_to(pattern)}")
        if name not in listed and not named and "additionalProperties" in one.schema:
            yield one.part(one.schema["additionalProperties"], "/additionalProperties")


def schemas_for_other_properties(here: list[ApplicableSchema]) -> Iterator[ApplicableSchema]:
    """The schemas that may apply to a property that is not listed."""
    for one in here:
        for key in ("properties", "patternProperties"):
            for name, child in one.schema.get(key, {}).items():
                yield one.part(child, f"/{key}{pointer_to(name)}", "branch")
        if "additionalProperties" in one.schema:
            yield one.part(one.schema["additionalProperties"], "/additionalProperties", "branch")


def schemas_for_items(here: list[ApplicableSchema]) -> Iterator[ApplicableSchema]:
    """The schemas that may apply to an item."""
    for one in here:
        if "items" in one.schema:
            yield one.part(one.schema["items"], "/items")
        for child in one.schema.get("prefixItems", ()):
            yield one.part(child, "/prefixItems", "branch")
        if "contains" in one.schema:
            yield one.part(one.schema["contains"], "/contains", "test")


_NOISE: Final = ANNOTATION_KEYWORDS - {"description"}
MAPS: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})
LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SCHEMAS: Final = frozenset(
    {"items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames"}
)


def clean_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema without annotations and unused definitions.

    `dependencies` becomes the two keywords that replaced it (2020-12 validation, appendix A), because current
    validators ignore it.
    """
    named = schema.get("$defs")
    definitions: Mapping[str, Any] = named if isinstance(named, dict) else {}
    kept: dict[str, Any] = _cleaned(schema)
    reached: dict[str, Any] = {}
    wanted = list(_references(kept))
    while wanted:
        name = wanted.pop().removeprefix("#/$defs/")
        if name in definitions and name not in reached:
            reached[name] = _cleaned(definitions[name])
            wanted += _references(reached[name])
    if reached:
        kept["$defs"] = {name: reached[name] for name in definitions if name in reached}
    return kept


def _cleaned(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    kept: dict[str, Any] = {}
    for key, value in node.items():
        if key in _NOISE or key in {"$defs", "definitions"}:
            continue
        if key in MAPS and isinstance(value, dict):
            kept[key] = {name: _cleaned(child) for name, child in value.items()}
        elif key in LISTS and isinstance(value, list):
            kept[key] = [_cleaned(child) for child in value]
        else:
            kept[key] = _cleaned(value) if key in SCHEMAS else value
    return _without_dependencies(kept) if isinstance(kept.get("dependencies"), dict) else kept


def _without_dependencies(node: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in node.items() if key != "dependencies"}
    for name, then in node["dependencies"].items():
        if isinstance(then, list):
            required = kept.setdefault("dependentRequired", {})
            required[name] = list(dict.fromkeys([*required.get(name, ()), *then]))
        else:
            schemas = kept.setdefault("dependentSchemas", {})
            then = _cleaned(then)
            schemas[name] = {"allOf": [schemas[name], then]} if name in schemas else then
    return kept


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        node = list(node.values())
    for child in node if isinstance(node, list) else ():
        yield from _references(child)
