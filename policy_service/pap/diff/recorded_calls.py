"""Recorded calls: a file with one JSON object a line.

An invalid line is reported by number; the other lines are still read. Recorded facts are used, in the types of the
bundle. Without them the bundle's sources are queried. A call uses the tool version that the line names, else the
current one. If a rule reads a value that the line lacks, such as a removed secret or a meter, the call cannot be
replayed and is reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from countersign.contract import ContractError, canonicalize
from policy_service.domain.policy_request import (
    AgentPrincipal,
    CallMethod,
    Claimed,
    Decision,
    Facts,
    PolicyRequest,
)
from policy_service.facts.config import AGENT, parse_timestamp
from policy_service.facts.meters import MAX_TOTAL
from policy_service.pap.bundle import Bundle
from policy_service.pap.parts import BundleParts
from policy_service.pdp.engine import decide

CALL_MEMBERS: Final = frozenset(
    "agent tool tool_digest args facts history now env txn_size claimed on_behalf_of method label id hidden secret "
    "decided decisions".split()
)
"""The members a line may have; any other is an error."""

_OUTCOMES: Final = frozenset({"release", "review", "deny"})


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One recorded call.

    ``hidden`` are pointers to args whose values were removed, ``secret`` to those that must not be shown. ``decided``
    is the outcome at submission, ``decisions`` are all decisions about it. ``facts`` are attributes by `resource` and
    `agent`; ``history`` holds the meters' values.
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
    tool_digest: str | None = None
    secret: tuple[str, ...] = ()
    decisions: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class InvalidLine:
    """A line that is not a call, and why."""

    number: int
    why: str


def read_calls(lines: Iterable[bytes | str]) -> tuple[list[RecordedCall], list[InvalidLine]]:
    """The calls of a file, and the invalid lines. Empty lines are skipped."""
    calls: list[RecordedCall] = []
    bad: list[InvalidLine] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            calls.append(read_call(line, number))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            bad.append(InvalidLine(number, str(error)))
    return calls, bad


def read_call(line: bytes | str, number: int = 1) -> RecordedCall:
    """Parse one call.

    Raises:
        ValueError: it is not a call; the text explains the format.
    """
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError('write one object a line: {"agent": {"name": "..."}, "tool": "...", "args": {...}}')
    if strange := sorted(record.keys() - CALL_MEMBERS):
        raise ValueError(
            f"{strange[0]!r} is not a member of a call; known are {', '.join(sorted(CALL_MEMBERS))}"
        )
    agent, tool, args = (
        _require(record, "agent", dict),
        _require(record, "tool", str),
        _require(record, "args", dict),
    )
    decided = record.get("decided")
    if decided is not None and decided not in _OUTCOMES:
        raise ValueError(f"decided is {decided!r}; known are {', '.join(sorted(_OUTCOMES))}")
    return RecordedCall(
        number=number,
        agent=_agent(agent),
        tool=tool,
        args=args,
        now=None if record.get("now") is None else parse_timestamp(record["now"]),
        facts=None if record.get("facts") is None else _facts(_require(record, "facts", dict)),
        history=None if record.get("history") is None else _history(_require(record, "history", dict)),
        env=str(record.get("env", "production")),
        txn_size=int(record.get("txn_size", 1)),
        claimed=Claimed(**(record.get("claimed") or {})),
        on_behalf_of=record.get("on_behalf_of"),
        label=None if record.get("label") is None else str(record["label"]),
        name=str(record.get("id", "")),
        hidden=tuple(record.get("hidden", ())),
        decided=decided,
        method="api_key" if record.get("method") == "api_key" else "key",
        tool_digest=None if record.get("tool_digest") is None else _require(record, "tool_digest", str),
        secret=tuple(record.get("secret", ())),
        decisions=_decisions(record.get("decisions", [])),
    )


def _require(record: Mapping[str, Any], name: str, kind: type) -> Any:
    value = record.get(name)
    if not isinstance(value, kind):
        wanted = "an object" if kind is dict else "a text"
        raise ValueError(f"{name} is {json.dumps(value)}; write {wanted}")
    return value


def _agent(record: Mapping[str, Any]) -> AgentPrincipal:
    name = _require(record, "name", str)
    for key in ("roles", "teams"):
        if not isinstance(record.get(key, []), list):
            raise ValueError(f"agent.{key} is {json.dumps(record[key])}; write a list of names")
    return AgentPrincipal(
        name, record.get("owner"), frozenset(record.get("roles", ())), frozenset(record.get("teams", ()))
    )


def _facts(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Facts by entity. A flat table belongs to the resource, because people paste that."""
    if (
        record
        and record.keys() <= {"resource", "agent"}
        and all(isinstance(each, dict) for each in record.values())
    ):
        return record
    return {"resource": record}


def _history(record: dict[str, Any]) -> dict[str, int]:
    for name, value in record.items():
        if type(value) is not int or not 0 <= value <= MAX_TOTAL:
            raise ValueError(
                f"history.{name} is {json.dumps(value)}; write a whole number from 0 to {MAX_TOTAL}: amounts of money "
                "in their smallest unit"
            )
    return record


def _decisions(record: Any) -> tuple[dict[str, Any], ...]:
    known = {"outcome", "policies", "commit", "bundle", "decided_at", "cause"}
    if not isinstance(record, list) or not all(
        isinstance(each, dict) and each.keys() == known for each in record
    ):
        raise ValueError(f"decisions are objects with {', '.join(sorted(known))}, as the service writes them")
    return tuple(record)


def drop_unknown_meters(
    calls: Iterable[RecordedCall], bundles: Sequence[Bundle]
) -> tuple[list[RecordedCall], list[InvalidLine]]:
    """Split off calls that name a meter no bundle here has. A call that was decided may: its bundle had the meter."""
    known = {meter.name for bundle in bundles for meters in bundle.meters.values() for meter in meters}
    kept: list[RecordedCall] = []
    bad: list[InvalidLine] = []
    for call in calls:
        strange = sorted((call.history or {}).keys() - known)
        if strange and call.decided is None:
            names = ", ".join(sorted(known)) or "none"
            bad.append(
                InvalidLine(call.number, f"history.{strange[0]}: there is no such meter; known are {names}")
            )
        else:
            kept.append(call)
    return kept, bad


def recorded_tool_digest(call: RecordedCall, bundle: Bundle) -> str:
    """The digest of the call's tool version."""
    manifest = bundle.manifests.get(call.tool)
    return call.tool_digest or (manifest.digest if manifest else "0" * 64)


def missing_meters(call: RecordedCall, bundle: Bundle) -> list[str]:
    """The meters that count the call's tool here and have no recorded value."""
    if bundle.version(call.tool, recorded_tool_digest(call, bundle)) is None:
        return []  # the answer does not depend on them
    return sorted({meter.name for meter in bundle.meters.get(call.tool, ())} - (call.history or {}).keys())


async def build_question(call: RecordedCall, bundle: Bundle, parts: BundleParts) -> PolicyRequest:
    """The question for a recorded call. A meter without a recorded value reads 0.

    Raises:
        ValueError: its facts do not have the types the bundle declares.
    """
    digest = recorded_tool_digest(call, bundle)
    version = bundle.version(call.tool, digest)
    now = call.now or datetime.now(UTC)
    if call.facts is None or version is None:
        raw = _bytes_of(call.args)
        facts = await bundle.facts_for(
            call.tool, call.args, raw, agent=call.agent.name, now=now, tool_digest=digest
        )
    else:
        facts = Facts(
            bundle.digest,
            resource=_typed(parts, version.manifest.resource.type, call.facts.get("resource", {})),
            agent=_typed(parts, AGENT, call.facts.get("agent", {})),
        )
    return PolicyRequest(
        agent=call.agent,
        tool=call.tool,
        tool_digest=digest,
        args=call.args,
        facts=facts,
        now=now,
        env=call.env,
        txn_size=call.txn_size,
        claimed=call.claimed,
        on_behalf_of=call.on_behalf_of,
        method=call.method,
        history=call.history or {},
    )


def _bytes_of(args: dict[str, Any]) -> bytes:
    try:
        return canonicalize(args)
    except ContractError:
        return json.dumps(args).encode()


def _typed(parts: BundleParts, entity: str, given: Mapping[str, Any]) -> dict[str, Any]:
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


async def decide_recorded_call(call: RecordedCall, bundle: Bundle, parts: BundleParts) -> Decision:
    """The bundle's decision on a recorded call."""
    return decide(bundle.rules, await build_question(call, bundle, parts))


def reads_hidden(call: RecordedCall, bundle: Bundle, paths: Iterable[tuple[str, ...]]) -> bool:
    """Whether a rule of the call's tool reads a value that was removed from the record."""
    names = {pointer.lstrip("/").split("/")[0] for pointer in call.hidden}
    return any(
        path[0] == "input" and len(path) > 1 and path[1] in names for path in paths
    ) or _names_resource(call, bundle, names)


def _names_resource(call: RecordedCall, bundle: Bundle, names: set[str]) -> bool:
    version = bundle.version(call.tool, recorded_tool_digest(call, bundle))
    return version is not None and version.manifest.resource.id.lstrip("/").split("/")[0] in names
