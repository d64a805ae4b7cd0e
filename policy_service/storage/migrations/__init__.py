"""Bringing a database to the tables this code expects, by Alembic and from inside the program.

``migrate`` goes forward only, each step in a transaction of its own on both engines. A database of a newer
release is refused: this code would not know what its columns mean.

After a change of ``tables.py``, ``plumbing.py`` or ``reservations.py``,
``python -m policy_service.storage.migrations "what changed"`` drafts the next step beside the others; read it, and give
the audit table its triggers again if the step rebuilds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, NullPool, create_engine, make_url
from sqlalchemy.exc import SQLAlchemyError

from policy_service.errors import StartError, StorageUnavailableError
from policy_service.storage import sqlite

_FOLDER = Path(__file__).parent
_MIGRATION_LOCK_ID = 7_223_372_036_854_775_807  # one number of our own among a database's advisory locks


def migrate(url: str) -> None:
    """Apply every step that is missing; nothing when there is none.

    Raises:
        StartError: the database is of a newer release, or damaged.
        StorageUnavailableError: it cannot be reached, or a step failed; that step left nothing.
    """
    _run(url, lambda config: command.upgrade(config, "head"), unless_at=head())


def is_empty(url: str) -> bool:
    """Whether no step was ever applied there; nothing is made by asking.

    Raises:
        StartError: the database is damaged.
        StorageUnavailableError: it cannot be reached.
    """
    if sqlite.is_missing(make_url(url)):
        return True
    with _translate_errors(url, "asked"), _connection(url) as conn:
        return current(conn) is None


def check(url: str) -> None:
    """Compare a migrated database with the declared tables.

    Raises:
        alembic.util.CommandError: they differ; the error lists how.
    """
    _run(url, command.check)


def draft(url: str, message: str) -> None:
    """Write the next step: what the declared tables have and the database at ``url`` has not."""
    number = f"{len(_revisions()) + 1:04d}"
    _run(url, lambda config: command.revision(config, message, autogenerate=True, rev_id=number))


def head() -> str:
    """The revision this code expects."""
    return _revisions()[0]


def current(conn: Connection) -> str | None:
    """The revision a database is at; None for an empty one."""
    return MigrationContext.configure(conn).get_current_revision()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    return config


@cache
def _revisions() -> list[str]:
    """Every step this release knows, the newest first. Asked once: Alembic compiles each file anew."""
    return [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()]


def _run(url: str, step: Callable[[Config], object], *, unless_at: str | None = None) -> None:
    config = _config()
    with _translate_errors(url, "migrated"), _connection(url) as conn, _migration_lock(conn):
        found = _known_revision(conn)
        if found is not None and found == unless_at:
            return
        config.attributes["connection"] = conn
        step(config)


@contextmanager
def _translate_errors(url: str, done: str) -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        if sqlite.is_corruption(cause := getattr(error, "orig", None)):
            raise sqlite.corruption_error(make_url(url).database, cause) from error
        raise StorageUnavailableError(
            f"the database could not be {done} ({type(error).__name__}); what failed left nothing, run it again"
        ) from error


@contextmanager
def _connection(url: str) -> Iterator[Connection]:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        sqlite.create_file(parsed)
        engine = sqlite.open_migrator(parsed)
    else:
        engine = create_engine(parsed, poolclass=NullPool, hide_parameters=True)
    try:
        with engine.connect() as conn:
            yield conn
    finally:
        engine.dispose()


@contextmanager
def _migration_lock(conn: Connection) -> Iterator[None]:
    """Replicas that start together migrate one after the other; the last of them finds nothing to do."""
    if conn.dialect.name == "sqlite":
        yield
        return
    conn.exec_driver_sql(
        f"SELECT pg_advisory_lock({_MIGRATION_LOCK_ID})"
    )  # the session's, so it outlives each step
    conn.commit()
    try:
        yield
    finally:
        conn.rollback()  # a step that failed
        conn.exec_driver_sql(f"SELECT pg_advisory_unlock({_MIGRATION_LOCK_ID})")
        conn.commit()


def _known_revision(conn: Connection) -> str | None:
    """The revision a database is at.

    Raises:
        StartError: this release does not know it.
    """
    found = current(conn)
    conn.rollback()  # what was read is no part of any step
    if found is not None and found not in _revisions():
        raise StartError(
            f"the database is at revision {found!r}, which this release does not know; run the newer "
            "release, or restore the backup made before it"
        )
    return found
