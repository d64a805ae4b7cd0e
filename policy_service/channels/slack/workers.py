"""Background tasks of Slack: project the audit log, send messages, check health, and hold the Socket Mode connection.

Each ends only with the service. Errors are logged and reported in health, and the next round retries.
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
"""Pauses between two calls of auth.test, per process: one process may have another token than the others."""


class SlackService:
    """Slack's part of one service."""

    def __init__(self, settings: Settings, app: SlackApp, ctx: Context, health: Health) -> None:
        """Read the app's credentials.

        Raises:
            StartError: one of them is missing, empty, or readable by others.
        """
        self._settings, self._ctx, self._health = settings, ctx, health
        route = route_from_settings(settings)
        self._slack = SlackClient(app, credentials.bot_token(app), route)
        self._sender = MessageSender(ctx, self._slack)
        self.dispatcher = Dispatcher(ctx, self._slack)
        secret, token = credentials.signing_secret(app), credentials.app_token(app)
        self.signatures = None if secret is None else SignatureChecker(secret, ctx.clock)
        self._socket = None if token is None else SocketMode(app, token, self.dispatcher, health, route)
        self._sending: dict[str, asyncio.Task[bool]] = {}  # by place
        self._auth_tested = self._owner_confirmed = False
        self._holder, self._tries = "", 0
        self._test_after: datetime | None = None

    @property
    def app(self) -> SlackApp:
        """The settings of the app."""
        return self._slack.app

    async def run(self, holder: str) -> None:
        """Run until cancelled. ``holder`` names this process in the lease: one process at a time sends."""
        loops = [self._work(holder), self._watch()]
        if self._socket is not None:
            loops.append(self._socket.run())
        self._holder = holder
        try:
            await asyncio.gather(*loops)
        finally:
            await self._end(holder)

    async def round(self, holder: str) -> bool:
        """Project the log and send due messages. Returns whether there was anything to do. A slow place continues
        during the next rounds and delays no other."""
        self._holder = holder
        followed = await project_log(self._ctx, self.app)
        confirmed = await self._is_workspace_confirmed()
        due = await due_places(self._ctx, self.app, tuple(self._sending)) if confirmed else []
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

    def process_status(self) -> dict[str, Any]:
        """The status that only this process knows: its Socket Mode connection and its health findings."""
        connected = None if self._socket is None else self._socket.connected
        wrong = [found.wrong for found in self._health.findings() if found.check == "slack"]
        return {"socket_mode_connected": connected, "wrong": wrong}

    async def check_health(self) -> None:
        """Update health and metrics. While calls fail and no message is waiting, call auth.test to detect recovery."""
        found = await self._health_status()
        if found is None:
            return
        fails_unheard = found.failures and not found.waiting
        if self._owner_confirmed and fails_unheard and _is_due(found.not_before, self._ctx.clock()):
            await self._check_auth()
            found = await self._health_status() or found
        self._show(found)

    async def _health_status(self) -> SlackHealth | None:
        return await self._ctx.db.read(lambda conn: slack_health(conn, self.app, self._ctx.clock()))

    async def _is_workspace_confirmed(self) -> bool:
        """Whether Slack has confirmed that the token belongs to the configured workspace. Nothing is sent before, so no
        message reaches another workspace. Until then auth.test is retried with the usual pauses."""
        if self._owner_confirmed:
            return True
        row = await self._ctx.db.read(lambda conn: find_one(conn, SlackStatusRow, team_id=self.app.team_id))
        now = self._ctx.clock()
        if row is None or not _is_due(self._test_after, now):
            return False
        if not self._auth_tested or _is_due(row.not_before, now):
            await self._check_auth()
            self._tries += 1
            self._test_after = now + _AUTH_TEST_RETRY.pause(self._tries)
        return self._owner_confirmed

    async def _check_auth(self) -> None:
        """Call auth.test and record the result."""
        outcome, first = await self._slack.check_auth(), not self._auth_tested
        well, self._auth_tested = outcome.status is SendStatus.SENT, True
        if well and not self._owner_confirmed:
            owner = self._slack.token_owner
            log.info("slack_met", team_id=self.app.team_id, bot_user=owner and owner.bot_user)
        elif not well:
            extra = (
                {"whose": self._slack.token_owner.team_id}
                if self._slack.workspace_mismatch and self._slack.token_owner
                else {}
            )
            log.warning("slack_not_met", error=outcome.error, team_id=self.app.team_id, **extra)
        self._owner_confirmed = well or (self._owner_confirmed and self._slack.workspace_mismatch is None)
        if not (well and first):  # failures before the start are cleared by the next message
            await record_auth_test(self._ctx, self.app, outcome, self._holder)

    async def _end(self, holder: str) -> None:
        """Let sends in progress finish: an interrupted message blocks its place until its claim expires."""
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
                self._health.bad("slack", "nothing is sent to Slack: its worker fails", "the loop")
                log.exception("slack_round_failed")
                await asyncio.sleep(_POLL_S)
            if not busy:
                await self._ctx.feed.wait_after(index, _POLL_S)

    async def _send(self, place: SlackPlaceRow, holder: str) -> bool:
        message = await claim_message(self._ctx, place.place, holder)
        if message is None:
            return False
        outcome = await self._sender.send_message(place, message)
        await record_result(self._ctx, self.app, place.place, message, outcome)
        metrics.SLACK_MESSAGES.labels(outcome.status.value).inc()
        if outcome.error is not None:
            say = log.error if outcome.status is SendStatus.REFUSED else log.warning
            say(
                "slack_message_failed",
                outbox_id=message.outbox_id,
                kind=message.kind,
                came=outcome.status.value,
                error=outcome.error,
                attempt=message.attempt,
            )
        return True

    async def _watch(self) -> None:
        while not self._ctx.feed.closing:
            try:
                await self.check_health()
            except Exception:
                log.exception("slack_look_failed")  # the health monitor reports database errors
            await asyncio.sleep(self._settings.watch_s)

    def _show(self, found: SlackHealth) -> None:
        now = self._ctx.clock()
        age = 0.0 if found.oldest is None else max(0.0, (now - found.oldest).total_seconds())
        metrics.SLACK_WAITING.set(found.waiting)
        metrics.SLACK_OLDEST.set(age)
        wrong = None
        if found.failures >= UNHEALTHY_FAILURES:
            why = self._slack.workspace_mismatch or found.last_error
            wrong = f"Slack accepts no messages ({why}): {found.waiting} wait; people decide on the web"
        elif age > self._settings.outbox_late_s and not found.resting:
            wrong = f"{found.waiting} messages to Slack are late"
        self._health.say("slack", wrong, "sending", found.since)
        places = ", ".join(f"{row.place} ({row.last_error})" for row in found.resting)
        stuck = f"cannot post to {places}; messages for them wait" if found.resting else None
        since = min((row.since for row in found.resting if row.since is not None), default=None)
        self._health.say("slack", stuck, "places", since)
        dead = (
            f"{found.dead} messages failed permanently, see slack_message_failed in the log"
            if found.dead
            else None
        )
        self._health.say("slack", dead, "set aside")


def _is_due(until: datetime | None, now: datetime) -> bool:
    return until is None or until <= now
