"""Sweeps work row by row: a row that cannot be moved stops no other and is logged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from sqlalchemy import event, text
from structlog.testing import capture_logs

from policy_service.queries.context import Context
from policy_service.workflow.expiry import sweep
from tests.fakes.world import Agent
from tests.integration.service.effects import mail, pay
from tests.integration.service.together.bank import Bank
from tests.integration.service.together.test_outcomes import undone


@pytest.mark.parametrize("first", [0, 2])
async def test_a_row_that_cannot_be_moved_holds_up_no_other(bank: Bank, robot: Agent, first: int) -> None:
    """Two questions of one transaction end as one: the second is then not due any more, and is no failure."""
    for what, tick in SWEEPS.items():
        txns = [await story(bank, robot, what, f"{what}-{n}") for n in range(HOW_MANY)]
        if what == "waiting":
            await robot.submit(await pay(bank, 500), await pay(bank, 600), run_key=txns[first])
        more = 1 if what == "waiting" else 0
        bank.clock.pass_(hours=25)
        stored = await gates(bank, txns[first], "{")
        with capture_logs() as logs:
            assert await tick(bank.service.ctx) == HOW_MANY + more - 1, "what moved, not what was found"
            assert await tick(bank.service.ctx) == 0
        assert failures(logs) == [txns[first]] * 2, "once in each round"
        await gates(bank, txns[first], stored)
        assert await tick(bank.service.ctx) == 1
        assert await tick(bank.service.ctx) == 0


async def test_a_partial_failure_is_one_task(
    bank: Bank, robot: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_PAGE", 2)  # more than one page of them
    for n in range(HOW_MANY):
        await story(bank, robot, "torn", f"torn-{n}")
        await story(bank, robot, "waiting", f"waiting-{n}")
    for hours, tick in ((1, sweep.open_compensation_tasks), (24, sweep.expire_reviews)):
        bank.clock.pass_(hours=hours)
        assert await tick(bank.service.ctx) == HOW_MANY
        assert await tick(bank.service.ctx) == 0


async def test_what_is_due_is_found_by_an_index(bank: Bank, robot: Agent) -> None:
    """A table of a million rows that are not due, or are over, must cost a tick nothing."""
    for what in (*SWEEPS, "torn"):
        await story(bank, robot, what, what)
    statements: list[tuple[str, Any]] = []
    engine = bank.service.db._readers

    def note(conn: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        if "of_txn" in statement:
            statements.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    ticks = [(tick, "<?") for tick in SWEEPS.values()]
    ticks.append((sweep.open_compensation_tasks, "ix_transactions_due (state=?"))
    for tick, _ in ticks:
        assert await tick(bank.service.ctx) == 0
    event.remove(engine, "before_cursor_execute", note)
    for (tick, found_by), (statement, parameters) in zip(ticks, statements, strict=True):
        with engine.connect() as conn:
            plan = [row[-1] for row in conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)]
        assert "USING INDEX" in plan[0] and found_by in plan[0], (tick, plan)


HOW_MANY = 3


Sweep = Callable[[Context], Awaitable[int]]


SWEEPS: dict[str, Sweep] = {
    "waiting": sweep.expire_reviews,
    "ready": sweep.expire_releases,
    "redeemed": sweep.mark_unreported_unknown,
    "undoing": sweep.expire_compensations,
}


async def story(bank: Bank, robot: Agent, what: str, run: str) -> Any:
    """A payment that waits for people, may go, or was redeemed and is not reported; one that fired next to a mail that
    failed is torn, or undoing where its compensation is released. Its transaction.
    """
    calls = [await pay(bank, 500 if what == "waiting" else 10)]
    if what in ("torn", "undoing"):
        calls.append(await mail(bank))
    attempt = {} if what in ("waiting", "ready") else {"attempt_id": run}
    view = (await robot.submit(*calls, run_key=run, **attempt)).json()
    if len(calls) == 2:
        one, two = (effect["effect_id"] for effect in view["effects"])
        fired = {"effect_id": one, "outcome": "fired", "result": {"id": "p1"}}
        await robot.report(run, fired, {"effect_id": two, "outcome": "failed"})
    if what == "undoing":
        undo = await undone(robot, view)
        assert undo.json()["effect"]["state"] == "released", undo.text
    return view["txn"]


async def gates(bank: Bank, txn: str, instead: str | None = None) -> str:
    """The stored gates, changed behind the service's back: what is no JSON makes every reading of them raise."""
    query = text("SELECT gates FROM effects WHERE txn = :txn").bindparams(txn=txn)
    before = await bank.service.db.read(lambda conn: str(conn.execute(query).scalars().first()))
    change = text("UPDATE effects SET gates = :gates WHERE txn = :txn").bindparams(
        txn=txn, gates=instead or before
    )
    await bank.service.db.write(lambda tx: tx.conn.execute(change).rowcount)
    return before


def failures(logs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [entry["txn"] for entry in logs if entry["event"] == "sweep_failed"]
