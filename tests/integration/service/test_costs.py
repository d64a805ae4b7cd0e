"""What is read and counted: what a meter costs, the facts that a redemption asks for, metrics of what was committed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import Engine, event

from policy_service import metrics
from policy_service.errors import ServiceError, StartError
from policy_service.pap.bundle import Bundle
from policy_service.storage.database import Tx
from policy_service.storage.unit_of_work import append
from tests.fakes.payments import Payments
from tests.fakes.world import Agent, Visitor, running
from tests.integration.service.effects import mail, pay
from tests.integration.service.metered import METERS, counted_pay
from tests.integration.service.together.bank import Bank
from tests.integration.service.together.test_outcomes import fired, undone
from tests.integration.service.together.test_redemption import redeemed_at_once, renewed


@contextmanager
def about_reservations() -> Iterator[Counter[str]]:
    """How often each verb of SQL was sent about reservations meanwhile."""
    sent: Counter[str] = Counter()

    def note(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        sent[statement.split()[0]] += "reservations" in statement

    event.listen(Engine, "before_cursor_execute", note)
    yield sent
    event.remove(Engine, "before_cursor_execute", note)


async def test_what_a_meter_costs(bank: Bank, robot: Agent) -> None:
    """Two meters, one by a sum and one by a count; what all else costs is in `counts.txt`."""
    bank.folder.write("tools/pay.json", counted_pay()).write("meters.toml", METERS)
    await bank.activate()
    with about_reservations() as submitted:
        view = (await robot.submit(await pay(bank))).json()
    assert +submitted == {"SELECT": 2, "INSERT": 2}
    tokens = (await robot.release(view)).json()["releases"]
    with about_reservations() as redeemed:  # asked for the whole list and for what it holds itself
        assert (await robot.redeem(tokens)).json()["redeemed"] is True
    assert +redeemed == {"SELECT": 4}
    with about_reservations() as mailed:
        assert (await robot.submit(await mail(bank), run_key="mail")).status_code == 201
    assert +mailed == {}, "no meter counts a mail"


# ---------------------------------------------------------------------------------- facts of what is asked about


async def test_no_other_facts_are_read(bank: Bank, robot: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading may be a question to somebody's database."""
    asked: list[str] = []
    read = Bundle.facts_for

    async def noted(bundle: Bundle, tool: str, *args: Any, **more: Any) -> Any:
        asked.append(tool)
        return await read(bundle, tool, *args, **more)

    monkeypatch.setattr(Bundle, "facts_for", noted)
    undo = (await undone(robot, await fired(bank, robot))).json()
    asked.clear()
    assert (await robot.redeem([undo["release"]], robot.attempt + "-undo")).json()["redeemed"] is True
    assert asked == ["unpay"]
    other = await bank.agent("other")
    view = await redeemed_at_once(other, await pay(bank), await mail(bank))
    asked.clear()
    assert (await renewed(other, view["effects"][1]["effect_id"])).json()["redeemed"] is True
    assert asked == ["mail"]


# ------------------------------------------------------------------------------------------------- what is counted


PROVIDER = {
    "name": "c", "title": "C", "issuer": "https://login.example", "client_id": "c", "client_secret": "s",
}  # fmt: skip


def value(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(f"countersign_{name}", labels) or 0.0


async def test_effects_reviews_and_outcomes_are_counted(bank: Bank, robot: Agent, maya: Visitor) -> None:
    def counted() -> list[float]:
        return [
            value("effect_moves_total", state="redeemed"),
            value("effect_moves_total", state="fired"),
            value("effects_submitted_total", tool="pay", state="review"),
            value("decisions_total", outcome="review", cause="submit"),
            value("votes_total", verdict="approve", late="no"),
        ]

    before, took = counted(), value("review_duration_seconds_sum", result="met")
    view = (await robot.submit(await pay(bank, 500))).json()
    await bank.service.watch.look()
    assert value("reviews_open") == 1
    bank.clock.pass_(minutes=30)
    await bank.service.watch.look()
    assert 1_790 < value("oldest_open_review_age_seconds") < 1_830
    assert (await maya.vote(view)).status_code == 200
    await bank.service.watch.look()
    assert value("reviews_open") == 0
    assert 1_790 < value("review_duration_seconds_sum", result="met") - took < 1_830
    await robot.spend(await robot.see(view["txn"]), "a1")
    outcome = {"effect_id": view["effects"][0]["effect_id"], "outcome": "fired", "result": {"id": "p"}}
    assert (await robot.report("a1", outcome)).status_code == 200
    assert counted() == [was + 1 for was in before]


async def test_what_a_caller_invents_makes_no_label(bank: Bank, robot: Agent) -> None:
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
    assert b"hunter2" not in metrics.render_metrics().lower()


async def test_what_was_committed_counts_and_what_was_rolled_back_does_not(bank: Bank) -> None:
    def half(tx: Tx) -> None:
        append(tx, "task_opened", actor="service", body={"task": "unknown"})
        raise LookupError("no")

    before = value("tasks_opened_total", task="unknown")
    with pytest.raises(LookupError):
        await bank.service.db.write(half)
    assert value("tasks_opened_total", task="unknown") == before
    assert value("units_waiting") == 0

    heard = Mock()
    bank.service.db.set_listener(heard)
    line = partial(append, kind="signed_out", actor="person:gone", body={})
    gone = asyncio.create_task(bank.service.db.write(line))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await bank.service.db.write(lambda tx: tx.now)
    await asyncio.sleep(0)
    kinds = [line.kind for call in heard.committed.call_args_list for line in call.args[0]]
    assert kinds == ["signed_out"], "although its caller went away"
    for rules in ("", "// more\n"):  # the bundle in force is named, and the one before is not
        await bank.rules(rules)
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
    for mode, words in ((None, refused), (0o644, "metrics-token")):
        if mode:
            file.write_text("the-token\n")
            file.chmod(mode)
        with pytest.raises((StartError, ServiceError), match=words):
            async with running(tmp_path / "data", folder.path, **given):
                pytest.fail("it started")
    file.chmod(0o600)
    async with running(tmp_path / "data", folder.path, **given) as world:
        for sent, status in SENT.items():
            headers = {"Authorization": sent.encode()} if sent else {}
            assert (await world.http.get("/metrics", headers=headers)).status_code == status, sent
