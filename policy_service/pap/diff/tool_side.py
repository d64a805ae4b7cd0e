"""One tool of one bundle, ready to evaluate generated calls with the real codec, schema, entities and engine.

A generated call assigns values to paths of a base call. It is built from the manifest and the declared types only, and
decided by the engine that decides live calls.

A path names one value of a request: `("input", "amount")`, `("fact", "account_state")` of the resource, `("agentfact",
"tier")`, `("agent",)`, `("role", "desk")`, `("team", "night")`, `("resource",)`, `("now",)`, `("history", "today")` and
so on. Flags of the manifest (`context.effect`) are constants of a bundle and have no path.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, Final, TypeAlias

from cedarpy import Entities, PolicySet, pst

from countersign.contract import JSON, ContractError, Resource, ToolManifest, pointer_tokens
from countersign.contract.json_schema import pattern_searcher
from policy_service.domain.policy_request import (
    AgentPrincipal,
    Claimed,
    Decision,
    EncodedArgs,
    Facts,
    InvalidArgsError,
    PolicyRequest,
)
from policy_service.facts.config import AGENT, FactsConfig
from policy_service.pap.bundle import Bundle
from policy_service.pap.parts import MAX_SCHEMA_DEPTH, BundleParts, ToolVersion, schema_node
from policy_service.pdp.engine import decide
from policy_service.pdp.rules import (
    CedarRequest,
    ToolRules,
    build_entities,
    build_request,
    entities_json,
    policy_set,
)

Path: TypeAlias = tuple[str, ...]

CONSTANT: Final[Path] = ("constant",)
"""A value that the bundle fixes: it does not vary between calls."""

OPAQUE: Final[Path] = ("opaque",)
"""A value that is not analyzed, for example an attribute of an `if` expression."""

PERSON_PATHS: Final = frozenset({("owner",), ("on_behalf_of",), ("person",), ("review", "owner")})
"""Paths whose values are persons or absent."""

_CONTEXT: Final = frozenset({"input", "history", "claimed"})
_PLAIN: Final = frozenset({"now", "env", "on_behalf_of", "assurance"})


def path_of(expr: pst.Expr) -> Path | None:
    """The path an expression reads; None unless it is only an attribute access."""
    steps: list[str] = []
    while isinstance(expr, pst.GetAttr):
        steps.append(expr.attr)
        expr = expr.base
    if not isinstance(expr, pst.Var):
        return OPAQUE if steps else None
    return _rooted(expr.name, tuple(reversed(steps)))


def _rooted(root: str, steps: tuple[str, ...]) -> Path:
    if root == "context":
        return _of_context(steps)
    if root == "principal":
        return _of_principal(steps)
    if root == "resource":
        return ("fact", *steps) if steps else ("resource",)
    return CONSTANT


def _of_context(steps: tuple[str, ...]) -> Path:
    if not steps:
        return OPAQUE
    if steps[0] in _CONTEXT or (len(steps) == 1 and steps[0] in _PLAIN):
        return steps
    if steps == ("txn", "size"):
        return ("txn",)
    return CONSTANT if steps[0] == "effect" else OPAQUE


def _of_principal(steps: tuple[str, ...]) -> Path:
    if not steps:
        return ("agent",)
    if steps in (("owner",), ("proof",)):
        return steps
    return ("agentfact", *steps) if steps[0] not in ("owner", "proof") else OPAQUE


def path_text(path: Path) -> str:
    """The path in Cedar's syntax."""
    head, rest = path[0], path[1:]
    names = {
        "fact": "resource", "agentfact": "principal", "agent": "principal", "owner": "principal.owner",
        "proof": "principal.proof", "txn": "context.txn.size",
    }  # fmt: skip
    if head in ("role", "team"):
        return f'principal in {"Role" if head == "role" else "Group"}::"{rest[0]}"'
    if head in ("input", "history", "claimed", "now", "env", "on_behalf_of"):
        return ".".join(("context", *path))
    return ".".join((names.get(head, head), *rest))


SAMPLE_TEXTS: Final = tuple("x a A 1 a1 A1 ABC abc123 ABC123 2026-01-14 12:00 a@example.com".split())
"""Texts that match the patterns of common arguments."""


def sample_value(node: Any, root: Mapping[str, Any], depth: int = 0) -> Any:
    """A small value for this schema node; the codec decides whether it is valid."""
    schema = schema_node(node, root)
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    if "const" in schema or "default" in schema:
        return schema.get("const", schema.get("default"))
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return sample_value(schema[key][0], root, depth + 1)
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if depth > MAX_SCHEMA_DEPTH:
        return None
    return _of_kind(kind, schema, root, depth)


def _of_kind(kind: Any, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    match kind:
        case "object":
            properties = schema.get("properties", {})
            return {
                name: sample_value(properties.get(name, {}), root, depth + 1)
                for name in schema.get("required", ())
            }
        case "array":
            item = schema.get("items", {})
            return [
                _varied(sample_value(item, root, depth + 1), index)
                for index in range(schema.get("minItems", 0))
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
    tried = [text if len(text) >= least else text + "x" * (least - len(text)) for text in SAMPLE_TEXTS]
    if most is not None:
        tried = [text for text in tried if len(text) <= most] or [""]
    if pattern is None:
        return tried[0]
    try:
        return next(filter(pattern_searcher(pattern), tried), tried[0])
    except ContractError:  # such a pattern never loads
        return tried[0]


def _number(schema: Mapping[str, Any]) -> Any:
    step = schema.get("multipleOf", 1)
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    if least is not None:
        start = least + (step if "exclusiveMinimum" in schema else 0)
        return start if start % step == 0 else (start // step + 1) * step
    return step if most is None or most >= step else (most // step) * step


ABSENT: Final = "\N{NULL}absent"
"""The value "absent" in an assignment; it never occurs as a JSON text."""

BASE_NOW: Final = datetime(2026, 1, 14, 12, 0, tzinfo=UTC)
"""The time of a generated call when no rule reads the clock: a Wednesday, at noon."""

_CLAIMED: Final = frozenset(each.name for each in fields(Claimed))
"""The claims that exist; a rule may test others with `has`, which is always false."""

_BASE_FACTS: Final[Mapping[str, Any]] = {
    "String": "x", "Long": 0, "Bool": False, "decimal": Decimal("0"), "datetime": BASE_NOW, "Set<String>": [],
}  # fmt: skip

Assignment = Mapping[Path, Any]


@dataclass
class ToolSide:
    """One tool of one bundle."""

    bundle: Bundle
    parts: BundleParts
    version: ToolVersion
    _encoded: dict[str, EncodedArgs | None] = field(default_factory=dict)
    _entities: dict[str, Entities] = field(default_factory=dict)

    @property
    def rules(self) -> ToolRules:
        return self.bundle.rules.versions[self.version.tool, self.version.manifest.digest]

    @property
    def manifest(self) -> ToolManifest:
        return self.version.manifest

    @cached_property
    def policies_as_forbids(self) -> PolicySet:
        """Every policy of the tool as a forbid: a deny of the engine names all that hold."""
        return policy_set(self.as_forbids(self.trees))

    def as_forbids(self, ids: Iterable[str]) -> dict[str, pst.Template]:
        """These policies of the tool as forbids."""
        return {name: replace(self.trees[name], effect="forbid", annotations={}) for name in ids}

    @cached_property
    def trees(self) -> Mapping[str, pst.Template]:
        return dict(self.rules.everything.to_pst().static_policies)

    @property
    def config(self) -> FactsConfig:
        return self.parts.config

    def base_args(self) -> dict[str, Any]:
        """Base args: only what the manifest requires."""
        made = sample_value(self.manifest.args, self.manifest.args)
        return made if isinstance(made, dict) else {}

    def resource_path(self) -> Path | None:
        """The argument that names the resource; None for a constant resource."""
        pointer = self.manifest.resource.id
        return ("input", *pointer_tokens(pointer)) if pointer.startswith("/") else None

    def encoded(self, args: dict[str, Any]) -> EncodedArgs | None:
        """The args as policy sees them; None when the manifest refuses them."""
        key = json.dumps(args, sort_keys=True)
        if key not in self._encoded:
            try:
                self._encoded[key] = self.rules.codec.encode(args)
            except InvalidArgsError:
                self._encoded[key] = None
        return self._encoded[key]

    def engine_input(self, base: dict[str, Any], values: Assignment) -> tuple[CedarRequest, Entities] | None:
        """The engine's input for this call; None when the call is refused before evaluation."""
        try:
            return self.engine_input_for(self.question(base, values))
        except ValueError:  # a value does not have the attribute's type: no such call
            return None

    def engine_input_for(self, question: PolicyRequest) -> tuple[CedarRequest, Entities] | None:
        """The engine's input for a question; None when the call is refused before evaluation."""
        args = question.args
        encoded = self.encoded(args) if isinstance(args, dict) else None
        if encoded is None:
            return None
        try:
            resource: Resource = self.manifest.resource_of(args)
            given = entities_json(question, self.bundle.rules, resource)
            key = json.dumps(given, sort_keys=True)
            if key not in self._entities:
                self._entities[key] = build_entities(given, self.rules.schema)
        except (ContractError, ValueError):
            return None
        return build_request(question, self.rules, resource, encoded), self._entities[key]

    def question(self, base: dict[str, Any], values: Assignment) -> PolicyRequest:
        """The question about a generated call."""
        facts = Facts(
            self.bundle.digest,
            resource=self._required(self.manifest.resource.type),
            agent=self._required(AGENT),
        )
        agent = AgentPrincipal("some-agent")
        plain = PolicyRequest(agent, self.version.tool, self.manifest.digest, base, facts, BASE_NOW)
        return self.changed(plain, values)

    def changed(self, question: PolicyRequest, values: Assignment) -> PolicyRequest:
        """The question with these values changed.

        Raises:
            ValueError: a value is not of the declared type.
        """
        agent, facts = question.agent, question.facts
        owner = values.get(("owner",), agent.owner)
        behalf = values.get(("on_behalf_of",), question.on_behalf_of)
        claimed = {name: None if each == ABSENT else each for name, each in _at(values, "claimed").items()}
        return replace(
            question,
            agent=AgentPrincipal(
                values.get(("agent",), agent.name),
                None if owner == ABSENT else owner,
                _switched(agent.roles, _at(values, "role")),
                _switched(agent.teams, _at(values, "team")),
            ),
            args=apply_to_args(
                self.manifest.args, question.args if isinstance(question.args, dict) else {}, values
            ),
            facts=replace(
                facts,
                resource=self._facts(facts.resource, self.manifest.resource.type, _at(values, "fact")),
                agent=self._facts(facts.agent, AGENT, _at(values, "agentfact")),
            ),
            now=values.get(("now",), question.now),
            env=values.get(("env",), question.env),
            txn_size=values.get(("txn",), question.txn_size),
            claimed=replace(question.claimed, **{n: each for n, each in claimed.items() if n in _CLAIMED}),
            on_behalf_of=None if behalf == ABSENT else behalf,
            method=values.get(("proof",), question.method),
            history={**question.history, **_at(values, "history")},
        )

    def decided(self, base: dict[str, Any], values: Assignment) -> Decision:
        """The bundle's decision on this call."""
        return decide(self.bundle.rules, self.question(base, values))

    def _required(self, entity: str) -> dict[str, Any]:
        """A default value of every required attribute."""
        types = self.config.attribute_types(entity)
        return {n: kind.encode(_BASE_FACTS[kind.name]) for n, kind in types.items() if not kind.optional}

    def _facts(self, known: Mapping[str, Any], entity: str, given: Mapping[str, Any]) -> dict[str, Any]:
        types = self.config.attribute_types(entity)
        kept = {name: value for name, value in known.items() if name not in given}
        there = {name: value for name, value in given.items() if name in types and value != ABSENT}
        return kept | {name: types[name].encode(value) for name, value in there.items()}


def _at(values: Assignment, head: str) -> dict[str, Any]:
    return {path[1]: value for path, value in values.items() if path[0] == head}


def _switched(names: frozenset[str], given: Mapping[str, Any]) -> frozenset[str]:
    return (names - given.keys()) | {name for name, value in given.items() if value is True}


def apply_to_args(schema: Mapping[str, Any], base: dict[str, Any], values: Assignment) -> JSON:
    """Apply an assignment to the base args; outer paths first."""
    args = copy.deepcopy(base)
    inputs = [(path, value) for path, value in values.items() if path[0] == "input" and len(path) > 1]
    gone: set[Path] = set()
    for path, value in sorted(inputs, key=lambda each: len(each[0])):
        if any(path[:count] in gone for count in range(2, len(path))):
            continue
        if value == ABSENT:
            gone.add(path)
        _put(schema, args, path[1:], value)
    return args


def _put(schema: Mapping[str, Any], args: dict[str, Any], steps: Path, value: Any) -> None:
    node: Any = schema
    for step in steps[:-1]:
        node = schema_node(node, schema).get("properties", {}).get(step, {})
        inner = args.get(step)
        if not isinstance(inner, dict):
            if value == ABSENT:
                return
            made = sample_value(node, schema)
            inner = args[step] = made if isinstance(made, dict) else {}
        args = inner
    if value == ABSENT:
        args.pop(steps[-1], None)
    else:
        args[steps[-1]] = copy.deepcopy(value)  # later assignments may modify an object
