"""From checked parts to `Rules`: for each tool its codec, schema, guards and gates.

Rules kept here: each tool gets a schema with its own action and groups only (entities are built with the
schema on every decision, and a hundred foreign actions would be built along); its sets are cut by the action
hierarchy of the very same manifests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cedarpy import Schema

from countersign.contract import ToolManifest
from policy_service.facts.config import AGENT, FactsConfig
from policy_service.facts.meters import Meter
from policy_service.facts.schema import APPROVE, SETTLE, ToolShape, approval_schema, tools_schema
from policy_service.pap.parts import Parts, read_parts
from policy_service.pap.policies import Policy
from policy_service.pap.tools import ToolVersion
from policy_service.pdp.rules import PeopleRules, Rules, ToolRules
from policy_service.pdp.slices import may_match, policy_set


def shape_of(version: ToolVersion, meters: Sequence[Meter] = ()) -> ToolShape:
    """What the schema needs to know of a tool, and of the meters that count it."""
    manifest, codec = version.manifest, version.codec
    names = tuple(meter.name for meter in meters)
    return ToolShape(manifest.tool, tuple(manifest.groups), manifest.resource.type, codec.cedar_type, names)


def schema_of(shapes: Iterable[ToolShape], config: FactsConfig) -> Schema:
    """The Cedar schema of these tools, with every entity type that facts.toml declares.

    Raises:
        ValueError: Cedar does not take it, for example a type named like a keyword.
    """
    return Schema.from_json_str(json.dumps(schema_json(shapes, config)))


def schema_json(shapes: Iterable[ToolShape], config: FactsConfig) -> dict[str, Any]:
    """The same, as Cedar's JSON schema."""
    attributes = {entity: config.attribute_types(entity) for entity in config.entities}
    return tools_schema(shapes, attributes, (entity for entity in config.entities if entity != AGENT))


def bundle_schema(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The schema of a bundle's current tools, as Cedar's JSON schema; the files make a valid bundle."""
    parts, _ = read_parts(files)
    return schema_json(shapes_in(parts), parts.config)


def shapes_in(parts: Parts, instead: ToolVersion | None = None) -> list[ToolShape]:
    """What the one schema of all tools is made from: their current versions, and ``instead`` in place of its own."""
    versions = parts.current if instead is None else {**parts.current, instead.tool: instead}
    return [shape_of(version, parts.meters.get(name, ())) for name, version in versions.items()]


def approving_schema() -> Schema:
    """The Cedar schema of what people do."""
    return Schema.from_json_str(json.dumps(approval_schema()))


def compile_rules(
    *,
    digest: str,
    commit: str,
    tools: Sequence[ToolVersion],
    policies: Mapping[str, Policy],
    config: FactsConfig,
    groups_of: Callable[[str], frozenset[str]],
    meters: Mapping[str, Sequence[Meter]],
) -> Rules:
    """Prepare everything decisions need. The parts have been validated."""
    about_tools = {name: policy for name, policy in policies.items() if not policy.about_people}
    prepared = [
        (version, _tool_rules(version, about_tools, config, meters.get(version.tool, ())))
        for version in tools
    ]
    return Rules(
        digest=digest,
        commit=commit,
        tools={version.tool: ready for version, ready in prepared if version.label is None},
        versions={(version.tool, version.manifest.digest): ready for version, ready in prepared},
        policies={name: policy.source for name, policy in policies.items()},
        groups_of=groups_of,
        approval=people_rules(policies, APPROVE),
        settling=people_rules(policies, SETTLE),
        asked=frozenset().union(
            *(policy.source.gate.groups for policy in policies.values() if policy.source.gate)
        ),
    )


def _tool_rules(
    version: ToolVersion, policies: Mapping[str, Policy], config: FactsConfig, meters: Sequence[Meter]
) -> ToolRules:
    manifest = version.manifest
    return ToolRules(
        manifest=manifest,
        codec=version.codec,
        schema=schema_of([shape_of(version, meters)], config),
        **_sets(manifest, policies),
        resource_attributes=_always(config, manifest.resource.type),
        agent_attributes=_always(config, AGENT),
        meters=tuple(meter.name for meter in meters),
    )


def with_policies(tool: ToolRules, policies: Mapping[str, Policy]) -> ToolRules:
    """The same tool under other policies about tools; they have been validated."""
    return replace(tool, **_sets(tool.manifest, policies))


def _sets(manifest: ToolManifest, policies: Mapping[str, Policy]) -> dict[str, Any]:
    """The policies whose action can match this tool's, as the sets a decision asks."""
    matching = {n: p for n, p in policies.items() if may_match(p.tree, manifest.tool, manifest.groups)}
    guards = {name: policy.tree for name, policy in matching.items() if policy.source.gate is None}
    return {
        "guards": policy_set(guards),
        "gates": frozenset(matching) - frozenset(guards),
        "everything": policy_set({name: policy.tree for name, policy in matching.items()}),
        "permits": tuple(name for name, policy in matching.items() if policy.source.effect == "permit"),
    }


def _always(config: FactsConfig, entity: str) -> frozenset[str]:
    return frozenset(name for name, kind in config.attribute_types(entity).items() if not kind.optional)


def people_rules(policies: Mapping[str, Policy], action: str) -> PeopleRules | None:
    """The rules about one thing people do; None where there is none."""
    about = {name: policy.tree for name, policy in policies.items() if action in policy.about_people}
    return PeopleRules(approving_schema(), policy_set(about)) if about else None
