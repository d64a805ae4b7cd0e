"""The service under test, with the folder of its policies."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2
import pytest
from sqlalchemy import Connection, func, select
from sqlmodel import SQLModel

from policy_service.queries.vote_eligibility import Voter
from policy_service.storage.core import find, table
from policy_service.storage.tables import TaskRow, VoteRow
from tests.fakes.log_check import faults_of_log
from tests.fakes.payments import ANYBODY, PEOPLE, Payments, person
from tests.fakes.world import Agent, Visitor, World, running
from tests.integration.service.effects import pay


@dataclass
class Bank(World):
    """A running service, its bundle, an agent and four people. What is written to the bundle is in force at once.

    Maya and Tomas are of finance, Tomas is the CFO, Ingrid is of legal, and no gate asks Jonas.
    """

    folder: Payments = field(kw_only=True)
    robot: Agent = field(init=False)
    maya: Visitor = field(init=False)
    tomas: Visitor = field(init=False)
    ingrid: Visitor = field(init=False)
    jonas: Visitor = field(init=False)
    _numbers: Iterator[int] = field(init=False, default_factory=lambda: itertools.count(1))
    _warehouse: Agent | None = field(init=False, default=None)
    _signed_in: dict[str, tuple[datetime, Visitor]] = field(init=False, default_factory=dict)

    async def fresh(self) -> Agent:
        """Another agent from here on, which has submitted nothing."""
        self.robot = await self.agent(f"robot-{next(self._numbers)}")
        return self.robot

    async def other_agent(self, word: str = "other", **more: Any) -> Agent:
        """One more agent, which no other test has."""
        return await self.agent(f"{self.robot.name}-{word}", **more)

    async def warehouse(self) -> Agent:
        """The party that redeems shipments."""
        if self._warehouse is None:
            self._warehouse = await self.agent("warehouse")
        return self._warehouse

    async def sign_in(self) -> None:
        """Give the four people sessions that are young and in force."""
        for name in PEOPLE:
            since, visitor = self._signed_in.get(name, (None, None))
            young = since is not None and self.clock() - since < timedelta(minutes=5)
            if visitor is None or not young or await self.service.sessions.find(visitor.cookie) is None:
                visitor = await self.person(name)
                self._signed_in[name] = (self.clock(), visitor)
            setattr(self, name, replace(visitor))

    async def asks(self, amount: int = 500, *, robot: Agent | None = None, **members: Any) -> Any:
        """The agent submits a payment, of which finance is asked unless it is a small one."""
        return (await (robot or self.robot).submit(await pay(self, amount), **members)).json()

    async def released(
        self, *effects: dict[str, Any], robot: Agent | None = None, **members: Any
    ) -> tuple[dict[str, Any], list[str]]:
        """A transaction that is released at once, and its tokens."""
        robot = robot or self.robot
        view = (await robot.submit(*effects, **members)).json()
        return view, await self.tokens(view, robot)

    async def tokens(self, view: dict[str, Any], robot: Agent | None = None) -> Any:
        """The releases of a transaction as it is now."""
        robot = robot or self.robot
        return (await robot.release(await robot.see(view["txn"]))).json()["releases"]

    async def states(self, view: dict[str, Any], robot: Agent | None = None) -> list[str]:
        """The states of a transaction and of its effects."""
        seen = await (robot or self.robot).see(view["txn"])
        return [seen["state"], *(effect["state"] for effect in seen["effects"])]

    async def tasks(self, robot: Agent | None = None) -> list[str]:
        """The kinds of the open tasks about what an agent has submitted, oldest first."""
        row = table(TaskRow).c
        mine = select(row.kind).where(row.txn.in_((robot or self.robot).txns), row.state == "open")
        query = mine.order_by(row.task_id)
        return await self.service.db.read(lambda conn: list(conn.execute(query).scalars()))

    async def votes(self, view: dict[str, Any]) -> list[VoteRow]:
        """The votes on the first effect of a transaction, oldest first."""
        review_id = view["effects"][0]["review"]["review_id"]
        rows = await self.service.db.read(lambda conn: find(conn, VoteRow, review_id=review_id))
        return sorted(rows, key=lambda row: row.vote_id)

    async def counts(self, view: dict[str, Any], *kinds: str) -> list[int]:
        """How many lines of each of these kinds the log of a transaction has."""
        logged = [kind for kind, _ in await self.log(view["txn"])]
        return [logged.count(kind) for kind in kinds]

    async def review(self, view: dict[str, Any]) -> Any:
        """The review of the first effect as Maya's API client reads it."""
        return (await self.maya.get(f"/v1/reviews/{view['effects'][0]['review']['review_id']}")).json()

    async def withdraw(self, view: dict[str, Any], **said: str) -> httpx2.Response:
        """The agent takes a transaction back."""
        return await self.robot.send("POST", f"/v1/transactions/{view['txn']}/withdraw", said)

    @asynccontextmanager
    async def revoked(self, *names: str) -> AsyncIterator[None]:
        """These people are out of every decision meanwhile."""
        for name in names:
            await self.operator("revoke-approver", {"person": person(name), "reason": "left"})
        try:
            yield
        finally:
            for name in names:
                await self.operator("reinstate-approver", {"person": person(name)})

    async def rules(self, *added: str) -> None:
        """The usual rules and these."""
        self.folder.rules(*added)
        await self.activate()

    async def policies(self, text: str) -> None:
        """These policies alone."""
        self.folder.policies(text)
        await self.activate()

    async def only(self, *gates: str) -> None:
        """Everything is permitted but for these gates."""
        await self.policies(ANYBODY + "".join(gates))

    async def people(self, groups: dict[str, tuple[str, ...]]) -> None:
        """Who is in which group."""
        self.folder.people(groups)
        await self.activate()

    async def write(self, file: str, content: Any) -> None:
        """One file of the bundle."""
        self.folder.write(file, content)
        await self.activate()


@asynccontextmanager
async def serving(data: Path, folder: Payments, **settings: Any) -> AsyncIterator[Bank]:
    """The service over a folder of policies; at the end its audit log must match what happened (I-8)."""
    async with running(data, folder.path, **settings) as started:
        bank = Bank(started.app, started.settings, started.http, started.clock, folder=folder)
        yield bank
        assert await bank.service.db.read(faults_of_log) == []


def sizes(conn: Connection) -> dict[str, int]:
    """How many rows every table has but that of the leases, which background jobs take."""
    tables = [one for one in SQLModel.metadata.tables.values() if one.name != "leases"]
    return {one.name: conn.execute(select(func.count()).select_from(one)).scalar_one() for one in tables}


def voter(name: str, step_up: str | None = None) -> Voter:
    """A person as a channel knows them, with a passkey."""
    iss, _, sub = person(name).rpartition("|")
    return Voter(iss, sub, name.title(), "oidc", step_up=step_up)


def counting(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[Any]:
    """The calls of one of its functions from here on."""
    calls: list[Any] = []
    original = getattr(module, name)

    def counted(*given: Any, **named: Any) -> Any:
        calls.append(given)
        return original(*given, **named)

    monkeypatch.setattr(module, name, counted)
    return calls


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    """The status and code of a refusal."""
    return answer.status_code, answer.json()["code"]
