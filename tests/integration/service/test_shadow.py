"""A candidate bundle in shadow: its differences from the active one are counted and listed, and decide nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from policy_service.facts.readers import SqlReader
from policy_service.queries.shadow import read_shadow
from policy_service.storage.core import table
from policy_service.storage.tables import EffectRow
from policy_service.workflow.shadow import comparison
from tests.fakes.pages import holds, words
from tests.fakes.payments import ANYBODY, HUGE, LARGE, Payments, gate, plain_forbid
from tests.fakes.world import Agent, running
from tests.integration.service.effects import pay
from tests.integration.service.engines import SQLITE_IN_SHORT
from tests.integration.service.together.bank import Bank

pytestmark = pytest.mark.parametrize("engine", SQLITE_IN_SHORT)

COUNTS = ("compared", "looser", "stricter", "other", "failed")


@pytest.fixture
def candidate(tmp_path: Path) -> Payments:
    """The bundle in shadow: at first it asks no one."""
    folder = Payments(tmp_path / "candidate")
    folder.policies(ANYBODY)
    return folder


@pytest.fixture
def settings(candidate: Payments) -> dict[str, Any]:
    return {"shadow_dir": candidate.path}


@pytest.fixture
async def robot(bank: Bank, robot: Agent) -> Agent:
    await look(bank)
    return robot


async def look(bank: Bank, holder: str = "one") -> int:
    """What the job does every few seconds."""
    await bank.service.sequencer.number()
    assert bank.service.ctx.candidate is not None
    return await comparison.shadow_new_decisions(bank.service.ctx, bank.service.ctx.candidate, holder)


async def seen(bank: Bank) -> Any:
    """What a signed-in person's program reads."""
    answer = await (await bank.person("maya")).get("/v1/policies/shadow")
    assert answer.status_code == 200, answer.text
    return answer.json()


def counts(view: dict[str, Any]) -> dict[str, int]:
    return {name: view[name] for name in COUNTS if view[name]}


async def submit(bank: Bank, robot: Agent, amount: int) -> Any:
    return (await robot.submit(await pay(bank, amount), run_key=f"run-{amount}")).json()


async def test_differences_are_listed_and_decide_nothing(
    bank: Bank, robot: Agent, candidate: Payments
) -> None:
    view = await submit(bank, robot, 500)
    assert await look(bank, "two") == 0, "another process has the lease"
    assert sum(await asyncio.gather(look(bank), look(bank))) in (1, 2)
    report = await seen(bank)
    assert counts(report) == {"compared": 1, "looser": 1}, "and nothing is counted twice"
    (found,) = report["differences"]
    assert found["effect_id"] == view["effects"][0]["effect_id"]
    assert (found["tool"], found["agent"], found["way"]) == ("pay", "robot", "looser")
    assert found["in_force"] | {"policies": []} == {
        "outcome": "review", "policies": [], "asks": "1 of finance", "reasons": []
    }  # fmt: skip
    assert found["candidate"] == {"outcome": "release", "policies": ["anybody-may"], "reasons": []}
    text = words((await (await bank.person("maya")).get("/policies")).text)
    difference = "pay robot review by 1 of finance release, looser large"
    holds(text, "0 the same 0 stricter 1 looser 0 ask others", difference)
    assert (await robot.see(view["txn"]))["state"] == "review"
    assert (await bank.http.get("/v1/policies/shadow")).status_code == 401
    candidate.policies(ANYBODY + gate("other", "legal"))
    await look(bank)
    assert counts(await seen(bank)) == {}, "another candidate begins anew"
    await submit(bank, robot, 501)
    await look(bank)
    (found,) = (await seen(bank))["differences"]
    assert (found["way"], found["candidate"]["asks"]) == ("other", "1 of legal")
    candidate.policies(ANYBODY + plain_forbid("never"))
    await look(bank)
    view = await submit(bank, robot, 5)
    await look(bank)
    report = await seen(bank)
    assert counts(report) == {"compared": 1, "stricter": 1}
    assert report["differences"][0]["candidate"]["reasons"] == ["never says no"]
    assert (await robot.spend(await robot.see(view["txn"])))["receipt"]


async def test_an_effect_that_cannot_be_asked_about_stops_no_other(bank: Bank, robot: Agent) -> None:
    view = await submit(bank, robot, 500)
    effects = table(EffectRow)
    bad = effects.c.effect_id == view["effects"][0]["effect_id"]
    spoil = update(effects).where(bad).values(args=b"{")
    await bank.service.db.write(lambda tx: tx.conn.execute(spoil).rowcount)
    await submit(bank, robot, 600)
    await look(bank)
    assert counts(await seen(bank)) == {"compared": 1, "looser": 1, "failed": 1}


async def test_equal_decisions_and_an_invalid_candidate(
    bank: Bank, robot: Agent, candidate: Payments
) -> None:
    candidate.policies("// in other words\n" + ANYBODY + LARGE + HUGE)
    await look(bank)
    for amount in (5, 500, 5_000):
        await submit(bank, robot, amount)
    assert await look(bank) == 3
    assert await look(bank) == 0
    report = await seen(bank)
    assert (counts(report), report["differences"]) == ({"compared": 3}, [])
    candidate.policies((bank.folder.path / "rules.cedar").read_text())  # the bundle in force itself
    await submit(bank, robot, 600)
    assert await look(bank) == 0
    candidate.policies("nonsense;")
    await look(bank)
    finding = (await bank.http.get("/readyz")).json()["findings"]
    assert [(found["check"], found["stops"]) for found in finding] == [("shadow", False)]
    report = await seen(bank)
    assert "digest" not in report
    assert report["problems"][0].startswith("rules.cedar:1: ")
    assert (await submit(bank, robot, 5))["state"] == "ready"
    candidate.policies(ANYBODY)
    await look(bank)
    assert (await bank.http.get("/readyz")).json()["findings"] == []


async def test_the_comparison_continues_after_a_restart(
    tmp_path: Path, folder: Payments, candidate: Payments, database: dict[str, str]
) -> None:
    async with running(tmp_path / "data", folder.path, **database) as bank:
        robot = await bank.agent("robot")
        await submit(bank, robot, 600)
        assert counts(await seen(bank)) == {}
        await bank.service.sequencer.number()
    async with running(tmp_path / "data", folder.path, shadow_dir=candidate.path, **database) as bank:
        assert await look(bank) == 0, "what was submitted before it came is not compared"
        await submit(bank, Agent(robot.name, robot.key, bank.http), 500)
        await bank.service.sequencer.number()
    async with running(tmp_path / "data", folder.path, shadow_dir=candidate.path, **database) as bank:
        bank.clock.pass_(minutes=2)
        assert await look(bank, "two") == 1
        assert counts(await seen(bank)) == {"compared": 1, "looser": 1}


async def test_only_the_newest_are_kept(
    bank: Bank, robot: Agent, candidate: Payments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "_MAX_DIFFERENCES", 2)
    for amount in (500, 501, 502):
        await submit(bank, robot, amount)
    await look(bank)
    report = await seen(bank)
    assert counts(report) == {"compared": 3, "looser": 3}
    assert len(report["differences"]) == 2
    at = [found["at"] for found in report["differences"]]
    assert at == sorted(at, reverse=True)
    monkeypatch.setattr(comparison, "_MAX_CANDIDATES", 1)
    bank.clock.pass_(seconds=1)
    candidate.policies(ANYBODY + LARGE)
    await look(bank)
    assert await read_shadow(bank.service.ctx, report["digest"], 10) is None
    assert (await seen(bank))["since"]


async def test_own_sources_are_not_read(
    bank: Bank, robot: Agent, candidate: Payments, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(SqlReader, "read", lambda self, values: asked.append(values["args"]) or [])
    candidate.write("facts/copy.sqlite", b"")
    facts = '[entities.Account.attributes]\nstate = "String"\n[[source]]\nname = "own"\nkind = "sql"\n'
    facts += 'path = "facts/copy.sqlite"\nquery = "SELECT :args"\nentity = "Account"\n'
    candidate.write("facts.toml", facts)
    await look(bank)
    await submit(bank, robot, 5)
    await look(bank)
    assert (counts(await seen(bank)), asked) == ({"failed": 1}, [])
    assert (await bank.http.get("/readyz")).json()["findings"] == []
