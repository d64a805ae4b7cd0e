"""The operator's own trial: whose the token is, whether the app can write into a channel, whether Socket Mode opens.

Slack is called at once and nothing is recorded. The service need not run, and is not disturbed where it does.
"""

from __future__ import annotations

from typing import Final

from policy_service.channels.slack import credentials
from policy_service.channels.slack.client import Slack, SlackFault
from policy_service.channels.slack.places import channel_named
from policy_service.channels.slack.trouble import remedy
from policy_service.http_clients import Route
from policy_service.slack import SlackApp
from policy_service.workflow.slack.trials import Failure, Trial

WORDS: Final = "Countersign can write here. This is a trial by whoever runs it; nobody need do anything."


async def trial(app: SlackApp, place: str, route: Route) -> Trial:
    """Try it. A message is posted only where the token is of the workspace of the settings.

    Raises:
        StartError: the file of a token is missing, readable by others, or holds none.
    """
    bot, token = Slack(app, credentials.bot_token(app), route), credentials.app_token(app)
    failures = [failure for failure in (await _write(bot, app, place),) if failure is not None]
    posted, opened = not failures, None
    if token is not None:
        refused = await _open(Slack(app, token, route), app)
        opened = refused is None
        failures += [] if refused is None else [refused]
    team_id, bot_user = (None, None) if bot.met is None else (bot.met.team_id, bot.met.bot_user)
    return Trial(team_id, bot_user, posted, opened, tuple(failures))


async def _write(slack: Slack, app: SlackApp, place: str) -> Failure | None:
    method = "auth.test"
    try:
        error = (await slack.how_is_it()).error
        if error is not None:
            why = slack.another_workspace
            return Failure(method, error, remedy(error, method, app) if why is None else f"{why}; {_OTHER}")
        channel = place
        if place.startswith("#"):
            method = "conversations.list"
            channel = await channel_named(slack, place.removeprefix("#"))
        method = "chat.postMessage"
        await slack.call(method, channel=channel, text=WORDS, unfurl_links=False)
    except SlackFault as fault:
        return Failure(method, fault.error, remedy(fault.error, method, app))
    finally:
        await slack.close()
    return None


_OTHER: Final = "mend team_id, or install the app in that workspace and take the bot token from there"


async def _open(slack: Slack, app: SlackApp) -> Failure | None:
    method = "apps.connections.open"
    try:
        await slack.call(method)
    except SlackFault as fault:
        return Failure(method, fault.error, remedy(fault.error, method, app))
    finally:
        await slack.close()
    return None
