"""Recorded calls: one JSON object a line, as a file of traffic keeps them.

Rules kept here: a line that cannot be read is named by its number and keeps nothing else from being read; facts in a
line are used as they stand there, in the types of the bundle; without them the bundle's own sources are asked; a value
that was taken out because it is a secret makes a call that can no longer be replayed, and that is said.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Final

from countersign.contract import ContractError, canonicalize
from policy_service.domain.decision import Decision
from policy_service.domain.question import AgentPrincipal, CallMethod, Claimed, Facts, Question
from policy_service.facts.attributes import moment_of
from policy_service.facts.config import AGENT
from policy_service.pap.bundle import Bundle
from policy_service.pap.parts import Parts
from policy_service.pdp.engine import decide

MEMBERS: Final = frozenset(
    "agent tool args facts history now env txn_size claimed on_behalf_of method label id hidden decided".split()
)
"""What a line may say; anything else is a slip and is told."""

_HAS_HISTORY: Final = "history" in {each.name for each in fields(Question)}
_OUTCOMES: Final = frozenset({"release", "review", "deny"})


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded call. ``hidden`` are pointers to args whose values were taken out; ``decided`` is what was decided
    then; ``facts`` are attributes by `resource` and `agent`.
    """

    number: int
    agent: AgentPrincipal
    tool: str
    args: dict[str, Any]
    now: datetime | None = None
    facts: Mapping[str, Mapping[str, Any]] | None = None
    history: Mapping[str, int] | None = None
    env: str = "production"
    txn_size: int = 1
    claimed: Claimed = field(default_factory=Claimed)
    on_behalf_of: str | None = None
    label: str | None = None
    name: str = ""
    hidden: tuple[str, ...] = ()
    decided: str | None = None
    method: CallMethod = "key"


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no call, by its number, and why."""

    number: int
    why: str


def read_calls(lines: Iterable[bytes | str]) -> tuple[list[Call], list[BadLine]]:
    """The calls of a file and the lines that are none. Empty lines are nothing."""
    calls: list[Call] = []
    bad: list[BadLine] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            calls.append(read_call(line, number))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            bad.append(BadLine(number, str(error)))
    return calls, bad


def read_call(line: bytes | str, number: int = 1) -> Call:
    """One call.

    Raises:
        ValueError: it is none; the text says what to write.
    """
    told = json.loads(line)
    if not isinstance(told, dict):
        raise ValueError('write one object a line: {"agent": {"name": "..."}, "tool": "...", "args": {...}}')
    if strange := sorted(told.keys() - MEMBERS):
        raise ValueError(f"{strange[0]!r} is no member of a call; known are {', '.join(sorted(MEMBERS))}")
    agent, tool, args = (
        _require(told, "agent", dict),
        _require(told, "tool", str),
        _require(told, "args", dict),
    )
    decided = told.get("decided")
    if decided is not None and decided not in _OUTCOMES:
        raise ValueError(f"decided is {decided!r}; known are {', '.join(sorted(_OUTCOMES))}")
    return Call(
        number=number,
        agent=_agent(agent),
        tool=tool,
        args=args,
        now=None if told.get("now") is None else moment_of(told["now"]),
        facts=None if told.get("facts") is None else _facts(_require(told, "facts", dict)),
        history=told.get("history"),
        env=str(told.get("env", "production")),
        txn_size=int(told.get("txn_size", 1)),
        claimed=Claimed(**(told.get("claimed") or {})),
        on_behalf_of=told.get("on_behalf_of"),
        label=None if told.get("label") is None else str(told["label"]),
        name=str(told.get("id", "")),
        hidden=tuple(told.get("hidden", ())),
        decided=decided,
        method="api_key" if told.get("method") == "api_key" else "key",
    )


def _require(told: Mapping[str, Any], name: str, kind: type) -> Any:
    value = told.get(name)
    if not isinstance(value, kind):
        wanted = "an object" if kind is dict else "a text"
        raise ValueError(f"{name} is {json.dumps(value)}; write {wanted}")
    return value


def _agent(told: Mapping[str, Any]) -> AgentPrincipal:
    name = _require(told, "name", str)
    for key in ("roles", "teams"):
        if not isinstance(told.get(key, []), list):
            raise ValueError(f"agent.{key} is {json.dumps(told[key])}; write a list of names")
    return AgentPrincipal(
        name, told.get("owner"), frozenset(told.get("roles", ())), frozenset(told.get("teams", ()))
    )


def _facts(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By entity. A flat table is the resource's, which is what people paste."""
    if (
        told
        and told.keys() <= {"resource", "agent"}
        and all(isinstance(each, dict) for each in told.values())
    ):
        return told
    return {"resource": told}


async def question_of(call: Call, bundle: Bundle, parts: Parts) -> Question:
    """The question a bundle is asked about a recorded call.

    Raises:
        ValueError: its facts are not of the types the bundle declares.
    """
    manifest = bundle.manifests.get(call.tool)
    now = call.now or datetime.now(UTC)
    if call.facts is None or manifest is None:
        raw = _bytes_of(call.args)
        facts = await bundle.facts_for(call.tool, call.args, raw, agent=call.agent.name, now=now)
    else:
        facts = Facts(
            bundle.digest,
            resource=_typed(parts, manifest.resource.type, call.facts.get("resource", {})),
            agent=_typed(parts, AGENT, call.facts.get("agent", {})),
        )
    extra: dict[str, Any] = {"history": call.history} if _HAS_HISTORY and call.history is not None else {}
    return Question(
        agent=call.agent,
        tool=call.tool,
        tool_digest=manifest.digest if manifest else "0" * 64,
        args=call.args,
        facts=facts,
        now=now,
        env=call.env,
        txn_size=call.txn_size,
        claimed=call.claimed,
        on_behalf_of=call.on_behalf_of,
        method=call.method,
        **extra,
    )


def _bytes_of(args: dict[str, Any]) -> bytes:
    try:
        return canonicalize(args)
    except ContractError:
        return json.dumps(args).encode()


def _typed(parts: Parts, entity: str, given: Mapping[str, Any]) -> dict[str, Any]:
    types = parts.config.attribute_types(entity)
    if strange := sorted(given.keys() - types.keys()):
        raise ValueError(f"the bundle declares no fact {strange[0]!r} of {entity}; leave it out")
    found: dict[str, Any] = {}
    for name, value in given.items():
        if value is None and types[name].optional:
            continue
        try:
            found[name] = types[name].encode(value)
        except ValueError as error:
            raise ValueError(f"the fact {name!r}: {error}") from error
    return found


async def decided(call: Call, bundle: Bundle, parts: Parts) -> Decision:
    """What the bundle decides about a recorded call."""
    return decide(bundle.rules, await question_of(call, bundle, parts))


def reads_hidden(call: Call, bundle: Bundle, paths: Iterable[tuple[str, ...]]) -> bool:
    """Whether some rule of the call's tool reads a value that was taken out of the record."""
    names = {pointer.lstrip("/").split("/")[0] for pointer in call.hidden}
    return any(
        path[0] == "input" and len(path) > 1 and path[1] in names for path in paths
    ) or _names_resource(call, bundle, names)


def _names_resource(call: Call, bundle: Bundle, names: set[str]) -> bool:
    manifest = bundle.manifests.get(call.tool)
    return manifest is not None and manifest.resource.id.lstrip("/").split("/")[0] in names
