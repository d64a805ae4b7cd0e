"""Too many, slow or long requests are refused for their sender alone."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from countersign.contract import EffectState
from policy_service import metrics
from policy_service.channels.http.api import RateLimits
from policy_service.channels.http.connections import MAX_HEAD_BYTES, BoundedConnection
from policy_service.errors import QuotaError
from policy_service.settings import load_settings
from tests.fakes.patience import until
from tests.fakes.payments import ANYBODY, gate
from tests.fakes.streaming import served
from tests.fakes.world import Agent, running
from tests.integration.service.effects import mail, pay
from tests.integration.service.engines import SQLITE_IN_SHORT
from tests.integration.service.together.bank import Bank
from tests.integration.service.together.test_plans import plans

OPEN = 3


@pytest.fixture
def database(database: dict[str, str]) -> dict[str, Any]:
    """Limits a test reaches in a moment."""
    limits = {"open_reviews_per_agent": OPEN, "submissions_per_minute": 20, "waits_per_agent": 2}
    return database | limits


def refusal(answer: httpx2.Response) -> tuple[int, str, str, int]:
    body = answer.json()
    return answer.status_code, body["code"], body["setting"], body["limit"]


def counted(setting: str) -> float:
    return metrics.REGISTRY.get_sample_value("countersign_quota_refusals_total", {"setting": setting}) or 0.0


# -- questions before people -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", SQLITE_IN_SHORT)
async def test_an_agent_has_no_more_questions_open_than_it_may(bank: Bank, robot: Agent) -> None:
    before = counted("open_reviews_per_agent")
    many = [await pay(bank, 500 + n) for n in range(OPEN + 1)]
    assert (await robot.submit(*many, run_key="many")).status_code == 429, "one that asks too much, whole"
    assert (await robot.submit(*many[:OPEN], run_key="many")).status_code == 201
    await robot.send("POST", f"/v1/transactions/{next(iter(robot.txns))}/withdraw", {})
    with plans(bank) as found:
        views = [(await robot.submit(await pay(bank, 500), run_key=f"r-{n}")).json() for n in range(OPEN)]
    lines = [line for line, asked in found if "count(" in asked and "FROM reviews" in asked]
    assert any("ix_reviews_" in line for line in lines), lines
    assert not any("SCAN reviews" in line or "Seq Scan" in line for line in lines)
    again: dict[str, Any] = {"run_key": "one-more", "idempotency_key": "the-same"}
    over = await robot.submit(await pay(bank, 500), **again)
    assert refusal(over) == (429, "too_many_open", "open_reviews_per_agent", OPEN)
    assert over.headers["retry-after"] == "60"
    assert "COUNTERSIGN_" not in over.json()["detail"]
    assert "open_reviews_per_agent" in over.json()["detail"]
    assert counted("open_reviews_per_agent") == before + 2
    small = await robot.submit(await pay(bank, 5), run_key="small", attempt_id="a-1")
    assert small.json()["state"] == "redeemed"  # nobody is asked about it
    other = await robot.submit(await pay(bank, 501), run_key="r-2")
    assert (other.status_code, other.json()["rev"]) == (201, 2)  # in place of its own question
    maya = await bank.person("maya")
    assert len((await maya.get("/v1/reviews")).json()["reviews"]) == OPEN
    assert (await maya.vote(views[0], "deny", reason="no")).status_code == 200
    late = (await robot.submit(await pay(bank, 5), run_key="late")).json()
    taken = await robot.submit(await pay(bank, 500), **again)
    assert (taken.status_code, taken.json()["state"]) == (201, "review")
    await bank.policies(ANYBODY + gate("all", "finance"))  # new rules ask again about all it has open
    assert (await robot.see(late["txn"]))["effects"][0]["state"] == EffectState.REVIEW.value


async def test_a_flood_of_one_agent_is_nothing_to_another(bank: Bank, robot: Agent) -> None:
    other = await bank.agent("other")
    calls = [await pay(bank, 500 + n) for n in range(30)]
    await robot.send("GET", "/v1/epoch")  # for a nonce
    answers = await asyncio.gather(*(robot.submit(one, run_key=f"r-{n}") for n, one in enumerate(calls)))
    assert sorted({answer.status_code for answer in answers}) == [201, 429]
    assert sum(answer.status_code == 201 for answer in answers) == OPEN
    asked = await other.submit(await pay(bank, 500))
    assert (asked.status_code, asked.json()["state"]) == (201, "review")


@pytest.mark.parametrize("engine", ["postgresql"])
async def test_replicas_share_the_limit(
    bank: Bank, robot: Agent, tmp_path: Path, database: dict[str, Any]
) -> None:
    shutil.copytree(bank.settings.data_dir, tmp_path / "beyond")  # the same keys, and the epoch's mark
    async with running(tmp_path / "beyond", bank.folder.path, clock=bank.clock, **database) as beyond:
        there = Agent(robot.name, robot.key, beyond.http, robot.clock)
        for one in (robot, there):
            await one.send("GET", "/v1/epoch")
        calls = [await pay(bank, 500 + n) for n in range(8)]
        asked = (
            one.submit(call, run_key=f"{name}-{call['args']['amount']}")
            for name, one in (("here", robot), ("there", there))
            for call in calls
        )
        answers = await asyncio.gather(*asked)
        assert sum(answer.status_code == 201 for answer in answers) == OPEN, [a.text for a in answers]


# -- the rate --------------------------------------------------------------------------------------------------------


async def test_submitting_too_fast_is_refused(bank: Bank, robot: Agent) -> None:
    """Requests with another agent's key use up nothing of it."""
    stranger = replace(robot, key=(await bank.agent("stranger")).key)
    for n in range(30):
        assert (await stranger.submit(await pay(bank), run_key=f"r-{n}")).status_code == 401
    answers = [await robot.submit(await pay(bank, n + 1), run_key=f"r-{n}") for n in range(21)]
    assert [answer.status_code for answer in answers[:20]] == [201] * 20
    assert refusal(answers[-1]) == (429, "rate_limited", "submissions_per_minute", 20)
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 3
    asked = await robot.send("POST", "/v1/evaluations", {"effects": [await pay(bank)], "run_key": "dry"})
    assert asked.status_code == 429
    assert (await robot.release(answers[0].json())).status_code == 200  # what it has, it can finish
    assert (await (await bank.agent("other")).submit(await pay(bank))).status_code == 201


def test_a_bucket_fills_again_evenly() -> None:
    now = [0.0]
    rate_limits = RateLimits(load_settings(submissions_per_minute=60), lambda: now[0])

    def taken(moment: float, how_many: int) -> int:
        """So many are let in at that moment, and no more; after how many seconds the next one is."""
        now[0] = moment
        for _ in range(how_many):
            rate_limits.submit("a")
        with pytest.raises(QuotaError) as refused:
            rate_limits.submit("a")
        return refused.value.retry_after_seconds

    assert taken(0.0, 60) == 1
    rate_limits.submit("b")
    for moment, how_many in ((0.9, 0), (2.0, 2), (10_000.0, 60)):
        taken(moment, how_many)


# -- waiting ---------------------------------------------------------------------------------------------------------


async def test_waits_of_an_agent_are_limited(bank: Bank, robot: Agent) -> None:
    view = (await robot.submit(await pay(bank, 500))).json()
    other = await bank.agent("other")
    theirs = (await other.submit(await pay(bank, 500))).json()
    path = f"/v1/transactions/{view['txn']}"
    waiting = [asyncio.create_task(robot.see(view["txn"], wait=20)) for _ in range(2)]
    await _until_waiting(2)
    over = await robot.send("GET", path, headers={"Prefer": "wait=20"})
    assert refusal(over) == (429, "rate_limited", "waits_per_agent", 2)
    assert (await robot.send("GET", path)).status_code == 200  # to look is no wait
    # what is submitted is submitted, and is answered at once
    submitted = await robot.submit(await mail(bank), await pay(bank, 600), run_key="r-2", wait=20)
    assert (submitted.status_code, submitted.json()["state"]) == (201, "review")
    asked = asyncio.create_task(other.see(theirs["txn"], wait=20))
    await _until_waiting(3)
    maya = await bank.person("maya")
    await maya.vote(view)
    await maya.vote(theirs)
    assert {one["state"] for one in await asyncio.gather(*waiting, asked)} == {"ready"}
    again = await robot.see(submitted.json()["txn"], wait=1)  # the places are free again
    assert again["state"] == "review"


async def _until_waiting(count: int) -> None:
    await until(lambda: metrics.REGISTRY.get_sample_value("countersign_long_polls") == count)


# -- strangers that are slow, or long, on purpose --------------------------------------------------------------------


SOON = 0.3

HOST = b"Host: 127.0.0.1:8420\r\n"
GET, BODY = b"GET /healthz HTTP/1.1\r\n", b"POST /v1/transactions HTTP/1.1\r\n"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedConnection, "head_s", SOON)
    monkeypatch.setattr(BoundedConnection, "body_s", SOON)


async def spoken(port: int, *parts: bytes, every: float = 0.0) -> tuple[bytes, float]:
    """What is answered until the connection ends, and how long that took."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun = time.monotonic()

    async def speak() -> None:
        for part in parts:
            try:
                writer.write(part)
                await writer.drain()
            except ConnectionError:
                return
            await asyncio.sleep(every)

    speaking = asyncio.create_task(speak())
    try:
        async with asyncio.timeout(10):
            answer = await reader.read()
    except ConnectionError:
        answer = b""
    took = time.monotonic() - begun
    speaking.cancel()
    writer.close()
    return answer, took


SLOW = {
    "says nothing": (),
    "a head that never ends": (b"GET /healthz HTTP/1.1\r\n", *[b"X-A: b\r\n"] * 100),
    "a body that never ends": (BODY + HOST + b"Content-Length: 1000\r\n\r\n", *[b"{"] * 100),
    "a second head that never ends": (GET + HOST + b"\r\n", GET, *[b"X-A: b\r\n"] * 100),
}


@pytest.mark.usefixtures("impatient")
async def test_who_is_slow_on_purpose_is_let_go(bank: Bank) -> None:
    async with served(bank) as port:
        for name, parts in SLOW.items():
            _, took = await spoken(port, *parts, every=0.1)
            assert SOON * 0.9 <= took < 5, name
            answer, _ = await spoken(port, GET + b"Connection: close\r\n" + HOST + b"\r\n")
            assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.usefixtures("impatient")
async def test_an_answer_may_take_its_time_and_so_may_the_pause_between_two(bank: Bank, robot: Agent) -> None:
    path = f"/v1/transactions/{(await robot.submit(await pay(bank, 500))).json()['txn']}"
    wait = f"Prefer: wait=1\r\nAgent-Proof: {robot.proof('GET', path)}\r\nConnection: close\r\n"
    async with served(bank) as port:
        answer, took = await spoken(port, f"GET {path} HTTP/1.1\r\n{wait}".encode() + HOST + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert took > SOON * 2


HUGE = {
    "one header": GET + b"X-A: " + b"a" * 4 * MAX_HEAD_BYTES,
    "many headers": GET + b"X-A: b\r\n" * MAX_HEAD_BYTES,
    "an address": b"GET /" + b"a" * 4 * MAX_HEAD_BYTES,
    "a head that is whole": GET + HOST + b"X-A: " + b"a" * (MAX_HEAD_BYTES + 1) + b"\r\n\r\n",
}


async def test_a_head_that_is_too_long_is_refused_before_it_ends(bank: Bank) -> None:
    body = b" " * (3 * MAX_HEAD_BYTES)
    head = f"Content-Length: {len(body)}\r\nConnection: close\r\nContent-Type: application/json\r\n".encode()
    async with served(bank) as port:
        for name, long_head in HUGE.items():
            answer, took = await spoken(port, long_head)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 400"), name
            assert took < 5
        answer, _ = await spoken(port, BODY + head + HOST + b"\r\n" + body)
    assert answer.startswith(b"HTTP/1.1 401"), "a large body in the same breath is no long head"


async def test_nothing_packed_is_unpacked(bank: Bank, robot: Agent) -> None:
    body = json.dumps({"run_key": "x", "effects": []}).encode()
    bomb = gzip.compress(b" " * 50_000_000 + body, compresslevel=1)
    headers = {"Content-Encoding": "gzip", "Idempotency-Key": "k"}
    for path in ("/v1/transactions", "/v1/evaluations"):
        answer = await robot.send("POST", path, bomb, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
    as_it_is = headers | {"Content-Encoding": "identity"}
    sent = {"run_key": "x", "effects": [await pay(bank)]}
    assert (await robot.send("POST", "/v1/transactions", sent, headers=as_it_is)).status_code == 201
