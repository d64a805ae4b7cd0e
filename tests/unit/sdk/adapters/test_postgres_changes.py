"""The state diff of PostgreSQL: exact values under any settings, and transactions without a diff."""

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from countersign import IsolationConflict
from countersign.adapters.postgres import PostgresAdapter
from tests.unit.sdk.adapters.rows import Database, Expected, assert_diff, diff_of, order

pytestmark = pytest.mark.xdist_group("postgresql")


REFERENCE = "CREATE TABLE child (id integer PRIMARY KEY, order_id int REFERENCES orders INITIALLY DEFERRED)"
BIG = "CREATE TABLE big (id integer PRIMARY KEY, v jsonb)"
PARTS = [
    "CREATE TABLE parts (id integer PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
]
DIFFS: dict[str, tuple[list[str], list[str], Expected]] = {
    "cascades": ([], ["DELETE FROM orders WHERE id = 1"], {"orders[1]", "lines[1,a]", "lines[1,b]"}),
    "rows of a table that inherits, once": (
        ["CREATE TABLE base (id integer PRIMARY KEY, v text)", "CREATE TABLE kid (PRIMARY KEY (id)) INHERITS (base)",
         "INSERT INTO base VALUES (1, 'base')", "INSERT INTO kid VALUES (1, 'kid')"],
        ["UPDATE base SET v = 'new'"],
        {f"{one}[1]": ({"id": 1, "v": one}, {"id": 1, "v": "new"}) for one in ("base", "kid")}),
    "what deferred triggers would write": (
        ["CREATE TABLE log (id integer PRIMARY KEY)",
         "CREATE OR REPLACE FUNCTION logs() RETURNS trigger LANGUAGE plpgsql AS "
         "'BEGIN INSERT INTO log VALUES (NEW.id); RETURN NULL; END'",
         "CREATE CONSTRAINT TRIGGER t AFTER UPDATE ON orders DEFERRABLE INITIALLY DEFERRED "
         "FOR EACH ROW EXECUTE FUNCTION logs()"],
        ["UPDATE orders SET state = 'paid' WHERE id = 1"], {"orders[1]", "log[1]"}),
    "a row by its key alone": (
        ['CREATE TABLE "a.b%s" (id integer, "k%" text, v text, PRIMARY KEY ("k%", id) INCLUDE (v))',
         "INSERT INTO \"a.b%s\" VALUES (1, 'x', 'a')"],
        ["UPDATE \"a.b%%s\" SET v = 'b'"], {'"a.b%s"[x,1]'}),
    "without the server's counters": (
        [], ["SET LOCAL track_counts = off", "DELETE FROM orders WHERE id = 3"], {"orders[3]"}),
    "a key of a list": (
        ["CREATE TABLE odd (k integer[] PRIMARY KEY, v text)", "INSERT INTO odd VALUES ('{1,2}', 'a')"],
        ["UPDATE odd SET v = 'b'"], {'odd["{1,2}"]'}),
    "a key of an object": (
        ["CREATE TABLE odd (k jsonb PRIMARY KEY, v text)", "INSERT INTO odd VALUES ('[1, 2]', 'a')"],
        ["UPDATE odd SET v = 'b'"], {'odd["[1, 2]"]'}),
    "a partition by its own name": (
        PARTS, ["INSERT INTO parts VALUES (1, 'a')"], {"parts_1[1]"}),
    "a reference that is right in the end": (
        [REFERENCE], ["INSERT INTO child VALUES (1, 99)", "INSERT INTO orders VALUES (99, 'late')"],
        {"child[1]", "orders[99]"}),
    "no number that Python cannot hold": (
        [BIG], ["INSERT INTO big VALUES (1, to_jsonb(repeat('9', 5001)::numeric))"], None),
    "no value that is too deep": (
        [BIG], ["INSERT INTO big VALUES (1, (repeat('[', 3000) || repeat(']', 3000))::jsonb)"], None),
    "no rows without a key": (["CREATE TABLE bag (x integer)"], ["INSERT INTO bag VALUES (1)"], None),
}  # fmt: skip


@pytest.mark.parametrize(("before", "said", "expected"), DIFFS.values(), ids=DIFFS)
def test_the_diff_lists_changes(server: Database, before, said, expected) -> None:
    assert_diff(server, before, said, expected)


EXACTLY = [
    ("numeric(38,18)", "1.000000000000000001", "1.000000000000000002"),
    ("numeric", "1.0", "1.00"),
    ("jsonb", "'{\"paid\": 1}'", "'{\"paid\": true}'"),
    ("timestamptz", "'2026-01-01 00:00Z'", "'2026-01-01 00:00:00.000001Z'"),
    ("bytea", "'\\x00'", "'\\x0000'"),
    ("json", '\'{"a": 1, "a": 2}\'', "'{\"a\": 2}'"),
    ("double precision", "'0.0'", "'-0.0'"),
    ("double precision", "0.1", "0.10000000000000002"),
]


@pytest.mark.parametrize(("kind", "before", "after"), EXACTLY)
def test_what_postgresql_holds_is_compared(server: Database, kind: str, before: str, after: str) -> None:
    made = f"CREATE TABLE words (id integer PRIMARY KEY, t {kind})"
    rows = f"INSERT INTO words VALUES (1, {before}), (2, {before})"
    said = [f"UPDATE words SET t = {value} WHERE id = {n}" for n, value in ((1, after), (2, before))]
    assert_diff(server, [made, rows], ["SET LOCAL extra_float_digits = -13", *said], {"words[1]"})


SETTINGS = ["search_path = tenant", "timezone = 'Asia/Tokyo'", "bytea_output = 'escape'"]


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_the_transaction_has_set_is_the_same_on_both_sides(server: Database, setting: str) -> None:
    columns = "(id integer PRIMARY KEY, state text, at timestamptz, raw bytea)"
    rows = "INSERT INTO tenant.orders VALUES (1, 'tenant', now(), 'x'), (2, 'tenant', now(), 'x')"
    server.outside("CREATE SCHEMA tenant", f"CREATE TABLE tenant.orders {columns}", rows)
    said = [f"UPDATE tenant.orders SET state = {v} WHERE id = {n}" for n, v in ((1, "'paid'"), (2, "state"))]
    try:
        found = diff_of(server, f"SET LOCAL {setting}", *said)
    finally:
        server.outside("DROP SCHEMA tenant CASCADE")
    ((key, (before, after)),) = found.items() if found else ()
    assert key in {"orders[1]", "tenant.orders[1]"}
    assert (before["state"], after["state"]) == ("tenant", "paid")


def test_rows_under_row_security_of_others_have_no_diff(server: Database) -> None:
    server.outside(
        "ALTER TABLE orders ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
        "CREATE POLICY mine ON orders USING (state = current_setting('app.tenant', true))",
        "CREATE ROLE tenant_agent NOLOGIN",
        "GRANT USAGE ON SCHEMA public TO tenant_agent",
        "GRANT ALL ON orders TO tenant_agent",
    )
    try:
        role = ["SET LOCAL ROLE tenant_agent", "SELECT set_config('app.tenant', 'new', true)"]
        assert diff_of(server, *role, "UPDATE orders SET state = 'new' WHERE id = 1") is None
    finally:
        server.outside("DROP OWNED BY tenant_agent", "DROP ROLE tenant_agent")


UNCOUNTED = [
    "CREATE TABLE made (x integer)", "TRUNCATE orders CASCADE", "ALTER TABLE orders ADD COLUMN more text",
    "DROP TABLE lines", "DROP SCHEMA public CASCADE", "DROP TABLE parts_1", "DROP VIEW seen",
    "DROP INDEX by_state", "CREATE INDEX more ON orders (id)",
]  # fmt: skip


@pytest.mark.parametrize("statement", UNCOUNTED)
def test_uncounted_rows_have_no_diff(server: Database, statement: str) -> None:
    server.outside(*PARTS, "CREATE VIEW seen AS SELECT 1", "CREATE INDEX by_state ON orders (state)")
    assert diff_of(server, statement) is None
    assert diff_of(server, "DELETE FROM orders WHERE id = 3", statement) is None


def test_rows_hidden_from_the_login_have_no_diff(server: Database, conninfo: str) -> None:
    """The tool takes a role that sees them all; the second connection has the login's."""
    server.outside(
        "DROP ROLE IF EXISTS rows_owner, rows_login",
        "CREATE ROLE rows_owner NOLOGIN",
        "CREATE ROLE rows_login LOGIN NOINHERIT IN ROLE rows_owner",
        "GRANT ALL ON SCHEMA public TO rows_owner, rows_login",
        "ALTER TABLE lines OWNER TO rows_owner",
        "GRANT ALL ON lines TO rows_login",
        "ALTER TABLE lines ENABLE ROW LEVEL SECURITY",
    )
    adapter = PostgresAdapter(make_conninfo(conninfo, user="rows_login"))
    server.adapter, server.say = adapter, adapter.execute
    try:
        for statement in ("UPDATE lines SET n = n + 1", "DELETE FROM lines"):
            assert diff_of(server, "SET LOCAL ROLE rows_owner", statement) is None
    finally:
        server.outside("DROP OWNED BY rows_login, rows_owner CASCADE", "DROP ROLE rows_login, rows_owner")


def test_what_others_do_meanwhile_is_not_ours(server: Database) -> None:
    theirs = "UPDATE orders SET state = 'theirs' WHERE id = 2", "INSERT INTO orders VALUES (99, 'theirs')"
    with server.session() as session:
        server.run(session, "UPDATE orders SET state = 'paid' WHERE id = 1")
        server.outside(*theirs)
        with psycopg.connect(server.adapter._conninfo) as other:  # type: ignore[union-attr]
            other.execute("DELETE FROM orders WHERE id = 3")
            other.execute("INSERT INTO lines VALUES (2, 'c', 1)")  # it holds the row of order 2
            (change,) = session.changes() or ()
            other.rollback()
    assert (change.key, change.before, change.after) == ("orders[1]", order(1, "new"), order(1, "paid"))


def test_a_lock_that_hides_a_removal_is_no_lie(server: Database) -> None:
    """Others hold the row as we change it: its `xmax` is then no transaction's id, and the numbers tell."""
    with server.session() as session:
        with psycopg.connect(server.adapter._conninfo) as other:  # type: ignore[union-attr]
            other.execute("SELECT 1 FROM orders WHERE id = 3 FOR KEY SHARE")
            server.run(session, "UPDATE orders SET state = 'paid' WHERE id = 3")
            other.commit()
        server.run(session, "DELETE FROM orders WHERE id = 3")
        assert session.changes() is None


def test_what_a_commit_would_refuse_is_raised_as_preparing_one_does(server: Database) -> None:
    server.outside(REFERENCE)
    for ends in (lambda session: session.changes(), lambda session: session.prepare("a-1")):
        with server.session() as session:
            server.run(session, "INSERT INTO child VALUES (1, 99)")
            with pytest.raises(psycopg.errors.ForeignKeyViolation, match="child"):
                ends(session)


def test_a_deferred_trigger_that_meets_a_conflict_is_moved(server: Database) -> None:
    server.outside(
        "CREATE OR REPLACE FUNCTION closes() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN UPDATE orders SET state = ''closed'' WHERE id = 2; RETURN NULL; END'",
        "CREATE CONSTRAINT TRIGGER t AFTER UPDATE ON lines DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION closes()",
    )
    with server.session() as session:
        server.run(session, "UPDATE lines SET n = 9 WHERE order_id = 1")
        server.outside("UPDATE orders SET state = 'theirs' WHERE id = 2")
        with pytest.raises(IsolationConflict, match="a deferred constraint"):
            session.changes()
