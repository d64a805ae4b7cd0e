"""What is counted: the statements that a request costs the database, and in metrics what was committed, once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import event

from policy_service import metrics
from policy_service.errors import ServiceError, StartError
from policy_service.pap.bundle import Bundle
from policy_service.storage.database import Tx
from policy_service.storage.unit_of_work import append, run_unit
from policy_service.workflow.releases import redeem, submit
from tests.fakes.payments import Payments
from tests.fakes.world import Agent, Visitor, World, running
from tests.integration.service.effects import mail, pay
from tests.integration.service.metered import METERS, counted_pay
from tests.integration.service.together.bank import Bank
from tests.integration.service.together.test_outcomes import fired, undone
from tests.integration.service.together.test_redemption import redeemed_at_once, renewed

# A statement more on the hot path is a decision, and changes the table here.
A_NEW_REVISION = {
    "SELECT agents": 1,  # enrolled and not frozen, now
    "SELECT agent_keys": 1,  # its key was not revoked since it was at the door
    "SELECT stops": 1,  # neither this tool nor everything is stopped
    "INSERT idempotency_keys": 1,
    "SELECT transactions": 1,  # what this run key has
    "INSERT transactions": 1,
    "INSERT effects": 1,
    "INSERT decisions": 1,
    "INSERT audit": 1,  # all lines of the unit together
}
SPENT_AT_ONCE = {
    "SELECT attempts": 1,  # this name is not taken
    "INSERT attempts": 1, "INSERT redemptions": 1,
}  # fmt: skip
REDEEMED_LATER = {
    "SELECT attempts": 1, "SELECT transactions": 1, "SELECT effects": 1, "SELECT decisions": 1, "SELECT agents": 1,
    "SELECT agent_keys": 1, "SELECT stops": 1, "SELECT redemptions": 1,
    "INSERT decisions": 1,  # the policy is asked again
    "INSERT attempts": 1, "INSERT redemptions": 1, "UPDATE effects": 1, "UPDATE transactions": 1, "INSERT audit": 1,
}  # fmt: skip


class Statements:
    """What the units of one module send."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
        self.sent: Counter[str] = Counter()
        write = world.service.db.write

        async def counted(unit: Callable[[Tx], Any]) -> Any:
            own = unit.func if isinstance(unit, partial) else unit
            return await write(self._listening(unit) if own.__module__ == module else unit)

        monkeypatch.setattr(world.service.db, "write", counted)

    def _listening(self, unit: Callable[[Tx], Any]) -> Callable[[Tx], Any]:
        def heard(tx: Tx) -> Any:
            event.listen(tx.conn, "before_cursor_execute", self._hear)
            try:
                return run_unit(unit, tx)
            finally:
                event.remove(tx.conn, "before_cursor_execute", self._hear)

        return heard

    def _hear(self, _conn: object, _cursor: object, statement: str, *_: object) -> None:
        words = statement.replace("DELETE FROM", "DELETE").replace("INSERT INTO", "INSERT").split()
        table = words[words.index("FROM") + 1] if words[0] == "SELECT" else words[1]
        self.sent[f"{words[0]} {table}"] += 1


COUNTED = {"SELECT reservations": 2, "INSERT reservations": 2}  # by a sum and by a count
# what it holds, asked for the whole list and for itself, and two meters
COUNTED_AGAIN = {"SELECT reservations": 4}


async def test_what_a_redemption_costs(bank: Bank, robot: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    async def costs(run: str) -> tuple[Counter[str], Counter[str]]:
        """Those of a payment that is submitted, and redeemed later."""
        submitted = Statements(bank, monkeypatch, submit.__name__)
        view = (await robot.submit(await pay(bank), run_key=run)).json()
        tokens = (await robot.release(view)).json()["releases"]
        redeemed = Statements(bank, monkeypatch, redeem.__name__)
        assert (await robot.redeem(tokens, run)).json()["redeemed"] is True
        return submitted.sent, redeemed.sent

    new, later = Counter(A_NEW_REVISION), Counter(REDEEMED_LATER)
    assert await costs("plain") == (new, later)
    statements = Statements(bank, monkeypatch, submit.__name__)
    await redeemed_at_once(robot, await mail(bank))
    assert statements.sent == new + Counter(SPENT_AT_ONCE)
    bank.folder.write("tools/pay.json", counted_pay()).write("meters.toml", METERS)
    await bank.activate()
    assert await costs("metered") == (new + Counter(COUNTED), later + Counter(COUNTED_AGAIN))
    statements = Statements(bank, monkeypatch, submit.__name__)
    assert (await robot.submit(await mail(bank), run_key="mail")).status_code == 201
    assert statements.sent == new  # no meter counts a mail


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
