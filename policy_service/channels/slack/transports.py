"""Transports of Slack's payloads: an HTTP route, or Socket Mode.

HTTP: a payload that is not signed by Slack, or is of another workspace or app, gets a 401 without a reason; the log has
it. A payload is acknowledged once its result is durable. Otherwise Slack shows an error and the user presses again.

Socket Mode: the service opens the connection with the app-level token, so its payloads are not signed. The same
dispatcher handles and acknowledges them; Slack sends unacknowledged ones again. A lost connection is reopened for as
long as the service runs, and not before Slack's Retry-After. The log has one line per outage and kind of error.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import structlog
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.async_client import AsyncBaseSocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.socket_mode.response import SocketModeResponse
from starlette.background import BackgroundTask

from policy_service import metrics
from policy_service.channels.requests import read_unidentified_body
from policy_service.channels.slack.client import (
    CALL_ERRORS,
    SDK_LOGGER,
    SlackCallError,
    call_error,
    error_code,
    web_client,
)
from policy_service.channels.slack.dispatcher import Dispatcher, FollowUp, SlackResponse
from policy_service.channels.slack.payloads import (
    ForeignPayloadError,
    RefusalLog,
    SignatureChecker,
    read_body,
    read_envelope,
)
from policy_service.channels.slack.send_queue import MAX_PAUSE, SendStatus
from policy_service.errors import RequestError
from policy_service.health import Health
from policy_service.http_clients import DIRECT, Route, slack_socket
from policy_service.slack import EVENTS_PATH, SlackApp

log = structlog.get_logger(__name__)

_MAX_BODY_BYTES = 512 * 1024  # a form with the longest message in it is a tenth of that


def router(dispatcher: Dispatcher, signatures: SignatureChecker) -> APIRouter:
    """The HTTP route."""
    routes = APIRouter(include_in_schema=False)

    refusals = RefusalLog("http")

    @routes.post(EVENTS_PATH)
    async def events(request: Request) -> Response:
        try:
            body = await read_unidentified_body(request, _MAX_BODY_BYTES)
            check = signatures.failed(body, request.headers.items())
            if check is not None:
                raise ForeignPayloadError("this is not signed by Slack", check)
            answer = await dispatcher.take(read_body(body, request.headers.get("content-type", "")))
        except RequestError as refusal:
            refusals.note(refusal)
            raise
        metrics.SLACK_DELIVERIES.labels("http", "taken").inc()
        return _as_response(answer)

    return routes


def _as_response(answer: SlackResponse) -> Response:
    after = None if answer.after is None else BackgroundTask(_run_follow_up, answer.after)
    if answer.body is None:
        return Response(status_code=200, background=after)
    return JSONResponse(answer.body, background=after)


async def _run_follow_up(after: FollowUp) -> None:
    """Awaits the follow-up: Starlette runs a plain callable in a thread and does not await its coroutine."""
    await after()


CONNECT_S: Final = 30.0
"""Timeout for opening a connection. The SDK's own attempt has none and does not report errors."""

_CHECK_INTERVAL_S: Final = 5.0
_SHUTDOWN_S: Final = 6.0  # longer than the database's lock timeout
_ABOUT: Final = "socket mode"
_MAX_PAUSE_S: Final = 60.0

_SOCKET_LOGGER: Final = SDK_LOGGER.getChild("socket")
"""The SDK's connection logger, silenced: without a connection it logs a traceback every five seconds."""

_SOCKET_LOGGER.setLevel(logging.CRITICAL + 1)


class _Client(SocketModeClient):
    """The SDK's client, which honours Slack's rate limit and uses the configured proxy."""

    fault: SlackCallError | None = None
    route: Route = DIRECT

    async def issue_new_wss_url(self) -> str:
        """Request the URL to connect to.

        Raises:
            SlackCallError: the call failed.
        """
        if self.rest_s:
            raise self.fault or SlackCallError(SendStatus.RATE_LIMITED, "ratelimited")
        try:
            answer = await self.web_client.apps_connections_open(app_token=self.app_token)
            self.fault, url = None, str(answer["url"])
            self.proxy = self.route.proxy_for(url)
        except (*CALL_ERRORS, KeyError) as error:
            self.fault = call_error(error)
            raise self.fault from None
        return url

    @property
    def rest_s(self) -> float:
        """Slack's Retry-After in seconds, or 0."""
        result = None if self.fault is None else self.fault.result
        if result is None or result.status is not SendStatus.RATE_LIMITED or result.rest is None:
            return 0
        return min(result.rest, MAX_PAUSE).total_seconds()


class SocketMode:
    """Holds one connection for as long as the service runs."""

    def __init__(
        self, app: SlackApp, app_token: str, dispatcher: Dispatcher, health: Health, route: Route = DIRECT
    ) -> None:
        self._route = route
        self._app, self._token, self._dispatcher, self._health = app, app_token, dispatcher, health
        self._under_way: set[asyncio.Task[None]] = set()
        self._refusals = RefusalLog("socket")
        self._logged: set[str] = set()  # what is wrong in this outage, by code
        self.connected = False

    async def run(self) -> None:
        """Receive payloads until cancelled."""
        failures = 0
        try:
            while True:
                client = self._client()
                failures = 1 if await self._hold(client) else failures + 1
                await asyncio.sleep(max(min(2.0**failures, _MAX_PAUSE_S), client.rest_s))
        finally:
            await self._end()

    async def _hold(self, client: _Client) -> bool:
        """Connect and wait until the connection is lost. Returns whether it was connected at all."""
        was = False
        try:
            async with asyncio.timeout(CONNECT_S):
                client.wss_uri = await client.issue_new_wss_url()
                await client.connect()  # type: ignore[no-untyped-call]
            was = self.connected = True
            self._logged.clear()
            self._health.good("slack", _ABOUT)
            log.info("slack_socket_connected")
            await self._watch(client)
        except Exception as error:  # noqa: BLE001  reported in health; the next round reconnects
            self._failed(error)
        finally:
            self.connected = False
            await client.close()  # type: ignore[no-untyped-call]
        return was

    def _failed(self, error: Exception) -> None:
        """Report the failure in health, and log it once per outage."""
        if isinstance(error, SlackCallError):
            code = error.error
        else:
            code = "no_answer" if isinstance(error, TimeoutError) else error_code(error)
        if code not in self._logged:
            self._logged.add(code)
            log.warning("slack_socket_failed", error=code)
        self._health.bad(
            "slack", f"Socket Mode is not connected ({code}): it delivers no buttons or commands", _ABOUT
        )

    async def _end(self) -> None:
        """Finish acknowledged work, then cancel the rest: Slack sends unacknowledged payloads again."""
        under_way = tuple(self._under_way)
        if under_way:
            await asyncio.wait(under_way, timeout=_SHUTDOWN_S)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    def _client(self) -> _Client:
        web = web_client(self._app, self._token, self._route)
        client = slack_socket(_Client, self._token, web, logger=_SOCKET_LOGGER, auto_reconnect_enabled=True)
        client.route = self._route
        client.socket_mode_request_listeners.append(self._listen)
        return client

    async def _watch(self, client: _Client) -> None:
        """Monitor the connection, which the SDK reopens by itself.

        Raises:
            SlackCallError: it was not reopened, or Slack's Retry-After forbids that for now.
        """
        bad = 0
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            self.connected = await client.is_connected()
            bad = 0 if self.connected else bad + 1
            if bad > 6 or client.rest_s:
                raise client.fault or SlackCallError(SendStatus.WORLD, "connection_lost")

    async def _listen(self, client: AsyncBaseSocketModeClient, given: SocketModeRequest) -> None:
        # In its own task: a payload that waits for the database must not delay the next one.
        task = asyncio.create_task(self._take(client, given))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _take(self, client: AsyncBaseSocketModeClient, given: SocketModeRequest) -> None:
        try:
            answer = await self._dispatcher.take(read_envelope(given.type, given.payload))
        except RequestError as error:
            self._refusals.note(error)
            return
        except Exception:
            log.exception("slack_delivery_failed")
            return
        await self._acknowledge(client, given, answer)
        if answer.after is not None:
            await self._afterwards(answer.after)

    async def _acknowledge(
        self, client: AsyncBaseSocketModeClient, given: SocketModeRequest, answer: SlackResponse
    ) -> None:
        try:
            response = SocketModeResponse(envelope_id=given.envelope_id, payload=answer.body)
            await client.send_socket_mode_response(response)
        except Exception as error:  # noqa: BLE001
            # The result is durable. Slack sends the payload again, and it is then recognized as processed.
            log.warning("slack_not_acknowledged", error=type(error).__name__)
        else:
            metrics.SLACK_DELIVERIES.labels("socket", "taken").inc()

    async def _afterwards(self, after: FollowUp) -> None:
        try:
            await after()
        except Exception:
            log.exception("slack_afterwards_failed")
