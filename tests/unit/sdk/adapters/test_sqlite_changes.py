"""The state diff of SQLite: exact values, rows without a key, definitions, and transactions without a diff."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from countersign.adapters import SQLiteAdapter
from tests.unit.sdk.adapters.rows import CALL, Database, Expected, assert_diff, diff_of, on_sqlite, order

WIDE = f"CREATE TABLE wide (id integer PRIMARY KEY, {', '.join(f'c{n}' for n in range(900))})"
DIFFS: dict[str, tuple[list[str], list[str], Expected]] = {
    "what triggers write": (
        ["CREATE TABLE log (what text)",
         "CREATE TRIGGER t AFTER DELETE ON orders BEGIN INSERT INTO log VALUES (OLD.id); END"],
        ["UPDATE orders SET id = 10 WHERE id = 3", "DELETE FROM orders WHERE id = 10"],
        {"orders[3]", "log[1]"}),
    "a row without a key, by its number": (
        ["CREATE TABLE bag (rowid text, x)", "INSERT INTO bag VALUES ('same', 1), ('same', 2)"],
        ["UPDATE bag SET x = x + 10"], {"bag[1]", "bag[2]"}),
    "a key that is nothing in this transaction alone": (
        ["CREATE TABLE bag (k INT PRIMARY KEY, x)"],
        ["INSERT INTO bag (x) VALUES ('pay'), ('pay')"], {"bag[1]", "bag[2]"}),
    "numbers of rows that are given again": (
        ["CREATE TABLE bag (x)", "INSERT INTO bag VALUES ('a'), ('b')"],
        ["DELETE FROM bag", "INSERT INTO bag VALUES ('a'), ('c'), ('d')"],
        {"bag[2]": ({"x": "b"}, {"x": "c"}), "bag[3]": (None, {"x": "d"})}),
    "neither a view nor a temporary table": (
        ["CREATE VIEW w AS SELECT * FROM orders",
         "CREATE TRIGGER v INSTEAD OF INSERT ON w BEGIN INSERT INTO orders VALUES (NEW.id, NEW.state); END"],
        ["INSERT INTO w VALUES (7, 'made')", "CREATE TEMP TABLE mine (x)", "INSERT INTO mine VALUES (1)"],
        {"orders[7]"}),
    "definitions that hold no rows": (
        [], ["CREATE UNIQUE INDEX one ON orders (state, id)", "CREATE VIEW w AS SELECT 1"], {"index one", "view w"}),
    "tables that are made": (
        [], ['CREATE TABLE "a ""b" (x)', 'INSERT INTO "a ""b" VALUES (5)'],
        {'table a "b': (None, 'CREATE TABLE "a ""b" (x)'), 'a "b[1]': (None, {"x": 5})}),
    "tables that are dropped": ([], ["DROP TABLE lines"], {"table lines", "lines[1,a]", "lines[1,b]", "lines[2,a]"}),
    "a table of another shape": ([], ["ALTER TABLE orders ADD COLUMN more text"], None),
    "keys that only the column finds equal": (
        ["CREATE TABLE named (k text COLLATE NOCASE, n, PRIMARY KEY (k COLLATE BINARY))",
         "INSERT INTO named VALUES ('a', 1), ('A', 1)"],
        ["UPDATE named SET n = 2 WHERE k = 'a' COLLATE BINARY"],
        {"named[a]": ({"k": "a", "n": 1}, {"k": "a", "n": 2})}),
    "columns that follow from others": (
        ["CREATE TABLE sums (id integer PRIMARY KEY, a, b AS (a * 2), c AS (a * 3) STORED)",
         "INSERT INTO sums (id, a) VALUES (1, 1), (2, 1)"],
        ["UPDATE sums SET a = 5 WHERE id = 1"], {"sums[1]": ({"id": 1, "a": 1}, {"id": 1, "a": 5})}),
    "a table of many columns": (
        [WIDE, "INSERT INTO wide (id) VALUES (1), (2), (3)"],
        ["UPDATE wide SET c899 = 1 WHERE id = 2", "DELETE FROM wide WHERE id = 3"], {"wide[2]", "wide[3]"}),
}  # fmt: skip


@pytest.mark.parametrize(("before", "said", "expected"), DIFFS.values(), ids=DIFFS)
def test_the_diff_lists_changes(sqlite: Database, before, said, expected) -> None:
    assert_diff(sqlite, before, said, expected)


EXACTLY = {
    "upper case": ("word", "'a'", "'A'"),
    "a number as text": ("n", "1", "'1'"),
    "an integer as a float": ("n", "1", "1.0"),
    "the last digit of a float": ("n", "0.1", "0.10000000000000002"),
    "behind a NUL": ("n", "CAST(x'610062' AS TEXT)", "CAST(x'610063' AS TEXT)"),
    "text as bytes": ("n", "'a'", "x'61'"),
    "nothing as a zero": ("n", "NULL", "0"),
}


@pytest.mark.parametrize(("column", "before", "after"), EXACTLY.values(), ids=EXACTLY)
def test_changes_that_compare_equal_are_reported(
    sqlite: Database, column: str, before: str, after: str
) -> None:
    made = "CREATE TABLE words (id integer PRIMARY KEY, word text COLLATE NOCASE, n)"
    there = f"INSERT INTO words (id, {column}) VALUES (1, {before}), (2, {before})"
    assert_diff(sqlite, [made, there], [f"UPDATE words SET {column} = {after} WHERE id = 1"], {"words[1]"})


def test_connection_settings_of_a_tool_do_not_affect_the_diff(sqlite: Database) -> None:
    def rows_as_dicts(cursor: sqlite3.Cursor, row: tuple) -> dict:
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}

    with sqlite.session() as session:
        with session.effect(CALL):
            sqlite.adapter.connection.row_factory = rows_as_dicts
            sqlite.adapter.connection.text_factory = bytes
            sqlite.say("DELETE FROM orders WHERE id = 3")
        changes = session.changes()
    assert changes is not None and [one.before for one in changes] == [order(3, "new")]


NUMBERED = {
    "INSERT INTO bag (x) VALUES ('pay')": {4},
    "INSERT INTO bag (x) VALUES ('pay'), ('pay'), ('pay')": {4, 5, 6},
    "DELETE FROM bag WHERE rowid = 1": {1},
    "UPDATE bag SET x = 'paid' WHERE x = 'pay'": {1, 2},
    "UPDATE bag SET k = NULL WHERE k = 7": {3},
    "UPDATE bag SET k = rowid": {1, 2, 3},
}


@pytest.mark.parametrize("key", ["INT PRIMARY KEY", "INTEGER PRIMARY KEY DESC", "text PRIMARY KEY"])
@pytest.mark.parametrize(("statement", "numbers"), NUMBERED.items())
def test_keyless_rows_are_numbered(sqlite: Database, key: str, statement: str, numbers: set[int]) -> None:
    rows = "INSERT INTO bag VALUES (NULL, 'pay'), (NULL, 'pay'), (7, 'other')"
    defined = [f"CREATE TABLE bag (k {key}, x)", rows]
    assert_diff(sqlite, defined, [statement], {f"bag[{number}]" for number in numbers})


def test_an_attached_database_has_no_diff(sqlite: Database, tmp_path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db", isolation_level=None)) as other:
        other.execute("CREATE TABLE orders (id integer PRIMARY KEY, state text)")
    with sqlite.session() as session:
        with session.effect(CALL):
            sqlite.say(f"ATTACH '{tmp_path / 'other.db'}' AS other")
            sqlite.say("INSERT INTO other.orders VALUES (1, 'x')")
        assert session.changes() is None


def test_leaving_a_folder_makes_no_other_database(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    database = on_sqlite(Path())
    (tmp_path / "elsewhere").mkdir()
    with database.session() as session:
        database.run(session, "DELETE FROM orders WHERE id = 3")
        monkeypatch.chdir(tmp_path / "elsewhere")
        changes = session.changes()
    assert changes is not None and [one.key for one in changes] == ["orders[3]"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


NOCASE = "k text COLLATE NOCASE PRIMARY KEY"
KEYS = {
    "another case": (NOCASE, "'a'", "'A'"),
    "another case, in an index of its own": ("k text, PRIMARY KEY (k COLLATE NOCASE)", "'a'", "'A'"),
    "a number as text": ("k PRIMARY KEY", "1", "'1'"),
    "an integer as a float": ("k PRIMARY KEY", "1", "1.0"),
    "text as bytes": ("k PRIMARY KEY", "'a'", "x'61'"),
    "without a rowid": (f"{NOCASE}) WITHOUT ROWID --", "'a'", "'A'"),
}


@pytest.mark.parametrize(("declared", "before", "after"), KEYS.values(), ids=KEYS)
def test_keys_that_compare_equal_differ(sqlite: Database, declared: str, before: str, after: str) -> None:
    sqlite.outside(f"CREATE TABLE named ({declared})")
    sqlite.outside(f"INSERT INTO named VALUES ({before}), ('other')")
    with sqlite.session() as session:
        sqlite.run(session, f"UPDATE named SET k = {after} WHERE k = {before}")
        changes = session.changes() or ()
    assert [(one.before is None, one.after is None) for one in changes] == [(False, True), (True, False)]


BIG = [
    "k integer PRIMARY KEY, x text)", "k text PRIMARY KEY, x text)", f"{NOCASE}, x text)", "k, x text)",
    "k text, x text, PRIMARY KEY (x, k)) WITHOUT ROWID",
]  # fmt: skip


@pytest.mark.parametrize("declared", BIG)
def test_rows_are_found_by_key_and_none_is_kept(sqlite: Database, tmp_path, declared: str) -> None:
    """Sorting or collecting unchanged rows would take the memory and time of the whole table."""
    sqlite.outside(f"CREATE TABLE big ({declared}")
    asked: list[str] = []
    with sqlite.session() as session:
        with session.effect(CALL):
            sqlite.say("INSERT INTO big VALUES (1, 'a')")
            sqlite.adapter.connection.set_trace_callback(asked.append)
        assert session.changes() is not None
    joins = [f"EXPLAIN QUERY PLAN {one}" for one in asked if " JOIN " in one]
    assert len(joins) == 3
    with closing(sqlite3.connect(tmp_path / "rows.db")) as other:
        other.execute("ATTACH ? AS countersign_before", (str(tmp_path / "rows.db"),))
        for join in joins:
            first, second = (step for *_, step in other.execute(join))
            assert (first[:4], second[:6], "AUTOMATIC" in second) == ("SCAN", "SEARCH", False)


def fill(database: Database, rows: int) -> None:
    numbers = f"WITH RECURSIVE n (i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n LIMIT {rows})"
    database.outside(f"INSERT INTO orders {numbers} SELECT i, printf('%0200d', i) FROM n")


def test_comparing_leaves_others_half_of_the_time_that_they_wait(sqlite: Database, tmp_path) -> None:
    fill(sqlite, 100_000)
    patient, hasty = (SQLiteAdapter(tmp_path / "rows.db", busy_seconds=s) for s in (60.0, 0.02))
    for adapter, can_tell in ((patient, True), (hasty, False)):
        session = adapter.begin("t-1")
        with session.effect(CALL):
            adapter.connection.execute("UPDATE orders SET state = 'paid' WHERE id = 7000")
        changes = session.changes()
        session.undo()
        assert (changes is not None) == can_tell


def test_a_transaction_larger_than_the_page_cache_does_not_block_itself(sqlite: Database) -> None:
    """SQLite has then written pages out, and no other connection can read the file."""
    fill(sqlite, 30_000)
    with sqlite.session() as session:
        sqlite.run(session, "UPDATE orders SET state = 'paid'")
        began = time.monotonic()
        assert session.changes() is None
        assert time.monotonic() - began < 2.5  # of the five seconds for which it would wait for others


def test_a_transaction_larger_than_the_page_cache_has_a_diff_in_wal_mode(sqlite: Database) -> None:
    sqlite.outside("PRAGMA journal_mode = wal")
    fill(sqlite, 30_000)
    there, back = "state || 'x'", "substr(state, 1, length(state) - 1)"
    everywhere = [f"UPDATE orders SET state = {one}" for one in (there, back)]
    found = diff_of(sqlite, *everywhere, "UPDATE orders SET state = 'paid' WHERE id = 1")
    assert found == {"orders[1]": (order(1, "new"), order(1, "paid"))}
