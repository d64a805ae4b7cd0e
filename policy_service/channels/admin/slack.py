"""``policy-service slack``: delivery status, a test, retries, and linked accounts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Annotated, Any

import typer

from policy_service.channels.admin.output import AsJson, escape_unprintable, print_result, report_errors
from policy_service.channels.admin.socket import is_embedded, run_admin_command
from policy_service.errors import InvalidRequestError, NotFoundError, StartError
from policy_service.http_clients import Route, route_from_settings
from policy_service.settings import Settings, load_settings
from policy_service.slack import SlackApp, require_channel
from policy_service.workflow.slack.admin import CheckResult

slack_app = typer.Typer(
    no_args_is_help=True, help="Slack's delivery status and linked accounts: docs/how-to/slack.md."
)


@slack_app.command("status")
def status(as_json: AsJson = False) -> None:
    """Print waiting and failed messages, and how Slack's payloads arrive."""
    with report_errors():
        settings = load_settings()
        found = run_admin_command(settings, "slack-status", {})
        print_result(found, as_json, "\n".join(map(escape_unprintable, _status_lines(found, settings))))


def _status_lines(found: dict[str, Any], settings: Settings) -> list[str]:
    if not found["configured"]:
        return ["the settings have no [slack]: people decide on the web"]
    arriving = _delivery_lines(found, settings)
    if not found["met"]:
        return ["the service has not used this app yet; start it with these settings", *arriving]
    lines = [f"{found['team']}  waiting {found['waiting']}  failed {found['set_aside']}"]
    if found["failures"]:
        lines.append(
            f"{found['failures']} calls failed in a row since {found['since']}, the last: {found['last_error']}"
        )
    lines += [f"{one['place']}  paused since {one['since']}: {one['error']}" for one in found["resting"]]
    return lines + arriving


def _delivery_lines(found: dict[str, Any], settings: Settings) -> list[str]:
    """How Slack's payloads arrive. Only a running process knows whether they do; it is queried if it has a socket."""
    ways, running = found["deliveries"], found.get("running")
    named = [f"over HTTP at {ways['http']}"] if ways["http"] else []
    if ways["socket_mode"]:
        connected = None if running is None else running["socket_mode_connected"]
        state = {None: "", True: " (connected)", False: " (not connected)"}[connected]
        named.append(f"over Socket Mode{state}")
    lines = [f"payloads arrive {' and '.join(named)}"]
    if running is not None:
        return lines + [f"wrong: {one}" for one in running["wrong"]]
    if is_embedded(settings):
        return [*lines, "the service is not running: nothing is sent and nothing arrives"]
    return [*lines, "see /readyz of the running service for more"]


def register_test(trial: Callable[[SlackApp, str, Route], Coroutine[Any, Any, CheckResult]]) -> None:
    """Add the command `slack test`. Its implementation is passed in, because it imports Slack's SDK."""

    @slack_app.command("test")
    def try_it(
        channel: Annotated[
            str | None, typer.Argument(help="#name, or the channel's id. Default: default_channel.")
        ] = None,
        as_json: AsJson = False,
    ) -> None:
        """Check the tokens and post a test message from here. Nothing is recorded."""
        with report_errors():
            settings = load_settings()
            app = settings.slack
            if app is None:
                raise NotFoundError("the settings have no [slack]; see deploy/slack/README.md")
            place = _channel(app, channel)
            tried = asyncio.run(trial(app, place, route_from_settings(settings)))
            print_result(
                {"channel": place, **asdict(tried)}, as_json, "\n".join(_result_lines(tried, app, place))
            )
            if tried.failures:
                raise StartError(
                    "; ".join(f"{one.method}: {one.error}: {one.remedy}" for one in tried.failures)
                )


def _channel(app: SlackApp, channel: str | None) -> str:
    try:
        return app.default_channel if channel is None else require_channel(channel)
    except ValueError as error:
        raise InvalidRequestError(str(error)) from None


def _result_lines(tried: CheckResult, app: SlackApp, place: str) -> list[str]:
    lines = []
    if tried.team_id == app.team_id:
        lines.append(f"the bot token is valid for {tried.team_id}, as {tried.bot_user}")
    if tried.posted:
        lines.append(f"posted a message in {place}")
    if tried.socket_mode:
        lines.append("the app-level token is valid for Socket Mode")
    return lines


@slack_app.command("retry")
def retry(as_json: AsJson = False) -> None:
    """Retry paused and failed messages at once, after you have fixed the problem in Slack."""
    with report_errors():
        done = run_admin_command(load_settings(), "slack-retry", {})
        print_result(
            done,
            as_json,
            f"waiting messages are retried now, including {done['messages']} failed ones; "
            "policy-service slack status shows the result",
        )


@slack_app.command("drop")
def drop(
    place: Annotated[str, typer.Argument(help="The channel as in `slack status`: '#old', or its id.")],
    reason: Annotated[str, typer.Option(help="The reason; it is recorded in the audit log.")],
    as_json: AsJson = False,
) -> None:
    """Stop using a channel: drop its waiting messages, and ask about its open reviews in other channels."""
    with report_errors():
        done = run_admin_command(load_settings(), "slack-drop", {"place": place, "reason": reason})
        print_result(
            done,
            as_json,
            escape_unprintable(
                f"dropped {place}: {done['messages']} messages were discarded, {done['cards']} reviews are no longer "
                "updated there; open reviews that are in no other channel are posted in another one, or wait on the "
                "web"
            ),
        )


@slack_app.command("links")
def list_links(as_json: AsJson = False) -> None:
    """List linked Slack accounts and their people."""
    with report_errors():
        found = run_admin_command(load_settings(), "slack-links", {})
        print_result(found, as_json, "\n".join(map(_link_line, found)) or "no Slack account is linked yet")


def _link_line(one: dict[str, Any]) -> str:
    direct = "  direct messages" if one["direct"] else ""
    return escape_unprintable(
        f"{one['team']}  {one['user']}  @{one['account']}  {one['person']}  {one['assurance']}"
        f"  linked {one['linked_at']}{direct}"
    )


@slack_app.command("unlink")
def unlink(
    team: Annotated[str, typer.Argument(help="The workspace, T..., as in `slack links`.")],
    user: Annotated[str, typer.Argument(help="The account in it, U...")],
    reason: Annotated[str, typer.Option(help="The reason; it is recorded in the audit log.")],
    as_json: AsJson = False,
) -> None:
    """Unlink an account from its person. Votes cast through it still count."""
    with report_errors():
        done = run_admin_command(
            load_settings(), "slack-unlink", {"team": team, "user": user, "reason": reason}
        )
        print_result(done, as_json, escape_unprintable(f"unlinked {user} of {team} from {done['person']}"))
