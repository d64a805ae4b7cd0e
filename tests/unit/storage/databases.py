"""Databases for tests of the service: the same tests on both engines.

A folder whose statements are plain overrides the fixture `engine` with "sqlite", and asks for both
where several write at once: `@pytest.mark.parametrize("engine", BOTH)`.
"""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url, text

from policy_service.storage.database import Database
from policy_service.storage.migrations import migrate
from tests.counterparts import postgres, require

_GROUP = pytest.mark.xdist_group("postgresql")
BOTH = ["sqlite", pytest.param("postgresql", marks=_GROUP)]


SHORT_ON_SQLITE = ["sqlite", pytest.param("postgresql", marks=[_GROUP, pytest.mark.long])]
START = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Clock:
    """A clock the test advances."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def later(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    """The clock of `timed`."""
    return Clock()


@pytest.fixture(params=BOTH)
def engine(request: pytest.FixtureRequest) -> str:
    """The engine of a test."""
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A running PostgreSQL."""
    require("PostgreSQL", postgres.is_at_hand(), postgres.WAY_TO_GET)
    with postgres.server() as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'countersign.db'}"


@pytest.fixture
def database_url(request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> Iterator[str]:
    """An empty database, on each engine."""
    if engine == "sqlite":
        yield f"sqlite:///{tmp_path / 'countersign.db'}"
        return
    with postgres.database(request.getfixturevalue("postgres_server")) as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """An empty PostgreSQL database, for tests with several writers."""
    with postgres.database(postgres_server) as url:
        yield url


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    """An open database without tables, on each engine."""
    with Database.open(database_url) as database:
        yield database


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the service's tables, to be copied."""
    path = tmp_path_factory.mktemp("template") / "countersign.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def migrated_template(postgres_server: str) -> Iterator[str]:
    """A PostgreSQL database with the service's tables, to be copied."""
    with postgres.database(postgres_server) as url:
        migrate(url)
        name = make_url(url).database
        assert name is not None
        yield name


@pytest.fixture
def migrated_url(request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> Iterator[str]:
    """A database with the service's tables, on each engine."""
    if engine == "sqlite":
        path = tmp_path / "countersign.db"
        shutil.copy(request.getfixturevalue("migrated_file"), path)
        yield f"sqlite:///{path}"
        return
    template = request.getfixturevalue("migrated_template")
    with postgres.database(request.getfixturevalue("postgres_server"), template) as url:
        yield url


@pytest.fixture
def store(migrated_url: str) -> Iterator[Database]:
    """An open database with the service's tables, on each engine."""
    with Database.open(migrated_url) as database:
        yield database


@pytest.fixture
def timed(migrated_url: str, clock: Clock) -> Iterator[Database]:
    """As `store`, by the clock of the test."""
    with Database.open(migrated_url, clock=clock) as database:
        yield database


def execute(db: Database, sql: str, **values: object) -> int:
    """Run one statement as a unit; returns its row count."""
    return db.write_sync(lambda tx: tx.conn.execute(text(sql), values).rowcount)


def column(db: Database, sql: str) -> list[Any]:
    """The first column of a query."""
    return db.read_sync(lambda conn: list(conn.scalars(text(sql))))
