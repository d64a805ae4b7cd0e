"""Steps 1 and 2 of a verification for each engine: the file itself, and its schema.

On PostgreSQL the schema is compared with fresh tables and triggers, created in the session's temporary schema and
rolled back; everything else runs in one read-only transaction. The server checks its pages as it reads them (if it has
checksums), so step 1 is what it reports meanwhile.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from countersign.errors import JournalError, MisuseError
from countersign.journal.database import Unit
from countersign.journal.findings import Damage, Finding, Scan
from countersign.journal.location import JournalUrl
from countersign.journal.postgres import PostgresConnection, PostgresDatabase
from countersign.journal.postgres_schema import create_schema, schema_exists
from countersign.journal.schema import APPLICATION_ID, VERSION
from countersign.journal.sqlite import SQLiteConnection, prepare

if TYPE_CHECKING:
    import psycopg

_SIDE_ROWS: Final = frozenset({"trigger", "function"})  # rows are readable without them
_STRANGE: Final = frozenset({"trigger", "view", "rule"})  # these may change or replace rows


@dataclass(frozen=True, slots=True)
class Chain:
    """The verified chain of one transaction. A copy kept elsewhere can be compared with it later."""

    txn: str
    key: str | None
    lines: int
    head: str
    txn_digest: str | None
    attempt: str | None


@dataclass(frozen=True, slots=True)
class Verified:
    """What was verified, and the findings."""

    chains: tuple[Chain, ...]
    findings: tuple[Finding, ...]
    lines: int

    @property
    def sound(self) -> bool:
        """Whether nothing differs."""
        return not self.findings


def compare_schemas(
    scan: Scan, ours: Mapping[str, tuple[str, str]], theirs: Mapping[str, tuple[str, str]]
) -> None:
    """Step 2 of verification.py: compare two schemas, by name, kind and definition."""
    for name, made in ours.items():
        if theirs.get(name) != made:
            scan.legible = scan.legible and made[0] in _SIDE_ROWS
            scan.found(
                Damage.SCHEMA, f"{made[0]} {name!r} is {'not as made' if name in theirs else 'missing'}"
            )
    for name in theirs.keys() - ours.keys():
        if theirs[name][0] in _STRANGE:
            scan.found(Damage.SCHEMA, f"{theirs[name][0]} {name!r} is not this SDK's")


_MOST_OF_FILE: Final = 20  # messages of SQLite about a badly broken file
_SCHEMA: Final = (
    "SELECT name, type, tbl_name || ' ' || coalesce(sql, '') FROM sqlite_master "
    "WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
)


class SQLiteStore:
    """A journal file, damaged or not."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise MisuseError(f"there is no journal at {str(path)!r}; name one with --journal")
        self._path = path

    @contextmanager
    def opened(self) -> Iterator[Unit]:
        """A read-only connection in one transaction."""
        uri = f"{self._path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None, factory=SQLiteConnection)) as db:
            db.row_factory = sqlite3.Row
            # changed bytes are compared, not raised
            db.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
            for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "busy_timeout=5000"):
                db.execute(f"PRAGMA {pragma}")
            db.execute("BEGIN")
            yield db

    @contextmanager
    def errors_found(self, scan: Scan) -> Iterator[None]:
        """Record what SQLite cannot read as damage."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # sqlite3 itself decodes column names
            scan.found(Damage.FILE, f"SQLite cannot read it: {error}")

    def check_file(self, db: Unit, scan: Scan) -> None:
        """Check every page and index."""
        messages = [str(row[0]) for row in db.execute(f"PRAGMA integrity_check({_MOST_OF_FILE})")]
        for what in messages if messages != ["ok"] else ():
            scan.legible = False
            scan.found(Damage.FILE, what)

    def check_schema(self, db: Unit, scan: Scan) -> None:
        """Check its marks, and everything that has a name."""
        marks = (
            db.execute("PRAGMA application_id").fetchone()[0],
            db.execute("PRAGMA user_version").fetchone()[0],
        )
        if marks != (APPLICATION_ID, VERSION):
            scan.found(
                Damage.SCHEMA, f"it is marked {marks[0]:#x}, version {marks[1]}: no journal of this SDK"
            )
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
            prepare(fresh)
            ours = {row[0]: (row[1], row[2]) for row in fresh.execute(_SCHEMA)}
        theirs = {row[0]: (row[1], row[2]) for row in db.execute(_SCHEMA)}
        compare_schemas(scan, ours, theirs)


_Described = dict[str, tuple[str, str]]

_BROKEN: Final = frozenset({"XX001", "XX002"})  # SQLSTATE: a page, or an index
_DESCRIBED: Final = """
SELECT c.relname AS name, CASE WHEN c.relkind IN ('v', 'm') THEN 'view' ELSE 'table' END AS kind,
    concat_ws(' ', c.relkind, c.relrowsecurity) AS made
    FROM pg_class c WHERE c.relnamespace = $of AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
UNION ALL SELECT c.relname || '.' || a.attname, 'column', concat_ws(' ', format_type(a.atttypid, a.atttypmod),
    a.attcollation::regcollation, a.attnotnull, a.attidentity, a.attgenerated, pg_get_expr(d.adbin, d.adrelid))
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relnamespace = $of AND c.relkind IN ('r', 'p')
UNION ALL SELECT c.relname || '.' || k.conname, 'constraint',
    concat_ws(' ', k.convalidated, pg_get_constraintdef(k.oid, true))
    FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid WHERE k.connamespace = $of
UNION ALL SELECT c.relname, 'index', concat_ws(' ', i.indisvalid, pg_get_indexdef(c.oid))
    FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid WHERE c.relnamespace = $of
UNION ALL SELECT t.tgname, 'trigger', concat_ws(' ', t.tgenabled, pg_get_triggerdef(t.oid, true))
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = $of AND NOT t.tgisinternal
UNION ALL SELECT p.proname || '()', 'function', p.prosrc
    FROM pg_proc p WHERE p.pronamespace = $of
UNION ALL SELECT r.rulename, 'rule', pg_get_ruledef(r.oid, true)
    FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class
    WHERE c.relnamespace = $of AND r.rulename <> '_RETURN'
"""


class PostgresStore:
    """The schema of a journal."""

    def __init__(self, url: JournalUrl) -> None:
        self._database = PostgresDatabase(url)
        self._ours: _Described = {}
        self._theirs: _Described = {}

    @contextmanager
    def opened(self) -> Iterator[Unit]:
        """A read-only session with one consistent view."""
        with closing(self._database.connect()) as connection:
            schema = self._database.use_schema(connection)
            if not schema_exists(connection, schema):
                raise MisuseError(f"there is no journal at {self._database.name!r}; name one with --journal")
            self._ours = _fresh_schema(connection)
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            self._theirs = _describe_schema(connection, "current_schema()::regnamespace")
            yield PostgresConnection(connection, "on")

    @contextmanager
    def errors_found(self, scan: Scan) -> Iterator[None]:
        """Record what the server cannot read as damage; an unreachable server is an error."""
        try:
            with self._database.translate_errors():
                yield
        except JournalError as error:
            if getattr(error.__cause__, "sqlstate", None) not in _BROKEN:
                raise
            scan.found(Damage.FILE, f"PostgreSQL cannot read it: {error.__cause__}")

    def check_file(self, db: Unit, scan: Scan) -> None:
        """The server checks its pages itself."""

    def check_schema(self, db: Unit, scan: Scan) -> None:
        """Check everything that has a name."""
        compare_schemas(scan, self._ours, self._theirs)


def _fresh_schema(connection: psycopg.Connection[Any]) -> _Described:
    """The schema as this SDK creates it, in temporary tables of this session."""
    with connection.transaction(force_rollback=True):
        connection.execute("SET LOCAL search_path = pg_temp")
        create_schema(connection, functions="pg_temp.")
        return _describe_schema(connection, "pg_my_temp_schema()")


def _describe_schema(connection: psycopg.Connection[Any], of: str) -> _Described:
    """Everything in a schema by name: its kind and definition, without the schema's own name."""
    (schema,) = connection.execute(
        f"SELECT nspname FROM pg_namespace WHERE oid = {of}".encode()  # noqa: S608 - constants of this module
    ).fetchone() or ("",)
    found = connection.execute(_DESCRIBED.replace("$of", f"'{schema}'::regnamespace").encode()).fetchall()
    its_name = re.compile(rf"\b(?:{re.escape(schema)}|pg_temp)\.")
    return {row["name"]: (row["kind"], its_name.sub("", row["made"])) for row in found}
