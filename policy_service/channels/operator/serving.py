"""Serving two doors with one process: the public one, and, where the database is this process's own, the operator's
socket in the data folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack

import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette

from policy_service.channels.operator.socket import admin_app, is_embedded, socket_path
from policy_service.errors import StartError
from policy_service.settings import Settings
from policy_service.storage.database import Database


class _Door(uvicorn.Server):
    """A server that tells when it is open, or that it never will be."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.settled = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open, and say so."""
        try:
            await super().startup(sockets)
        finally:
            self.settled.set()

    async def serve_quietly(self, listener: socket.socket | None) -> None:
        """Serve without signal handlers: somebody else says when it ends."""
        await self._serve(None if listener is None else [listener])


async def serve_with_socket(
    app: FastAPI, config: uvicorn.Config, db: Database, settings: Settings, welcome: Callable[[], None]
) -> None:
    """Serve until interrupted. ``welcome`` runs in a thread once both doors are open.

    Raises:
        StartError: the address is taken, or the service refused to start.
    """
    async with open_doors(app, config, db, settings) as serving:
        await asyncio.to_thread(welcome)
        await serving


@contextlib.asynccontextmanager
async def open_doors(
    app: FastAPI,
    config: uvicorn.Config,
    db: Database,
    settings: Settings,
    *,
    signals: bool = True,
    operator: bool = True,
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve for the block, and until interrupted where the doors have ``signals`` of their own.

    Raises:
        StartError: the address is taken, or the service refused to start.
    """
    public = _Door(config)
    async with AsyncExitStack() as stack:
        stack.enter_context(_bound(config))
        # The application is started here and not by the server, so that a refusal to start is a sentence.
        await stack.enter_async_context(app.router.lifespan_context(app))
        tools = lambda: app.state.service.active.current.manifests  # noqa: E731
        has_socket = operator and is_embedded(settings)
        listener = stack.enter_context(_admin_socket(settings)) if has_socket else None
        serving = asyncio.create_task(public.serve() if signals else public.serve_quietly(None))
        await public.settled.wait()
        if listener is not None:
            await stack.enter_async_context(_operators_door(admin_app(db, settings, tools), listener))
        try:
            yield serving
        finally:
            public.should_exit = True
            await serving


@contextlib.asynccontextmanager
async def _operators_door(verbs: Starlette, listener: socket.socket) -> AsyncIterator[None]:
    door = _Door(uvicorn.Config(verbs, log_config=None, lifespan="off"))
    serving = asyncio.create_task(door.serve_quietly(listener))
    await door.settled.wait()
    try:
        yield
    finally:
        door.should_exit = True
        await serving


@contextlib.contextmanager
def _bound(config: uvicorn.Config) -> Iterator[None]:
    """Refuse in a sentence, before anything runs, an address somebody else listens on."""
    probe = socket.socket(socket.AF_INET6 if ":" in config.host else socket.AF_INET)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((config.host, config.port))
    except OSError as error:
        raise StartError(
            f"cannot listen on {config.host}:{config.port}: {error.strerror}; set another port"
        ) from error
    finally:
        probe.close()
    yield


@contextlib.contextmanager
def _admin_socket(settings: Settings) -> Iterator[socket.socket]:
    """The operator's socket, for this user alone; a leftover of a killed service is replaced (we hold the lock)."""
    path = socket_path(settings)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise StartError(
            f"the operator's socket {path} cannot be opened ({error}); "
            "a socket's path holds 107 bytes at most, use a shorter data_dir"
        ) from error
    finally:
        os.umask(before)
    try:
        yield listener
    finally:
        listener.close()
        path.unlink(missing_ok=True)
