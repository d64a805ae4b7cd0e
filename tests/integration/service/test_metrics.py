"""What is counted: what was committed, once, by labels nobody outside chooses; and who may read it."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from policy_service import metrics
from policy_service.errors import ServiceError, StartError
from policy_service.storage.database import Tx
from policy_service.storage.logbook import append
from policy_service.storage.unit import Line
from tests.fakes.payments import Payments
from tests.fakes.world import Agent, World, running
from tests.integration.service.effects import pay
from tests.integration.service.together.test_renewal import spent

pytestmark = pytest.mark.anyio

PROVIDER = {
    "name": "c", "title": "C", "issuer": "https://login.example", "client_id": "c", "client_secret": "s",
}  # fmt: skip


def value(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(f"countersign_{name}", labels) or 0.0


async def test_one_effect_from_submission_to_its_outcome(bank: World, robot: Agent) -> None:
    def counted() -> list[float]:
        return [
            value("effect_moves_total", state="redeemed"),
            value("effect_moves_total", state="fired"),
            value("effects_submitted_total", tool="pay", state="released"),
            value("decisions_total", outcome="release", cause="submit"),
        ]

    before = counted()
    (effect,) = (await spent(robot, await pay(bank)))["effects"]
    outcome = {"effect_id": effect["effect_id"], "outcome": "fired", "result": {"payment_id": "p"}}
    assert (await robot.report(robot.attempt, outcome)).status_code == 200
    assert counted() == [was + 1 for was in before]


async def test_a_review_its_votes_and_how_long_it_took(bank: World, robot: Agent) -> None:
    votes = value("votes_total", verdict="approve", late="no")
    took = value("review_duration_seconds_sum", result="met")
    view = (await robot.submit(await pay(bank, 500))).json()
    await bank.service.watch.look()
    assert value("reviews_open") == 1
    bank.clock.pass_(minutes=30)
    await bank.service.watch.look()
    assert 1_790 < value("oldest_open_review_age_seconds") < 1_830
    maya = await bank.person("maya")
    assert (await maya.vote(view)).status_code == 200
    await bank.service.watch.look()
    assert value("reviews_open") == 0
    assert value("votes_total", verdict="approve", late="no") == votes + 1
    assert 1_790 < value("review_duration_seconds_sum", result="met") - took < 1_830


async def test_what_a_caller_invents_makes_no_label(bank: World, robot: Agent) -> None:
    def counted() -> list[float]:
        return [
            value("effects_submitted_total", tool="(unknown)", state="denied"),
            value("http_request_duration_seconds_count", method="(other)", route="(none)", status="404"),
            value("refusals_total", code="not_found"),
        ]

    before = counted()
    effect = {"tool": "hunter2", "tool_digest": "0" * 64, "args": {}}
    assert (await robot.submit(effect)).json()["state"] == "ended"
    await bank.http.request("HUNTER2", "/hunter2")
    assert (await robot.send("GET", f"/v1/transactions/{'0' * 64}")).status_code == 404
    assert [is_now - was for is_now, was in zip(counted(), before, strict=True)] == [1, 1, 2]
    assert b"hunter2" not in metrics.text().lower()


async def test_what_was_committed_counts_and_what_was_rolled_back_does_not(
    bank: World, folder: Payments
) -> None:
    def half(tx: Tx) -> None:
        append(tx, "task_opened", actor="service", body={"task": "unknown"})
        raise LookupError("no")

    before = value("tasks_opened_total", task="unknown")
    with pytest.raises(LookupError):
        await bank.service.db.write(half)
    assert value("tasks_opened_total", task="unknown") == before
    assert value("units_waiting") == 0

    class Heard(list[str]):
        def before_commit(self, tx: Tx) -> None:
            """Nothing is wanted."""

        def committed(self, lines: list[Line], known: object, seconds: float) -> None:
            self.extend(line.kind for line in lines)

    heard = Heard()
    bank.service.db.tell_lines(heard)
    line = partial(append, kind="signed_out", actor="person:gone", body={})
    gone = asyncio.create_task(bank.service.db.write(line))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await bank.service.db.write(lambda tx: tx.now)
    await asyncio.sleep(0)
    assert heard == ["signed_out"], "although its caller went away"
    for rules in ("", "// more\n"):  # the bundle in force is named, and the one before is not
        folder.rules(rules)
        await bank.activate()
        named = [sample.labels["digest"] for metric in metrics.BUNDLE.collect() for sample in metric.samples]
        assert named == [bank.service.active.current.digest]


ELSEWHERE: dict[str, Any] = {
    "public_url": "https://gate.example", "dev_signin": False, "providers": [PROVIDER],
}  # fmt: skip
SENT = {
    "": 401, "Bearer wrong": 401, "Basic the-token": 401, "Bearer the-tok\u00e9n": 401,
    "Bearer the-token": 200,
}  # fmt: skip


async def test_elsewhere_they_are_read_with_the_token(tmp_path: Path, folder: Payments) -> None:
    async with running(tmp_path / "data", folder.path, **ELSEWHERE) as world:  # which name none
        answer = await world.http.get("/metrics", headers={"Authorization": "Bearer "})
        assert answer.status_code == 401
        assert "metrics_token_file" in answer.json()["detail"]
    file = tmp_path / "metrics-token"
    given = ELSEWHERE | {"metrics_token_file": file}
    refused = f"the secret {file} is missing; write it there.*chmod 600"
    for mode, told in ((None, refused), (0o644, "metrics-token")):
        if mode:
            file.write_text("the-token\n")
            file.chmod(mode)
        with pytest.raises((StartError, ServiceError), match=told):
            async with running(tmp_path / "data", folder.path, **given):
                pytest.fail("it started")
    file.chmod(0o600)
    async with running(tmp_path / "data", folder.path, **given) as world:
        for sent, status in SENT.items():
            headers = {"Authorization": sent.encode()} if sent else {}
            assert (await world.http.get("/metrics", headers=headers)).status_code == status, sent
