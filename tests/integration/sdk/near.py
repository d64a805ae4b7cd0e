"""The real service in this process, for blocking programs: its clock, its rules and its people are the test's.

`tests.fakes.world` is that service for async tests. Here it runs in a loop of its own on a thread, and the SDK reaches
it through its ordinary client: every request is a request of the real app, every signature is verified on both sides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx2

from countersign import ReviewPending, Runtime, Settings, SQLiteAdapter, ToolRegistry, tool
from countersign.contract import EffectState
from tests.fakes.desk import notes_database, write_key
from tests.fakes.log_check import faults_of_log
from tests.fakes.payments import PAY, Payments
from tests.fakes.world import Agent, World, running

SECONDS = 60.0  # that a test waits for an answer, never for time to pass

Ask = Callable[[Coroutine[Any, Any, Any]], Any]
_names = (f"support-{n}" for n in count(1))


class Through(httpx2.BaseTransport):
    """A blocking way into an app that runs in another thread's loop."""

    def __init__(self, world: World, ask: Ask) -> None:
        self._app, self._ask = httpx2.ASGITransport(world.app), ask

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        async def asked() -> httpx2.Response:
            answer = await self._app.handle_async_request(request)
            body = b"".join([part async for part in answer.aiter_raw()])
            return httpx2.Response(answer.status_code, headers=answer.headers, content=body)

        request.read()
        answered: httpx2.Response = self._ask(asked())
        return answered


class WorldClock:
    """The service's time as the SDK's."""

    def __init__(self, world: World) -> None:
        self._now = world.clock

    def wall(self) -> float:
        return self._now().timestamp()

    def monotonic(self) -> float:
        return self._now().timestamp() - 1_000_000.0


class Near:
    """One agent with its tools, its service, and the people who review and write policies."""

    def __init__(self, folder: Path, rules: Payments, world: World, agent: Agent, ask: Ask) -> None:
        self.folder, self.rules, self.world, self.agent, self.ask = folder, rules, world, agent, ask
        self.registry = ToolRegistry()
        self.done: list[tuple[Any, ...]] = []
        self.before_fire: dict[str, Callable[[], None]] = {}
        settings = Settings(
            url=world.settings.public_url, agent=agent.name, key_path=write_key(folder / "agent.pem", agent.key),
            journal_path=folder / "journal.db", allow_dev=True, retry_base_seconds=0.001, retry_max_seconds=0.002,
        )  # fmt: skip
        mine, through, database = self.registry, Through(world, ask), SQLiteAdapter(self.notes, name="notes")
        self.runtime = Runtime(settings, registry=mine, transport=through, clock=WorldClock(world))
        undo: dict[str, Any] = {"compensate": "unpay", "compensation_map": PAY["compensation"]["map"]}

        @tool("unpay", resource=("Payment", "payment"), registry=mine)
        def unpay(payment: str, amount: int) -> None:
            """Take a payment back."""
            self.act("unpay", payment, amount)

        @tool("pay", resource=("Account", "account"), registry=mine, **undo)
        def pay(account: str, amount: int, items: list[str] | None = None) -> dict[str, str]:
            """Pay."""
            self.act("pay", account, amount, *(items or []))
            return {"id": f"p-{account}"}

        @tool("mail", resource=("Mailbox", "to"), registry=mine)
        def mail(to: str, text: str) -> None:
            """Tell somebody."""
            self.act("mail", to, text)

        @tool("note", lane="live", adapter=database, registry=mine)
        def note(order_id: str, text: str) -> None:
            """Write a note."""
            database.connection.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (order_id, text))

        self.pay, self.mail, self.note = pay, mail, note

    @property
    def notes(self) -> Path:
        """The database of the live tool."""
        path = self.folder / "notes.db"
        return path if path.exists() else notes_database(self.folder)

    def act(self, *what: Any) -> None:
        """Something happens in the world, after what the test does just before it."""
        self.before_fire.get(what[0], lambda: None)()
        self.done.append(what)

    def see(self, txn: str) -> dict[str, Any]:
        """The transaction as the service has it."""
        view: dict[str, Any] = self.ask(self.agent.see(txn))
        return view

    def states(self, txn: str) -> list[EffectState]:
        """Of its effects."""
        return [EffectState(one["state"]) for one in self.see(txn)["effects"]]

    def vote(self, pending: ReviewPending, verdict: str = "approve", *, by: str = "maya", **how: Any) -> None:
        """Somebody answers the question of one effect."""

        async def voted() -> httpx2.Response:
            person = await self.world.person(by)
            return await person.vote(await self.agent.see(pending.txn), verdict, **how)

        answer = self.ask(voted())
        assert answer.is_success, answer.text

    def change(self, *rules: str, reported: bool = True) -> None:
        """The usual rules and these are in force; without ``reported``, reviews learn of it at the redemption."""
        self.rules.rules(*rules)
        self.put_in_force(reported=reported)

    def put_in_force(self, *, reported: bool = True) -> None:
        """The folder as it is now."""
        if reported:
            assert self.ask(self.world.activate()), self.world.service.active.status().error
        else:
            assert self.ask(self.world.service.active.reload()).changed


@dataclass(frozen=True)
class Served:
    """The service on its thread, and its rules."""

    world: World
    rules: Payments
    ask: Ask

    @contextmanager
    def near(self, folder: Path) -> Iterator[Near]:
        """A new agent in front of it; the rules are afterwards what they were at first."""
        agent = self.ask(self.world.agent(next(_names)))
        one = Near(folder, self.rules, self.world, agent, self.ask)
        with one.runtime:
            yield one
        if self.rules.touched:
            self.rules.restore()
            one.put_in_force()


@contextmanager
def served(folder: Path, **settings: Any) -> Iterator[Served]:
    """The service until the block ends; its log must then tell what happened (I-8)."""
    started: Future[tuple[World, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    rules = Payments(folder / "bundle")

    async def serve() -> None:
        async with running(folder / "data", rules.path, **settings) as world:
            over = asyncio.Event()
            started.set_result((world, asyncio.get_running_loop(), over))
            await over.wait()
            assert await world.service.db.read(faults_of_log) == []

    with ThreadPoolExecutor(1, "near") as thread:
        running_there = thread.submit(asyncio.run, serve())
        wait([started, running_there], SECONDS, FIRST_COMPLETED)
        if running_there.done():
            running_there.result()
        world, loop, over = started.result(0)

        def ask(coro: Coroutine[Any, Any, Any]) -> Any:
            return asyncio.run_coroutine_threadsafe(coro, loop).result(SECONDS)

        try:
            yield Served(world, rules, ask)
        finally:
            loop.call_soon_threadsafe(over.set)
        running_there.result(SECONDS)
