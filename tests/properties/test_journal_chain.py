"""Verification detects every edited or deleted row or column of a journal (scenario 62)."""

import shutil
import sqlite3
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import orjson
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from countersign.journal.chain import KEYS
from countersign.journal.verification import verify
from tests.fakes.chained import eventful_journal

LONG = settings().max_examples > 1_000  # HYPOTHESIS_PROFILE=long
LEASE = frozenset({"holder", "generation", "lease_until", "updated_at"})
"""Bound by nothing, on purpose (chain.py says why). The head is compared with the last line, so it is not here."""

TABLES = (*sorted(KEYS), "chain")


@cache
def _whole() -> Path:
    return eventful_journal(Path(mkdtemp()))


@cache
def _columns() -> tuple[tuple[str, str, int], ...]:
    """Every table, bound column and how many rows it has."""
    db = sqlite3.connect(_whole())
    found = []
    for table in TABLES:
        rows = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        names = {row[1]: None for row in db.execute(f"PRAGMA table_info({table})")}
        found += [(table, name, rows) for name in names if table != "transactions" or name not in LEASE]
    db.close()
    return tuple(found)


def _values() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.none(), st.integers(-2, 2**40), st.floats(allow_nan=False), st.text(max_size=8), st.binary(max_size=8),
        st.sampled_from(["fired", "failed", "settled", "", "0" * 64]),
    )  # fmt: skip


def _copy() -> Path:
    path = Path(mkdtemp()) / "journal.db"
    shutil.copy(_whole(), path)
    return path


def _unguarded(path: Path) -> tuple[sqlite3.Connection, list[str]]:
    """A connection without the triggers, and how to restore them."""
    db = sqlite3.connect(path, isolation_level=None)
    triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        db.execute(f"DROP TRIGGER {name}")
    return db, [sql for _, sql in triggers]


def _close(db: sqlite3.Connection, triggers: list[str]) -> None:
    for sql in triggers:
        db.execute(sql)
    db.close()


def _where(db: sqlite3.Connection, table: str, n: int) -> tuple[str, tuple[Any, ...]]:
    """A condition that matches the n-th row only: all its columns."""
    cursor = db.execute(f"SELECT * FROM {table} ORDER BY 1 LIMIT 1 OFFSET {n}")
    names = [column[0] for column in cursor.description]
    return " AND ".join(f"{name} IS ?" for name in names), cursor.fetchone()


def test_every_table_has_rows_to_damage() -> None:
    assert {table for table, _, rows in _columns() if rows} == set(TABLES)


@settings(max_examples=1_000 if LONG else 50)
@given(data=st.data())
def test_edited_column_is_detected(data: st.DataObject) -> None:
    table, column, rows = data.draw(st.sampled_from(_columns()))
    path = _copy()
    db, triggers = _unguarded(path)
    where, row = _where(db, table, data.draw(st.integers(0, rows - 1)))
    before = db.execute(f"SELECT {column} FROM {table} WHERE {where}", row).fetchone()[0]
    try:
        db.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (data.draw(_values()), *row))
    except sqlite3.Error:
        assume(False)  # a type or a uniqueness the schema itself refuses
    assume(db.execute(f"SELECT count(*) FROM {table} WHERE {where}", row).fetchone()[0] == 0)
    _close(db, triggers)
    assert not verify(path).sound, f"{table}.{column} was {before!r}"
    shutil.rmtree(path.parent)


@settings(max_examples=250 if LONG else 40)
@given(data=st.data())
def test_deleted_row_is_detected(data: st.DataObject) -> None:
    table = data.draw(st.sampled_from(TABLES))
    rows = next(rows for name, _, rows in _columns() if name == table)
    path = _copy()
    db, triggers = _unguarded(path)
    where, row = _where(db, table, data.draw(st.integers(0, rows - 1)))
    assert db.execute(f"DELETE FROM {table} WHERE {where}", row).rowcount == 1
    _close(db, triggers)
    assert not verify(path).sound
    shutil.rmtree(path.parent)


@settings(max_examples=600 if LONG else 60)
@given(data=st.data())
def test_flipped_byte_is_detected_or_changes_no_bound_value(data: st.DataObject) -> None:
    path = _copy()
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    found = verify(path)
    orjson.dumps(asdict(found))  # bytes that are no text any more are written out, and not raised
    if found.sound:
        assert _bound(path) == _bound(_whole()), f"byte {at}"
    shutil.rmtree(path.parent)


def _bound(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    db = sqlite3.connect(path)
    found = {}
    for table in TABLES:
        names = [name for of, name, _ in _columns() if of == table]
        asked = f"SELECT {', '.join(names)} FROM {table} ORDER BY 1, 2"
        found[table] = db.execute(asked).fetchall() if names else []
    db.close()
    return found
