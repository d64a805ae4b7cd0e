"""Compile checked parts to `Rules`: codec, schema, guards and gates for each tool.

Each tool gets a schema with its own action and groups only, because every decision builds its entities with that
schema. Its policy sets are selected by the action hierarchy of the same manifests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cedarpy import PolicySet, Schema, pst

from countersign.contract import ToolManifest
from policy_service.domain.person_actions import RESOURCE_TYPES
from policy_service.facts.config import AGENT, FactsConfig
from policy_service.facts.meters import Meter
from policy_service.facts.schema import ToolShape, approval_schema, tools_schema
from policy_service.pap.parts import BundleParts, ToolVersion, read_parts
from policy_service.pap.policies import Policy
from policy_service.pdp.rules import PeopleRules, PolicySource, Rules, ToolRules, policy_set, scope_may_match


def tool_shape(version: ToolVersion, meters: Sequence[Meter] = ()) -> ToolShape:
    """What the schema contains about a tool and the meters that count it."""
    manifest, codec = version.manifest, version.codec
    names = tuple(meter.name for meter in meters)
    return ToolShape(manifest.tool, tuple(manifest.groups), manifest.resource.type, codec.cedar_type, names)


def compile_schema(shapes: Iterable[ToolShape], config: FactsConfig) -> Schema:
    """The Cedar schema of these tools, with every entity type that facts.toml declares.

    Raises:
        ValueError: Cedar rejects it, for example a type named like a keyword.
    """
    return Schema.from_json_str(json.dumps(cedar_schema_json(shapes, config)))


def cedar_schema_json(shapes: Iterable[ToolShape], config: FactsConfig) -> dict[str, Any]:
    """The same in Cedar's JSON format."""
    attributes = {entity: config.attribute_types(entity) for entity in config.entities}
    return tools_schema(shapes, attributes, (entity for entity in config.entities if entity != AGENT))


def bundle_schema(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The schema of a valid bundle's current tools, in Cedar's JSON format."""
    parts, _ = read_parts(files)
    return cedar_schema_json(tool_shapes(parts), parts.config)


def tool_shapes(parts: BundleParts, instead: ToolVersion | None = None) -> list[ToolShape]:
    """The shapes of all current versions; ``instead`` replaces the current version of its tool."""
    versions = parts.current if instead is None else {**parts.current, instead.tool: instead}
    return [tool_shape(version, parts.meters.get(name, ())) for name, version in versions.items()]


def people_schema() -> Schema:
    """The Cedar schema of the actions of people."""
    return Schema.from_json_str(json.dumps(approval_schema()))


PolicySetSource = str | Mapping[str, pst.Template]
"""Policies by id, not yet compiled: the engine's JSON, or its syntax trees."""


@dataclass(frozen=True, slots=True)
class ToolRulesSource:
    """The plain values from which `ToolRules` of one tool version is compiled; another process can send them."""

    name: str
    schema: str
    guards: PolicySetSource
    everything: PolicySetSource
    gates: frozenset[str]
    permits: tuple[str, ...]


def tool_rules_source(
    version: ToolVersion, policies: Mapping[str, Policy], parts: BundleParts
) -> ToolRulesSource:
    """The rules of one tool version under these validated policies about tools."""
    shape = tool_shape(version, parts.meters.get(version.tool, ()))
    schema = json.dumps(cedar_schema_json([shape], parts.config))
    return ToolRulesSource(version.tool, schema, *_selected(version.manifest, policies))


def with_policies(tool: ToolRules, policies: Mapping[str, Policy]) -> ToolRules:
    """The same tool under other validated policies about tools."""
    guards, everything, gates, permits = _selected(tool.manifest, policies)
    sets = policy_set(guards), policy_set(everything)
    return replace(tool, guards=sets[0], everything=sets[1], gates=gates, permits=permits)


Trees = dict[str, pst.Template]


def _selected(
    manifest: ToolManifest, policies: Mapping[str, Policy]
) -> tuple[Trees, Trees, frozenset[str], tuple[str, ...]]:
    """Guards, all policies, ids of gates and of permits whose action scope can match this tool, in file order."""
    matching = {n: p for n, p in policies.items() if scope_may_match(p.tree, manifest.tool, manifest.groups)}
    everything = {name: policy.tree for name, policy in matching.items()}
    gates = frozenset(name for name, policy in matching.items() if policy.source.gate is not None)
    permits = tuple(name for name, policy in matching.items() if policy.source.effect == "permit")
    return {name: tree for name, tree in everything.items() if name not in gates}, everything, gates, permits


def people_policies(policies: Mapping[str, Policy]) -> dict[str, PolicySetSource]:
    """The policies about actions of people, by action."""
    return {
        action: {name: policy.tree for name, policy in policies.items() if action in policy.about_people}
        for action in RESOURCE_TYPES
    }


def compile_people_rules(sources: Mapping[str, PolicySetSource]) -> dict[str, PeopleRules]:
    """The rules about actions of people, by action; actions without rules are left out."""
    schema = people_schema()
    return {
        action: PeopleRules(schema, compile_policy_set(rules)) for action, rules in sources.items() if rules
    }


def compile_policy_set(source: PolicySetSource) -> PolicySet:
    """The engine's handle. JSON is parsed without the interpreter lock; trees are read while holding it."""
    if isinstance(source, str):
        return PolicySet.from_json_str(source, release_gil=True)
    return policy_set(source)


def compile_rules(
    *,
    digest: str,
    commit: str,
    parts: BundleParts,
    policies: Mapping[str, PolicySource],
    tools: Sequence[ToolRulesSource],
    people: Mapping[str, PolicySetSource],
    pause: Callable[[], None] = lambda: None,
) -> Rules:
    """Compile everything decisions need from checked parts."""
    prepared = []
    for version, written in zip(parts.tools, tools, strict=True):
        prepared.append((version, _tool_rules(version, written, parts, pause)))
        pause()
    return Rules(
        digest=digest,
        commit=commit,
        tools={version.tool: ready for version, ready in prepared if version.label is None},
        versions={(version.tool, version.manifest.digest): ready for version, ready in prepared},
        policies=policies,
        groups_of=parts.directory.groups_of,
        people=compile_people_rules(people),
        asked=frozenset().union(*(source.gate.groups for source in policies.values() if source.gate)),
    )


def _tool_rules(
    version: ToolVersion, written: ToolRulesSource, parts: BundleParts, pause: Callable[[], None]
) -> ToolRules:
    manifest, config = version.manifest, parts.config
    schema = Schema.from_json_str(written.schema, release_gil=True)
    pause()
    guards = compile_policy_set(written.guards)
    pause()
    return ToolRules(
        manifest=manifest,
        codec=version.codec,
        schema=schema,
        guards=guards,
        gates=written.gates,
        everything=compile_policy_set(written.everything),
        permits=written.permits,
        resource_attributes=_always(config, manifest.resource.type),
        agent_attributes=_always(config, AGENT),
        meters=tuple(meter.name for meter in parts.meters.get(version.tool, ())),
    )


def _always(config: FactsConfig, entity: str) -> frozenset[str]:
    return frozenset(name for name, kind in config.attribute_types(entity).items() if not kind.optional)
