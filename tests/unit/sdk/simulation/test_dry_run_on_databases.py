"""A dry run on a database meets what a real run of the same step meets."""

from typing import Any

import psycopg
import pytest

from countersign import PostgresAdapter, ToolRaised, tool
from tests.counterparts import postgres, require
from tests.fakes.desk import Desk

pytestmark = pytest.mark.xdist_group("postgresql")

TABLES = (
    "CREATE TABLE parent (id text PRIMARY KEY)",
    "CREATE TABLE child (id integer PRIMARY KEY, p text REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
)
ADOPT = "INSERT INTO child VALUES (1, '{}')"


@pytest.fixture
def bank() -> Any:
    require("PostgreSQL", postgres.is_at_hand(), postgres.WAY_TO_GET)
    with postgres.server() as server, postgres.database(server) as url:
        conninfo = url.replace("+psycopg", "")
        with psycopg.connect(conninfo, autocommit=True) as connection:
            for statement in TABLES:
                connection.execute(statement.encode())
        yield PostgresAdapter(conninfo, name="bank")


def adopting(desk: Desk, bank: PostgresAdapter, secret: list[str]) -> Any:
    @tool("adopt", lane="live", adapter=bank, secret=secret, registry=desk.registry)
    def adopt(parent: str) -> None:
        """A child of a parent that is not there."""
        bank.execute(ADOPT.format(parent))

    return adopt


def test_a_deferred_constraint_is_broken_as_in_a_real_run(desk: Desk, bank: PostgresAdapter) -> None:
    adopt = adopting(desk, bank, [])
    for key, dry_run in (("t-1", True), ("t-2", False)):
        with pytest.raises(psycopg.errors.ForeignKeyViolation, match=r"Key \(p\)=\(missing\) is not present"):
            desk.run((adopt, "missing"), key=key, dry_run=dry_run)
    desk.registry._tools.clear()
    adopt = adopting(desk, bank, ["/parent"])
    for key, dry_run in (("t-3", True), ("t-4", False)):
        with pytest.raises(ToolRaised, match="'bank' raised ForeignKeyViolation") as reported:
            desk.run((adopt, "t0ps3cret"), key=key, dry_run=dry_run)
        assert "t0ps3cret" not in f"{reported.value}{reported.value.__cause__}{reported.value.__context__}"
