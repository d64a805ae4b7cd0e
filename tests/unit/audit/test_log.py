"""A line of the log stands or falls with its unit, and says what it was told to say."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError

from countersign.contract import AdmissionError
from policy_service.audit.log import Entry, append, append_above, entries_after, highest_index, record
from policy_service.storage.core import table
from policy_service.storage.database import Database, Tx
from policy_service.storage.plumbing import AuditRow

AUDIT = table(AuditRow)


def rows(db: Database) -> list[dict[str, object]]:
    return db.read_sync(
        lambda conn: [dict(row) for row in conn.execute(select(AUDIT).order_by(AUDIT.c.audit_id)).mappings()]
    )


def test_a_line_holds_who_what_when_and_about_what(store: Database) -> None:
    def unit(tx: Tx) -> datetime:
        append(
            tx, "vote_recorded", actor="person:https://idp|42", txn="t" * 64, effect_id="e" * 64, rev=3,
            body={"verdict": "approve", "a": [1, True, None]},
        )  # fmt: skip
        return tx.now

    now = store.write_sync(unit)
    (row,) = rows(store)
    assert row["idx"] is None, "only the sequencer gives an index"
    assert {name: row[name] for name in ("kind", "actor", "txn", "effect_id", "rev", "body", "at")} == {
        "kind": "vote_recorded", "actor": "person:https://idp|42", "txn": "t" * 64,
        "effect_id": "e" * 64, "rev": 3,
        "body": b'{"a":[1,true,null],"verdict":"approve"}', "at": now,
    }  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 16, 17, 70])
def test_many_lines_of_one_unit_are_all_there_in_their_order(store: Database, count: int) -> None:
    def unit(tx: Tx) -> None:
        for n in range(count):
            append(tx, "x", actor=f"agent:{n}", body={"n": n}, rev=n or None)

    store.write_sync(unit)
    store.write_sync(unit)
    told = [(row["body"], row["actor"], row["rev"]) for row in rows(store)]
    assert told == [(b'{"n":%d}' % n, f"agent:{n}", n or None) for n in range(count)] * 2


def test_a_line_that_cannot_be_written_undoes_its_unit(store: Database) -> None:
    def unit(tx: Tx) -> None:
        tx.conn.execute(text("INSERT INTO meta VALUES ('changed', 'yes')"))
        append(tx, "x", actor="system", body={})
        append(tx, None, actor="system", body={})  # type: ignore[arg-type]

    with pytest.raises(IntegrityError):
        store.write_sync(unit)
    assert rows(store) == []
    assert store.read_sync(lambda conn: conn.execute(text("SELECT count(*) FROM meta")).scalar()) == 0


@pytest.mark.parametrize("body", [{"a": (1, 2)}, {"a": 1.5e400}, {"a": b"x"}, {"a": object()}])
def test_a_body_that_is_no_plain_json_undoes_the_unit(store: Database, body: dict[str, object]) -> None:
    def unit(tx: Tx) -> None:
        tx.conn.execute(text("INSERT INTO meta VALUES ('changed', 'yes')"))
        append(tx, "x", actor="system", body=body)

    with pytest.raises(AdmissionError):
        store.write_sync(unit)
    assert store.read_sync(lambda conn: conn.execute(text("SELECT COUNT(*) FROM meta")).scalar_one()) == 0


def test_a_log_that_cannot_be_written_lets_nothing_change(store: Database) -> None:
    """L11: no audit row, no change."""
    store.write_sync(lambda tx: tx.conn.execute(text("ALTER TABLE audit RENAME TO elsewhere")).rowcount)

    def unit(tx: Tx) -> None:
        tx.conn.execute(text("INSERT INTO meta VALUES ('changed', 'yes')"))
        append(tx, "x", actor="system", body={})

    with pytest.raises(Exception, match=r"audit|database"):
        store.write_sync(unit)
    assert store.read_sync(lambda conn: conn.execute(text("SELECT COUNT(*) FROM meta")).scalar_one()) == 0


def test_no_actor_and_no_reason_forges_another_line(store: Database) -> None:
    hostile = '"}\n{"kind":"redeemed","actor":"agent:\u2028root"}'
    store.write_sync(lambda tx: append(tx, "x", actor=hostile, body={"reason": hostile}))
    (row,) = rows(store)
    assert row["actor"] == hostile
    assert json.loads(bytes(row["body"])) == {"reason": hostile}  # type: ignore[call-overload]
    assert b"\n" not in bytes(row["body"])  # type: ignore[call-overload]


def test_lines_sort_by_id_as_they_were_written(store: Database) -> None:
    def unit(tx: Tx, first: int) -> None:
        for n in range(first, first + 20):
            append(tx, "x", actor="system", body={"n": n})

    for first in range(0, 100, 20):
        store.write_sync(lambda tx, first=first: unit(tx, first))
    assert [json.loads(bytes(row["body"]))["n"] for row in rows(store)] == list(range(100))  # type: ignore[call-overload]


def test_pages_go_by_index_and_show_no_line_without_one(store: Database) -> None:
    assert store.read_sync(highest_index) == 0
    for n in range(4):
        store.write_sync(lambda tx, n=n: append(tx, f"k{n}", actor="system", body={"n": n}))
    number = text("UPDATE audit SET idx = :i WHERE kind = :k")
    for i, kind in ((1, "k0"), (2, "k1"), (3, "k2")):
        store.write_sync(lambda tx, i=i, kind=kind: tx.conn.execute(number, {"i": i, "k": kind}).rowcount)
    page = store.read_sync(lambda conn: entries_after(conn, 1, 10))
    assert [(entry.index, entry.kind, entry.body["n"]) for entry in page] == [(2, "k1", 1), (3, "k2", 2)]
    assert len(store.read_sync(lambda conn: entries_after(conn, 0, 2))) == 2
    assert store.read_sync(highest_index) == 3


def test_a_record_covers_every_member_and_leaves_out_what_is_absent() -> None:
    entry = Entry(7, "id1", "x", "system", {"b": 1}, datetime(2026, 11, 21, tzinfo=UTC))
    assert record(entry) == (
        b'{"actor":"system","at":"2026-11-21T00:00:00.000000Z","body":{"b":1},"id":"id1","kind":"x","v":1}'
    )
    other = Entry(7, "id1", "x", "system", {"b": 1}, entry.at + timedelta(microseconds=1), "t", "e", 0)
    assert b'"effect_id":"e","id":"id1","kind":"x","rev":0,"txn":"t","v":1' in record(other)


def test_a_line_put_above_the_others_has_its_index_at_once_and_takes_nobodys(store: Database) -> None:
    store.write_sync(lambda tx: append(tx, "before", actor="service", body={}))
    store.write_sync(lambda tx: append_above(tx, 40, "gap", actor="operator", body={"known_to": 0}))
    assert [(row["kind"], row["idx"]) for row in rows(store)] == [("before", None), ("gap", 40)]
    for index in (1, 40):
        with pytest.raises(ValueError, match="has reached"):
            store.write_sync(
                lambda tx, index=index: append_above(tx, index, "gap", actor="operator", body={})
            )  # type: ignore[misc]
    assert len(rows(store)) == 2
