"""A bundle is activated: every open effect is evaluated once, also if another one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, func, select
from structlog.testing import capture_logs

from policy_service.pap.active_bundle import ActiveBundle
from policy_service.pap.source import FolderSource
from policy_service.storage.core import table
from policy_service.storage.tables import DecisionRow
from policy_service.workflow.effects import activate as workflow_activate
from policy_service.workflow.effects.activate import activate
from policy_service.workflow.effects.evaluation import gather_facts
from tests.fakes.patience import until
from tests.fakes.payments import Payments, gate, plain_forbid
from tests.fakes.world import Agent, running
from tests.integration.service.effects import pay
from tests.integration.service.together.bank import Bank

_DECISIONS = table(DecisionRow)


async def open_payments(bank: Bank, robot: Agent, how_many: int) -> dict[str, dict[str, Any]]:
    """Payments that may go, by effect, in the order in which activation comes to them."""
    found = {}
    for n in range(how_many):
        view = (await robot.submit(await pay(bank), run_key=f"run-{n}")).json()
        found[view["effects"][0]["effect_id"]] = view
    return dict(sorted(found.items()))


@contextmanager
def damaged(effect_id: str) -> Iterator[None]:
    """Every question about an effect raises."""

    async def gather(bundle: Any, effects: Any, now: Any) -> Any:
        if effects[0].effect_id == effect_id:
            raise ValueError("no JSON")
        return await gather_facts(bundle, effects, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workflow_activate, "gather_facts", gather)
        yield


def asked_at_activation(conn: Connection) -> int:
    query = select(func.count()).select_from(_DECISIONS).where(_DECISIONS.c.cause == "activation")
    return int(conn.execute(query).scalar_one())


async def test_a_failing_effect_stops_no_other(bank: Bank, robot: Agent) -> None:
    """It is logged and evaluated again until it succeeds; the others are not."""
    views = await open_payments(bank, robot, 3)
    bad = next(iter(views))
    bank.folder.write("notes.cedar", "// says nothing new\n")
    with damaged(bad):
        for _ in range(2):
            await bank.activate()
            assert await bank.service.db.read(asked_at_activation) == 2
        assert "1 could not be" in (await activation_finding(bank))["wrong"]
    for _ in range(2):
        await bank.activate()
        assert await bank.service.db.read(asked_at_activation) == 3
    assert (await bank.http.get("/readyz")).json()["findings"] == []
    bank.folder.rules(plain_forbid("stop"))
    with damaged(bad):
        with capture_logs() as logs:
            await bank.activate()
        assert [entry["effect_id"] for entry in logs if entry["event"] == "asking_failed"] == [bad]
    states = [(await robot.see(view["txn"]))["effects"][0]["state"] for view in views.values()]
    assert states == ["released", "denied", "denied"]


async def test_restored_policies_are_asked_about_later_effects(bank: Bank, robot: Agent) -> None:
    """Also where those others were not asked about everything that was open before them."""
    await bank.write("more.cedar", gate("careful", "finance"))
    views = await open_payments(bank, robot, 2)
    (bank.folder.path / "more.cedar").unlink()
    with damaged(next(iter(views))):
        await bank.activate()
        late = (await robot.submit(await pay(bank), run_key="late")).json()
        assert late["effects"][0]["state"] == "released"
    await bank.write("more.cedar", gate("careful", "finance"))
    assert (await robot.see(late["txn"]))["effects"][0]["state"] == "review"


async def test_a_start_evaluates_only_new_questions(tmp_path: Path, folder: Payments) -> None:
    async with running(tmp_path / "data", folder.path) as bank:
        robot = await bank.agent("robot")
        views = await open_payments(bank, robot, 2)
    for notes, asked in ((None, 0), ("// says nothing new\n", len(views)), (None, len(views))):
        if notes:
            folder.write("notes.cedar", notes)
        async with running(tmp_path / "data", folder.path) as again:
            assert await again.service.db.read(asked_at_activation) == asked
    folder.rules(plain_forbid("stop"))
    async with running(tmp_path / "data", folder.path) as again:
        robot.http = again.http
        assert {(await robot.see(view["txn"]))["state"] for view in views.values()} == {"ended"}


async def test_a_start_does_not_wait_for_reevaluation(
    tmp_path: Path, folder: Payments, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "data", folder.path) as bank:
        views = await open_payments(bank, await bank.agent("robot"), 3)
    folder.write("notes.cedar", "// says nothing new\n")
    asked: list[Any] = []
    answers = asyncio.Semaphore(0)  # of sources that answer when the test says so

    async def slowly(*question: Any) -> Any:
        asked.append(question)
        await answers.acquire()
        return await gather_facts(*question)

    monkeypatch.setattr(workflow_activate, "gather_facts", slowly)
    async with asyncio.timeout(30), running(tmp_path / "data", folder.path, asked=False) as later:
        await until(lambda: len(asked) == 1)
        assert (await later.http.get("/healthz")).status_code == 200
        assert "0 so far" in (await activation_finding(later))["wrong"]
        answers.release()
        await until(lambda: len(asked) == 2)
        assert "1 so far" in (await activation_finding(later))["wrong"]
        looks = [asyncio.create_task(later.activate()) for _ in range(2)]  # the job comes by meanwhile
        for _ in views:
            answers.release()
        await asyncio.gather(*looks)
        assert (await later.http.get("/readyz")).json()["findings"] == []
        assert await later.service.db.read(asked_at_activation) == len(views) == len(asked)


async def activation_finding(bank: Bank) -> dict[str, Any]:
    answer = await bank.http.get("/readyz")
    (one,) = answer.json()["findings"]
    assert (answer.status_code, one["check"], one["stops"]) == (200, "activation", False)
    return dict(one)


async def test_replicas_of_two_folders_each_ask_once(bank: Bank, robot: Agent, tmp_path: Path) -> None:
    """Two that share a database, each with another folder: neither asks again because the other did."""
    views = await open_payments(bank, robot, 2)
    await bank.write("notes.cedar", "// says nothing new\n")
    bank.folder.restore()  # a bundle that comes back asks again
    await bank.activate()
    assert await bank.service.db.read(asked_at_activation) == 2 * len(views)
    older = ActiveBundle(FolderSource(Payments(tmp_path / "older").path), bank.clock)
    replica = replace(bank.service.ctx, active=older)
    bank.folder.write("notes.cedar", "// says nothing new\n")
    for _ in range(3):
        await bank.activate()
        await activate(replica)
    older.close()
    assert await bank.service.db.read(asked_at_activation) == 4 * len(views)
