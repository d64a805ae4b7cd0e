"""The stored row of an effect: its arguments, its manifest, its gates, and its agent as policies see it."""

from __future__ import annotations

from collections.abc import Sequence

from countersign.contract import JSON, ToolManifest, load
from policy_service.domain.gates import Gate
from policy_service.domain.policy_request import AgentPrincipal
from policy_service.pap.bundle import Bundle
from policy_service.storage.tables import AgentRow, EffectRow


def manifest_for(bundle: Bundle, tool: str, tool_digest: str) -> ToolManifest | None:
    """The reviewed manifest of exactly this version of a tool, or None when the bundle does not hold it."""
    version = bundle.version(tool, tool_digest)
    return None if version is None else version.manifest


def principal_of(agent: AgentRow) -> AgentPrincipal:
    """The agent as policies see it."""
    return AgentPrincipal(agent.name, agent.owner, frozenset(agent.roles), frozenset(agent.teams))


def gates_of(effect: EffectRow, fired: Sequence[Gate] = ()) -> tuple[Gate, ...]:
    """All that ever fired: a gate that fires again in another wording is kept in both, so the stricter one counts."""
    return tuple(dict.fromkeys([*(Gate.from_json(gate) for gate in effect.gates), *fired]))


def args_of(effect: EffectRow) -> dict[str, JSON]:
    """The arguments, decoded from the stored canonical bytes.

    Raises:
        TypeError: they are no object, which nothing that was admitted can be.
    """
    return decode_args(effect.args)


def decode_args(stored: bytes) -> dict[str, JSON]:
    """The same, of the bytes alone.

    Raises:
        TypeError: they are no object.
    """
    args = load(stored)
    if not isinstance(args, dict):
        raise TypeError("stored args are always an object")
    return args
