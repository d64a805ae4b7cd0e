"""Slack for the operator: how it takes what it is sent, and whose accounts are whose."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from policy_service.channels.operator.socket import run_verb
from policy_service.channels.operator.speaking import AsJson, say, sentences, visible
from policy_service.settings import load_settings

slack_app = typer.Typer(
    no_args_is_help=True, help="How Slack stands, and the accounts of people there: docs/slack.md."
)


@slack_app.command("status")
def status(as_json: AsJson = False) -> None:
    """What waits for Slack, what it refuses, and since when."""
    with sentences():
        found = run_verb(load_settings(), "slack-status", {})
        say(found, as_json, "\n".join(map(visible, _standing(found))))


def _standing(found: dict[str, Any]) -> list[str]:
    if not found["configured"]:
        return ["the settings have no [slack]: people are asked on the web"]
    if not found["met"]:
        return ["the service has not met this app yet; start it with these settings"]
    lines = [f"{found['team']}  waiting {found['waiting']}  set aside {found['set_aside']}"]
    if found["failures"]:
        lines.append(
            f"{found['failures']} calls failed in a row since {found['since']}, the last: {found['last_error']}"
        )
    lines += [f"{one['place']}  rests since {one['since']}: {one['error']}" for one in found["resting"]]
    return lines


@slack_app.command("retry")
def retry(as_json: AsJson = False) -> None:
    """Try at once what waits for a pause to end, and what was set aside, after you have mended it at Slack."""
    with sentences():
        done = run_verb(load_settings(), "slack-retry", {})
        say(
            done,
            as_json,
            f"what waits is tried again now, {done['messages']} messages among it that had been set aside; "
            "policy-service slack status tells how it went",
        )


@slack_app.command("drop")
def drop(
    place: Annotated[str, typer.Argument(help="The channel, as `slack status` names it: '#old', or its id.")],
    reason: Annotated[str, typer.Option(help="Why; it goes into the log.")],
    as_json: AsJson = False,
) -> None:
    """Give a channel up: what waits for it is let go, and what is open is asked in the others."""
    with sentences():
        done = run_verb(load_settings(), "slack-drop", {"place": place, "reason": reason})
        say(
            done,
            as_json,
            visible(
                f"given up {place}: {done['messages']} messages were let go, {done['cards']} reviews are followed "
                "there no more; those that are open and asked nowhere else are asked in another channel, or wait "
                "on the web"
            ),
        )


@slack_app.command("links")
def list_links(as_json: AsJson = False) -> None:
    """Every Slack account that is linked, with whose it is."""
    with sentences():
        found = run_verb(load_settings(), "slack-links", {})
        say(found, as_json, "\n".join(map(_line, found)) or "no Slack account is linked yet")


def _line(one: dict[str, Any]) -> str:
    direct = "  direct messages" if one["direct"] else ""
    return visible(
        f"{one['team']}  {one['user']}  @{one['account']}  {one['person']}  {one['assurance']}"
        f"  linked {one['linked_at']}{direct}"
    )


@slack_app.command("unlink")
def unlink(
    team: Annotated[str, typer.Argument(help="The workspace, T..., as `slack links` names it.")],
    user: Annotated[str, typer.Argument(help="The account in it, U...")],
    reason: Annotated[str, typer.Option(help="Why; it goes into the log.")],
    as_json: AsJson = False,
) -> None:
    """Let an account decide for nobody any more. What was decided through it stands."""
    with sentences():
        done = run_verb(load_settings(), "slack-unlink", {"team": team, "user": user, "reason": reason})
        say(done, as_json, visible(f"unlinked {user} of {team}, which was {done['person']}'s"))
