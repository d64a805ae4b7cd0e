"""Run the public server and, for an embedded database, the operator's Unix socket in one process.

A stop first ends long polls and streams, then waits for running requests. The service finishes its work before the
signal that requested the stop ends the process.
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
    """A uvicorn server that signals when it has started or failed to, and when it begins to shut down."""

    def __init__(self, config: uvicorn.Config, on_closing: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self.settled = asyncio.Event()
        self._on_closing = on_closing

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, and signal the result."""
        try:
            await super().startup(sockets)
        finally:
            self.settled.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End long polls and streams, then shut down: uvicorn waits a limited time for running requests."""
        self._on_closing()
        await super().shutdown(sockets)

    async def serve_quietly(self, listener: socket.socket | None) -> None:
        """Serve without signal handlers; the caller sets ``should_exit``."""
        await self._serve(None if listener is None else [listener])


async def serve_with_socket(
    app: FastAPI,
    config: uvicorn.Config,
    ctx: Context,
    welcome: Callable[[], None],
    listener: socket.socket | None = None,
) -> None:
    """Serve until interrupted. ``welcome`` runs in a thread once both servers listen.

    A worker serves on the ``listener`` that its supervisor bound.

    Raises:
        StartError: the address is in use, or the service cannot start.
    """
    async with run_servers(app, config, ctx, shared=listener) as serving:
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
    shared: socket.socket | None = None,
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve for the duration of the block; with ``signals``, at most until interrupted.

    Raises:
        StartError: the address is in use, or the service cannot start.
    """
    settings = ctx.settings
    public = _Server(config, ctx.feed.close)
    async with AsyncExitStack() as stack:
        if signals:
            # Entered first and left last: on exit uvicorn raises the captured signal again, and SIGTERM ends the
            # process at once. By then the audit log is finished and the epoch mark is written.
            stack.enter_context(public.capture_signals())
        if shared is None:
            stack.enter_context(_require_free_address(config))
        # Started here and not by uvicorn, so that a failure is reported as a sentence.
        await stack.enter_async_context(app.router.lifespan_context(app))
        has_socket = operator and is_embedded(settings)
        listener = stack.enter_context(_admin_listener(settings)) if has_socket else None
        serving = asyncio.create_task(public.serve_quietly(shared))
        await public.settled.wait()
        if listener is not None:
            slack = app.state.service.slack
            slack_status = (lambda: None) if slack is None else slack.process_status
            commands = admin_app(ctx.db, settings, lambda: ctx.active.current.manifests, slack_status)
            await stack.enter_async_context(_admin_server(commands, listener))
        try:
            yield serving
        finally:
            public.should_exit = True
            await serving


@contextlib.asynccontextmanager
async def _admin_server(commands: Starlette, listener: socket.socket) -> AsyncIterator[None]:
    server = _Server(uvicorn.Config(commands, log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve_quietly(listener))
    await server.settled.wait()
    try:
        yield
    finally:
        server.should_exit = True
        await serving


@contextlib.contextmanager
def _require_free_address(config: uvicorn.Config) -> Iterator[None]:
    """Refuse an address that is in use, before anything runs."""
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
    """The operator's socket, for this user only. A stale socket is replaced, because this process holds the lock."""
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
            "the path of a socket has at most 107 bytes, so use a shorter data_dir"
        ) from error
    finally:
        os.umask(before)
    try:
        yield listener
    finally:
        listener.close()
        path.unlink(missing_ok=True)
