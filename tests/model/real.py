"""The real service as the machine drives it: in this process, over its wire, on either engine, its clock standing.

It can be made to lose the answer of the next request, before or after its commit, and to die between two requests: the
next one finds the same database, and nothing else.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from anyio.from_thread import BlockingPortal, start_blocking_portal
from sqlalchemy import Connection, select

from policy_service.errors import StorageUnavailableError
from policy_service.storage import tables
from policy_service.storage.core import table
from tests.fakes.log_check import faults_of_log
from tests.fakes.payments import person
from tests.fakes.world import Agent, Clock, Visitor, World, running
from tests.model.gates import OWNER
from tests.model.rules import USUAL, Bundle

T = TypeVar("T")


LOST: ContextVar[str | None] = ContextVar("LOST", default=None)
"""What happens to the next unit of work of this request: undone before its commit, or committed without an answer."""


@dataclass
class Tables:
    """Every row that the protocol is about, as the database has it."""

    effects: Sequence[Any]
    transactions: Sequence[Any]
    reviews: Sequence[Any]
    votes: Sequence[Any]
    tasks: Sequence[Any]
    attempts: Sequence[Any]
    redemptions: Sequence[Any]
    decisions: dict[str, Any]


def read_tables(conn: Connection) -> Tables:
    """All of them, in one snapshot."""

    def rows(model: Any) -> Sequence[Any]:
        return conn.execute(select(*table(model).columns)).all()

    decisions = {row.decision_id: row for row in rows(tables.DecisionRow)}
    named = "Effect Transaction Review Vote Task Attempt Redemption".split()
    found: list[Any] = [rows(getattr(tables, f"{name}Row")) for name in named]
    return Tables(*found, decisions)


class Real:
    """A service of the machine's own."""

    def __init__(self, folder: Path, database: dict[str, str]) -> None:
        self._folder, self._database = folder, database
        self._life, self._lives = ExitStack(), 0
        self._portal: BlockingPortal = self._life.enter_context(start_blocking_portal())
        self.bundle = folder / "bundle"
        self.bundle.mkdir()
        USUAL.lay(self.bundle)
        self.clock = Clock()
        self.clock.stop_at(datetime.now(UTC).replace(microsecond=0))
        self._latest = self.clock()
        self.agents: dict[str, Agent] = {}  # by key
        self._visitors: dict[str, Visitor] = {}
        self.world, self._running = self._start(folder / "data-0")
        self.do(self._enroll)

    def do(self, work: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run something in the service's event loop."""
        return self._portal.call(work, *args)

    async def _enroll(self) -> None:
        for name, owner in (("robot", person(OWNER)), ("cart", None), ("warehouse", None)):
            self.agents[f"{name}/1"] = await self.world.agent(name, owner=owner)
        await self.another_key("robot/1", "robot/2")

    async def another_key(self, key: str, other: str) -> None:
        """One more key of the same agent."""
        self.agents[other] = await self.world.another_key(self.agents[key])

    # -- life and death --------------------------------------------------------------------------------------

    def _start(self, data: Path) -> tuple[World, AbstractContextManager[World]]:
        context = running(data, self.bundle, clock=self.clock, **self._database)
        wrapped = self._portal.wrap_async_context_manager(context)
        world = wrapped.__enter__()
        world.service.db.write = _fragile(world.service.db.write)  # type: ignore[method-assign]
        for speaker in [*self.agents.values(), *self._visitors.values()]:
            speaker.http = world.http
        return world, wrapped

    def crash(self) -> None:
        """The service is killed, and another starts on what is in the database.

        SQLite: on a copy of the files as they lie there, the write-ahead log with them. PostgreSQL: while the first is
        not gone yet, as a replica takes over.
        """
        before = self._running
        self._lives += 1
        data = self._folder / f"data-{self._lives}"
        _copy_as_it_lies(self.world.settings.data_dir, data)
        self.world, self._running = self._start(data)
        before.__exit__(None, None, None)

    def close(self) -> None:
        """The end."""
        self._running.__exit__(None, None, None)
        self._life.close()

    def set_back(self, stretch: float) -> None:
        """As a time server does it."""
        self._latest = max(self._latest, self.clock())
        self.clock.pass_(seconds=-stretch)

    def catch_up(self) -> None:
        """It is later than it ever was: the times of two decisions say which is newer."""
        self.clock.stop_at(max(self._latest, self.clock()) + timedelta(milliseconds=1))

    # -- what is in it ---------------------------------------------------------------------------------------

    async def tables(self) -> Tables:
        """The rows as they stand."""
        return await self.world.service.db.read(read_tables)

    async def faults(self) -> list[str]:
        """I-8: what the log and the tables tell differently."""
        await self.world.service.sequencer.number()
        return await self.world.service.db.read(faults_of_log)

    # -- requests --------------------------------------------------------------------------------------------

    async def visitor(self, who: str) -> Visitor:
        """Somebody signed in."""
        if who not in self._visitors:
            with losing(None):
                self._visitors[who] = await self.world.person(who)
        return self._visitors[who]

    async def look_in(self, who: str) -> None:
        """A request that loses its unit of work is to lose what it is about, and not that a session was used."""
        with losing(None):
            visitor = await self.visitor(who)
            if (await visitor.get("/v1/reviews?limit=1")).status_code == 401:
                del self._visitors[who]
                await self.visitor(who)

    async def vote(self, who: str, review: str, ballot: dict[str, Any], *, revoked: bool) -> httpx2.Response:
        """Vote; whose session has ended meanwhile signs in again."""
        if LOST.get() is not None and not revoked:
            await self.look_in(who)
        visitor = await self.visitor(who)
        path = f"/v1/reviews/{review}/votes"
        answer = await visitor.http.post(path, json=ballot, headers=visitor.headers())
        if answer.status_code == 401 and not revoked:
            del self._visitors[who]
            visitor = await self.visitor(who)
            answer = await visitor.http.post(path, json=ballot, headers=visitor.headers())
        return answer

    async def activate(self, bundle: Bundle | None) -> None:
        """Lay this bundle there and look; None is one that does not load."""
        if bundle is None:
            (self.bundle / "rules.cedar").write_text("forbid (principal")
        else:
            bundle.lay(self.bundle)
        await self.world.activate()


@contextmanager
def losing(how: str | None) -> Iterator[None]:
    """The next unit of work that the block would write is lost."""
    token = LOST.set(how)
    try:
        yield
    finally:
        LOST.reset(token)


def _fragile(write: Callable[[Any], Awaitable[T]]) -> Callable[[Any], Awaitable[T]]:
    async def fragile(unit: Any) -> T:
        how = LOST.get()
        if how is None:
            return await write(unit)

        def undone(tx: Any) -> Any:
            unit(tx)
            raise StorageUnavailableError("the lights went out before the commit")

        LOST.set(None)
        try:
            await write(undone if how == "before" else unit)
        except StorageUnavailableError:
            raise
        except Exception:
            LOST.set(how)  # it would have written nothing: the one that is begun in its place is lost
            raise
        raise StorageUnavailableError("the lights went out after the commit")

    return fragile


def _copy_as_it_lies(data: Path, copy: Path) -> None:
    """A data folder as a power cut leaves it. The mark next to the keys is older than the database,
    never newer; a reader keeps the write-ahead log from being begun anew between the two copies.
    """
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns("*.db", "*.db-*", "*.new"))
    file = data / "countersign.db"
    reader = sqlite3.connect(file)
    try:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM audit").fetchone()
        for name in (file.name, f"{file.name}-wal"):
            if (data / name).exists():
                shutil.copy2(data / name, copy / name)
    finally:
        reader.close()


@dataclass
class Shop:
    """The world beyond: how often each effect was really fired."""

    fired: dict[str, int] = field(default_factory=dict)

    def fire(self, effect_id: str) -> None:
        """It happens."""
        self.fired[effect_id] = self.fired.get(effect_id, 0) + 1
