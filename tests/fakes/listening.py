"""A world behind a real socket, on a thread of its own: for clients that know nothing of our event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self, TypeVar

import uvicorn

from examples.local_service import free_port
from tests.fakes.asgi_server import listening
from tests.fakes.world import World, running

T = TypeVar("T")
_START_S = 60.0


class Listening:
    """A running service at ``url``. Its own coroutines are run with :meth:`do`."""

    def __init__(self, data: Path, bundle: Path, **settings: Any) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.world: World
        self._folder = (data, bundle)
        self._settings = settings
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._stop: asyncio.Event
        self._loop: asyncio.AbstractEventLoop

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._up.wait(_START_S), "the service did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_S)

    def do(self, work: Callable[[World], Awaitable[T]]) -> T:
        """Run something on the service's own loop."""

        async def there() -> T:
            return await work(self.world)

        return asyncio.run_coroutine_threadsafe(there(), self._loop).result(_START_S)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        data, bundle = self._folder
        async with running(data, bundle, **{"public_url": self.url, **self._settings}) as self.world:
            port = int(self.url.rpartition(":")[2])
            quiet: dict[str, Any] = {"log_config": None, "lifespan": "off", "access_log": False}
            config = uvicorn.Config(self.world.app, port=port, **quiet)
            async with listening(config):
                self._up.set()
                await self._stop.wait()
