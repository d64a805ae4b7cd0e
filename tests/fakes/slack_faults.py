"""A proxy before the Slack of the tests that fails as Slack fails, in both directions, and adds what that one lacks.

The service calls `faults.api_url`; the server delivers to `faults.request_url`, or over the socket whose address the
proxy gives out. Faults are scripted by method: `faults.on.next("chat.postMessage", CutAfter(), Status(429, 2))`
happen once each, `faults.on.always("*", NotOk("token_revoked"))` until `faults.on.lift()`. Deliveries to the service
are scripted in `faults.deliveries`. It listens on loopback, on a thread of its own.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qsl

import aiohttp
from aiohttp import web

from examples.local_service import free_port
from tests.counterparts.slack import SECRET, Mode, SlackServer, local_slack
from tests.fakes.scripted import Script
from tests.fakes.slack_deliveries import Deliveries
from tests.fakes.slack_socket import Relay
from tests.fakes.slack_truth import Truth

Json = dict[str, Any]

_START_S: Final = 60.0
_STOP_S: Final = 0.2  # what still hangs then is dropped
_JSON_ARGS: Final = ("blocks", "attachments", "view", "metadata")
_PASSED_HEADERS: Final = ("Authorization", "Content-Type")
_FORWARDED_HEADERS: Final = ("Content-Type", "User-Agent", "X-Slack-Request-Timestamp", "X-Slack-Signature")


@dataclass(frozen=True)
class Status:
    """Answered by HTTP status alone: 429 with Retry-After, 500, 503; Slack does not see the call."""

    status: int
    retry_after: int | None = None

    def answer(self) -> web.Response:
        """As Slack words it."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        error = "ratelimited" if self.status == 429 else "internal_error"
        return web.json_response({"ok": False, "error": error}, status=self.status, headers=headers)


@dataclass(frozen=True)
class NotOk:
    """Answered 200 with `ok: false`: token_revoked, is_archived, channel_not_found; Slack does not see the call."""

    error: str


@dataclass(frozen=True)
class Hang:
    """Nothing is said for so many seconds, or where these are none until it is lifted; then the connection is cut.
    `accepted`: Slack did it all the same."""

    seconds: float | None = None
    accepted: bool = False


@dataclass(frozen=True)
class CutBefore:
    """The connection is cut and Slack has not seen the call."""


@dataclass(frozen=True)
class CutAfter:
    """Slack does it, and the connection is cut before its answer."""


@dataclass(frozen=True)
class Garbled:
    """Slack does it, and something on the way answers 200 with a page of its own."""


Fault = Status | NotOk | Hang | CutBefore | CutAfter | Garbled


@dataclass
class Call:
    """One call of the service: what it asked, and what Slack said if it saw it."""

    method: str
    args: Json
    at: float
    answer: Json | None = None


@dataclass
class SlackFaults:
    """`on`: what happens to calls; `calls`: all that were made; `deliveries`: what comes from Slack."""

    on: Script[Fault] = field(default_factory=Script)
    calls: list[Call] = field(default_factory=list)
    truth: Truth = field(default_factory=Truth)
    secret: str = SECRET
    slack: str = ""  # http://host:port of the server behind
    clock: Callable[[], float] = time.time  # of Slack: that of the service, where a test moves that one

    def __post_init__(self) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.deliveries = Deliveries(self.secret, rewrite=self.truth.payload)
        self.relay: Relay
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def api_url(self) -> str:
        """What the service is to call instead of Slack."""
        return f"{self.url}/api/"

    @property
    def request_url(self) -> str:
        """Where the server is to deliver instead of to the service."""
        return f"{self.url}/deliver"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._up.wait(_START_S), "the proxy did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_S)

    def keep_time_with(self, clock: Callable[[], float]) -> None:
        """Slack's clock is that one from now on: calls, messages and signatures are of its time."""
        self.clock = self.truth.clock = self.deliveries.clock = clock

    def forget(self) -> None:
        """Nothing fails, nothing is remembered, and the time is the real one."""
        self.on.lift()
        self.deliveries.how.lift()
        self.calls.clear()
        self.keep_time_with(time.time)

    def accepted(self, method: str) -> list[Call]:
        """The calls of this method that Slack did, with or without an answer."""
        return [call for call in self.calls if call.method == method and call.answer and call.answer["ok"]]

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.relay = self.deliveries.socket = Relay(self.deliveries, self._loop)
        app = web.Application()
        app.router.add_route("*", "/api/{method}", self._call)
        app.router.add_post("/deliver", self._deliver)
        app.router.add_get("/socket/{id}", self._socket)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_S)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", int(self.url.rpartition(":")[2])).start()
        async with aiohttp.ClientSession() as self._http:
            self._up.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _call(self, request: web.Request) -> web.StreamResponse:
        method, body = request.match_info["method"], await request.read()
        args = {**request.query, **_arguments(body, request.content_type)}
        fault = self.on.step(method)
        call = Call(method, args, self.clock())
        self.calls.append(call)
        match fault:
            case Status():
                return fault.answer()
            case NotOk(error):
                return web.json_response({"ok": False, "error": error})
            case Hang(accepted=False, seconds=seconds):
                await self._hang(seconds)
                return _cut(request)
            case CutBefore():
                return _cut(request)
        call.answer = await self._ask(request, call, body)
        match fault:
            case Hang(seconds=seconds):
                await self._hang(seconds)
                return _cut(request)
            case CutAfter():
                return _cut(request)
            case Garbled():
                return web.Response(text="<html>a proxy's own page</html>", content_type="text/html")
        return web.json_response(call.answer)

    async def _hang(self, seconds: float | None) -> None:
        await (self.on.lifted() if seconds is None else asyncio.sleep(seconds))

    async def _ask(self, request: web.Request, call: Call, body: bytes) -> Json:
        headers = {name: request.headers[name] for name in _PASSED_HEADERS if name in request.headers}
        url = f"{self.slack}/api/{call.method}"
        ask = self._http.request(request.method, url, params=request.query, data=body, headers=headers)
        async with ask as answer:
            said: Json = await answer.json()
        if call.method == "apps.connections.open" and said["ok"]:
            said["url"] = f"ws{self.url.removeprefix('http')}/socket/{said['url'].rpartition('/')[2]}"
        return self.truth.answer(call.method, call.args, said)

    async def _deliver(self, request: web.Request) -> web.Response:
        given = request.headers.items()
        headers = {name: value for name, value in given if name.title() in _FORWARDED_HEADERS}
        answer = await self.deliveries.by_http(await request.read(), headers)
        return web.Response(status=answer.status or 504, body=answer.body)

    async def _socket(self, request: web.Request) -> web.WebSocketResponse:
        slack = f"ws{self.slack.removeprefix('http')}/socket/{request.match_info['id']}"
        return await self.relay.serve(request, slack)


def _arguments(body: bytes, content_type: str) -> Json:
    """What a call asks for, in either of Slack's two forms."""
    if content_type == "application/json":
        said: Json = json.loads(body)
        return said
    form: dict[str, Any] = dict(parse_qsl(body.decode(), keep_blank_values=True))
    return {name: _decoded(name, value) for name, value in form.items()}


def _decoded(name: str, value: Any) -> Any:
    return json.loads(value) if name in _JSON_ARGS else value


def _cut(request: web.Request) -> web.Response:
    if request.transport:
        request.transport.abort()
    return web.Response()


@contextmanager
def failing_slack(folder: Path, *, mode: Mode = "events") -> Iterator[tuple[SlackServer, SlackFaults]]:
    """The Slack of the tests with the proxy on both sides of it."""
    with (
        SlackFaults() as faults,
        local_slack(folder, request_url=faults.request_url, mode=mode) as slack,
    ):
        faults.slack = slack.url
        yield slack, faults
