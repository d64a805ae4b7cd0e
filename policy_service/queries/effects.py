"""What a stored effect row holds: its arguments, manifest, gates, and its agent as policies see it."""

from __future__ import annotations

from collections.abc import Sequence

from countersign.contract import JSON, ToolManifest, load
from policy_service.domain.gates import Gate
from policy_service.domain.policy_request import AgentPrincipal
from policy_service.pap.bundle import Bundle
from policy_service.storage.tables import AgentRow, EffectRow


def manifest_for(bundle: Bundle, tool: str, tool_digest: str) -> ToolManifest | None:
    """The manifest of exactly this version of a tool; None if the bundle does not contain it."""
    version = bundle.version(tool, tool_digest)
    return None if version is None else version.manifest


def principal_of(agent: AgentRow) -> AgentPrincipal:
    """The agent as policies see it."""
    return AgentPrincipal(agent.name, agent.owner, frozenset(agent.roles), frozenset(agent.teams))


def gates_of(effect: EffectRow, fired: Sequence[Gate] = ()) -> tuple[Gate, ...]:
    """All gates that ever fired. If a gate fires again with another text, both are kept, so the stricter one
    counts.
    """
    return tuple(dict.fromkeys([*(Gate.from_json(gate) for gate in effect.gates), *fired]))


def args_of(effect: EffectRow) -> dict[str, JSON]:
    """The arguments, decoded from the stored canonical bytes.

    Raises:
        TypeError: they are not an object, which admission rules out.
    """
    return decode_args(effect.args)


def decode_args(stored: bytes) -> dict[str, JSON]:
    """The arguments from canonical bytes.

    Raises:
        TypeError: they are not an object.
    """
    args = load(stored)
    if not isinstance(args, dict):
        raise TypeError("stored args are always an object")
    return args
