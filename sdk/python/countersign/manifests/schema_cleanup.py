"""A listed schema without what no value is held against: decoration, and definitions that nothing refers to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from countersign.manifests.drafts import ANNOTATION_KEYWORDS

_NOISE: Final = ANNOTATION_KEYWORDS - {"description"}
MAPS: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})
LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SCHEMAS: Final = frozenset(
    {"items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames"}
)


def clean_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A listed schema without what says nothing of a value, and with those definitions only that it reaches.

    `dependencies` becomes the two keywords that took its place (2020-12 validation, appendix A): validators of today
    ignore it.
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
