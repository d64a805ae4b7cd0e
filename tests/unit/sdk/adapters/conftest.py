"""The databases: of the state diffs, and the bank on SQLite with an adapter and an open session."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from countersign import FilesAdapter, SQLiteAdapter
from tests.counterparts import postgres, require
from tests.unit.sdk.adapters.bank import TABLES, Bank
from tests.unit.sdk.adapters.folder import OLD
from tests.unit.sdk.adapters.resources import PostgresRows
from tests.unit.sdk.adapters.rows import Database, on_postgres, on_sqlite


@pytest.fixture(scope="module")
def conninfo():
    require("PostgreSQL", postgres.is_at_hand(), postgres.WAY_TO_GET)
    with postgres.server() as server, postgres.database(server) as url:
        yield re.sub(r"\+psycopg", "", url)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path) -> Database:
    if request.param == "sqlite":
        return on_sqlite(tmp_path)
    return on_postgres(request.getfixturevalue("conninfo"))


@pytest.fixture
def sqlite(tmp_path) -> Database:
    return on_sqlite(tmp_path)


@pytest.fixture
def server(conninfo: str) -> Database:
    return on_postgres(conninfo)


@pytest.fixture
def rows(conninfo: str) -> PostgresRows:
    return PostgresRows(conninfo)


@pytest.fixture
def path(tmp_path) -> Path:
    with closing(sqlite3.connect(tmp_path / "bank.db")) as connection:
        connection.executescript(TABLES)
    return tmp_path / "bank.db"


@pytest.fixture
def adapter(path: Path) -> SQLiteAdapter:
    return SQLiteAdapter(path, busy_seconds=0.1)


@pytest.fixture
def bank(path: Path, adapter: SQLiteAdapter):
    session = adapter.begin("t-1")
    yield Bank(path, adapter, session)
    session.undo()


@pytest.fixture
def root(tmp_path) -> Path:
    """A folder with the files of `OLD`, with a secret file and an empty folder next to it."""
    folder = tmp_path / "root"
    (folder / "d").mkdir(parents=True)
    for path, text in OLD.items():
        (folder / path).write_text(text)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "outside").mkdir()
    return folder


@pytest.fixture
def files(root: Path) -> FilesAdapter:
    return FilesAdapter(root)
