"""Audit lines: committed or rolled back with their unit, canonical, and read by index."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError

from countersign.contract import AdmissionError
from policy_service.audit import log
from policy_service.storage.core import table
from policy_service.storage.database import Database, Tx
from policy_service.storage.system_tables import AuditRow
from policy_service.storage.unit_of_work import write_lines

AUDIT = table(AuditRow)


def rows(db: Database) -> list[dict[str, Any]]:
    ordered = select(AUDIT).order_by(AUDIT.c.audit_id)
    return db.read_sync(lambda conn: [dict(row) for row in conn.execute(ordered).mappings()])


def add(db: Database, kind: str = "x", actor: str = "system", **body: Any) -> None:
    db.write_sync(lambda tx: log.append(tx, kind, actor=actor, body=body))


def test_a_line_holds_actor_kind_time_and_ids(store: Database) -> None:
    said: dict[str, Any] = {"kind": "vote_recorded", "actor": "person:https://idp|42", "rev": 3}
    said |= {"txn": "t" * 64, "effect_id": "e" * 64}

    def unit(tx: Tx) -> datetime:
        log.append(tx, **said, body={"verdict": "approve", "a": [1, True, None]})
        return tx.now

    said["at"] = store.write_sync(unit)
    (row,) = rows(store)
    assert row["idx"] == (1 if store.dialect == "sqlite" else None), "on PostgreSQL the sequencer gives it"
    assert {name: row[name] for name in said} == said
    assert row["body"] == b'{"a":[1,true,null],"verdict":"approve"}'


@pytest.mark.parametrize("count", [1, 2, 16, 17, 70])
def test_lines_of_one_unit_keep_their_order(store: Database, count: int) -> None:
    def unit(tx: Tx) -> None:
        for n in range(count):
            log.append(tx, "x", actor=f"agent:{n}", body={"n": n}, rev=n or None)

    store.write_sync(unit)
    store.write_sync(unit)
    found = [(row["body"], row["actor"], row["rev"]) for row in rows(store)]
    assert found == [(b'{"n":%d}' % n, f"agent:{n}", n or None) for n in range(count)] * 2
    if store.dialect == "sqlite":
        assert [row["idx"] for row in rows(store)] == [*range(1, 2 * count + 1)]


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_a_unit_that_is_rolled_back_leaves_no_gap_among_others(store: Database) -> None:
    """On SQLite units share a commit, and each takes the next index."""

    def unit(tx: Tx, n: int) -> None:
        log.append(tx, "x", actor="system", body={"n": n})
        write_lines(tx)
        if n % 3 == 0:
            raise KeyError(n)
        log.append(tx, "y", actor="system", body={"n": n})

    await asyncio.gather(*(store.write(partial(unit, n=n)) for n in range(12)), return_exceptions=True)
    assert [row["idx"] for row in rows(store)] == [*range(1, 17)]


UNWRITABLE: dict[str, tuple[str | None, dict[str, Any], type[Exception]]] = {
    "no kind": (None, {}, IntegrityError),
    **{
        type(value).__name__: ("x", {"a": value}, AdmissionError)
        for value in ((1, 2), 1.5e400, b"x", object())
    },
    "a log that takes none": ("x", {}, Exception),
}


@pytest.mark.parametrize(("kind", "body", "error"), UNWRITABLE.values(), ids=UNWRITABLE)
def test_a_line_that_cannot_be_written_rolls_its_unit_back(
    store: Database, kind: str | None, body: dict[str, Any], error: type[Exception]
) -> None:
    """L11: no audit row, no change."""
    if error is Exception:
        store.write_sync(lambda tx: tx.conn.execute(text("ALTER TABLE audit RENAME TO elsewhere")).rowcount)

    def unit(tx: Tx) -> None:
        tx.conn.execute(text("INSERT INTO meta VALUES ('changed', 'yes')"))
        if kind is None:
            log.append(tx, "x", actor="system", body={})
        log.append(tx, kind, actor="system", body=body)  # type: ignore[arg-type]

    with pytest.raises(error, match="audit|database" if error is Exception else "."):
        store.write_sync(unit)
    assert store.read_sync(lambda conn: conn.execute(text("SELECT count(*) FROM meta")).scalar()) == 0
    assert error is Exception or rows(store) == []


def test_no_actor_and_no_reason_forges_another_line(store: Database) -> None:
    hostile = '"}\n{"kind":"redeemed","actor":"agent:\u2028root"}'
    add(store, actor=hostile, reason=hostile)
    (row,) = rows(store)
    assert row["actor"] == hostile
    assert json.loads(row["body"]) == {"reason": hostile}
    assert b"\n" not in bytes(row["body"])


def test_pages_go_by_index_and_show_no_line_without_one(store: Database) -> None:
    assert store.read_sync(log.highest_index) == 0
    for n in range(4):
        add(store, f"k{n}", n=n)
    if store.dialect == "postgresql":
        number = text("UPDATE audit SET idx = 1 + CAST(substr(kind, 2) AS INTEGER) WHERE kind < 'k3'")
        store.write_sync(lambda tx: tx.conn.execute(number).rowcount)
    highest = 4 if store.dialect == "sqlite" else 3
    page = store.read_sync(lambda conn: log.entries_after(conn, 1, 10))
    assert [(entry.index, entry.kind, entry.body["n"]) for entry in page] == [
        (n + 1, f"k{n}", n) for n in range(1, highest)
    ]
    assert len(store.read_sync(lambda conn: log.entries_after(conn, 0, 2))) == 2
    assert store.read_sync(log.highest_index) == highest


def test_a_record_covers_every_member_and_leaves_out_what_is_absent() -> None:
    entry = log.Entry(7, "id1", "x", "system", {"b": 1}, datetime(2026, 11, 21, tzinfo=UTC))
    record = (
        b'{"actor":"system","at":"2026-11-21T00:00:00.000000Z","body":{"b":1},"id":"id1","kind":"x","v":1}'
    )
    assert log.canonical_record(entry) == record
    other = log.Entry(7, "id1", "x", "system", {"b": 1}, entry.at + timedelta(microseconds=1), "t", "e", 0)
    assert b'"effect_id":"e","id":"id1","kind":"x","rev":0,"txn":"t","v":1' in log.canonical_record(other)


def test_append_above_assigns_its_index_at_once(store: Database) -> None:
    def above(index: int) -> None:
        store.write_sync(lambda tx: log.append_above(tx, index, "gap", actor="operator", body={"known": 0}))

    add(store, "before")
    above(40)
    first = 1 if store.dialect == "sqlite" else None
    assert [(row["kind"], row["idx"]) for row in rows(store)] == [("before", first), ("gap", 40)]
    for index in (1, 40):
        with pytest.raises(ValueError, match="has reached"):
            above(index)
    assert len(rows(store)) == 2
    add(store, "after")
    assert rows(store)[-1]["idx"] == (41 if store.dialect == "sqlite" else None)
