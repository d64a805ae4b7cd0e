"""How an operator's verb reaches the database.

The embedded database belongs to one process. While the service runs, the command line sends a verb through a Unix
socket in the data folder (mode 0600: whoever may use it owns the data anyway); when it is down, the command line takes
the lock and runs the verb itself. A database server has no owner: there the command line always writes by itself, and
every replica sees it with its next unit of work.

Refused: a database that nobody has set up. A verb in another folder, or without the service's settings, would make an
empty one, and stop nothing there.
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
from sqlalchemy import make_url
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from countersign.contract import ErrorCode
from policy_service.channels.admin.commands import COMMANDS, Arguments
from policy_service.errors import ServiceError, StartError
from policy_service.http_clients import socket_client
from policy_service.settings import Settings
from policy_service.storage.database import Database, StorageLimits
from policy_service.storage.migrations import is_empty, migrate
from policy_service.storage.sqlite import ProcessLock, is_missing, lock_path
from policy_service.storage.unit_of_work import Clock

_SOCKET = "admin.sock"
_TIMEOUT_S = 30.0


def socket_path(settings: Settings) -> Path:
    """Where the running service listens for its operator."""
    return settings.data_dir / _SOCKET


def admin_app(
    db: Database,
    settings: Settings,
    tools: Callable[[], Collection[str]],
    slack: Callable[[], Mapping[str, Any] | None] = lambda: None,
) -> Starlette:
    """The verbs behind the socket of a running service. ``tools``: those of the bundle in force; ``slack``: what only
    the process that runs knows of it."""

    async def call(request: Request) -> Response:
        name = request.path_params["verb"]
        verb = COMMANDS.get(name)
        if verb is None:
            return JSONResponse({"code": ErrorCode.NOT_FOUND.value, "detail": "no such verb"}, 404)
        args = json.loads(await request.body())
        try:
            done = await db.write(lambda tx: verb(tx, settings, args))
            if name == "stop" and args["tool"] is not None:  # a slip of the pen stops nothing
                done["tools"] = sorted(tools())
            if name == "slack-status":
                done["running"] = slack()
            return JSONResponse(done)
        except ServiceError as error:
            return JSONResponse(error.to_problem(), error.status)

    return Starlette(routes=[Route("/{verb}", call, methods=["POST"])])


def run_admin_command(settings: Settings, name: str, args: Arguments) -> Any:
    """Run one verb, through the running service or by ourselves.

    Raises:
        StartError: the service refuses it, there is no database, or something that does not answer holds it.
    """
    if is_embedded(settings) and _is_listening(socket_path(settings)):
        return _through_socket(settings, name, args)
    return _run_directly(settings, name, args)


def describe_database(settings: Settings) -> str:
    """The database in words: its file, or the server's address without who signs in there."""
    url = make_url(settings.database_url)
    if is_embedded(settings):
        return str(url.database)
    host = url.host or url.query.get("host") or "localhost"
    return f"{url.database} on {host}{f':{url.port}' if url.port else ''}"


def is_embedded(settings: Settings) -> bool:
    """Whether the database belongs to one process, and so has a lock and a socket."""
    return make_url(settings.database_url).get_backend_name() == "sqlite"


def _is_listening(path: Path) -> bool:
    """Whether somebody listens there; a killed service leaves its socket behind, and nobody holds the lock then."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_TIMEOUT_S)  # a service that hangs takes nobody in once its queue is full
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
        # It may hang and go on later, with this in its hands; or have met a fault after its commit.
        raise StartError(
            f"the service ({_lock_holder(settings)}) does not answer: whether it was done is not known: repeat it, or "
            "stop that process and run this again"
        ) from error
    if refusal is not None:
        raise StartError(refusal)
    return body


def _lock_holder(settings: Settings) -> str:
    """Who says that the database is theirs."""
    try:
        told = lock_path(Path(str(make_url(settings.database_url).database))).read_text()
    except OSError:
        told = ""
    return told.split(" (")[0] or "its pid is not known"


def _run_directly(settings: Settings, name: str, args: Arguments) -> Any:
    with existing_database(settings) as db:
        return db.write_sync(lambda tx: COMMANDS[name](tx, settings, args))


@contextlib.contextmanager
def existing_database(settings: Settings) -> Iterator[Database]:
    """The database of a deployment, for this process.

    Raises:
        StartError: nobody has set it up, or another process holds it.
        StorageUnavailableError: it cannot be reached.
    """
    if is_missing(make_url(settings.database_url)):  # before the lock, whose file would make the folder
        raise _no_database(settings)
    with embedded_lock(settings):
        if is_empty(settings.database_url):
            raise _no_database(settings)
        with open_database(settings) as db:
            yield db


def _no_database(settings: Settings) -> StartError:
    return StartError(
        f"there is no database {describe_database(settings)} yet; run: policy-service init (or, where a service runs "
        "already, run this with its settings: COUNTERSIGN_DATA_DIR, COUNTERSIGN_DATABASE_URL, ...)"
    )


@contextlib.contextmanager
def embedded_lock(settings: Settings) -> Iterator[None]:
    """Hold an embedded database for this process; nothing to hold for a database server.

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
    """The database brought to this release's tables, with the limits of the settings.

    Raises:
        StartError: it is of a newer release, damaged, or would lose acknowledged commits.
        StorageUnavailableError: it cannot be reached.
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
