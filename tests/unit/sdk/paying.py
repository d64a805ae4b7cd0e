"""A tool that is given a secret, and a look at what the journal holds of it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from countersign import Placeholder, ReviewPending, Runtime, tool
from countersign.journal import EffectRecord, TransactionRecord
from tests.fakes.desk import Desk, make_runtime

CARD, LARGE = "4111-9f1c7ab3", 90_000


Pay = Callable[..., Placeholder[str]]


def pay_tool(desk: Desk, **options: Any) -> Pay:
    said = {"secret": ["card"]} | options

    @tool("pay", resource=("Order", "order_id"), registry=desk.registry, **said)
    def pay(order_id: str, amount_cents: int, card: str | None = None) -> str:
        """Pay an order."""
        desk.act("pay", order_id, amount_cents, card)
        return f"paid with {card}"

    desk.publish(pay)
    return pay


def paid(desk: Desk, **options: Any) -> Pay:
    """The tool, with which an order has been paid."""
    pay = pay_tool(desk, **options)
    with desk.step():
        pay("o-1", 5, CARD)
    return pay


def without_key(desk: Desk, tmp_path: Path) -> Runtime:
    """Another host, without the key."""
    settings = replace(desk.runtime.settings, journal_key_path=tmp_path / "not here")
    return make_runtime(settings, desk.face, desk.registry, desk.clock)


def columns(desk: Desk, lane: str = "staged") -> list[dict[str, Any]]:
    rows = desk.runtime.journal.database.rows(
        "SELECT * FROM effects WHERE lane = ? ORDER BY txn, staging, seq", (lane,)
    )
    return [{name: row[name] for name in row.keys()} for row in rows]  # noqa: SIM118 - a row is no dict


def found(desk: Desk, key: str) -> TransactionRecord:
    (record,) = desk.runtime.journal.transactions.find(key)
    return record


def rows(desk: Desk, key: str, lane: str = "staged") -> tuple[EffectRecord, ...]:
    return desk.runtime.journal.transactions.effects(found(desk, key), lane)


def parked(desk: Desk, pay: Pay) -> str:
    with pytest.raises(ReviewPending) as pending, desk.step():
        pay("o-1", LARGE, CARD)
    desk.service.approve(pending.value.txn)
    return pending.value.txn


def tampered(desk: Desk, sql: str, *parameters: Any) -> None:
    with desk.runtime.journal.database.unit(durable=True) as unit:
        assert unit.execute(sql, parameters).rowcount == 1
