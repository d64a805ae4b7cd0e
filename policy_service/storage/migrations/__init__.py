"""Database migrations with Alembic, run from the program.

``migrate`` only goes forward, each migration in its own transaction on both engines. A database of a newer release is
refused, because this release does not know what its columns mean.

After a change of a table, ``python -m policy_service.storage.migrations "what changed"`` drafts the next migration.
Review it, and recreate the triggers of the audit table if it rebuilds that table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, NullPool, create_engine, inspect, make_url
from sqlalchemy.exc import SQLAlchemyError

from policy_service.errors import StartError, StorageUnavailableError
from policy_service.storage import sqlite

if TYPE_CHECKING:
    from alembic.config import Config

_FOLDER = Path(__file__).parent
_MIGRATION_LOCK_ID = 7_223_372_036_854_775_807  # must not equal another advisory lock id of this database


def migrate(url: str) -> None:
    """Apply the missing migrations.

    Raises:
        StartError: the database is of a newer release, or damaged.
        StorageUnavailableError: it cannot be reached, or a migration failed and was rolled back.
    """
    _run(url, _upgrade, unless_at=head())


def _upgrade(config: Config) -> None:
    from alembic import command  # ten megabytes, and a database that is up to date needs none of it

    command.upgrade(config, "head")


def is_empty(url: str) -> bool:
    """Whether no migration was ever applied. The check creates no file.

    Raises:
        StartError: the database is damaged.
        StorageUnavailableError: it cannot be reached.
    """
    if sqlite.is_missing(make_url(url)):
        return True
    with _translate_errors(url, "read"), _connection(url) as conn:
        return current(conn) is None


def check(url: str) -> None:
    """Compare a migrated database with the declared tables.

    Raises:
        alembic.util.CommandError: they differ; the error lists how.
    """
    from alembic import command

    _run(url, command.check)


def draft(url: str, message: str) -> None:
    """Write the next migration: the difference between the declared tables and the database at ``url``."""
    from alembic import command

    number = f"{len(_revisions()) + 1:04d}"
    _run(url, lambda config: command.revision(config, message, autogenerate=True, rev_id=number))


def head() -> str:
    """The revision this code expects."""
    return _revisions()[0]


def current(conn: Connection) -> str | None:
    """The revision of a database; None for an empty one."""
    if not inspect(conn).has_table("alembic_version"):
        return None
    found: str | None = conn.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return found


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    return config


@cache
def _revisions() -> list[str]:
    """Every revision of this release, newest first: the numbers that its files begin with."""
    return sorted((file.name.partition("_")[0] for file in _FOLDER.glob("versions/0*_*.py")), reverse=True)


def _run(url: str, step: Callable[[Config], object], *, unless_at: str | None = None) -> None:
    with _translate_errors(url, "migrated"), _connection(url) as conn, _migration_lock(conn):
        found = _known_revision(conn)
        if found is not None and found == unless_at:
            return
        config = _config()
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
            f"the database could not be {done} ({type(error).__name__}); the failed step was rolled back, run it again"
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
    """Replicas that start together migrate one after the other; the later ones find nothing to do."""
    if conn.dialect.name == "sqlite":
        yield
        return
    conn.exec_driver_sql(
        f"SELECT pg_advisory_lock({_MIGRATION_LOCK_ID})"
    )  # of the session, so it outlives each migration's transaction
    conn.commit()
    try:
        yield
    finally:
        conn.rollback()  # of a failed migration
        conn.exec_driver_sql(f"SELECT pg_advisory_unlock({_MIGRATION_LOCK_ID})")
        conn.commit()


def _known_revision(conn: Connection) -> str | None:
    """The revision of a database.

    Raises:
        StartError: this release does not know it.
    """
    found = current(conn)
    conn.rollback()  # end the read transaction before the first migration
    if found is not None and found not in _revisions():
        raise StartError(
            f"the database is at revision {found!r}, which this release does not know; run the newer "
            "release, or restore the backup made before it"
        )
    return found
