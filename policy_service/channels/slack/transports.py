"""How Slack's deliveries arrive: one HTTP route, or Socket Mode.

Whatever is not signed by Slack, or is of another workspace or app, is 401 and nothing more is said; the log has why.
Slack is told that it arrived when what it asks for is durable; what cannot be made durable is an error there, and is
pressed again.

The connection is ours, opened with the app's own token, so nothing in it is signed. What comes through it is taken by
the same desk as over HTTP and acknowledged as there; what was not is delivered again. A connection that is lost is
opened again, for as long as the service runs, and no sooner than Slack asks for. An outage is one line in the log for
each thing that is wrong in it.
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

_MAX_BODY_BYTES = 512 * 1024  # a form with the longest message in it is a tenth of that


def router(desk: Dispatcher, signatures: SignatureChecker) -> APIRouter:
    """The route."""
    routes = APIRouter(include_in_schema=False)

    refusals = RefusalLog("http")

    @routes.post(EVENTS_PATH)
    async def events(request: Request) -> Response:
        try:
            body = await read_unidentified_body(request, _MAX_BODY_BYTES)
            check = signatures.failed(body, request.headers.items())
            if check is not None:
                raise ForeignPayloadError("this is not signed by Slack", check)
            answer = await desk.take(read_body(body, request.headers.get("content-type", "")))
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
    """Starlette runs a lambda in a thread, and then nobody awaits the coroutine it answers."""
    await after()


log = structlog.get_logger(__name__)

CONNECT_S: Final = 30.0
"""How long one connection may take to come about: the SDK's own attempt has no end and tells nobody that it fails."""

_CHECK_INTERVAL_S: Final = 5.0
_SHUTDOWN_S: Final = 6.0  # longer than the database waits for a lock
_ABOUT: Final = "socket mode"
_MAX_PAUSE_S: Final = 60.0

_SOCKET_LOGGER: Final = SDK_LOGGER.getChild("socket")
"""What the SDK tells of a connection: the whole trace of it every five seconds while there is none."""

_SOCKET_LOGGER.setLevel(logging.CRITICAL + 1)


class _Client(SocketModeClient):
    """The SDK's, but where Slack asks for patience it does not ask again by itself, and its proxy is ours."""

    fault: SlackCallError | None = None
    route: Route = DIRECT

    async def issue_new_wss_url(self) -> str:
        """Where to connect.

        Raises:
            SlackFault: Slack does not say.
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
        """How long Slack asks not to be asked; 0 where it does not."""
        if self.fault is None or self.fault.came is not SendStatus.RATE_LIMITED or self.fault.rest is None:
            return 0
        return min(self.fault.rest, MAX_PAUSE).total_seconds()


class SocketMode:
    """One connection, held for as long as the service runs."""

    def __init__(
        self, app: SlackApp, app_token: str, desk: Dispatcher, health: Health, route: Route = DIRECT
    ) -> None:
        self._route = route
        self._app, self._token, self._desk, self._health = app, app_token, desk, health
        self._under_way: set[asyncio.Task[None]] = set()
        self._refusals = RefusalLog("socket")
        self._told: set[str] = set()  # what is wrong in this outage, by code
        self.connected = False

    async def run(self) -> None:
        """Take deliveries until cancelled."""
        failures = 0
        try:
            while True:
                client = self._client()
                failures = 1 if await self._hold(client) else failures + 1
                await asyncio.sleep(max(min(2.0**failures, _MAX_PAUSE_S), client.rest_s))
        finally:
            await self._end()

    async def _hold(self, client: _Client) -> bool:
        """Connect anew and stay so for as long as it lasts; whether it was connected at all."""
        was = False
        try:
            async with asyncio.timeout(CONNECT_S):
                client.wss_uri = await client.issue_new_wss_url()
                await client.connect()  # type: ignore[no-untyped-call]
            was = self.connected = True
            self._told.clear()
            self._health.good("slack", _ABOUT)
            log.info("slack_socket_connected")
            await self._watch(client)
        except Exception as error:  # noqa: BLE001  said in health; the next round connects anew
            self._failed(error)
        finally:
            self.connected = False
            await client.close()  # type: ignore[no-untyped-call]
        return was

    def _failed(self, error: Exception) -> None:
        """Say that there is no connection: here now, in the log once an outage."""
        if isinstance(error, SlackCallError):
            code = error.error
        else:
            code = "no_answer" if isinstance(error, TimeoutError) else error_code(error)
        if code not in self._told:
            self._told.add(code)
            log.warning("slack_socket_failed", error=code)
        self._health.bad("slack", f"Socket Mode cannot be connected ({code}): no press arrives by it", _ABOUT)

    async def _end(self) -> None:
        """What was acknowledged while it was being recorded is finished first. Nothing goes on after the service: what
        was not acknowledged, Slack delivers again."""
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
        """The client mends its connection by itself; here it is only looked at.

        Raises:
            SlackFault: it does not come back by itself, or may not before a time that Slack names.
        """
        bad = 0
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            self.connected = await client.is_connected()
            bad = 0 if self.connected else bad + 1
            if bad > 6 or client.rest_s:
                raise client.fault or SlackCallError(SendStatus.WORLD, "connection_lost")

    async def _listen(self, client: AsyncBaseSocketModeClient, given: SocketModeRequest) -> None:
        # Not in the client's own loop: one press that waits for the database must not hold up the next.
        task = asyncio.create_task(self._take(client, given))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _take(self, client: AsyncBaseSocketModeClient, given: SocketModeRequest) -> None:
        try:
            answer = await self._desk.take(read_envelope(given.type, given.payload))
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
            # what was done is durable; Slack delivers it again, and it is known and counted then
            log.warning("slack_not_acknowledged", error=type(error).__name__)
        else:
            metrics.SLACK_DELIVERIES.labels("socket", "taken").inc()

    async def _afterwards(self, after: FollowUp) -> None:
        try:
            await after()
        except Exception:
            log.exception("slack_afterwards_failed")
