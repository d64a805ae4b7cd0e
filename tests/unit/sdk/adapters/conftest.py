"""The databases of the state diffs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.counterparts import postgres, require
from tests.unit.sdk.adapters.resources import PostgresRows
from tests.unit.sdk.adapters.rows import Database, on_postgres, on_sqlite


@pytest.fixture(scope="module")
def conninfo() -> Iterator[str]:
    require("PostgreSQL", postgres.is_at_hand(), postgres.WAY_TO_GET)
    with postgres.server() as server, postgres.database(server) as url:
        yield re.sub(r"\+psycopg", "", url)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return on_sqlite(tmp_path)
    return on_postgres(request.getfixturevalue("conninfo"))


@pytest.fixture
def sqlite(tmp_path: Path) -> Database:
    return on_sqlite(tmp_path)


@pytest.fixture
def server(conninfo: str) -> Database:
    return on_postgres(conninfo)


@pytest.fixture
def rows(conninfo: str) -> PostgresRows:
    return PostgresRows(conninfo)
