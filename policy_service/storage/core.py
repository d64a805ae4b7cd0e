"""The tables as statements see them: SQLModel declares, Core reads and writes.

Statements are built once for each shape, never once for each request: building one costs more than running it. The
ones that write are compiled once too, and then sent as the driver takes them: Core's way from a statement to its text
costs as much again as running it, and a spend writes a dozen rows.
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
    Update,
    bindparam,
    insert,
    select,
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

    No session ever holds one, so it is made and changed without the bookkeeping of the ORM and of pydantic, which
    together cost twenty times the query.

    Raises:
        TypeError: a column without a default was left out, or there is no such column.
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
    """The columns that may be left out, and what makes the value each then has: a fresh list is nobody else's."""
    fields = model.__pydantic_fields__.items()
    return [
        (name, field.default_factory or (lambda value=field.default: value))
        for name, field in fields
        if not field.is_required()
    ]


def rows_of(model: type[_AnyRow], found: Iterable[Iterable[Any]]) -> list[_AnyRow]:
    """What a query for every column of ``model``, in their order, has found."""
    names = _columns(model)
    return [_loaded_row(model, dict(zip(names, row, strict=True))) for row in found]


def _loaded_row(model: type[_AnyRow], values: dict[str, Any]) -> _AnyRow:
    """A row whose columns came from the database: there is nothing to check and no default to make."""
    row = object.__new__(model)
    row.__dict__.update(values)
    return row


def table(row: type[SQLModel]) -> Table:
    """The Core table of a declared row."""
    return SQLModel.metadata.tables[str(row.__tablename__)]


def key_after(key: Sequence[ColumnElement[Any]], last: Sequence[Any]) -> ColumnElement[bool]:
    """Rows whose key comes after this one, as one comparison of rows.

    Spelt out with OR it is a walk through everything that stands before the page: no index can be entered by it.
    """
    return tuple_(*key) > tuple_(*last, types=[column.type for column in key])


def key_before(key: Sequence[ColumnElement[Any]], last: Sequence[Any]) -> ColumnElement[bool]:
    """The same for a list that is read from its end."""
    return tuple_(*key) < tuple_(*last, types=[column.type for column in key])


def find(conn: Connection, model: type[_AnyRow], **where: Any) -> list[_AnyRow]:
    """The rows whose columns have these values, in no order. None is no value: as in SQL, it equals nothing."""
    return rows_of(model, conn.execute(_select(model, tuple(where)), where))


def find_one(conn: Connection, model: type[_AnyRow], **where: Any) -> _AnyRow | None:
    """The first row whose columns have these values, or None."""
    return next(iter(find(conn, model, **where)), None)


def insert_row(conn: Connection, row: Row) -> None:
    """Insert one row."""
    execute_write(conn, _insert(type(row)), _column_values(row))


def insert_row_or_ignore(conn: Connection, row: Row) -> bool:
    """Insert one row where no unique key of it is taken; whether it was inserted."""
    statement = _insert_or_ignore(type(row), conn.dialect.name)
    return bool(execute_write(conn, statement, _column_values(row)))


def update_rows(conn: Connection, model: type[Row], where: dict[str, Any], columns: dict[str, Any]) -> int:
    """Give the rows whose columns have the values of ``where`` others; how many those were. None equals nothing."""
    statement = _update(model, tuple(where), tuple(columns))
    values = {f"was_{name}": value for name, value in where.items()} | columns
    return execute_write(conn, statement, values)


@dataclass(frozen=True, slots=True)
class _CompiledStatement:
    """A statement in the words of one driver: its text, and each parameter with what turns a value into it."""

    text: str
    parameters: tuple[tuple[str, Callable[[Any], Any] | None], ...]
    own: Mapping[str, Any]  # values that belong to the statement itself
    by_name: bool

    def bound(self, values: Mapping[str, Any]) -> Any:
        """The values as the driver takes them. A missing one is a KeyError."""
        values = {**values, **self.own}
        bound = [(name, values[name] if to is None else to(values[name])) for name, to in self.parameters]
        return dict(bound) if self.by_name else tuple(value for _, value in bound)


def execute_write(
    conn: Connection, statement: Insert | Update, values: Mapping[str, Any], *, explicit_columns: bool = False
) -> int:
    """Send a statement that is kept and used again; how many rows it has touched.

    Without ``spelt_out`` the values are those of the columns of their names; with it the statement names each itself.

    Raises:
        KeyError: a value is missing.
    """
    key = (statement, tuple(values), conn.dialect.name)
    if (ready := _compiled.get(key)) is None:
        ready = _compiled[key] = _compile(statement, None if explicit_columns else list(values), conn.dialect)
    return conn.exec_driver_sql(ready.text, ready.bound(values)).rowcount


# One entry a shape: engines come and go, their dialects are all alike.
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
    configure_mappers()  # what making the first row would do: here a row may be read before one was ever made
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
    """An INSERT that does nothing where a unique key is taken; its row count says which it was."""
    statement = _INSERT[conn.dialect.name](into).on_conflict_do_nothing()
    return statement.execution_options(preserve_rowcount=True)  # or PostgreSQL's is forgotten
