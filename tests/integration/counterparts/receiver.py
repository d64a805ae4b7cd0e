"""A throw-away app: it keeps what Slack sends, answers what it is told to, and nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, parse_qsl

from aiohttp import web

from tests.fakes.operated import free_port


@dataclass
class Got:
    """One delivery as it came."""

    body: bytes
    headers: Mapping[str, str]

    @property
    def payload(self) -> dict[str, Any]:
        """What it says, whichever of Slack's three forms it has."""
        text = self.body.decode()
        if self.headers["Content-Type"] == "application/json":
            said: dict[str, Any] = json.loads(text)
            return said
        form = parse_qs(text)
        return json.loads(form["payload"][0]) if "payload" in form else dict(parse_qsl(text))


@dataclass
class Receiver:
    """`got` in the order of arrival; the answer is `answer`, or what `answers` says for a payload's type."""

    url: str
    got: list[Got] = field(default_factory=list)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    status: int = 200

    async def take(self, request: web.Request) -> web.Response:
        """Keep it, and answer."""
        one = Got(await request.read(), dict(request.headers))
        self.got.append(one)
        answer = self.answers.get(one.payload.get("type", "command"))
        text = "" if answer is None else json.dumps(answer)
        return web.Response(text=text, status=self.status, content_type="application/json")


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """A receiver on a loopback port, on this event loop."""
    port = free_port()
    receiver = Receiver(f"http://127.0.0.1:{port}/slack")
    app = web.Application()
    app.router.add_post("/slack", receiver.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield receiver
    finally:
        await runner.cleanup()
