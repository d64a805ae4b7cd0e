"""SQL sources ask and never write, and the database itself stops what takes too long. The same on both
databases.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text

from policy_service.facts.readers import SourceFailedError, SqlReader
from tests.counterparts import postgres, require

SECOND: Final = timedelta(seconds=1)


VALUES = {"args": '{"flights":[{"cost":5},{"cost":7}]}'}
VALUES |= {"resource_id": "r1", "agent": "a", "tool": "t", "now": ""}


ROWS: Final = (
    "CREATE TABLE r (id TEXT, cabin TEXT, bags INTEGER)",
    "INSERT INTO r VALUES ('r1', 'economy', 2)",
    "INSERT INTO r VALUES ('r2', 'x', 0), ('r2', 'y', 0), ('r2', 'z', 0)",
)


def filled(file: Path, *statements: str) -> str:
    """The URL of a SQLite file in which these statements were run."""
    with closing(sqlite3.connect(file)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return f"sqlite:///{file}"


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    require("PostgreSQL", postgres.is_at_hand(), postgres.WAY_TO_GET)
    with postgres.server() as server, postgres.database(server) as url:
        engine = create_engine(url, poolclass=NullPool)
        with engine.begin() as connection:
            for statement in ROWS:
                connection.execute(text(statement))
        yield url


GROUPED = pytest.mark.xdist_group("postgresql")
BOTH = pytest.mark.parametrize("url", ["sqlite", pytest.param("postgresql", marks=GROUPED)], indirect=True)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[GROUPED, pytest.mark.long])])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return filled(tmp_path / "facts of the desk.sqlite", *ROWS)


def read(url: str, query: str, timeout: timedelta = SECOND, **values: str) -> list[dict[str, object]]:
    with closing(SqlReader(url, query, timeout)) as reader:
        return [dict(row) for row in reader.read(VALUES | values)]


def test_a_value_is_never_part_of_the_statement(url: str) -> None:
    query = "SELECT cabin, bags FROM r WHERE id = :resource_id"
    assert read(url, query) == [{"cabin": "economy", "bags": 2}]
    for unknown in ("unknown", "' OR '1'='1"):
        assert read(url, query, resource_id=unknown) == []


def test_the_args_arrive_as_one_json_text_a_query_can_weigh(url: str) -> None:
    queries = {
        "sqlite": "SELECT sum(json_extract(value, '$.cost')) AS total FROM json_each(:args, '$.flights')",
        "postgresql": "SELECT sum((item->>'cost')::int) AS total "
        "FROM jsonb_array_elements(CAST(:args AS jsonb)->'flights') AS item",
    }
    assert read(url, queries[make_url(url).get_backend_name()]) == [{"total": 12}]


@BOTH
def test_more_rows_than_two_are_not_even_fetched(url: str) -> None:
    assert len(read(url, "SELECT cabin FROM r WHERE id = :resource_id", resource_id="r2")) == 2


WRITES = {
    "an insert behind a WITH": "WITH x AS (SELECT 1) INSERT INTO r (id) VALUES ('evil')",
    "an insert": "INSERT INTO r (id) VALUES ('evil')",
    "a delete": "DELETE FROM r",
    "a drop": "DROP TABLE r",
}


@BOTH
@pytest.mark.parametrize("statement", WRITES.values(), ids=WRITES)
def test_a_source_cannot_write(url: str, statement: str) -> None:
    with pytest.raises(SourceFailedError, match=r"(?i)read.?only"):
        read(url, statement)
    assert len(read(url, "SELECT id FROM r")) == 2


@BOTH
def test_a_query_that_takes_too_long_is_stopped(url: str) -> None:
    forever = {
        "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n",
        "postgresql": "SELECT pg_sleep(60)",
    }
    started = time.monotonic()
    with pytest.raises(SourceFailedError):
        read(url, forever[make_url(url).get_backend_name()], timeout=timedelta(seconds=0.2))
    assert time.monotonic() - started < 5


def test_a_failure_has_the_drivers_message_without_statement_or_values(url: str) -> None:
    with pytest.raises(SourceFailedError) as failed:
        read(url, "SELECT secret_column FROM r WHERE id = :resource_id", resource_id="private")
    assert "secret_column" in str(failed.value)
    assert "private" not in str(failed.value)
    assert "SELECT" not in str(failed.value).splitlines()[0]
    assert "sqlalche.me" not in str(failed.value)


def test_sqlite_follows_a_file_that_was_replaced(tmp_path: Path) -> None:
    file, fresh = tmp_path / "facts.sqlite", tmp_path / "fresh.sqlite"
    with closing(SqlReader(f"sqlite:///{file}", "SELECT state FROM t", SECOND)) as reader:
        for state in ("open", "closed"):
            filled(fresh, f"CREATE TABLE t AS SELECT '{state}' AS state")
            fresh.rename(file)
            assert reader.read(VALUES) == [{"state": state}]


def test_sqlite_in_wal_mode_is_read_with_and_without_a_writer(tmp_path: Path) -> None:
    file = tmp_path / "facts.sqlite"
    with closing(sqlite3.connect(file)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("CREATE TABLE t AS SELECT 'open' AS state")
        writer.commit()
        assert read(f"sqlite:///{file}", "SELECT state FROM t") == [{"state": "open"}]
    assert read(f"sqlite:///{file}", "SELECT state FROM t") == [{"state": "open"}]


def test_sqlite_is_read_only_twice_over(tmp_path: Path) -> None:
    url = filled(tmp_path / "facts.sqlite", "CREATE TABLE t AS SELECT 1 AS x")
    assert read(url, "SELECT query_only FROM pragma_query_only") == [{"query_only": 1}]
    with pytest.raises(SourceFailedError, match="readonly"):  # what query_only would not stop
        read(url, "PRAGMA main.user_version = 7")


def test_a_database_that_is_not_there_is_a_failure_and_not_a_new_file(tmp_path: Path) -> None:
    with pytest.raises(SourceFailedError, match="unable to open"):
        read(f"sqlite:///{tmp_path}/gone.sqlite", "SELECT 1 AS x")
    assert list(tmp_path.iterdir()) == []


UNUSABLE = {
    "no URL": ("nonsense", "not a database URL"),
    "a kind of database we cannot hold to reading": ("mysql://localhost/x", "not supported"),
    "a database in memory": ("sqlite://", "needs a file"),
    "a database in memory by name": ("sqlite:///:memory:", "needs a file"),
}


@pytest.mark.parametrize(("bad_url", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_url_is_refused(bad_url: str, message: str) -> None:
    with pytest.raises(SourceFailedError, match=message):
        SqlReader(bad_url, "SELECT 1", SECOND)


def test_a_server_that_does_not_answer_is_a_failure_that_names_no_password() -> None:
    with pytest.raises(SourceFailedError) as failed:
        read("postgresql://user:hunter2@127.0.0.1:1/x", "SELECT 1 AS x")
    assert "hunter2" not in str(failed.value)
