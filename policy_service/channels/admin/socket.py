"""Run operator commands against the database: through the service's Unix socket, or directly.

The embedded database belongs to one process. While the service runs, the command line sends a command through a Unix
socket in the data folder. Its mode is 0600, because its users own the data anyway. When the service is down, the
command line takes the lock and runs the command itself. With a database server the command line always runs it
directly, and every replica sees the change in its next unit of work.

A database that was never set up is refused. Otherwise a command in the wrong folder, or without the service's settings,
would create an empty database and stop nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import typer
from sqlalchemy import make_url
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from countersign.contract import ErrorCode
from policy_service.channels.admin.commands import COMMANDS, READ_ONLY, Arguments
from policy_service.errors import ServiceError, StartError
from policy_service.http_clients import socket_client
from policy_service.settings import Settings
from policy_service.storage.database import Database, StorageLimits, Tx
from policy_service.storage.migrations import is_empty, migrate
from policy_service.storage.sqlite import ProcessLock, is_missing, lock_path
from policy_service.storage.unit_of_work import Clock, utc_now
from policy_service.workflow.revocation.restore import reconcile_epoch

_SOCKET = "admin.sock"
_TIMEOUT_S = 30.0


def socket_path(settings: Settings) -> Path:
    """The Unix socket of the running service."""
    return settings.data_dir / _SOCKET


def admin_app(
    db: Database,
    settings: Settings,
    tools: Callable[[], Collection[str]],
    slack: Callable[[], Mapping[str, Any] | None] = lambda: None,
) -> Starlette:
    """The application behind the socket. ``tools``: those of the active bundle; ``slack``: the status that only this
    process knows."""

    async def call(request: Request) -> Response:
        name = request.path_params["verb"]
        verb = COMMANDS.get(name)
        if verb is None:
            return JSONResponse({"code": ErrorCode.NOT_FOUND.value, "detail": "no such verb"}, 404)
        args = json.loads(await request.body())
        try:
            done = await db.write(lambda tx: verb(tx, settings, args))
            if name == "stop" and args["tool"] is not None:  # lets the command line warn of a misspelled tool
                done["tools"] = sorted(tools())
            if name == "slack-status":
                done["running"] = slack()
            return JSONResponse(done)
        except ServiceError as error:
            return JSONResponse(error.to_problem(), error.status)

    return Starlette(routes=[Route("/{verb}", call, methods=["POST"])])


def run_admin_command(settings: Settings, name: str, args: Arguments) -> Any:
    """Run one command, through the running service or directly.

    Raises:
        StartError: the service refuses it, there is no database, or a process that does not respond holds it.
    """
    if is_embedded(settings) and _is_listening(socket_path(settings)):
        return _through_socket(settings, name, args)
    return _run_directly(settings, name, args)


def describe_database(settings: Settings) -> str:
    """The database for people: its file, or the server's address without credentials."""
    url = make_url(settings.database_url)
    if is_embedded(settings):
        return str(url.database)
    host = url.host or url.query.get("host") or "localhost"
    return f"{url.database} on {host}{f':{url.port}' if url.port else ''}"


def is_embedded(settings: Settings) -> bool:
    """Whether the database belongs to one process, with a lock and a socket."""
    return make_url(settings.database_url).get_backend_name() == "sqlite"


def _is_listening(path: Path) -> bool:
    """Whether a process listens on the socket. A killed service leaves its socket file behind."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_TIMEOUT_S)  # a hanging service does not accept once its backlog is full
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _through_socket(settings: Settings, name: str, args: Arguments) -> Any:
    try:
        with socket_client(socket_path(settings), timeout=_TIMEOUT_S) as client:
            answer = client.post(f"http://service/{name}", content=json.dumps(args).encode())
        body = answer.json()
        refusal = str(body["detail"]) if answer.is_error else None
    except (httpx2.HTTPError, ValueError, TypeError, KeyError) as error:
        # The service may run the command later, or may have failed after its commit.
        raise StartError(
            f"the service ({_lock_holder(settings)}) does not respond, so the result is unknown: repeat the "
            "command, or stop that process and repeat it"
        ) from error
    if refusal is not None:
        raise StartError(refusal)
    return body


def _lock_holder(settings: Settings) -> str:
    """The process that holds the database, as its lock file says."""
    try:
        holder = lock_path(Path(str(make_url(settings.database_url).database))).read_text()
    except OSError:
        holder = ""
    return holder.split(" (")[0] or "its pid is not known"


def _run_directly(settings: Settings, name: str, args: Arguments) -> Any:
    with existing_database(settings) as db:
        if is_embedded(settings):
            # its lines must not take indexes that a lost part of the log used
            try:
                reconcile_epoch(db, settings.key_dir)
            except StartError as behind:
                if name not in READ_ONLY:
                    raise
                typer.echo(f"WARNING: {behind}", err=True)
                return db.read_sync(lambda conn: COMMANDS[name](Tx(conn, utc_now()), settings, args))
        return db.write_sync(lambda tx: COMMANDS[name](tx, settings, args))


@contextlib.contextmanager
def existing_database(settings: Settings) -> Iterator[Database]:
    """Open the database of a deployment in this process.

    Raises:
        StartError: it was never set up, or another process holds it.
        StorageUnavailableError: it is unreachable.
    """
    if is_missing(make_url(settings.database_url)):  # before the lock, whose file would create the folder
        raise _no_database(settings)
    with embedded_lock(settings):
        if is_empty(settings.database_url):
            raise _no_database(settings)
        with open_database(settings) as db:
            yield db


def _no_database(settings: Settings) -> StartError:
    return StartError(
        f"there is no database {describe_database(settings)} yet; run: policy-service init (or, if a service already "
        "runs, use its settings: COUNTERSIGN_DATA_DIR, COUNTERSIGN_DATABASE_URL, ...)"
    )


@contextlib.contextmanager
def embedded_lock(settings: Settings) -> Iterator[None]:
    """Hold the lock of an embedded database; a database server has none.

    Raises:
        StartError: another process holds it.
    """
    url = make_url(settings.database_url)
    if not is_embedded(settings) or not url.database:
        yield
        return
    with ProcessLock(lock_path(Path(url.database)), f"policy-service, pid {os.getpid()}"):
        yield


def open_database(settings: Settings, *, clock: Clock | None = None) -> Database:
    """Migrate and open the database, with the limits of the settings.

    Raises:
        StartError: it is of a newer release, damaged, or would lose acknowledged commits.
        StorageUnavailableError: it is unreachable.
    """
    migrate(settings.database_url)
    limits = StorageLimits(
        max_batch=settings.max_batch,
        busy_timeout_ms=settings.busy_timeout_ms,
        read_threads=settings.read_threads,
        pool_size=settings.pool_size,
        max_runs=settings.max_runs,
        durable=settings.durability == "full",
    )
    return Database.open(settings.database_url, limits=limits, clock=clock)
