"""Rows and statements: SQLModel declares the tables, SQLAlchemy Core compiles the statements.

A statement that requests repeat is built and compiled once. Then its text and its parameters go to the driver's cursor
directly, because Core takes longer to execute one than the database does. Any other statement goes through
``conn.execute``. Both call the connection's listeners and raise the same errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import BindParameter, ColumnElement, Connection, Insert, Select, Table, Update, bindparam
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.exc import DBAPIError
from sqlmodel import SQLModel
from sqlmodel.main import SQLModelMetaclass

_INSERT: dict[str, Callable[..., Any]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


class _TableOnly(SQLModelMetaclass):
    """Declares the table of a row class without mapping the class: no session ever holds a row."""

    __table__: Table

    def __init__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any], **_: Any) -> None:  # noqa: N805
        type.__init__(cls, name, bases, members)
        columns = {field: column for field, column in vars(cls).items() if isinstance(column, sa.Column)}
        for field, column in columns.items():
            column.name = column.key = field
        if columns:
            parts = [*columns.values(), *getattr(cls, "__table_args__", ())]
            settings = parts.pop() if isinstance(parts[-1], dict) else {}
            cls.__table__ = Table(vars(cls)["__tablename__"], SQLModel.metadata, *parts, **settings)

    def __clause_element__(cls) -> Table:  # noqa: N805
        return cls.__table__


class Row(SQLModel, metaclass=_TableOnly):
    """A row as a plain typed value. A column of its class is the column of its table.

    Raises:
        TypeError: a column without a default is missing, or there is no such column.
    """

    __setattr__ = object.__setattr__  # type: ignore[assignment]

    def __init__(self, **values: Any) -> None:
        values = {name: make() for name, make in _defaults(type(self)) if name not in values} | values
        if values.keys() != type(self).__pydantic_fields__.keys():
            odd = sorted(values.keys() ^ type(self).__pydantic_fields__.keys())
            raise TypeError(f"{type(self).__name__} is made of its columns: {', '.join(odd)}")
        self.__dict__.update(values)


_AnyRow = TypeVar("_AnyRow", bound=Row)


@cache
def _defaults(model: type[Row]) -> list[tuple[str, Callable[..., Any]]]:
    """The columns with a default, and the factory of each; a mutable default is made anew for each row."""
    return [
        (name, field.default_factory or (lambda value=field.default: value))
        for name, field in model.__pydantic_fields__.items()
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


def table(row: type[Row]) -> Table:
    """The Core table of a declared row."""
    return row.__table__


def partial(condition: str | sa.TextClause) -> dict[str, Any]:
    """The arguments of an Index that covers only the rows of a condition, on both engines."""
    where = sa.text(condition) if isinstance(condition, str) else condition
    return {"sqlite_where": where, "postgresql_where": where}


def key_after(key: Sequence[ColumnElement[Any]], last: Sequence[Any]) -> ColumnElement[bool]:
    """Rows whose key comes after this one, as one row comparison. Written with OR, no index can start at it."""
    return sa.tuple_(*key) > sa.tuple_(*last, types=[column.type for column in key])


def key_before(key: Sequence[ColumnElement[Any]], last: Sequence[Any]) -> ColumnElement[bool]:
    """The same for a list that is read backwards."""
    return sa.tuple_(*key) < sa.tuple_(*last, types=[column.type for column in key])


def find(conn: Connection, model: type[_AnyRow], **where: Any) -> list[_AnyRow]:
    """The rows whose columns have these values, in no order. As in SQL, None equals nothing."""
    return fetch_rows(conn, model, _select(model, tuple(where)), **where)


def find_one(conn: Connection, model: type[_AnyRow], **where: Any) -> _AnyRow | None:
    """The first row whose columns have these values, or None."""
    return next(iter(find(conn, model, **where)), None)


def insert_row(conn: Connection, row: Row) -> None:
    """Insert one row."""
    execute_write(conn, _insert(type(row)), row.__dict__)


def insert_row_or_ignore(conn: Connection, row: Row) -> bool:
    """Insert one row unless a unique key of it exists. Returns whether it was inserted."""
    return bool(execute_write(conn, _insert_or_ignore(type(row), conn.dialect.name), row.__dict__))


def update_rows(conn: Connection, model: type[Row], where: dict[str, Any], columns: dict[str, Any]) -> int:
    """Update the rows whose columns have the values of ``where``. Returns their number. None equals nothing."""
    statement = _update(model, tuple(where), tuple(columns))
    return execute_write(conn, statement, {f"was_{name}": value for name, value in where.items()} | columns)


def execute_write(conn: Connection, statement: Insert | Update, values: dict[str, Any]) -> int:
    """Run a repeated statement that names each of its parameters. Returns the number of rows it changed.

    Raises:
        KeyError: a value is missing.
    """
    return int(_compiled(conn, statement).run(conn, values).rowcount)


def fetch(
    conn: Connection, statement: Select[*tuple[Any, ...]], values: dict[str, Any]
) -> list[tuple[Any, ...]]:
    """The rows of a repeated query without lists of parameters.

    Raises:
        KeyError: a value is missing.
    """
    compiled = _compiled(conn, statement)
    return [compiled.read(row) for row in compiled.run(conn, values, fetch=True)]


def fetch_rows(
    conn: Connection, model: type[_AnyRow], statement: Select[*tuple[Any, ...]], **values: Any
) -> list[_AnyRow]:
    """:func:`fetch` for a query that selects every column of ``model`` in order."""
    return rows_of(model, fetch(conn, statement, values))


_Processor = Callable[[Any], Any]


class _CompiledStatement:
    """A statement compiled for one driver: its text, its parameters, and what converts values on the way."""

    def __init__(self, statement: Insert | Update | Select[*tuple[Any, ...]], dialect: Dialect) -> None:
        compiled: Any = statement.compile(dialect=dialect)
        self.text = str(compiled)
        self._names = tuple(compiled.positiontup or () if compiled.positional else compiled.binds)
        self._by_name = not compiled.positional
        self._own = {name: bind.value for name, bind in compiled.binds.items() if not bind.required}
        types = [compiled.binds[name].type.dialect_impl(dialect) for name in self._names]
        self._to = _processors(kind.bind_processor(dialect) for kind in types)
        read = [column.type for column in statement.selected_columns] if isinstance(statement, Select) else []
        self._from = _processors(kind.dialect_impl(dialect).result_processor(dialect, None) for kind in read)
        self._driver: Any = dialect.loaded_dbapi

    def _bound(self, values: dict[str, Any]) -> Any:
        """The parameters as the driver takes them. A missing one raises KeyError."""
        bound = list(map((values | self._own if self._own else values).__getitem__, self._names))
        for place, convert in self._to:
            bound[place] = convert(bound[place])
        return dict(zip(self._names, bound, strict=True)) if self._by_name else bound

    def run(self, conn: Connection, values: dict[str, Any], *, fetch: bool = False) -> Any:
        """Execute the statement as ``conn.execute`` would. Returns the rows with ``fetch``, else the cursor."""
        parameters = self._bound(values)
        if not conn.in_transaction():
            conn.begin()
        driver: Any = conn.connection.driver_connection
        cursor = driver.cursor()
        for listener in conn.dispatch.before_cursor_execute:
            listener(conn, cursor, self.text, parameters, None, False)
        try:
            cursor.execute(self.text, parameters)
            return cursor.fetchall() if fetch else cursor
        except self._driver.Error as error:
            lost = conn.dialect.is_disconnect(error, driver, cursor)
            if lost:
                conn.invalidate(error)
            raise DBAPIError.instance(
                self.text, parameters, error, self._driver.Error, hide_parameters=True, connection_invalidated=lost,
                dialect=conn.dialect,
            ) from error  # fmt: skip

    def read(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """A row of the driver, with the values of the declared types."""
        values = list(row)
        for place, convert in self._from:
            values[place] = convert(values[place])
        return tuple(values)


def _processors(found: Iterable[_Processor | None]) -> tuple[tuple[int, _Processor], ...]:
    return tuple((place, convert) for place, convert in enumerate(found) if convert is not None)


# One entry per shape; dialects of different engines are alike.
_known: dict[tuple[Insert | Update | Select[*tuple[Any, ...]], str], _CompiledStatement] = {}


def _compiled(conn: Connection, statement: Insert | Update | Select[*tuple[Any, ...]]) -> _CompiledStatement:
    key = (statement, conn.dialect.name)
    if (ready := _known.get(key)) is None:
        ready = _known[key] = _CompiledStatement(statement, conn.dialect)
    return ready


@cache
def _columns(model: type[Row]) -> tuple[str, ...]:
    return tuple(column.name for column in table(model).columns)


@cache
def _select(model: type[Row], where: tuple[str, ...]) -> Select[*tuple[Any, ...]]:
    columns = table(model).columns
    return sa.select(*columns).where(*(columns[name] == bindparam(name) for name in where))


@cache
def _insert(model: type[Row]) -> Insert:
    return sa.insert(table(model)).values(parameters(model))


@cache
def _insert_or_ignore(model: type[Row], dialect: str) -> Insert:
    statement: Insert = _INSERT[dialect](table(model)).values(parameters(model)).on_conflict_do_nothing()
    return statement


def parameters(model: type[Row], *without: str) -> dict[str, BindParameter[Any]]:
    """A parameter of its name for each column but these."""
    columns = (column for column in table(model).columns if column.name not in without)
    return {column.name: bindparam(column.name, type_=column.type) for column in columns}


@cache
def _update(model: type[Row], where: tuple[str, ...], columns: tuple[str, ...]) -> Update:
    target = table(model)
    same = (target.c[name] == bindparam(f"was_{name}") for name in where)
    return sa.update(target).where(*same).values({name: bindparam(name) for name in columns})
