"""How the embedded database is opened: one way to write, one way to read, both durable.

The driver's own transaction handling is switched off (``isolation_level=None``): it sends no BEGIN before a
SELECT, and read-modify-write units then lose updates without an error.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, NullPool, QueuePool, create_engine, event

from policy_service.errors import StartError
from policy_service.storage.types import refuse_nul


def open_writer(url: URL, *, busy_timeout_ms: int) -> Engine:
    """An engine whose connections write: WAL, every commit on the disk, foreign keys kept."""
    engine = create_engine(url, poolclass=NullPool, connect_args=_CONNECT, hide_parameters=True)
    # SQLAlchemy keeps its books but ends no transaction: the writer sends every BEGIN, COMMIT and ROLLBACK.
    for name in ("do_commit", "do_rollback"):
        setattr(engine.dialect, name, _send_nothing)

    refuse_nul(engine)

    @event.listens_for(engine, "connect")
    def _prepare(driver: sqlite3.Connection, _record: object) -> None:
        driver.execute(f"PRAGMA busy_timeout = {busy_timeout_ms:d}")
        mode = driver.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StartError(
                f"the database {url.database!r} cannot use a write-ahead log (mode {mode!r}); "
                "put data_dir on a local disk"
            )
        driver.execute("PRAGMA synchronous = FULL")  # NORMAL may lose acknowledged commits at power loss
        driver.execute("PRAGMA foreign_keys = ON")
        driver.execute(
            "PRAGMA recursive_triggers = ON"
        )  # or INSERT OR REPLACE deletes and no trigger sees it

    return engine


def open_reader(url: URL, *, busy_timeout_ms: int, connections: int) -> Engine:
    """An engine whose connections cannot write; each query sees one snapshot."""
    engine = create_engine(
        url, poolclass=QueuePool, pool_size=connections, max_overflow=0,
        connect_args={**_CONNECT, "check_same_thread": False}, hide_parameters=True,
    )  # fmt: skip

    refuse_nul(engine)

    @event.listens_for(engine, "connect")
    def _prepare(driver: sqlite3.Connection, _record: object) -> None:
        driver.execute(f"PRAGMA busy_timeout = {busy_timeout_ms:d}")
        driver.execute("PRAGMA query_only = ON")

    @event.listens_for(engine, "begin")
    def _begin(conn: Connection) -> None:
        conn.exec_driver_sql("BEGIN")

    return engine


def open_migrator(url: URL) -> Engine:
    """An engine for changing tables: SQLAlchemy ends its transactions, each begun here.

    Foreign keys are off, because a table is changed by dropping it and putting a copy in its place.
    """
    engine = create_engine(url, poolclass=NullPool, connect_args=_CONNECT, hide_parameters=True)

    @event.listens_for(engine, "begin")
    def _begin(conn: Connection) -> None:
        conn.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


_CONNECT: dict[str, object] = {"isolation_level": None}


def _send_nothing(_driver: object) -> None:
    """In place of the dialect's own COMMIT and ROLLBACK."""


def create_file(url: URL) -> None:
    """Make the file readable by its owner only; the write-ahead log takes the same mode.

    Raises:
        StartError: the URL names no file.
    """
    if not url.database or url.database == ":memory:":
        raise StartError(
            "database_url 'sqlite://' names no file; write sqlite:////absolute/path/countersign.db"
        )
    path = Path(url.database)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def require_sound(engine: Engine, path: str | None) -> None:
    """Refuse a damaged file.

    Raises:
        StartError: SQLite's own check found a fault.
    """
    with engine.connect() as conn:
        found = conn.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
    if found != "ok":
        raise StartError(f"the database {path!r} is damaged ({found}); restore it from its newest backup")
