"""What a request costs the database, counted in statements: a number that no busy machine changes.

A statement more on the hot path is a decision; whoever takes it changes the table here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import event

from policy_service.pap.bundle import Bundle
from policy_service.storage.database import Tx
from policy_service.storage.logbook import whole
from policy_service.workflow.releases import redeem, submit_and_redeem
from tests.fakes.payments import Payments
from tests.fakes.world import Agent, World
from tests.integration.service.effects import mail, pay
from tests.integration.service.metered import METERS, counted_pay
from tests.integration.service.together.test_compensation import fired, undone
from tests.integration.service.together.test_renewal import renewed, spent

pytestmark = pytest.mark.anyio

A_NEW_REVISION = {
    "SELECT agents": 1,  # enrolled and not frozen, now
    "SELECT agent_keys": 1,  # its key was not revoked since it was at the door
    "SELECT stops": 1,  # neither this tool nor everything is stopped
    "INSERT idempotency_keys": 1,
    "SELECT transactions": 1,  # what stands under this run key
    "INSERT transactions": 1,
    "INSERT effects": 1,
    "INSERT decisions": 1,
    "INSERT audit": 1,  # all lines of the unit together
}
SPENT_AT_ONCE = {
    "SELECT attempts": 1,  # nobody has taken this name
    "INSERT attempts": 1, "INSERT redemptions": 1, "UPDATE effects": 1, "UPDATE transactions": 1,
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
                return whole(unit, tx)
            finally:
                event.remove(tx.conn, "before_cursor_execute", self._hear)

        return heard

    def _hear(self, _conn: object, _cursor: object, statement: str, *_: object) -> None:
        words = statement.replace("DELETE FROM", "DELETE").replace("INSERT INTO", "INSERT").split()
        table = words[words.index("FROM") + 1] if words[0] == "SELECT" else words[1]
        self.sent[f"{words[0]} {table}"] += 1


async def test_what_a_redemption_costs(bank: World, robot: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    statements = Statements(bank, monkeypatch, submit_and_redeem.__name__)
    view = (await robot.submit(await pay(bank), run_key="new")).json()
    assert statements.sent == A_NEW_REVISION
    statements.sent.clear()
    await spent(robot, await mail(bank))
    assert statements.sent == Counter(A_NEW_REVISION) + Counter(SPENT_AT_ONCE)
    tokens = (await robot.release(view)).json()["releases"]
    statements = Statements(bank, monkeypatch, redeem.__name__)
    assert (await robot.redeem(tokens, "later")).json()["redeemed"] is True
    assert statements.sent == REDEEMED_LATER


# ---------------------------------------------------------------------------------- facts of what is asked about


async def test_no_other_facts_are_read(bank: World, robot: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
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
    view = await spent(other, await pay(bank), await mail(bank))
    asked.clear()
    assert (await renewed(other, view["effects"][1]["effect_id"])).json()["redeemed"] is True
    assert asked == ["mail"]


# ------------------------------------------------------------------------------------------------- what is counted

COUNTED = {"SELECT reservations": 2, "INSERT reservations": 2}  # by a sum and by a count
# what it holds, asked for the whole list and for itself, and two meters
COUNTED_AGAIN = {"SELECT reservations": 4}


async def test_a_counted_submission_costs_a_query_a_meter_and_a_row_a_field_more(
    bank: World, robot: Agent, folder: Payments, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("tools/pay.json", counted_pay()).write("meters.toml", METERS)
    await bank.activate()
    statements = Statements(bank, monkeypatch, submit_and_redeem.__name__)
    view = (await robot.submit(await pay(bank))).json()
    assert statements.sent == Counter(A_NEW_REVISION) + Counter(COUNTED)
    tokens = (await robot.release(view)).json()["releases"]
    statements = Statements(bank, monkeypatch, redeem.__name__)
    assert (await robot.redeem(tokens)).json()["redeemed"] is True
    assert statements.sent == Counter(REDEEMED_LATER) + Counter(COUNTED_AGAIN)
    statements = Statements(bank, monkeypatch, submit_and_redeem.__name__)
    assert (await robot.submit(await mail(bank), run_key="mail")).status_code == 201
    assert statements.sent == A_NEW_REVISION  # no meter counts a mail
