"""A world behind a real socket, where a stream streams, and a reader of what comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from policy_service.cli import _uvicorn_config
from tests.fakes.asgi_server import listening
from tests.fakes.world import World

_PATIENCE_S = 10.0


@asynccontextmanager
async def served(bank: World) -> AsyncIterator[int]:
    """The same application behind a real socket; its port."""
    config = _uvicorn_config(bank.app, bank.settings.model_copy(update={"port": 0}))
    async with listening(config) as port:
        yield port
        bank.service.feed.close()


class Stream:
    """A reader of server-sent events."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self.last_id = ""

    async def event(self) -> dict[str, str]:
        """The next event that has data."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                raw = await self._reader.readline()
                assert raw, "the stream ended"
                line = raw.decode().rstrip("\r\n")
                name, _, value = line.partition(": ")
                if name in {"id", "event", "data"}:
                    fields[name] = value
                elif not line and "id" in fields:
                    self.last_id = fields["id"]
                    if "data" in fields:
                        return fields
                    fields = {}

    async def until(self, words: str) -> None:
        """Read on until an event holds these words."""
        while words not in (await self.event())["data"]:
            pass

    async def end(self) -> None:
        """Read on until the service ends the stream."""
        async with asyncio.timeout(_PATIENCE_S):
            while await self._reader.readline():
                pass


@asynccontextmanager
async def events(port: int, headers: dict[str, str], path: str = "/v1/events") -> AsyncIterator[Stream]:
    """An open stream of events."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    # Without `close` the end of a stream shows only when the kept connection idles out, seconds later.
    lines = {"Host": "127.0.0.1:8420", "Accept": "text/event-stream", "Connection": "close", **headers}
    head = f"GET {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items())
    writer.write((head + "\r\n").encode())
    assert b"200" in await reader.readline()
    try:
        yield Stream(reader)
    finally:
        writer.close()
