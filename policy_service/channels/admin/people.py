"""Agents with their keys, people, and people's passkeys: list them, revoke a stolen passkey, reset lost ones."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from policy_service.channels.admin.output import AsJson, escape_unprintable, print_result, report_errors
from policy_service.channels.admin.socket import run_admin_command
from policy_service.settings import load_settings


def agents(as_json: AsJson = False) -> None:
    """Every enrolled agent: its owner, roles and teams, and its keys by the id that `revoke key` takes."""
    with report_errors():
        found = run_admin_command(load_settings(), "agent-list", {})
        print_result(found, as_json, agent_text(found) or "no agent is enrolled")


def agent_text(found: list[dict[str, Any]]) -> str:
    """The agents in lines, each key on one of its own."""
    return "\n".join(
        escape_unprintable(line)
        for agent in found
        for line in (_agent_line(agent), *map(_key_line, agent["keys"]))
    )


def _agent_line(agent: dict[str, Any]) -> str:
    parts = [agent["agent"]]
    parts += [f"owner {agent['owner']}"] if agent["owner"] else []
    parts += [f"{name} {', '.join(agent[name])}" for name in ("roles", "teams") if agent[name]]
    return "  ".join([*parts, *(["FROZEN"] if agent["frozen"] else [])])


def _key_line(key: dict[str, Any]) -> str:
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
    with report_errors():
        found = run_admin_command(load_settings(), "people-list", {})
        lines = [
            escape_unprintable(f"{p['person']}  {p['name']}  {', '.join(p['groups']) or '-'}")
            + ("  REVOKED" if p["revoked"] else "")
            for p in found
        ]
        print_result(found, as_json, "\n".join(lines) or "nobody has signed in yet")


passkeys_app = typer.Typer(no_args_is_help=True, help="Passkeys of people: docs/how-to/passkeys.md.")
Reason = Annotated[str, typer.Option(help="Why; it goes into the log.")]


@passkeys_app.command("list")
def list_passkeys(as_json: AsJson = False) -> None:
    """Every passkey, with whose it is and whether it counts."""
    with report_errors():
        found = run_admin_command(load_settings(), "passkey-list", {})
        print_result(
            found, as_json, "\n".join(map(_passkey_line, found)) or "nobody has enrolled a passkey yet"
        )


def _passkey_line(one: dict[str, Any]) -> str:
    stands = f"removed {one['removed_at']}" if one["removed_at"] else f"counts from {one['counts_from']}"
    return escape_unprintable(
        f"{one['passkey_id']}  {one['person']}  {one['name']}  {stands}  key {one['key'][:16]}"
    )


@passkeys_app.command("revoke")
def revoke_passkey(
    passkey_id: Annotated[str, typer.Argument(help="Its id, as `passkeys list` names it.")],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """Revoke a passkey in the wrong hands and those it vouched for; the votes they proved leave every count."""
    with report_errors():
        done = run_admin_command(
            load_settings(), "passkey-revoke", {"passkey_id": passkey_id, "reason": reason}
        )
        more = ", ".join(done["vouched_for"])
        also = f"; with it {more}, which it had vouched for" if more else ""
        print_result(done, as_json, f"revoked {passkey_id}: {done['votes']} votes left the count{also}")


@passkeys_app.command("reset")
def reset_passkeys(
    person: Annotated[str, typer.Argument(help="ISSUER|SUBJECT, as `policy-service people` lists them.")],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """Take lost passkeys away from a person. Their votes stand; a new passkey counts after a waiting time."""
    with report_errors():
        done = run_admin_command(load_settings(), "passkeys-reset", {"person": person, "reason": reason})
        print_result(done, as_json, f"{done['removed']} passkeys of {person} count no more")
