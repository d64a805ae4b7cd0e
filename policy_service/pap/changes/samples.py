"""Plain values for a JSON Schema node: a small call that a manifest takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from countersign.contract import ContractError
from countersign.contract.patterns import found_by

TRIED: Final = (
    "x",
    "a",
    "A",
    "1",
    "a1",
    "A1",
    "ABC",
    "abc123",
    "ABC123",
    "2026-01-14",
    "12:00",
    "a@example.com",
)
"""Texts that patterns of everyday arguments take."""

_MAX_DEPTH: Final = 12


def settled(node: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The node itself, or what it refers to within the document."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(node, Mapping):
            return {}
        if "$ref" not in node:
            return node
        node = _target(str(node["$ref"]), root)
    return {}


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    node: Any = root
    for token in reference.removeprefix("#").split("/")[1:]:
        step = token.replace("~1", "/").replace("~0", "~")
        node = node.get(step) if isinstance(node, Mapping) else None
    return node


def sample(node: Any, root: Mapping[str, Any], depth: int = 0) -> Any:
    """A small value of this node; whether it really fits is for the codec to say."""
    schema = settled(node, root)
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    if "const" in schema or "default" in schema:
        return schema.get("const", schema.get("default"))
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return sample(schema[key][0], root, depth + 1)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if depth > _MAX_DEPTH:
        return None
    return _of_kind(kind, schema, root, depth)


def _of_kind(kind: Any, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    match kind:
        case "object":
            properties = schema.get("properties", {})
            return {
                name: sample(properties.get(name, {}), root, depth + 1) for name in schema.get("required", ())
            }
        case "array":
            item = schema.get("items", {})
            return [
                _varied(sample(item, root, depth + 1), index) for index in range(schema.get("minItems", 0))
            ]
        case "string":
            return _text(schema)
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return False
        case "null":
            return None
    return "x"


def _varied(value: Any, index: int) -> Any:
    if isinstance(value, str) and index:
        return f"{value}{index}"
    return value + index if isinstance(value, int) and not isinstance(value, bool) else value


def _text(schema: Mapping[str, Any]) -> str:
    least, most, pattern = schema.get("minLength", 0), schema.get("maxLength"), schema.get("pattern")
    tried = [text if len(text) >= least else text + "x" * (least - len(text)) for text in TRIED]
    if most is not None:
        tried = [text for text in tried if len(text) <= most] or [""]
    if pattern is None:
        return tried[0]
    try:
        return next(filter(found_by(pattern), tried), tried[0])
    except ContractError:  # no bundle with it is ever in force
        return tried[0]


def _number(schema: Mapping[str, Any]) -> Any:
    step = schema.get("multipleOf", 1)
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    if least is not None:
        start = least + (step if "exclusiveMinimum" in schema else 0)
        return start if start % step == 0 else (start // step + 1) * step
    return step if most is None or most >= step else (most // step) * step
