"""Readers of fact sources: SQL databases and HTTP hosts of the operator.

SQL: the connection cannot write (SQLite is opened `mode=ro` with `query_only`, PostgreSQL reads only by default and in
the transaction); the database stops a statement that takes too long; every value is a bound parameter. Other kinds of
database are refused, because these guarantees are not known for them.

HTTP: the request is one JSON object of the canonical args, the resource, the agent and the tool, or of those the source
asks to send; the answer is one object of attributes, and 404 means that nothing is known. Time and size of the whole
answer are limited and counted while it arrives. No token, and nothing of an answer, is part of a message. Each
connection serves one request. Equal requests share the answer that is on its way. An answer is served again for
`cache`, with the time it was fetched at (or its own), never beyond `max_age`; a 404 or a failure for a second.
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
"""How many rows are fetched at most: the second one already makes the answer wrong."""

_STEPS_PER_CHECK: Final = (
    2_000  # SQLite virtual machine steps between two looks at the clock: well under a millisecond
)
_POOL: Final = 4  # connections a PostgreSQL source keeps; further reads wait for one of them


class SourceFailedError(Exception):
    """A source gave no usable answer. The text is for the operator; an agent only learns that it failed."""


class SqlReader:
    """Asks one query of one database. Blocking: callers run it in a thread.

    Raises:
        SourceFailedError: the URL is none, or names a kind of database we cannot hold to reading.
    """

    def __init__(self, url: str, query: str, timeout: timedelta) -> None:
        self._engine = _engine(url, timeout)
        self._query = text(query)
        self._binds = tuple(self._query.compile().params)

    def read(self, values: Mapping[str, str]) -> Rows:
        """The rows of the answer, at most `ENOUGH_ROWS`.

        Raises:
            SourceFailedError: the database could not be asked, refused, or took too long.
        """
        try:
            with self._engine.connect() as connection:
                answer = connection.execute(self._query, {name: values[name] for name in self._binds})
                return [dict(row) for row in answer.mappings().fetchmany(MAX_ROWS)]
        except SQLAlchemyError as error:
            # `orig` is the driver's sentence; SQLAlchemy's own would repeat the statement and its parameters
            cause = getattr(error, "orig", None) or error
            raise SourceFailedError(f"{type(cause).__name__}: {cause}") from error

    def close(self) -> None:
        """Let go of the connections; one that is in use is closed when it comes back."""
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
    """Opens the file for each question: a kept connection would go on reading a file that was replaced
    meanwhile.
    """
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
            "connect_timeout": max(2, int(seconds)),  # libpq takes no less than 2 s
            "options": options,
        },
    )


@dataclass(frozen=True)
class AllowedHost:
    """A host that may be called, with the token it knows us by."""

    setting: FactsHost | DirectoryApi
    token: str | None = field(default=None, repr=False)
    resolve: Resolve = resolve

    async def ask(
        self, method: str, url: str, *, limits: Limits, seconds: float, body: bytes | None = None
    ) -> JSON | None:
        """The JSON it answers with; None when it answers 404.

        Raises:
            SourceFailedError: it gave no usable answer in that time.
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
        raise SourceFailedError("its answer is compressed, which nobody asked for")
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


_THREAD_THRESHOLD: Final = 65_536  # bytes; more would hold up the event loop


_LIMITS: Final = Limits(max_bytes=65_536, max_depth=4, max_nodes=2_000)  # attributes of one entity
_MAX_CACHED: Final = 1_024  # answers of one source, some 64 MB at the very worst
_NEGATIVE_CACHE: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What one question came to: a row, nothing, or why it failed; and when it was asked."""

    row: Mapping[str, Any] | None
    asked_at: datetime
    failed: str | None = None


class HttpReader:
    """Asks one address. It holds nothing open."""

    def __init__(self, spec: SourceSpec, place: AllowedHost, turns: asyncio.Semaphore) -> None:
        """``turns`` bounds the questions to one host, over all sources there."""
        self._spec = spec
        self._place = place
        self._turns = turns
        self._kept: OrderedDict[bytes, HttpAnswer] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[HttpAnswer]] = {}

    async def ask(self, values: Mapping[str, str], now: datetime) -> tuple[HttpAnswer, bool]:
        """The answer, and whether it is one of before.

        Raises:
            SourceFailedError: there is none to be had.
        """
        body = canonicalize(self._question(values))
        kept = self._kept.get(body)
        again = kept is not None and self._may_serve(kept, now)
        answer = kept if kept is not None and again else await self._ask_once(body, now)
        if answer.failed is not None:
            raise SourceFailedError(answer.failed)
        return answer, again

    def close(self) -> None:
        """Forget every answer; a question that is on its way ends by its own limit of time."""
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
            return True  # whoever asks is told so by a fresh answer

    async def _ask_once(self, body: bytes, now: datetime) -> HttpAnswer:
        running = self._asking.get(body)
        if running is None:
            running = self._asking[body] = asyncio.create_task(self._ask(body, now))
            running.add_done_callback(lambda _: self._asking.pop(body, None))
        return await asyncio.shield(running)  # the first who asks may hang up; the others still wait for it

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
