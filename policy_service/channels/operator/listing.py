"""Lists for the operator: agents with their keys, people. What another verb asks for stands here as it wants it."""

from __future__ import annotations

from typing import Any

from policy_service.channels.operator.socket import run_verb
from policy_service.channels.operator.speaking import AsJson, say, sentences, visible
from policy_service.settings import load_settings


def agents(as_json: AsJson = False) -> None:
    """Every enrolled agent: its owner, roles and teams, and its keys by the id that `revoke key` takes."""
    with sentences():
        found = run_verb(load_settings(), "agent-list", {})
        say(found, as_json, agent_text(found) or "no agent is enrolled")


def agent_text(found: list[dict[str, Any]]) -> str:
    """The agents in lines, each key on one of its own."""
    return "\n".join(visible(line) for agent in found for line in (_head(agent), *map(_key, agent["keys"])))


def _head(agent: dict[str, Any]) -> str:
    parts = [agent["agent"]]
    parts += [f"owner {agent['owner']}"] if agent["owner"] else []
    parts += [f"{name} {', '.join(agent[name])}" for name in ("roles", "teams") if agent[name]]
    return "  ".join([*parts, *(["FROZEN"] if agent["frozen"] else [])])


def _key(key: dict[str, Any]) -> str:
    if key["revoked"]:
        stands = f"REVOKED at {key['revoked_at']}"
    elif key["until"] is None:
        stands = "live"
    else:
        stands = f"{'over since' if key['over'] else 'live until'} {key['until']}"
    brought = f"  brought by {key['issuer']}" if key["issuer"] else ""
    return f"    {key['kid']}  {stands}{brought}"


def people(as_json: AsJson = False) -> None:
    """Who signed in, or was revoked before, with the groups of their token; owners are named by ISSUER|SUBJECT."""
    with sentences():
        found = run_verb(load_settings(), "people-list", {})
        lines = [
            visible(f"{p['person']}  {p['name']}  {', '.join(p['groups']) or '-'}")
            + ("  REVOKED" if p["revoked"] else "")
            for p in found
        ]
        say(found, as_json, "\n".join(lines) or "nobody has signed in yet")
