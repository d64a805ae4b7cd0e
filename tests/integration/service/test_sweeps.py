"""What time does is done row by row: one that cannot be moved holds up no other, and is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import event, text
from structlog.testing import capture_logs

from policy_service.storage.database import Tx
from policy_service.workflow.context import Context
from policy_service.workflow.due import sweep
from tests.fakes.world import Agent, World
from tests.integration.service.effects import mail, pay

pytestmark = pytest.mark.anyio

HOW_MANY = 3


async def waiting(bank: World, robot: Agent, n: int) -> dict[str, Any]:
    """A payment that waits for people."""
    view: dict[str, Any] = (await robot.submit(await pay(bank, 500), run_key=f"run-{n}")).json()
    return view


async def ready(bank: World, robot: Agent, n: int) -> dict[str, Any]:
    """A payment that may go."""
    view: dict[str, Any] = (await robot.submit(await pay(bank), run_key=f"run-{n}")).json()
    return view


async def redeemed(bank: World, robot: Agent, n: int) -> dict[str, Any]:
    """A payment of which nobody has said what became."""
    view = await ready(bank, robot, n)
    await robot.spend(view, f"attempt-{n}")
    return view


async def torn(bank: World, robot: Agent, n: int) -> dict[str, Any]:
    """A payment that fired beside a mail that failed, and that nobody takes back."""
    view: dict[str, Any] = (
        await robot.submit(await pay(bank), await mail(bank), run_key=f"run-{n}", attempt_id=f"attempt-{n}")
    ).json()
    one, two = (effect["effect_id"] for effect in view["effects"])
    fired = {"effect_id": one, "outcome": "fired", "result": {"id": "p1"}}
    answer = await robot.report(f"attempt-{n}", fired, {"effect_id": two, "outcome": "failed"})
    assert answer.status_code == 200, answer.text
    return view


async def being_undone(bank: World, robot: Agent, n: int) -> dict[str, Any]:
    """Such a payment whose compensation was released and is not used."""
    view = await torn(bank, robot, n)
    body = {"effect_id": view["effects"][0]["effect_id"]}
    answer = await robot.send("POST", f"/v1/transactions/{view['txn']}/compensate", body)
    assert answer.json()["effect"]["state"] == "released", answer.text
    return view


Sweep = Callable[[Context], Awaitable[int]]
Story = Callable[[World, Agent, int], Awaitable[dict[str, Any]]]
SWEEPS: dict[str, tuple[Sweep, Story]] = {
    "questions nobody answered": (sweep.expire_reviews, waiting),
    "releases nobody used": (sweep.expire_releases, ready),
    "outcomes nobody reported": (sweep.doubt_unreported, redeemed),
    "compensations nobody used": (sweep.expire_compensations, being_undone),
}


async def set_gates(bank: World, txn: str, gates: str) -> None:
    """Change the stored gates behind the service's back; what is no JSON makes every reading of them raise."""

    def write(tx: Tx) -> None:
        tx.conn.execute(
            text("UPDATE effects SET gates = :gates WHERE txn = :txn"), {"gates": gates, "txn": txn}
        )

    await bank.service.db.write(write)


async def gates_of(bank: World, txn: str) -> str:
    query = text("SELECT gates FROM effects WHERE txn = :txn")
    return await bank.service.db.read(lambda conn: str(conn.execute(query, {"txn": txn}).scalars().first()))


@pytest.mark.parametrize(("tick", "story"), SWEEPS.values(), ids=SWEEPS)
@pytest.mark.parametrize("first", [0, 2])
async def test_a_row_that_cannot_be_moved_holds_up_no_other(
    bank: World, robot: Agent, tick: Sweep, story: Story, first: int
) -> None:
    views = [await story(bank, robot, n) for n in range(HOW_MANY)]
    bad = views[first]["txn"]
    stored = await gates_of(bank, bad)
    bank.clock.pass_(hours=25)
    await set_gates(bank, bad, "{")
    with capture_logs() as told:
        assert await tick(bank.service.ctx) == HOW_MANY - 1, "what moved, not what was found"
        assert await tick(bank.service.ctx) == 0
    failed = [entry for entry in told if entry["event"] == "sweep_failed"]
    assert [entry["txn"] for entry in failed] == [bad, bad], "once in each round"
    await set_gates(bank, bad, stored)
    assert await tick(bank.service.ctx) == 1
    assert await tick(bank.service.ctx) == 0


async def test_what_is_not_due_is_left_alone(bank: World, robot: Agent) -> None:
    for n, story in enumerate([waiting, ready, redeemed, being_undone, torn]):
        await story(bank, robot, n)
    for tick in (*(tick for tick, _ in SWEEPS.values()), sweep.ask_for_compensations):
        assert await tick(bank.service.ctx) == 0


async def test_questions_of_one_transaction_end_as_one(bank: World, robot: Agent) -> None:
    """The first takes its sibling along, which is then not due any more: no failure, and counted once."""
    await robot.submit(await pay(bank, 500), await pay(bank, 600))
    bank.clock.pass_(hours=25)
    with capture_logs() as told:
        assert await sweep.expire_reviews(bank.service.ctx) == 1
    assert [entry for entry in told if entry["event"] == "sweep_failed"] == []


async def test_what_was_torn_is_told_once(bank: World, robot: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_AT_ONCE", 2)  # more than one page of them
    for n in range(HOW_MANY):
        await torn(bank, robot, n)
        await waiting(bank, robot, 10 + n)
    bank.clock.pass_(hours=1)
    assert await sweep.ask_for_compensations(bank.service.ctx) == HOW_MANY
    assert await sweep.ask_for_compensations(bank.service.ctx) == 0
    bank.clock.pass_(hours=24)
    assert await sweep.expire_reviews(bank.service.ctx) == HOW_MANY
    assert await sweep.expire_reviews(bank.service.ctx) == 0


INDEXED: dict[str, tuple[Sweep, str]] = {name: (tick, "<?") for name, (tick, _) in SWEEPS.items()} | {
    "what was torn": (sweep.ask_for_compensations, "ix_transactions_due (state=?")
}


async def test_what_is_due_is_found_by_an_index(bank: World) -> None:
    """A table of a million rows that are over must cost a tick nothing."""
    statements: list[tuple[str, Any]] = []
    engine = bank.service.db._readers

    def note(conn: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        if "of_txn" in statement:
            statements.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    for tick, _ in INDEXED.values():
        await tick(bank.service.ctx)
    event.remove(engine, "before_cursor_execute", note)
    for (what, (_, found_by)), (statement, parameters) in zip(INDEXED.items(), statements, strict=True):
        with engine.connect() as conn:
            plan = [row[-1] for row in conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]
        assert "USING INDEX" in plan[0] and found_by in plan[0], (what, plan)
