"""Places for journals: the same tests on both engines, on PostgreSQL in the long suite.

A test says `@pytest.mark.parametrize("engine", BOTH)`, or its module imports `both_engines`; else it is SQLite. What
each engine does in a way of its own says `["sqlite", POSTGRES]`, and is short on both.
"""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner, Result

from countersign.cli.app import app
from countersign.journal import Journal
from countersign.journal.export import describe_transaction, render_export
from countersign.journal.location import JournalLocation, JournalUrl
from countersign.journal.postgres import PostgresDatabase
from tests.counterparts import postgres, require

POSTGRES = pytest.param("postgresql", marks=pytest.mark.xdist_group("journals"))
BOTH = ["sqlite", pytest.param("postgresql", marks=[*POSTGRES.marks, pytest.mark.long])]


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """A running PostgreSQL."""
    require("PostgreSQL", postgres.is_at_hand(), postgres.WAY_TO_GET)
    with postgres.server() as url:
        yield url


@pytest.fixture(scope="session")
def journal_database(server: str) -> Iterator[str]:
    """The address of a database for journals."""
    with postgres.database(server) as url:
        yield url.replace("+psycopg", "")


@pytest.fixture
def engine() -> str:
    """Which engine the journal is on."""
    return "sqlite"


@pytest.fixture(name="engine", params=BOTH)
def both_engines(request: pytest.FixtureRequest) -> str:
    """For a module of which every test is on both."""
    return str(request.param)


@pytest.fixture
def place(request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> Iterator[JournalLocation]:
    """Where the journal of this test lies; there is none yet."""
    if engine == "sqlite":
        yield tmp_path / "journal.db"
        return
    with schema(request.getfixturevalue("journal_database")) as url:
        yield url


@contextmanager
def schema(database: str) -> Iterator[JournalUrl]:
    """A schema of one's own, which is not there yet."""
    name = f"j_{uuid.uuid4().hex}"
    try:
        yield JournalUrl(f"{database}?options=-csearch_path%3D{name}")
    finally:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("SET client_min_messages = warning")
            connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())


def terminate(journal: Journal, place: JournalUrl) -> None:
    """Have the server end the journal's connection, and wait until it has."""
    database = journal.database
    assert isinstance(database, PostgresDatabase)
    assert database._session is not None
    pid = database._session.connection.info.backend_pid
    with psycopg.connect(place.secret, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))


def journal_command(place: JournalLocation, *args: str) -> Result:
    """Run `countersign journal` on this journal, in a wide terminal."""
    named = place.secret if isinstance(place, JournalUrl) else str(place)
    command = ["journal", *args, "--journal", named]
    return CliRunner().invoke(app, command, catch_exceptions=False, env={"COLUMNS": "250"})


def document(journal: Journal, *keys: str) -> dict[str, Any]:
    """What `journal export --format json` writes of these transactions."""
    found = [describe_transaction(journal, one) for key in keys for one in journal.transactions.find(key)]
    read: dict[str, Any] = json.loads(render_export("json", found, "2026-11-23T12:00:00Z"))
    return read
