"""Deliveries over Socket Mode: for a service that Slack cannot reach.

The connection is ours, opened with the app's own token, so nothing in it is signed. What comes through it is taken by
the same desk as over HTTP, and acknowledged when it is durable; what was not is delivered again. A connection that is
lost is opened again, for as long as the service runs.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.async_client import AsyncBaseSocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.socket_mode.response import SocketModeResponse
from slack_sdk.web.async_client import AsyncWebClient

from policy_service import metrics
from policy_service.channels.slack.client import QUIET
from policy_service.channels.slack.desk import After, Answer, Desk
from policy_service.channels.slack.payloads import read_envelope
from policy_service.errors import ServiceError
from policy_service.health import Health
from policy_service.slack import SlackApp

log = structlog.get_logger(__name__)

CONNECT_S: Final = 30.0
"""How long one connection may take to come about: the SDK's own attempt has no end and tells nobody that it fails."""

_LOOK_S: Final = 5.0
_ABOUT: Final = "socket mode"
_LONGEST_PAUSE_S: Final = 60.0


class SocketMode:
    """One connection, held for as long as the service runs."""

    def __init__(self, app: SlackApp, app_token: str, desk: Desk, health: Health) -> None:
        self._app, self._token, self._desk, self._health = app, app_token, desk, health
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Take deliveries until cancelled."""
        failures = 0
        try:
            while True:
                failures = 1 if await self._hold() else failures + 1
                await asyncio.sleep(min(2.0**failures, _LONGEST_PAUSE_S))
        finally:
            await self._end()

    async def _hold(self) -> bool:
        """Connect anew and stay so for as long as it lasts; whether it was connected at all."""
        client, connected = self._client(), False
        try:
            async with asyncio.timeout(CONNECT_S):
                await client.connect()  # type: ignore[no-untyped-call]
            connected = True
            self._health.good("slack", _ABOUT)
            await self._watch(client)
        except Exception as error:  # noqa: BLE001  said in health; the next round connects anew
            log.warning("slack_socket_failed", error=type(error).__name__)
            self._health.bad("slack", "Socket Mode cannot be connected: no press arrives by it", _ABOUT)
        finally:
            await client.close()  # type: ignore[no-untyped-call]
        return connected

    async def _end(self) -> None:
        """Nothing goes on after the service: what was not acknowledged, Slack delivers again."""
        under_way = tuple(self._under_way)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    def _client(self) -> SocketModeClient:
        web = AsyncWebClient(
            self._token,
            self._app.api_url,
            timeout=int(self._app.timeout_s) + 1,
            retry_handlers=[],
            logger=QUIET,
        )
        client = SocketModeClient(self._token, logger=QUIET, web_client=web, auto_reconnect_enabled=True)
        client.socket_mode_request_listeners.append(self._listen)
        return client

    async def _watch(self, client: SocketModeClient) -> None:
        """The client mends its connection by itself; here it is only looked at."""
        bad = 0
        while True:
            await asyncio.sleep(_LOOK_S)
            bad = 0 if await client.is_connected() else bad + 1
            if bad > 6:
                raise ConnectionError("it does not come back by itself")

    async def _listen(self, client: AsyncBaseSocketModeClient, given: SocketModeRequest) -> None:
        # Not in the client's own loop: one press that waits for the database must not hold up the next.
        task = asyncio.create_task(self._take(client, given))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _take(self, client: AsyncBaseSocketModeClient, given: SocketModeRequest) -> None:
        try:
            answer = await self._desk.take(read_envelope(given.type, given.payload))
        except ServiceError as error:
            metrics.SLACK_DELIVERIES.labels("socket", "refused").inc()
            log.warning("slack_delivery_refused", code=error.code.value)
            return
        except Exception:
            log.exception("slack_delivery_failed")
            return
        await self._acknowledge(client, given, answer)
        if answer.after is not None:
            await self._afterwards(answer.after)

    async def _acknowledge(
        self, client: AsyncBaseSocketModeClient, given: SocketModeRequest, answer: Answer
    ) -> None:
        try:
            response = SocketModeResponse(envelope_id=given.envelope_id, payload=answer.body)
            await client.send_socket_mode_response(response)
        except Exception as error:  # noqa: BLE001
            # what was done is durable; Slack delivers it again, and it is known and counted then
            log.warning("slack_not_acknowledged", error=type(error).__name__)
        else:
            metrics.SLACK_DELIVERIES.labels("socket", "taken").inc()

    async def _afterwards(self, after: After) -> None:
        try:
            await after()
        except Exception:
            log.exception("slack_afterwards_failed")
