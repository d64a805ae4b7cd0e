"""``policy-service agent list``, ``people`` and ``passkeys``: list them, revoke stolen passkeys, reset lost ones."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from policy_service.channels.admin.output import AsJson, escape_unprintable, print_result, report_errors
from policy_service.channels.admin.socket import run_admin_command
from policy_service.settings import load_settings


def agents(as_json: AsJson = False) -> None:
    """List enrolled agents: owner, roles, teams, and the key ids for `revoke key`."""
    with report_errors():
        found = run_admin_command(load_settings(), "agent-list", {})
        print_result(found, as_json, agent_text(found) or "no agent is enrolled")


def agent_text(found: list[dict[str, Any]]) -> str:
    """One line for each agent and one for each key."""
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
        state = f"REVOKED at {key['revoked_at']}"
    elif key["until"] is None:
        state = "live"
    else:
        state = f"{'expired at' if key['over'] else 'live until'} {key['until']}"
    issuer = f"  enrolled through {key['issuer']}" if key["issuer"] else ""
    return f"    {key['kid']}  {state}{issuer}"


def people(as_json: AsJson = False) -> None:
    """List people who have signed in or were revoked, with the groups of their token."""
    with report_errors():
        found = run_admin_command(load_settings(), "people-list", {})
        lines = [
            escape_unprintable(f"{p['person']}  {p['name']}  {', '.join(p['groups']) or '-'}")
            + ("  REVOKED" if p["revoked"] else "")
            for p in found
        ]
        print_result(found, as_json, "\n".join(lines) or "no one has signed in yet")


passkeys_app = typer.Typer(no_args_is_help=True, help="People's passkeys: docs/how-to/passkeys.md.")
Reason = Annotated[str, typer.Option(help="The reason; it is recorded in the audit log.")]


@passkeys_app.command("list")
def list_passkeys(as_json: AsJson = False) -> None:
    """List passkeys, their people, and whether they count."""
    with report_errors():
        found = run_admin_command(load_settings(), "passkey-list", {})
        print_result(
            found, as_json, "\n".join(map(_passkey_line, found)) or "no one has enrolled a passkey yet"
        )


def _passkey_line(one: dict[str, Any]) -> str:
    state = f"removed {one['removed_at']}" if one["removed_at"] else f"counts from {one['counts_from']}"
    return escape_unprintable(
        f"{one['passkey_id']}  {one['person']}  {one['name']}  {state}  key {one['key'][:16]}"
    )


@passkeys_app.command("revoke")
def revoke_passkey(
    passkey_id: Annotated[str, typer.Argument(help="Its id, as in `passkeys list`.")],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """Revoke a stolen passkey and those it vouched for. Votes signed with them no longer count."""
    with report_errors():
        done = run_admin_command(
            load_settings(), "passkey-revoke", {"passkey_id": passkey_id, "reason": reason}
        )
        more = ", ".join(done["vouched_for"])
        also = f"; also revoked: {more}, which it had vouched for" if more else ""
        print_result(done, as_json, f"revoked {passkey_id}: {done['votes']} votes no longer count{also}")


@passkeys_app.command("reset")
def reset_passkeys(
    person: Annotated[str, typer.Argument(help="ISSUER|SUBJECT, as in `policy-service people`.")],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """Remove a person's lost passkeys. Their votes still count. A new passkey counts after a waiting time."""
    with report_errors():
        done = run_admin_command(load_settings(), "passkeys-reset", {"person": person, "reason": reason})
        print_result(done, as_json, f"removed {done['removed']} passkeys of {person}")
