"""Passkeys of people, for the operator: look, revoke a stolen one, take lost ones away."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from policy_service.channels.operator.socket import run_verb
from policy_service.channels.operator.speaking import AsJson, say, sentences, visible
from policy_service.settings import load_settings

passkeys_app = typer.Typer(no_args_is_help=True, help="Passkeys of people: docs/passkeys.md.")
Reason = Annotated[str, typer.Option(help="Why; it goes into the log.")]


@passkeys_app.command("list")
def list_passkeys(as_json: AsJson = False) -> None:
    """Every passkey, with whose it is and whether it counts."""
    with sentences():
        found = run_verb(load_settings(), "passkey-list", {})
        say(found, as_json, "\n".join(map(_line, found)) or "nobody has enrolled a passkey yet")


def _line(one: dict[str, Any]) -> str:
    stands = f"removed {one['removed_at']}" if one["removed_at"] else f"counts from {one['counts_from']}"
    return visible(f"{one['passkey_id']}  {one['person']}  {one['name']}  {stands}  key {one['key'][:16]}")


@passkeys_app.command("revoke")
def revoke_passkey(
    passkey_id: Annotated[str, typer.Argument(help="Its id, as `passkeys list` names it.")],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """Revoke a passkey in the wrong hands and those it vouched for; the votes they proved leave every count."""
    with sentences():
        done = run_verb(load_settings(), "passkey-revoke", {"passkey_id": passkey_id, "reason": reason})
        more = ", ".join(done["vouched_for"])
        also = f"; with it {more}, which it had vouched for" if more else ""
        say(done, as_json, f"revoked {passkey_id}: {done['votes']} votes left the count{also}")


@passkeys_app.command("reset")
def reset_passkeys(
    person: Annotated[str, typer.Argument(help="ISSUER|SUBJECT, as `policy-service people` lists them.")],
    reason: Reason,
    as_json: AsJson = False,
) -> None:
    """Take lost passkeys away from a person. Their votes stand; a new passkey counts after a waiting time."""
    with sentences():
        done = run_verb(load_settings(), "passkeys-reset", {"person": person, "reason": reason})
        say(done, as_json, f"{done['removed']} passkeys of {person} count no more")
