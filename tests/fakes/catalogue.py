"""Arguments for every manifest of the catalogue, made from its schema: a call that people could be asked about."""

from __future__ import annotations

from typing import Any

from countersign.catalogue import entry
from countersign.contract import JSON, ToolManifest, compensation_args

_BY_PATTERN = {"^[A-Z]{3}$": "EUR", "^[0-9a-f]{40}$": "9f3c1ab0" * 5, "^[0-9a-f]{64}$": "9f3c1ab0" * 8}
_BY_PATTERN |= {"^\\+[1-9][0-9]{6,14}$": "+4915112345678", "^[0-9]{4}-[0-9]{2}-[0-9]{2}$": "2026-12-24"}


def sample(manifest: ToolManifest) -> dict[str, JSON]:
    """A call; every customer is the one of the starter bundle."""
    properties: Any = manifest.args["properties"]
    return {name: _value(name, schema) for name, schema in properties.items()}


def sample_result(manifest: ToolManifest) -> dict[str, JSON]:
    """What the tool answers, as far as its compensation takes anything from it."""
    rule = manifest.compensation
    if rule is None:
        return {}
    theirs = sample(entry(rule.tool).manifest)
    reads = {name: source for name, source in rule.map.items() if source.startswith("result:/")}
    return {source.removeprefix("result:/"): theirs[name] for name, source in reads.items()}


def taken_back(manifest: ToolManifest, args: dict[str, JSON]) -> dict[str, JSON]:
    """The arguments its compensation would be called with."""
    assert manifest.compensation is not None
    return compensation_args(manifest.compensation.map, args=args, result=sample_result(manifest))


def _value(name: str, schema: dict[str, Any]) -> Any:
    if name == "customer":
        return "cus_1"
    if "enum" in schema:
        return schema["enum"][-1]
    if "pattern" in schema:
        return _BY_PATTERN[schema["pattern"]]
    match schema["type"]:
        case "integer":
            return max(int(schema["minimum"]), 2) + len(name) % 5  # two numbers of one call differ
        case "array":
            return [f"{name}-1", f"{name}-2"]
    return f"{name}-1"
