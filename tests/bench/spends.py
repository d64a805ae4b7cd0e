"""G1, G2: what a spend costs a database with 1,000 others and with 100,000, and how many bytes it leaves.

A thousand spends are sent to the real service. The large database holds a hundred copies of their rows, older ones,
each with digests and ids of its own: so many real spends would take a quarter of an hour.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import BinaryIO

from policy_service.storage.types import time_text
from tests.bench.growing import SHRINK, wait_for_index
from tests.bench.load import drive
from tests.bench.measuring import BYTES, TIME, Case, Group, Row, Sample
from tests.bench.servers import Measured, Signer, service, serving
from tests.bench.submitting import RECEIPT, SETTLE_S
from tests.bench.timed import SECONDS

SPENDS, COPIES = 1_000, 100 // SHRINK or 1
CLIENTS, AT_ONCE = 16, 160
MOST = "\N{LESS-THAN OR EQUAL TO} "

ROWS = (
    Row("G1", "SQL time of a spend: with 100,000 spends \N{DIVISION SIGN} with 1,000", "spend, many", "spend, few",
        TIME, MOST + "1.2"),
    Row("G2", "bytes on disk that a spend leaves \N{DIVISION SIGN} bytes of its body", "on disk", "body", BYTES,
        MOST + "5"),
)  # fmt: skip


class _Timed(Measured):
    """The service, which notes the processor time of its SQL."""

    @property
    def _note(self) -> Path:
        return self.data / "sql-time"

    def _start(self, log: BinaryIO) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.bench.timed", str(self._note), "serve"]
        return subprocess.Popen(
            command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )  # fmt: skip

    def sql_seconds(self) -> float:
        """What it has noted so far."""
        seconds: float = SECONDS.unpack(self._note.read_bytes())[0]
        return seconds


@contextmanager
def cases(folder: Path, wanted: frozenset[str]) -> Iterator[list[Case]]:
    """The two databases, each with a service."""
    few, many = folder / "few", folder / "many"
    with service(few):
        pass
    shutil.copytree(few, many)
    with service(few) as (running, signer):
        requests = signer.submissions(SPENDS, spend=True)
        drive(running.port, requests, CLIENTS, holding=RECEIPT)
        wait_for_index(few / "countersign.db")
    left = (_size(few) - _size(many)) / SPENDS
    body = len(requests[0].partition(b"\r\n\r\n")[2])
    made = [
        Case("on disk", lambda _: {BYTES: left}, once=True),
        Case("body", lambda _: {BYTES: float(body)}, once=True, reference=True),
    ]
    with ExitStack() as stack:
        if "spend, many" in wanted:
            _copy(few / "countersign.db", many / "countersign.db")
            for name, data in (("spend, few", few), ("spend, many", many)):
                started, signer = stack.enter_context(serving(_Timed, data))
                made.append(Case(name, partial(_sql_time, started, signer)))
        yield made


def _sql_time(running: _Timed, signer: Signer, _: float) -> Sample:
    requests, before = signer.submissions(AT_ONCE, spend=True), running.sql_seconds()
    drive(running.port, requests, CLIENTS, holding=RECEIPT)
    time.sleep(SETTLE_S)
    return {TIME: (running.sql_seconds() - before) / AT_ONCE * 1e6}


def _size(data: Path) -> int:
    with closing(sqlite3.connect(data / "countersign.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return (data / "countersign.db").stat().st_size


# ---------------------------------------------------------------------------------------------- many rows


def _copy(few: Path, many: Path) -> None:
    """Add copies of the rows that the spends left in `few`: to each table that has so many of them."""
    with closing(sqlite3.connect(many, isolation_level=None)) as db:
        db.create_function("renamed", 2, _renamed, deterministic=True)
        db.execute("PRAGMA journal_mode=OFF")  # a crash here leaves a folder that is thrown away
        db.execute("PRAGMA synchronous=OFF")
        db.execute("PRAGMA cache_size=-400000")
        db.execute("ATTACH ? AS few", (str(few),))
        guards = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _sql in guards:
            db.execute(f"DROP TRIGGER {name}")  # audit rows come with their index here
        # outcomes were reported long ago, so no sweep looks for them
        db.execute("UPDATE few.effects SET state = 'fired', unknown_at = NULL")
        db.execute("UPDATE few.transactions SET state = 'ended'")
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        inserts = [insert for table in tables if (insert := _insert(db, table))]
        for number in range(1, COPIES + 1):
            db.execute("BEGIN")
            for insert in inserts:
                db.execute(insert, {"copy": number})
            db.execute("COMMIT")
        for _name, sql in guards:
            db.execute(sql)


def _insert(db: sqlite3.Connection, table: str) -> str:
    """Copy a table's new rows, with another value in each column that differs from spend to spend."""
    last = db.execute(f"SELECT coalesce(max(rowid), 0) FROM main.{table}").fetchone()[0]
    rows = db.execute(f"SELECT count(*) FROM few.{table} WHERE rowid > {last}").fetchone()[0]
    if rows < SPENDS:
        return ""
    columns, values = [], []
    for _, column, kind, *_rest in db.execute(f"PRAGMA main.table_info({table})").fetchall():
        columns.append(f'"{column}"')
        different = db.execute(
            f'SELECT count(DISTINCT "{column}") FROM few.{table} WHERE rowid > {last}'
        ).fetchone()[0]
        if different < SPENDS / 2 or kind == "BLOB":
            values.append(f'"{column}"')
        elif "INT" in kind:
            values.append(f'"{column}" + (:copy - 1) * {rows}')  # the index of an audit row
        else:
            values.append(f'renamed("{column}", :copy)')
    return (
        f"INSERT INTO main.{table} ({', '.join(columns)}) SELECT {', '.join(values)} FROM few.{table} "
        f"WHERE rowid > {last} ORDER BY rowid"
    )


_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
_ORDERED = re.compile(
    "([a-z]+_)[0-9A-Z]{5}([0-9A-Z]{21})|[0-9a-f]{6}([0-9a-f]{24})"
)  # an id that begins with its time
_DIGEST = re.compile("[0-9a-f]+")


def _renamed(value: str | None, copy: int) -> str | None:
    """What a copy has in its place: an earlier time, an earlier id, another digest."""
    if value is None:
        return None
    if _TIME.fullmatch(value):
        return time_text(datetime.fromisoformat(value) - timedelta(minutes=COPIES + 1 - copy))
    if found := _ORDERED.fullmatch(value):
        return f"{found[1]}{copy:05}{found[2]}" if found[1] else f"{copy:06}{found[3]}"
    if _DIGEST.fullmatch(value):
        return hashlib.sha256(f"{copy} {value}".encode()).hexdigest()[: len(value)]
    return value


GROUP = Group(ROWS, cases)
