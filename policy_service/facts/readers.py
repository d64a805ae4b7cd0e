"""Readers of fact sources: SQL databases and HTTP hosts of the operator.

SQL: the connection cannot write (SQLite is opened `mode=ro` with `query_only`; PostgreSQL is read-only by default and
in the transaction). The database stops a slow statement. Every value is a bound parameter. Other databases are
refused, because these guarantees are not known for them.

HTTP: the request is a JSON object of the canonical arguments, resource, agent and tool, or of those that the source
sends. The response is an object of attributes; 404 means that nothing is known. Time and size are limited while the
response arrives. No message contains a token or part of a response. Each connection serves one request. Concurrent
equal requests share one response. A response is cached for `cache`, with its own time or the time of its request,
never beyond `max_age`; a 404 or a failure for a second.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import httpx2
from sqlalchemy import URL, Engine, NullPool, create_engine, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from countersign.contract import JSON, ContractError, Limits, canonicalize, load
from policy_service.facts.config import SourceSpec, parse_timestamp
from policy_service.http_clients import Resolve, UnreachableError, open_response, resolve
from policy_service.remote_hosts import DirectoryApi, FactsHost

Rows: TypeAlias = Sequence[Mapping[str, Any]]

MAX_ROWS: Final = 2
"""Rows fetched at most: a second row already makes the answer ambiguous."""

_STEPS_PER_CHECK: Final = (
    2_000  # SQLite virtual machine steps between two checks of the deadline: below a millisecond
)
_POOL: Final = 4  # pooled connections of a PostgreSQL source


class SourceFailedError(Exception):
    """A source gave no usable answer. The message is for the operator; an agent learns only that the source failed."""


class SqlReader:
    """Runs one query on one database. Blocking: callers run it in a thread.

    Raises:
        SourceFailedError: the URL is invalid, or names a database that cannot be restricted to reading.
    """

    def __init__(self, url: str, query: str, timeout: timedelta) -> None:
        self._engine = _engine(url, timeout)
        self._query = text(query)
        self._binds = tuple(self._query.compile().params)

    def read(self, values: Mapping[str, str]) -> Rows:
        """The rows of the answer, at most `MAX_ROWS`.

        Raises:
            SourceFailedError: the database is unreachable, refused the query, or took too long.
        """
        try:
            with self._engine.connect() as connection:
                answer = connection.execute(self._query, {name: values[name] for name in self._binds})
                return [dict(row) for row in answer.mappings().fetchmany(MAX_ROWS)]
        except SQLAlchemyError as error:
            # `orig` is the driver's message; SQLAlchemy's own would repeat the statement and its parameters
            cause = getattr(error, "orig", None) or error
            raise SourceFailedError(f"{type(cause).__name__}: {cause}") from error

    def close(self) -> None:
        """Close the connections; one in use is closed when it is returned."""
        self._engine.dispose()


def _engine(url: str, timeout: timedelta) -> Engine:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise SourceFailedError(
            "its URL is not a database URL; write sqlite:///FILE or postgresql://..."
        ) from error
    match parsed.get_backend_name():
        case "sqlite":
            return _sqlite(parsed, timeout.total_seconds())
        case "postgresql":
            return _postgresql(parsed, timeout.total_seconds())
    raise SourceFailedError(
        f"{parsed.get_backend_name()!r} databases are not supported; use sqlite or postgresql"
    )


def _sqlite(url: URL, seconds: float) -> Engine:
    """Opens the file for each query: a kept connection would continue to read a replaced file."""
    if not url.database or url.database == ":memory:":
        raise SourceFailedError("a SQLite source needs a file; write sqlite:///FILE")
    uri = f"file:{quote(str(Path(url.database).absolute()))}?mode=ro"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(uri, uri=True, timeout=seconds, check_same_thread=False)
        connection.execute("PRAGMA query_only = ON")
        deadline = time.monotonic() + seconds
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_PER_CHECK)
        return connection

    return create_engine("sqlite://", creator=connect, poolclass=NullPool, hide_parameters=True)


def _postgresql(url: URL, seconds: float) -> Engine:
    options = (
        f"-c timezone=UTC -c default_transaction_read_only=on -c statement_timeout={int(seconds * 1000)}"
    )
    return create_engine(
        url.set(drivername="postgresql+psycopg"),
        pool_size=_POOL,
        max_overflow=0,
        pool_pre_ping=True,
        pool_timeout=seconds,
        hide_parameters=True,
        connect_args={
            "connect_timeout": max(2, int(seconds)),  # libpq's minimum is 2 s
            "options": options,
        },
    )


@dataclass(frozen=True)
class AllowedHost:
    """A host on the allowlist, with our token for it."""

    setting: FactsHost | DirectoryApi
    token: str | None = field(default=None, repr=False)
    resolve: Resolve = resolve

    async def ask(
        self, method: str, url: str, *, limits: Limits, seconds: float, body: bytes | None = None
    ) -> JSON | None:
        """The JSON of the response; None for a 404.

        Raises:
            SourceFailedError: no usable response in that time.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._ask(method, url, limits, body)
        except TimeoutError as error:
            raise SourceFailedError(f"no whole answer within {seconds:g} s") from error
        except UnreachableError as error:
            raise SourceFailedError(str(error)) from error
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise SourceFailedError(f"{type(error).__name__}: {error}") from error

    async def _ask(self, method: str, url: str, limits: Limits, body: bytes | None) -> JSON | None:
        headers = {"Accept": "application/json, application/scim+json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        there = self.setting
        async with open_response(
            method, url, there, headers=headers, body=body, resolve=self.resolve
        ) as response:
            return await _read(response, limits)


async def _read(response: httpx2.Response, limits: Limits) -> JSON | None:
    if response.status_code == 404:
        return None
    if response.status_code != 200:
        raise SourceFailedError(f"it answered {response.status_code}")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise SourceFailedError("its answer is compressed, which was not requested")
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in {"application/json", "application/scim+json"}:
        raise SourceFailedError(f"its answer is {kind!r} and not application/json")
    raw = bytearray()
    async for chunk in response.aiter_raw():
        raw += chunk
        if len(raw) > limits.max_bytes:
            raise SourceFailedError(f"its answer is longer than {limits.max_bytes} bytes")
    try:
        if len(raw) > _THREAD_THRESHOLD:
            return await asyncio.to_thread(load, bytes(raw), limits)
        return load(bytes(raw), limits)
    except ContractError as error:
        raise SourceFailedError(f"its answer is no JSON we take ({error.code})") from error


_THREAD_THRESHOLD: Final = 65_536  # bytes; parsing more would block the event loop


_LIMITS: Final = Limits(max_bytes=65_536, max_depth=4, max_nodes=2_000)  # attributes of one entity
_MAX_CACHED: Final = 1_024  # responses of one source, at most about 64 MB
_NEGATIVE_CACHE: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The result of one request: a row, nothing, or an error; and the time of the request."""

    row: Mapping[str, Any] | None
    asked_at: datetime
    failed: str | None = None


class HttpReader:
    """Requests one address. It keeps no connection open."""

    def __init__(self, spec: SourceSpec, place: AllowedHost, turns: asyncio.Semaphore) -> None:
        """``turns`` limits the concurrent requests to one host, over all its sources."""
        self._spec = spec
        self._place = place
        self._turns = turns
        self._kept: OrderedDict[bytes, HttpAnswer] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[HttpAnswer]] = {}

    async def ask(self, values: Mapping[str, str], now: datetime) -> tuple[HttpAnswer, bool]:
        """The answer, and whether it came from the cache.

        Raises:
            SourceFailedError: there is none.
        """
        body = canonicalize(self._question(values))
        kept = self._kept.get(body)
        again = kept is not None and self._may_serve(kept, now)
        answer = kept if kept is not None and again else await self._ask_once(body, now)
        if answer.failed is not None:
            raise SourceFailedError(answer.failed)
        return answer, again

    def close(self) -> None:
        """Clear the cache; a running request ends by its own timeout."""
        self._kept.clear()

    def _question(self, values: Mapping[str, str]) -> JSON:
        everything: dict[str, JSON] = {
            "args": load(values["args"].encode()),
            "resource": {"type": values["resource_type"], "id": values["resource_id"]},
            "agent": values["agent"],
            "tool": values["tool"],
        }
        return {name: everything[name] for name in self._spec.send}

    def _may_serve(self, kept: HttpAnswer, now: datetime) -> bool:
        age, good = now - kept.asked_at, self._spec.cache
        if kept.row is None:
            good = min(good, _NEGATIVE_CACHE)
        return timedelta() <= age < good and not self._has_become_stale(kept, now)

    def _has_become_stale(self, kept: HttpAnswer, now: datetime) -> bool:
        if kept.row is None or self._spec.as_of is None or self._spec.max_age is None:
            return False
        try:
            return now - parse_timestamp(kept.row.get(self._spec.as_of)) > self._spec.max_age
        except ValueError:
            return True  # a fresh answer will report the error

    async def _ask_once(self, body: bytes, now: datetime) -> HttpAnswer:
        running = self._asking.get(body)
        if running is None:
            running = self._asking[body] = asyncio.create_task(self._ask(body, now))
            running.add_done_callback(lambda _: self._asking.pop(body, None))
        return await asyncio.shield(
            running
        )  # the first caller may be cancelled; the others still wait for it

    async def _ask(self, body: bytes, now: datetime) -> HttpAnswer:
        seconds = self._spec.timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds), self._turns:
                found = await self._place.ask(
                    "POST", str(self._spec.url), limits=_LIMITS, seconds=seconds, body=body
                )
            if found is not None and not isinstance(found, dict):
                raise SourceFailedError("its answer is no object of attributes")
            answer = HttpAnswer(found, now)
        except TimeoutError:
            answer = HttpAnswer(None, now, f"no turn and no whole answer within {seconds:g} s")
        except SourceFailedError as error:
            answer = HttpAnswer(None, now, str(error))
        if self._spec.cache:
            self._keep(body, answer)
        return answer

    def _keep(self, body: bytes, answer: HttpAnswer) -> None:
        self._kept[body] = answer
        self._kept.move_to_end(body)
        while len(self._kept) > _MAX_CACHED:
            self._kept.popitem(last=False)
