"""The tables as statements see them: SQLModel declares, Core reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import SQLModel

_INSERT: dict[str, Callable[..., Any]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def table(row: type[SQLModel]) -> Table:
    """The Core table of a declared row."""
    return SQLModel.metadata.tables[str(row.__tablename__)]


def insert_unless_there(conn: Connection, into: Table) -> Any:
    """An INSERT that does nothing where a unique key is taken; its row count says which it was."""
    statement = _INSERT[conn.dialect.name](into).on_conflict_do_nothing()
    return statement.execution_options(preserve_rowcount=True)  # or PostgreSQL's is forgotten
