"""Domains: what is known about every call of one tool version: types, bounds, enumerated texts.

Everything comes from the reviewed manifest and the generated schema, which the service enforces before it evaluates
rules. What these do not guarantee is unknown, never guessed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from cedarpy import pst

from countersign.contract import MAX_SAFE_INTEGER, ToolManifest
from policy_service.domain.person_actions import RESOURCE_TYPES
from policy_service.facts.config import FactsConfig
from policy_service.facts.meters import MAX_TOTAL, Meter
from policy_service.facts.schema import approval_schema
from policy_service.pap.compile import cedar_schema_json, tool_shape
from policy_service.pap.parts import MAX_SCHEMA_DEPTH, ToolVersion, schema_node

Path: TypeAlias = tuple[str, ...]
Interval: TypeAlias = tuple[int, int]

INT64: Final[Interval] = (-(2**63), 2**63 - 1)
_SAFE: Final[Interval] = (-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
_CONST: Final = "const:"
_PROOFS: Final = frozenset({"key", "api_key"})
_ENVIRONMENTS: Final = frozenset({"production", "staging", "dev"})
_RISKS: Final = frozenset({"low", "medium", "high"})
_STOPPABLE: Final = frozenset({"agent", "tool", "everything"})


@dataclass(frozen=True)
class Domain:
    """What holds for every request of one action. ``resource_id`` is set when the manifest fixes it."""

    action: str
    groups: frozenset[str]
    types: Mapping[str, Mapping[str, Any]]
    entities: Mapping[str, Mapping[str, Any]]
    texts: Mapping[Path, frozenset[str]] = field(default_factory=dict)
    longs: Mapping[Path, Interval] = field(default_factory=dict)
    bools: Mapping[Path, bool] = field(default_factory=dict)
    resource_id: str | None = None

    def type_of(self, path: Path) -> Mapping[str, Any] | None:
        """The Cedar type of the value at this path, in the notation of the JSON schema."""
        kind = self.types.get(path[0]) if path else None
        for name in path[1:]:
            kind = None if kind is None else self._attributes(kind).get(name)
        return kind

    def has(self, path: Path, name: str) -> bool | None:
        """Whether the value at this path always or never has that attribute; None when it varies or is unknown."""
        kind = self.type_of(path)
        if kind is None:
            return None
        attribute = self._attributes(kind).get(name)
        if attribute is None:
            return False
        return True if attribute.get("required", True) else None

    def parents_of(self, entity: str) -> frozenset[str]:
        """The types an entity of this type may be a member of, its own included."""
        return frozenset({entity, *self.entities.get(entity, {}).get("memberOfTypes", ())})

    def _attributes(self, kind: Mapping[str, Any]) -> Mapping[str, Any]:
        if kind.get("type") == "Entity":
            kind = self.entities.get(str(kind["name"]), {}).get("shape", {})
        attributes: Mapping[str, Any] = kind.get("attributes", {})
        return attributes


def tool_domain(version: ToolVersion, config: FactsConfig, meters: Sequence[Meter] = ()) -> Domain:
    """The domain of all calls of this version."""
    manifest = version.manifest
    schema = cedar_schema_json([tool_shape(version, meters)], config)
    kind = {"type": "Entity", "name": manifest.resource.type}
    input_facts = _Inputs(manifest)
    facts = _fact_longs("resource", manifest.resource.type, config) | _fact_longs(
        "principal", "Agent", config
    )
    return Domain(
        action=manifest.tool,
        groups=frozenset(manifest.groups),
        types={
            "principal": {"type": "Entity", "name": "Agent"},
            "resource": kind,
            "context": schema[""]["actions"][manifest.tool]["appliesTo"]["context"],
        },
        entities=_entities(schema),
        texts={("principal", "proof"): _PROOFS, ("context", "env"): _ENVIRONMENTS, **input_facts.texts},
        longs={
            ("context", "txn", "size"): (1, MAX_SAFE_INTEGER),
            **{("context", "history", meter.name): (0, MAX_TOTAL) for meter in meters},
            **facts,
            **input_facts.longs,
        },
        bools={
            ("context", "effect", "compensable"): manifest.compensation is not None,
            ("context", "effect", "idempotent"): manifest.idempotent,
            **input_facts.bools,
        },
        resource_id=manifest.resource.id.removeprefix(_CONST)
        if manifest.resource.id.startswith(_CONST)
        else None,
    )


def people_domain(action: str) -> Domain:
    """The domain of all requests about one action of people."""
    schema = approval_schema()
    return Domain(
        action=action,
        groups=frozenset(),
        types={
            "principal": {"type": "Entity", "name": "User"},
            "resource": {"type": "Entity", "name": RESOURCE_TYPES[action]},
            "context": schema[""]["actions"][action]["appliesTo"]["context"],
        },
        entities=_entities(schema),
        texts={
            ("context", "env"): _ENVIRONMENTS,
            ("resource", "risk"): _RISKS,
            ("resource", "what"): _STOPPABLE,
        },
    )


def path_of(expr: pst.Expr) -> Path | None:
    """`context.input.x` as ("context", "input", "x"); None unless it is an attribute chain of a variable."""
    names: list[str] = []
    while isinstance(expr, pst.GetAttr):
        names.append(expr.attr)
        expr = expr.base
    return (expr.name, *reversed(names)) if isinstance(expr, pst.Var) else None


def _entities(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {
        f"{namespace}::{name}" if namespace else name: entity
        for namespace, home in schema.items()
        for name, entity in home["entityTypes"].items()
    }


def _fact_longs(root: str, entity: str, config: FactsConfig) -> dict[Path, Interval]:
    types = config.attribute_types(entity)
    return {(root, name): INT64 for name, kind in types.items() if kind.name == "Long"}


class _Inputs:
    """What the manifest's JSON Schema guarantees about the fields that policy sees."""

    def __init__(self, manifest: ToolManifest) -> None:
        self._root = manifest.args
        self.texts: dict[Path, frozenset[str]] = {}
        self.longs: dict[Path, Interval] = {}
        self.bools: dict[Path, bool] = {}
        for path, node in self._fields(manifest.args, ("context", "input"), 0):
            self._read(path, node)

    def _fields(self, node: Mapping[str, Any], path: Path, depth: int) -> Iterator[tuple[Path, Any]]:
        properties = node.get("properties")
        if not isinstance(properties, dict) or depth > MAX_SCHEMA_DEPTH:
            return
        for name, child in properties.items():
            found = schema_node(child, self._root)
            yield (*path, name), found
            yield from self._fields(found, (*path, name), depth + 1)

    def _read(self, path: Path, node: Mapping[str, Any]) -> None:
        values = [node["const"]] if "const" in node else node.get("enum")
        kind = node.get("type")
        if isinstance(values, list):
            if values and all(isinstance(value, str) for value in values):
                self.texts[path] = frozenset(values)
            if len(values) == 1 and isinstance(values[0], bool):
                self.bools[path] = values[0]
        if kind in ("integer", ["integer"]) or (values and all(type(value) is int for value in values)):
            self.longs[path] = _bounds(node, values if isinstance(values, list) else None)


def _bounds(node: Mapping[str, Any], values: list[Any] | None) -> Interval:
    low, high = _SAFE
    if _is_number(node.get("minimum")):
        low = max(low, math.ceil(node["minimum"]))
    if _is_number(node.get("exclusiveMinimum")):
        low = max(low, math.floor(node["exclusiveMinimum"]) + 1)
    if _is_number(node.get("maximum")):
        high = min(high, math.floor(node["maximum"]))
    if _is_number(node.get("exclusiveMaximum")):
        high = min(high, math.ceil(node["exclusiveMaximum"]) - 1)
    if values and all(type(value) is int for value in values):
        low, high = max(low, min(values)), min(high, max(values))
    return low, high


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TO_LONG: Final = frozenset({"to_milliseconds", "to_seconds", "to_minutes", "to_hours", "to_days"})

NarrowedBounds = Mapping[pst.Expr, Interval]
"""Bounds at the position of an expression that follow from conditions evaluated before it."""


def bounds_of(expr: pst.Expr, domain: Domain, narrowed: NarrowedBounds) -> Interval | None:
    """The bounds of a Long before the overflow check; None for an unknown value or another type."""
    found = _plain(expr, domain, narrowed)
    known = narrowed.get(expr)
    if found is None or known is None:
        return found or known
    return max(found[0], known[0]), min(found[1], known[1])


def _plain(expr: pst.Expr, domain: Domain, narrowed: NarrowedBounds) -> Interval | None:
    match expr:
        case pst.LongLit(value=value):
            return value, value
        case pst.UnaryOp(op="neg", arg=arg):
            inner = bounds_of(arg, domain, narrowed)
            return None if inner is None else (-inner[1], -inner[0])
        case pst.UnaryOp(op=op) if op in _TO_LONG:
            return INT64
        case pst.BinaryOp(op="add" | "sub" | "mul" as op, left=left, right=right):
            one, other = bounds_of(left, domain, narrowed), bounds_of(right, domain, narrowed)
            return None if one is None or other is None else _arithmetic(op, one, other)
        case pst.IfThenElse(then_expr=then, else_expr=other_expr):
            one, other = bounds_of(then, domain, narrowed), bounds_of(other_expr, domain, narrowed)
            return None if one is None or other is None else (min(one[0], other[0]), max(one[1], other[1]))
    path = path_of(expr)
    if path is None:
        return None
    kind = domain.type_of(path)
    return domain.longs.get(path, INT64) if kind is not None and kind.get("type") == "Long" else None


def _arithmetic(op: str, one: Interval, other: Interval) -> Interval:
    if op == "add":
        return one[0] + other[0], one[1] + other[1]
    if op == "sub":
        return one[0] - other[1], one[1] - other[0]
    products = [left * right for left in one for right in other]
    return min(products), max(products)
