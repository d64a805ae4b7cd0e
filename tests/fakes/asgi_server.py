"""An ASGI application behind a real socket on loopback, for as long as a block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn


@asynccontextmanager
async def listening(config: uvicorn.Config) -> AsyncIterator[int]:
    """Its port."""
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110  uvicorn has no other signal
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving
