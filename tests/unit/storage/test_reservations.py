"""Sums of reservations: exact at any size, by one index, on both engines."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from policy_service.storage.database import Database, Tx
from policy_service.storage.reservations import (
    NEWEST,
    Subject,
    add_reservation,
    release_reservations,
    reservations_of,
    reserved_total,
)
from policy_service.workflow.metering import resource_digest

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
LARGEST = 2**53 - 1


def hold(tx: Tx, n: int, amount: int = 1, **other: Any) -> None:
    acme = resource_digest("Account", "acme")
    held = {"tool": "pay", "agent": "robot", "resource": acme, "reserved_at": AT, "given_back_at": None}
    add_reservation(tx, effect_id=f"{n:064}", rev=1, field="/amount", amount=amount, **held | other)


def of_robot(conn: Connection, *tools: str, first: datetime = AT, before: int = NEWEST) -> int:
    return reserved_total(conn, "agent", "robot", "/amount", tools or ("pay",), first=first, before=before)


def test_a_total_is_of_one_subject_its_tools_and_its_time(store: Database) -> None:
    def work(tx: Tx) -> list[int]:
        hold(tx, 1, 10)
        hold(tx, 2, 100, tool="ship")
        hold(tx, 3, 1_000, agent="other")
        hold(tx, 4, 10_000, reserved_at=AT - timedelta(microseconds=1))
        hold(tx, 5, 0)
        acme, other = resource_digest("Account", "acme"), resource_digest("Accountacme", "")
        firsts = (AT - timedelta(days=1), AT + timedelta(microseconds=1))
        subjects = (("agent", "robot", ""), ("resource", acme, "/amount"), ("resource", other, "/amount"))
        return [
            *(of_robot(tx.conn), of_robot(tx.conn, "pay", "ship")),
            *(of_robot(tx.conn, first=first) for first in firsts),
            *(reserved_total(tx.conn, *subject, ("pay",), first=AT) for subject in subjects),
        ]

    assert store.write_sync(work) == [10, 110, 10_010, 0, 0, 1_010, 0]


def test_a_total_excludes_later_ordinals_and_released_rows(store: Database) -> None:
    def work(tx: Tx) -> list[int]:
        hold(tx, 1, 10, reserved_at=AT + timedelta(hours=1))  # the clock was put back after it
        hold(tx, 2, 100)
        ordinal = reservations_of(tx.conn, f"{2:064}", 1)["/amount"].ordinal
        assert ordinal is not None
        seen = [of_robot(tx.conn), of_robot(tx.conn, before=ordinal), of_robot(tx.conn, before=ordinal + 1)]
        release_reservations(tx, f"{1:064}", 1)
        assert reservations_of(tx.conn, f"{1:064}", 1) == {}
        return [*seen, of_robot(tx.conn), of_robot(tx.conn, before=ordinal)]

    assert store.write_sync(work) == [110, 10, 110, 100, 0]


def test_a_total_of_very_many_of_the_largest_is_exact(store: Database) -> None:
    def work(tx: Tx) -> int:
        for n in range(2_000):  # their sum leaves 64 bits
            hold(tx, n, LARGEST)
        return of_robot(tx.conn)

    assert store.write_sync(work) == 2_000 * LARGEST


@pytest.mark.parametrize("subject", ["agent", "resource"])
def test_a_total_is_found_by_an_index(migrated_file: Path, subject: Subject) -> None:
    asked = (
        "SELECT sum(amount >> 26), sum(amount & 67108863) FROM reservations "
        f"WHERE {subject} = 'x' AND field = '/amount' AND tool IN ('pay', 'ship') AND reserved_at >= '2026' "
        "AND given_back_at IS NULL AND ordinal < 5"
    )
    with closing(sqlite3.connect(migrated_file)) as conn:
        plan = [str(row) for row in conn.execute("EXPLAIN QUERY PLAN " + asked)]
    wanted = f"INDEX ix_reservations_{subject} ({subject}=? AND field=? AND tool=? AND reserved_at>?)"
    assert any(wanted in line for line in plan), plan
