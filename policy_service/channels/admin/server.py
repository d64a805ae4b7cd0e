"""Serving two doors with one process: the public one, and, where the database is this process's own, the operator's
socket in the data folder.

A stop lets go of those who wait before it waits for what is still being answered; what the service has to finish is
finished before the signal that asked for the stop takes its course.
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

from policy_service.channels.admin.socket import admin_app, is_embedded, socket_path
from policy_service.errors import StartError
from policy_service.queries.context import Context
from policy_service.settings import Settings


class _Server(uvicorn.Server):
    """A server that tells when it is open, or that it never will be, and when it begins to close."""

    def __init__(self, config: uvicorn.Config, on_closing: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self.settled = asyncio.Event()
        self._on_closing = on_closing

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open, and say so."""
        try:
            await super().startup(sockets)
        finally:
            self.settled.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let go of those who wait, then close: what is still being answered is waited for here, and not for long."""
        self._on_closing()
        await super().shutdown(sockets)

    async def serve_quietly(self, listener: socket.socket | None) -> None:
        """Serve without looking after signals: somebody else does, or says when it ends."""
        await self._serve(None if listener is None else [listener])


async def serve_with_socket(
    app: FastAPI, config: uvicorn.Config, ctx: Context, welcome: Callable[[], None]
) -> None:
    """Serve until interrupted. ``welcome`` runs in a thread once both doors are open.

    Raises:
        StartError: the address is taken, or the service refused to start.
    """
    async with run_servers(app, config, ctx) as serving:
        await asyncio.to_thread(welcome)
        await serving


@contextlib.asynccontextmanager
async def run_servers(
    app: FastAPI,
    config: uvicorn.Config,
    ctx: Context,
    *,
    signals: bool = True,
    operator: bool = True,
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve for the block, and until interrupted where the doors have ``signals`` of their own.

    Raises:
        StartError: the address is taken, or the service refused to start.
    """
    settings = ctx.settings
    public = _Server(config, ctx.feed.close)
    async with AsyncExitStack() as stack:
        if signals:
            # First in and last out: when it lets go, the server raises again what it has caught, and SIGTERM ends the
            # process on the spot. By then the log has been finished and the mark written.
            stack.enter_context(public.capture_signals())
        stack.enter_context(_require_free_address(config))
        # The application is started here and not by the server, so that a refusal to start is a sentence.
        await stack.enter_async_context(app.router.lifespan_context(app))
        has_socket = operator and is_embedded(settings)
        listener = stack.enter_context(_admin_listener(settings)) if has_socket else None
        serving = asyncio.create_task(public.serve_quietly(None))
        await public.settled.wait()
        if listener is not None:
            slack = app.state.service.slack
            known = (lambda: None) if slack is None else slack.known
            verbs = admin_app(ctx.db, settings, lambda: ctx.active.current.manifests, known)
            await stack.enter_async_context(_admin_server(verbs, listener))
        try:
            yield serving
        finally:
            public.should_exit = True
            await serving


@contextlib.asynccontextmanager
async def _admin_server(verbs: Starlette, listener: socket.socket) -> AsyncIterator[None]:
    door = _Server(uvicorn.Config(verbs, log_config=None, lifespan="off"))
    serving = asyncio.create_task(door.serve_quietly(listener))
    await door.settled.wait()
    try:
        yield
    finally:
        door.should_exit = True
        await serving


@contextlib.contextmanager
def _require_free_address(config: uvicorn.Config) -> Iterator[None]:
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
def _admin_listener(settings: Settings) -> Iterator[socket.socket]:
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
