"""Q1, Q2: what a list costs when there is a hundred thousand, and a million, of everything it could show.

Each size is a service of its own. One refund that waits for people is submitted to it, the service is stopped, and its
rows are multiplied in the database: open reviews, open tasks, lines of the log. (Their transactions, effects and
decisions only as far as a page of these lists reads them, which is by key: else this would fill five gigabytes.)
Then a person who signed in asks for pages, by the real routes and the real queue.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from urllib.parse import quote

from examples.person import Person
from tests.bench.load import drive, request
from tests.bench.measuring import P50, BenchError, Case, Group, Row, Sample
from tests.bench.servers import Measured, service

SIZES = {"small": 100_000, "large": 1_000_000}
SHRINK = int(os.environ.get("COUNTERSIGN_BENCH_SHRINK", "1"))  # for a try: everything so many times smaller
FIRST = 1_200  # a queue counts the first 1,000 questions
AROUND = 100  # rows on both sides of the middle; a page has 50
NAME, SHORT = "printf('%064x', n)", "printf('%026d', n)"
IDS = {"txn": NAME, "effect_id": NAME}
PERSON = "bench-person"
MOST = "\N{LESS-THAN OR EQUAL TO} "
PAGES = ("queue", "reviews", "reviews, middle", "tasks", "tasks, middle", "log", "log, middle")
_ASKED_AT_ONCE = 10


def _grown(one: Mapping[str, Sample]) -> float:
    """The page that grew most."""
    return max(one[f"{page}: large"][P50] / one[f"{page}: small"][P50] for page in PAGES[:3])


def _worst(one: Mapping[str, Sample]) -> float:
    """The dearest list against the page in the middle of the reviews."""
    return max(one[f"{page}: large"][P50] for page in PAGES) / one["reviews, middle: large"][P50]


ROWS = (
    Row("Q1", "queue page and review pages: at 1,000,000 \N{DIVISION SIGN} at 100,000 (the worst)",
        "reviews: large", "reviews: small", P50, MOST + "1.3", of=_grown,
        more=tuple(f"{page}: {size}" for page in PAGES[:3] for size in SIZES)),
    Row("Q2", "any list at 1,000,000 (the worst) \N{DIVISION SIGN} a review page in the middle",
        "reviews: large", "reviews, middle: large", P50, MOST + "3", of=_worst,
        more=tuple(f"{page}: large" for page in PAGES)),
)  # fmt: skip


# ---------------------------------------------------------------------------------------------- many rows


def _multiply(database: Path, count: int) -> None:
    """Copies of the one review, and of the rows that belong to it."""
    with growing(database) as db:
        copy_reviews(db, count, f"n <= {FIRST} OR abs(n - {count // 2}) <= {AROUND}")
        db.execute(
            "INSERT INTO tasks (task_id, kind, state, txn, effect_id, rev, text, opened_at) SELECT 'tsk_first', "
            "'unknown', 'open', txn, effect_id, rev, 'it may have happened', opened_at FROM reviews LIMIT 1"
        )
        copy_rows(db, "tasks", count, "1", {**IDS, "task_id": f"'tsk_' || {SHORT}"})
        newest = db.execute("SELECT max(idx) FROM audit").fetchone()[0]
        copy_rows(db, "audit", count, "1", {**IDS, "audit_id": f"'aud_' || {SHORT}", "idx": f"{newest} + n"})


def copy_reviews(db: sqlite3.Connection, count: int, few: str) -> None:
    """So many copies of the one review, and those `few` of the rows that belong to it."""
    copy_rows(db, "reviews", count, "1", {**IDS, "review_id": f"'rev_' || {SHORT}"})
    copy_rows(db, "transactions", count, few, {"txn": NAME, "run_key": f"'grown-' || {SHORT}"})
    copy_rows(db, "effects", count, few, {**IDS, "call_key": NAME, "decision_id": f"'dec_' || {SHORT}"})
    copy_rows(db, "decisions", count, few, {"effect_id": NAME, "decision_id": f"'dec_' || {SHORT}"})


@contextmanager
def growing(database: Path) -> Iterator[sqlite3.Connection]:
    """One fast transaction over the rows of a stopped service."""
    with closing(sqlite3.connect(database, isolation_level=None)) as db:
        db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF; PRAGMA cache_size=-200000")
        db.execute("BEGIN")
        yield db
        db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def copy_rows(db: sqlite3.Connection, table: str, count: int, where: str, changed: dict[str, str]) -> None:
    """So many copies of the table's newest row, or those of them `where`, with these columns made from n."""
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    values = ", ".join(changed.get(column, f'one."{column}"') for column in columns)
    named = ", ".join(f'"{column}"' for column in columns)
    db.execute(
        f"WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < {count}) "
        f"INSERT INTO {table} ({named}) SELECT {values} "
        f"FROM (SELECT * FROM {table} ORDER BY rowid DESC LIMIT 1) AS one, counted "
        f"WHERE {where}"
    )


# ------------------------------------------------------------------------------------------------- pages


class Reader(Person):
    """A person who signed in, and the cookie of the session."""

    @property
    def cookie(self) -> str:
        """What the browser sends."""
        return "; ".join(f"{name}={value}" for name, value in self._browser.cookies.items())


def _paths(database: Path, count: int) -> dict[str, str]:
    """The path of each page; the middle is found by the key of a row there."""
    with closing(sqlite3.connect(database)) as db:
        answer_by = db.execute("SELECT answer_by FROM reviews LIMIT 1").fetchone()[0]
    middle = f"{count // 2:026d}"
    at = quote(f"{answer_by}~rev_{middle}")
    return {
        "queue": "/?tab=open",
        "reviews": "/v1/reviews",
        "reviews, middle": f"/v1/reviews?cursor={at}",
        "tasks": "/v1/tasks",
        "tasks, middle": f"/v1/tasks?cursor=tsk_{middle}",
        "log": "/v1/audit",
        "log, middle": f"/v1/audit?after={count // 2}",
    }


HOLDS = {
    "queue": b"/reviews/rev_",
    "reviews": b'"review_id":"rev_',
    "tasks": b'"task_id":"tsk_',
    "log": b'"index":',
}


def page_case(name: str, running: Measured, path: str, cookie: str, holding: bytes) -> Case:
    """How long one page takes, asked for again and again."""

    def measure(seconds: float) -> Sample:
        took: list[float] = []
        asked = [request("GET", path, running.port, {"Cookie": cookie})] * _ASKED_AT_ONCE
        while sum(took) < seconds / 2:
            drive(running.port, asked, 1, holding=holding, status=200, took=took)
        return {P50: median(took) * 1e6}

    return Case(name, measure)


@contextmanager
def cases(folder: Path, wanted: frozenset[str]) -> Iterator[list[Case]]:
    """A service of each size, with a person who signed in to it."""
    with ExitStack() as running:
        made: list[Case] = []
        for size, rows in SIZES.items():
            data, count = folder / f"growing-{size}", rows // SHRINK
            grow = partial(_multiply, count=count)
            grown, cookie = running.enter_context(grown_service(data, grow, PERSON))
            paths = _paths(data / "countersign.db", count)
            made += [
                page_case(f"{page}: {size}", grown, paths[page], cookie, HOLDS[page.partition(",")[0]])
                for page in PAGES
            ]
        yield [case for case in made if case.name in wanted]


@contextmanager
def grown_service(data: Path, grow: Callable[[Path], None], person: str) -> Iterator[tuple[Measured, str]]:
    """A service that was asked once about a refund, with the rows that were grown from it; a person's cookie."""
    with service(data) as (first, signer):
        drive(first.port, signer.reviews(1), 1, holding=b'"state":"review"')
        wait_for_index(data / "countersign.db")
    grow(data / "countersign.db")
    with service(data) as (grown, _), Reader(grown.url) as reader:
        reader.sign_in(grown.sign_in_link(person))
        yield grown, reader.cookie


def wait_for_index(database: Path) -> None:
    """The sequencer numbers the log within a second."""
    for _ in range(100):
        with closing(sqlite3.connect(database)) as db:
            if db.execute("SELECT count(*) FROM audit WHERE idx IS NULL").fetchone()[0] == 0:
                return
        time.sleep(0.1)
    raise BenchError("the log was not numbered")


GROUP = Group(ROWS, cases)
