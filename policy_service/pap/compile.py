"""From checked parts to `Rules`: for each tool its codec, schema, guards and gates.

Rules kept here: each tool gets a schema with its own action and groups only (entities are built with the
schema on every decision, and a hundred foreign actions would be built along); its sets are cut by the action
hierarchy of the very same manifests.
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
from policy_service.pap.parts import BundleParts, read_parts
from policy_service.pap.policies import Policy
from policy_service.pap.tools import ToolVersion
from policy_service.pdp.rules import PeopleRules, PolicySource, Rules, ToolRules, policy_set, scope_may_match


def tool_shape(version: ToolVersion, meters: Sequence[Meter] = ()) -> ToolShape:
    """What the schema needs to know of a tool, and of the meters that count it."""
    manifest, codec = version.manifest, version.codec
    names = tuple(meter.name for meter in meters)
    return ToolShape(manifest.tool, tuple(manifest.groups), manifest.resource.type, codec.cedar_type, names)


def compile_schema(shapes: Iterable[ToolShape], config: FactsConfig) -> Schema:
    """The Cedar schema of these tools, with every entity type that facts.toml declares.

    Raises:
        ValueError: Cedar does not take it, for example a type named like a keyword.
    """
    return Schema.from_json_str(json.dumps(cedar_schema_json(shapes, config)))


def cedar_schema_json(shapes: Iterable[ToolShape], config: FactsConfig) -> dict[str, Any]:
    """The same, as Cedar's JSON schema."""
    attributes = {entity: config.attribute_types(entity) for entity in config.entities}
    return tools_schema(shapes, attributes, (entity for entity in config.entities if entity != AGENT))


def bundle_schema(files: Mapping[str, bytes]) -> dict[str, Any]:
    """The schema of a bundle's current tools, as Cedar's JSON schema; the files make a valid bundle."""
    parts, _ = read_parts(files)
    return cedar_schema_json(tool_shapes(parts), parts.config)


def tool_shapes(parts: BundleParts, instead: ToolVersion | None = None) -> list[ToolShape]:
    """What the one schema of all tools is made from: their current versions, and ``instead`` in place of its own."""
    versions = parts.current if instead is None else {**parts.current, instead.tool: instead}
    return [tool_shape(version, parts.meters.get(name, ())) for name, version in versions.items()]


def people_schema() -> Schema:
    """The Cedar schema of what people do."""
    return Schema.from_json_str(json.dumps(approval_schema()))


PolicySetSource = str | Mapping[str, pst.Template]
"""Policies by our ids, before the engine has them: as its JSON, or as its trees."""


@dataclass(frozen=True, slots=True)
class ToolRulesSource:
    """One version of a tool as `ToolRules` is made from it: the schema as JSON, the two sets, and what is in them."""

    name: str
    schema: str
    guards: PolicySetSource
    written: PolicySetSource
    everything: tuple[str, ...]
    gates: frozenset[str]
    permits: tuple[str, ...]


def tool_rules_source(
    version: ToolVersion, policies: Mapping[str, Policy], parts: BundleParts
) -> ToolRulesSource:
    """What one version of a tool is decided with, under these policies about tools; they have been validated."""
    shape = tool_shape(version, parts.meters.get(version.tool, ()))
    schema = json.dumps(cedar_schema_json([shape], parts.config))
    matching = _matching(version.manifest, policies)
    guards = {name: policy.tree for name, policy in matching.items() if policy.source.gate is None}
    return ToolRulesSource(
        name=version.tool,
        schema=schema,
        guards=guards,
        written={name: policy.tree for name, policy in matching.items()},
        everything=tuple(matching),
        gates=frozenset(matching) - frozenset(guards),
        permits=_permits(matching),
    )


def compile_policy_set(written: PolicySetSource) -> PolicySet:
    """The engine's handle. From JSON nobody waits meanwhile; trees are read while all other threads stand still."""
    if isinstance(written, str):
        return PolicySet.from_json_str(written, release_gil=True)
    return policy_set(written)


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
    """Prepare everything decisions need, of what has been checked."""
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
        people=_all_people_rules(people),
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
        everything=compile_policy_set(written.written),
        permits=written.permits,
        resource_attributes=_always(config, manifest.resource.type),
        agent_attributes=_always(config, AGENT),
        meters=tuple(meter.name for meter in parts.meters.get(version.tool, ())),
    )


def with_policies(tool: ToolRules, policies: Mapping[str, Policy]) -> ToolRules:
    """The same tool under other policies about tools; they have been validated."""
    matching = _matching(tool.manifest, policies)
    guards = {name: policy.tree for name, policy in matching.items() if policy.source.gate is None}
    return replace(
        tool,
        guards=policy_set(guards),
        gates=frozenset(matching) - frozenset(guards),
        everything=policy_set({name: policy.tree for name, policy in matching.items()}),
        permits=_permits(matching),
    )


def _matching(manifest: ToolManifest, policies: Mapping[str, Policy]) -> dict[str, Policy]:
    """The policies whose action can match this tool's, in the order of the files."""
    return {n: p for n, p in policies.items() if scope_may_match(p.tree, manifest.tool, manifest.groups)}


def _permits(matching: Mapping[str, Policy]) -> tuple[str, ...]:
    return tuple(name for name, policy in matching.items() if policy.source.effect == "permit")


def _always(config: FactsConfig, entity: str) -> frozenset[str]:
    return frozenset(name for name, kind in config.attribute_types(entity).items() if not kind.optional)


def people_rules(policies: Mapping[str, Policy]) -> dict[str, PeopleRules]:
    """The rules about what people do, by what it is; nothing where there is none."""
    return _all_people_rules({action: people_policies(policies, action) for action in RESOURCE_TYPES})


def people_policies(policies: Mapping[str, Policy], action: str) -> PolicySetSource:
    """The policies about one thing people do."""
    return {name: policy.tree for name, policy in policies.items() if action in policy.about_people}


def _all_people_rules(written: Mapping[str, PolicySetSource]) -> dict[str, PeopleRules]:
    return {
        action: PeopleRules(people_schema(), compile_policy_set(rules))
        for action, rules in written.items()
        if rules
    }
