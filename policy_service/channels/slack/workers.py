"""What runs beside the routes: following the log, sending, watching how it goes, and Socket Mode.

Each ends only with the service: what goes wrong is said aloud and the next round tries again.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any, Final

import structlog

from policy_service import metrics
from policy_service.channels.slack import credentials
from policy_service.channels.slack.client import SlackClient
from policy_service.channels.slack.delivery import MessageSender
from policy_service.channels.slack.dispatcher import Dispatcher
from policy_service.channels.slack.payloads import SignatureChecker
from policy_service.channels.slack.projection import project_log
from policy_service.channels.slack.send_queue import (
    SendStatus,
    claim_message,
    due_places,
    holds_lease,
    record_auth_test,
    record_result,
    release_lease,
)
from policy_service.channels.slack.transports import SocketMode
from policy_service.health import Health
from policy_service.http_clients import route_from_settings
from policy_service.queries.context import Context
from policy_service.settings import Settings
from policy_service.slack import UNHEALTHY_FAILURES, SlackApp
from policy_service.storage.core import find_one
from policy_service.storage.outbox import RetryPolicy
from policy_service.storage.slack_tables import SlackPlaceRow, SlackStatusRow
from policy_service.workflow.slack.admin import SlackHealth, slack_health

log = structlog.get_logger(__name__)

_POLL_S: Final = 0.5
_SHUTDOWN_S: Final = 3.0
_AUTH_TEST_RETRY: Final = RetryPolicy(backoff_s=1, max_backoff_s=60)
"""Between two questions whose the token is: a process that has another one than the others asks on its own."""


class SlackService:
    """Slack, for one service."""

    def __init__(self, settings: Settings, app: SlackApp, ctx: Context, health: Health) -> None:
        """Read the app's secrets.

        Raises:
            StartError: one of them is missing, empty, or readable by others.
        """
        self._settings, self._ctx, self._health = settings, ctx, health
        route = route_from_settings(settings)
        self._slack = SlackClient(app, credentials.bot_token(app), route)
        self._courier = MessageSender(ctx, self._slack)
        self.desk = Dispatcher(ctx, self._slack)
        secret, token = credentials.signing_secret(app), credentials.app_token(app)
        self.signatures = None if secret is None else SignatureChecker(secret, ctx.clock)
        self._socket = None if token is None else SocketMode(app, token, self.desk, health, route)
        self._sending: dict[str, asyncio.Task[bool]] = {}  # by place
        self._asked = self._is_ours = False
        self._holder, self._tries = "", 0
        self._ask_after: datetime | None = None

    @property
    def app(self) -> SlackApp:
        """Its settings."""
        return self._slack.app

    async def run(self, holder: str) -> None:
        """Work until cancelled. ``holder`` names this process: one at a time sends."""
        loops = [self._work(holder), self._watch()]
        if self._socket is not None:
            loops.append(self._socket.run())
        self._holder = holder
        try:
            await asyncio.gather(*loops)
        finally:
            await self._end(holder)

    async def round(self, holder: str) -> bool:
        """Follow the log and send what is due; whether there was anything to do. Where Slack takes its time for one
        place, that place goes on beside the next rounds and holds up no other."""
        self._holder = holder
        followed = await project_log(self._ctx, self.app)
        met = await self._is_workspace_confirmed()
        due = await due_places(self._ctx, self.app, tuple(self._sending)) if met else []
        for place in due if due and await holds_lease(self._ctx, holder) else ():
            self._sending[place.place] = asyncio.create_task(self._send(place, holder))
        if not self._sending:
            return followed
        done, _ = await asyncio.wait(self._sending.values(), timeout=_POLL_S)
        self._sending = {place: task for place, task in self._sending.items() if task not in done}
        errors = [error for task in done if (error := task.exception()) is not None]
        if errors:
            raise errors[0]
        return followed or bool(self._sending) or any(task.result() for task in done)

    def known(self) -> dict[str, Any]:
        """What only this process knows: whether its Socket Mode is connected, and what is wrong as it sees it."""
        connected = None if self._socket is None else self._socket.connected
        wrong = [found.wrong for found in self._health.findings() if found.check == "slack"]
        return {"socket_mode_connected": connected, "wrong": wrong}

    async def look(self) -> None:
        """Say how it stands; where no message would tell whether it is well again, ask."""
        found = await self._standing()
        if found is None:
            return
        fails_unheard = found.failures and not found.waiting
        if self._is_ours and fails_unheard and _is_due(found.not_before, self._ctx.clock()):
            await self._ask()
            found = await self._standing() or found
        self._show(found)

    async def _standing(self) -> SlackHealth | None:
        return await self._ctx.db.read(lambda conn: slack_health(conn, self.app, self._ctx.clock()))

    async def _is_workspace_confirmed(self) -> bool:
        """Whether Slack has said that the token is of our workspace: nothing is sent before, to no other one's people.
        While it does not say so it is asked again, no sooner than anything else would be sent."""
        if self._is_ours:
            return True
        row = await self._ctx.db.read(lambda conn: find_one(conn, SlackStatusRow, team_id=self.app.team_id))
        now = self._ctx.clock()
        if row is None or not _is_due(self._ask_after, now):
            return False
        if not self._asked or _is_due(row.not_before, now):
            await self._ask()
            self._tries += 1
            self._ask_after = now + _AUTH_TEST_RETRY.pause(self._tries)
        return self._is_ours

    async def _ask(self) -> None:
        """Ask Slack how it is, and whose the token is."""
        outcome, first = await self._slack.test_auth(), not self._asked
        well, self._asked = outcome.came is SendStatus.SENT, True
        if well and not self._is_ours:
            met = self._slack.met
            log.info("slack_met", team_id=self.app.team_id, bot_user=met and met.bot_user)
        elif not well:
            told = (
                {"whose": self._slack.met.team_id}
                if self._slack.workspace_mismatch and self._slack.met
                else {}
            )
            log.warning("slack_not_met", error=outcome.error, team_id=self.app.team_id, **told)
        self._is_ours = well or (self._is_ours and self._slack.workspace_mismatch is None)
        if not (well and first):  # what did not leave before the start is told by the next message
            await record_auth_test(self._ctx, self.app, outcome, self._holder)

    async def _end(self, holder: str) -> None:
        """What is on its way may end: a message that is cut off holds up its place until its claim is over."""
        sending = self._sending.values()
        if sending:
            await asyncio.wait(sending, timeout=_SHUTDOWN_S)
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        await self._slack.close()
        await release_lease(self._ctx, holder)

    async def _work(self, holder: str) -> None:
        while not self._ctx.feed.closing:
            index = self._ctx.feed.index
            try:
                busy = await self.round(holder)
                self._health.good("slack", "the loop")
            except Exception:
                busy = False
                self._health.bad("slack", "nothing is sent to Slack: its loop fails", "the loop")
                log.exception("slack_round_failed")
                await asyncio.sleep(_POLL_S)
            if not busy:
                await self._ctx.feed.wait_after(index, _POLL_S)

    async def _send(self, place: SlackPlaceRow, holder: str) -> bool:
        message = await claim_message(self._ctx, place.place, holder)
        if message is None:
            return False
        outcome = await self._courier.send_message(place, message)
        await record_result(self._ctx, self.app, place.place, message, outcome)
        metrics.SLACK_MESSAGES.labels(outcome.came.value).inc()
        if outcome.error is not None:
            say = log.error if outcome.came is SendStatus.REFUSED else log.warning
            say(
                "slack_message_failed",
                outbox_id=message.outbox_id,
                kind=message.kind,
                came=outcome.came.value,
                error=outcome.error,
                attempt=message.attempt,
            )
        return True

    async def _watch(self) -> None:
        while not self._ctx.feed.closing:
            try:
                await self.look()
            except Exception:
                log.exception("slack_look_failed")  # the watch of the database says why
            await asyncio.sleep(self._settings.watch_s)

    def _show(self, found: SlackHealth) -> None:
        now = self._ctx.clock()
        age = 0.0 if found.oldest is None else max(0.0, (now - found.oldest).total_seconds())
        metrics.SLACK_WAITING.set(found.waiting)
        metrics.SLACK_OLDEST.set(age)
        wrong = None
        if found.failures >= UNHEALTHY_FAILURES:
            why = self._slack.workspace_mismatch or found.last_error
            wrong = f"Slack takes no message ({why}): {found.waiting} wait; people are asked on the web"
        elif age > self._settings.outbox_late_s and not found.resting:
            wrong = f"{found.waiting} messages wait for Slack"
        self._health.say("slack", wrong, "sending", found.since)
        places = ", ".join(f"{row.place} ({row.last_error})" for row in found.resting)
        stuck = f"cannot be written to: {places}; what is for them waits" if found.resting else None
        since = min((row.since for row in found.resting if row.since is not None), default=None)
        self._health.say("slack", stuck, "places", since)
        dead = (
            f"{found.dead} messages were set aside, see slack_message_failed in the log"
            if found.dead
            else None
        )
        self._health.say("slack", dead, "set aside")


def _is_due(until: datetime | None, now: datetime) -> bool:
    return until is None or until <= now
