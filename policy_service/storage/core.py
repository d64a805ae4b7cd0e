"""Rows and statements: SQLModel declares the tables, SQLAlchemy Core reads and writes them.

Each shape of statement is built once, because building one costs more than running it. Writes are also compiled once
and then passed to the driver directly: Core's compilation costs as much again, and a redemption writes a dozen rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Insert,
    Select,
    Table,
    TextClause,
    Update,
    bindparam,
    insert,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.orm import configure_mappers
from sqlmodel import SQLModel

_INSERT: dict[str, Callable[..., Any]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


class Row(SQLModel):
    """A row as a plain typed value.

    No session holds one, so it skips the bookkeeping of the ORM and of pydantic, which together cost twenty times the
    query.

    Raises:
        TypeError: a column without a default is missing, or there is no such column.
    """

    def __init__(self, **values: Any) -> None:
        values = {name: make() for name, make in _defaults(type(self)) if name not in values} | values
        if values.keys() != type(self).__pydantic_fields__.keys():
            odd = sorted(values.keys() ^ type(self).__pydantic_fields__.keys())
            raise TypeError(f"{type(self).__name__} is made of its columns: {', '.join(odd)}")
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value


_AnyRow = TypeVar("_AnyRow", bound=Row)


@cache
def _defaults(model: type[Row]) -> list[tuple[str, Callable[..., Any]]]:
    """The columns with a default, and the factory of each; a mutable default is made anew for each row."""
    fields = model.__pydantic_fields__.items()
    return [
        (name, field.default_factory or (lambda value=field.default: value))
        for name, field in fields
        if not field.is_required()
    ]


def rows_of(model: type[_AnyRow], found: Iterable[Iterable[Any]]) -> list[_AnyRow]:
    """The rows of a query that selects every column of ``model`` in order."""
    rows = []
    for values in found:  # no validation and no defaults: the values come from the database
        row = object.__new__(model)
        row.__dict__.update(zip(_columns(model), values, strict=True))
        rows.append(row)
    return rows


def table(row: type[SQLModel]) -> Table:
    """The Core table of a declared row."""
    return SQLModel.metadata.tables[str(row.__tablename__)]


def partial(condition: str | TextClause) -> dict[str, Any]:
    """The arguments of an Index that covers only the rows of a condition, on both engines."""
    where = text(condition) if isinstance(condition, str) else condition
    return {"sqlite_where": where, "postgresql_where": where}


def key_after(key: Sequence[ColumnElement[Any]], last: Sequence[Any]) -> ColumnElement[bool]:
    """Rows whose key comes after this one, as one row comparison. Written with OR, no index can start at it."""
    return tuple_(*key) > tuple_(*last, types=[column.type for column in key])


def key_before(key: Sequence[ColumnElement[Any]], last: Sequence[Any]) -> ColumnElement[bool]:
    """The same for a list that is read backwards."""
    return tuple_(*key) < tuple_(*last, types=[column.type for column in key])


def find(conn: Connection, model: type[_AnyRow], **where: Any) -> list[_AnyRow]:
    """The rows whose columns have these values, in no order. As in SQL, None equals nothing."""
    return rows_of(model, conn.execute(_select(model, tuple(where)), where))


def find_one(conn: Connection, model: type[_AnyRow], **where: Any) -> _AnyRow | None:
    """The first row whose columns have these values, or None."""
    return next(iter(find(conn, model, **where)), None)


def insert_row(conn: Connection, row: Row) -> None:
    """Insert one row."""
    execute_write(conn, _insert(type(row)), _column_values(row))


def insert_row_or_ignore(conn: Connection, row: Row) -> bool:
    """Insert one row unless a unique key of it exists. Returns whether it was inserted."""
    statement = _insert_or_ignore(type(row), conn.dialect.name)
    return bool(execute_write(conn, statement, _column_values(row)))


def update_rows(conn: Connection, model: type[Row], where: dict[str, Any], columns: dict[str, Any]) -> int:
    """Update the rows whose columns have the values of ``where``. Returns their number. None equals nothing."""
    statement = _update(model, tuple(where), tuple(columns))
    values = {f"was_{name}": value for name, value in where.items()} | columns
    return execute_write(conn, statement, values)


@dataclass(frozen=True, slots=True)
class _CompiledStatement:
    """A statement compiled for one driver: its text, and each parameter with its bind processor."""

    text: str
    parameters: tuple[tuple[str, Callable[[Any], Any] | None], ...]
    own: Mapping[str, Any]  # literal values of the statement itself
    by_name: bool

    def bound(self, values: Mapping[str, Any]) -> Any:
        """The parameters as the driver takes them. A missing one raises KeyError."""
        values = {**values, **self.own}
        bound = [(name, values[name] if to is None else to(values[name])) for name, to in self.parameters]
        return dict(bound) if self.by_name else tuple(value for _, value in bound)


def execute_write(
    conn: Connection, statement: Insert | Update, values: Mapping[str, Any], *, explicit_columns: bool = False
) -> int:
    """Run a statement from the cache of compiled ones. Returns the number of rows it changed.

    Without ``explicit_columns`` the values go to the columns of their names; with it the statement names each itself.

    Raises:
        KeyError: a value is missing.
    """
    key = (statement, tuple(values), conn.dialect.name)
    if (ready := _compiled.get(key)) is None:
        ready = _compiled[key] = _compile(statement, None if explicit_columns else list(values), conn.dialect)
    return conn.exec_driver_sql(ready.text, ready.bound(values)).rowcount


# One entry per shape; dialects of different engines are alike.
_compiled: dict[tuple[Insert | Update, tuple[str, ...], str], _CompiledStatement] = {}


def _compile(statement: Insert | Update, columns: list[str] | None, dialect: Dialect) -> _CompiledStatement:
    compiled = statement.compile(dialect=dialect, column_keys=columns)
    names = (compiled.positiontup or ()) if compiled.positional else compiled.binds
    parameters = tuple(
        (name, compiled.binds[name].type.dialect_impl(dialect).bind_processor(dialect)) for name in names
    )
    own = {name: bind.value for name, bind in compiled.binds.items() if not bind.required}
    return _CompiledStatement(str(compiled), parameters, own, by_name=not compiled.positional)


def _column_values(row: Row) -> dict[str, Any]:
    values = row.__dict__
    return {name: values[name] for name in _columns(type(row))}


@cache
def _columns(model: type[Row]) -> tuple[str, ...]:
    configure_mappers()  # the first row may be read before one was ever made
    return tuple(column.name for column in table(model).columns)


@cache
def _select(model: type[Row], where: tuple[str, ...]) -> Select[Any]:
    columns = table(model).columns
    return select(*columns).where(*(columns[name] == bindparam(name) for name in where))


@cache
def _insert(model: type[Row]) -> Insert:
    return insert(table(model))


@cache
def _insert_or_ignore(model: type[Row], dialect: str) -> Insert:
    statement: Insert = _INSERT[dialect](table(model)).on_conflict_do_nothing()
    return statement


@cache
def _update(model: type[Row], where: tuple[str, ...], columns: tuple[str, ...]) -> Update:
    target = table(model)
    same = (target.c[name] == bindparam(f"was_{name}") for name in where)
    return update(target).where(*same).values({name: bindparam(name) for name in columns})


def insert_or_ignore(conn: Connection, into: Table) -> Any:
    """An INSERT that does nothing if a unique key exists; the row count shows which happened."""
    statement = _INSERT[conn.dialect.name](into).on_conflict_do_nothing()
    return statement.execution_options(preserve_rowcount=True)  # otherwise PostgreSQL's row count is lost
