"""The public server's connections before a small application that records what it is given."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from policy_service.channels.http.connections import BoundedConnection
from tests.fakes.asgi_server import listening


@dataclass
class Seen:
    """One request as the application saw it. ``body`` is None where it did not arrive whole."""

    path: str
    headers: list[tuple[bytes, bytes]]
    body: bytes | None


@dataclass
class EchoServer:
    """An application that reads each body; at /unread it answers without, at /large with ten megabytes."""

    seen: list[Seen] = field(default_factory=list)
    port: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body: bytes | None = None
        if scope["path"] != "/unread":
            with contextlib.suppress(ClientDisconnect):
                body = await Request(scope, receive).body()
        # A copy after the body: trailers must not have been added to the list meanwhile.
        self.seen.append(Seen(scope["path"], list(scope["headers"]), body))
        content = b"a" * 10_000_000 if scope["path"] == "/large" else b"seen"
        await Response(content)(scope, receive, send)

    async def exchange(self, *parts: bytes, pause: float = 0.0) -> bytes:
        """Send the parts, each in its own packet; all that is answered until the server closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        answer = asyncio.create_task(reader.read())
        try:
            for part in parts:
                if answer.done():
                    break
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause)
            async with asyncio.timeout(10):
                return await answer
        except ConnectionError:
            return b""
        finally:
            answer.cancel()
            writer.close()

    async def pour(self, head: bytes, pieces: Iterable[bytes]) -> int:
        """How many bytes after the head the server lets a client send before it closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        sent = 0
        try:
            writer.write(head)
            for piece in pieces:
                writer.write(piece)
                async with asyncio.timeout(10):
                    await writer.drain()
                await asyncio.sleep(0)
                if reader.at_eof():
                    break
                sent += len(piece)
        except ConnectionError:
            pass
        finally:
            writer.close()
        return sent


@asynccontextmanager
async def echo_server() -> AsyncIterator[EchoServer]:
    """A server for the block, on loopback."""
    app = EchoServer()
    config = uvicorn.Config(
        app, http=BoundedConnection, ws="none", port=0, log_config=None, access_log=False, lifespan="off"
    )
    async with listening(config) as app.port:
        yield app
