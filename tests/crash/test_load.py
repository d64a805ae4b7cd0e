"""SIGKILL in the middle of load: what was acknowledged is there, what was not is absent or complete (I-7)."""

from __future__ import annotations

import asyncio
import html
import json
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from sqlalchemy import Connection, select

from countersign.contract import PrivateKey
from policy_service.audit.log import highest_index
from policy_service.channels.operator.verbs import VERBS
from policy_service.settings import load_settings
from policy_service.storage.core import table
from policy_service.storage.database import Database, Tx
from policy_service.storage.tables import RedemptionRow
from policy_service.tokens.epoch import read_mark
from tests.fakes.log_check import faults_of_log
from tests.fakes.operated import Operated, environment, free_port
from tests.fakes.payments import Payments
from tests.fakes.world import Agent, Clock, fresh_data

pytestmark = pytest.mark.anyio

WORKERS = 8
RANK = {"ready": 0, "review": 0, "redeemed": 1, "settled": 2}


@dataclass
class Acknowledged:
    """What the service said was done: the last state of each transaction it named."""

    states: dict[str, str] = field(default_factory=dict)
    receipts: dict[str, str] = field(default_factory=dict)
    votes: set[str] = field(default_factory=set)


async def work(robot: Agent, digest: str, first: int, told: Acknowledged) -> None:
    """Submit, spend and report, one run after the other, until the connection breaks."""
    n = first
    while True:
        call = {"tool": "pay", "tool_digest": digest, "args": {"account": "acme", "amount": n % 90 + 1}}
        view = (await robot.submit(call, run_key=f"run-{n}")).json()
        told.states[view["txn"]] = view["state"]
        redeemed = await robot.spend(view, f"attempt-{n}")
        told.states[view["txn"]] = "redeemed"
        told.receipts[view["txn"]] = f"attempt-{n}"
        fired = {"effect_id": view["effects"][0]["effect_id"], "outcome": "fired"}
        assert redeemed["redeemed"] is True
        assert (await robot.report(f"attempt-{n}", fired)).json()["state"] == "settled"
        told.states[view["txn"]] = "settled"
        n += WORKERS


async def voting(robot: Agent, maya: tuple[str, str], digest: str, told: Acknowledged) -> None:
    """Ask for payments only Maya may let go, and let them go."""
    cookie, csrf = maya
    for n in range(10_000):
        call = {"tool": "pay", "tool_digest": digest, "args": {"account": "acme", "amount": 500}}
        view = (await robot.submit(call, run_key=f"asked-{n}")).json()
        seen = view["effects"][0]
        ballot = {
            "verdict": "approve",
            "rev": 1,
            "effect_digest": seen["effect_digest"],
            "txn_digest": view["txn_digest"],
        }
        headers = {"Cookie": cookie, "Origin": str(robot.http.base_url).rstrip("/"), "X-CSRF-Token": csrf}
        path = f"/v1/reviews/{seen['review']['review_id']}/votes"
        answer = await robot.http.post(path, json=ballot, headers=headers)
        assert answer.json()["state"] == "met", answer.text
        told.votes.add(view["txn"])


async def signed_in(http: httpx2.AsyncClient, link: str) -> tuple[str, str]:
    """Maya's cookie and form token, as a browser gets them."""
    token = parse_qs(urlsplit(link).query)["token"][0]
    origin = str(http.base_url).rstrip("/")
    answer = await http.post("/sign-in/dev", data={"token": token}, headers={"Origin": origin})
    cookie = answer.headers["set-cookie"].partition(";")[0]
    http.cookies.clear()
    page = (await http.get("/", headers={"Cookie": cookie})).text
    found = re.search(r'name="csrf_token" value="([^"]+)"', page)
    assert found is not None
    return cookie, html.unescape(found.group(1))


def enrolled(data: Path, bundle: Path) -> PrivateKey:
    """The robot's key; it is enrolled before the service starts."""
    key = PrivateKey.generate()
    settings = load_settings(data_dir=data, bundle_dir=bundle)

    def enroll(tx: Tx) -> Any:
        return VERBS["agent-enroll"](tx, settings, {"name": "robot", "jwk": key.public.jwk()})

    with Database.open(settings.database_url) as db:
        db.write_sync(enroll)
    return key


async def load_until_killed(service: Operated, key: PrivateKey, digest: str, told: Acknowledged) -> None:
    """Everybody works; when enough is done the process is killed."""
    enough = len(told.receipts) + 40
    async with httpx2.AsyncClient(base_url=service.url, timeout=30) as http:
        maya = await signed_in(http, service.link("maya"))
        first = len(told.states) * WORKERS
        robots = [Agent("robot", key, http, Clock()) for _ in range(WORKERS + 1)]
        working = [
            asyncio.create_task(work(robot, digest, first + n, told))
            for n, robot in enumerate(robots[:WORKERS])
        ]
        working.append(asyncio.create_task(voting(robots[WORKERS], maya, digest, told)))
        while len(told.receipts) < enough and not any(task.done() for task in working):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.to_thread(service.kill)
        ends = await asyncio.gather(*working, return_exceptions=True)
    assert all(isinstance(end, httpx2.TransportError) for end in ends), ends


async def require_kept(service: Operated, key: PrivateKey, told: Acknowledged) -> None:
    """Every acknowledged thing is there, and a repeat finds it."""
    async with httpx2.AsyncClient(base_url=service.url, timeout=30) as http:
        robot = Agent("robot", key, http, Clock())
        for txn, state in told.states.items():
            assert RANK[(await robot.see(txn))["state"]] >= RANK[state], txn
        for txn, attempt in told.receipts.items():
            again = (await robot.redeem(["a.b.c"], attempt)).json()
            assert again["redeemed"] is True and again["transaction"]["txn"] == txn
        for txn in told.votes:
            assert (await robot.see(txn))["state"] == "ready"


def redemptions(conn: Connection) -> list[str]:
    return [effect_id for (effect_id,) in conn.execute(select(table(RedemptionRow).c.effect_id))]


@pytest.mark.long
@pytest.mark.parametrize("kills", [1, 6])
async def test_whatever_was_acknowledged_survives_a_kill_in_the_middle_of_load(
    tmp_path: Path, kills: int
) -> None:
    data, bundle = tmp_path / "data", Payments(tmp_path / "bundle")
    shutil.copytree(fresh_data(), data)
    key, told = enrolled(data, bundle.path), Acknowledged()
    digest = bundle.load().manifests["pay"].digest
    env = environment(data, bundle.path, free_port())
    for _ in range(kills):
        with Operated(env) as service:
            await require_kept(service, key, told)
            await load_until_killed(service, key, digest, told)
        mark = read_mark(data / "keys")
        with Database.open(f"sqlite:///{data / 'countersign.db'}") as db:
            assert db.read_sync(faults_of_log) == []
            assert mark is not None and mark.highest_index <= db.read_sync(highest_index)
            assert len(db.read_sync(redemptions)) >= len(told.receipts)
    with Operated(env) as service:
        await require_kept(service, key, told)
        assert service.stop() in {0, 130}  # as told by Ctrl-C
    assert told.votes and len(told.receipts) >= 40 * kills, json.dumps(told.states)
