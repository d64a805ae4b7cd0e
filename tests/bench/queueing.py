"""Q5: what the queue page costs when 100,000 reviews are decided and 1,000 are open, against 100 and 10.

Each size is a service of its own, grown from one real submission as in `growing.py`; the decided ones are the same row
with another state. The person who looks is asked about every open one, so that "needs me" has as many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.bench.growing import (
    MOST,
    SHORT,
    SHRINK,
    copy_reviews,
    copy_rows,
    growing,
    grown_service,
    page_case,
)
from tests.bench.measuring import P50, Case, Group, Row, Sample

SIZES = {"short": (100, 10), "long": (100_000, 1_000)}  # decided, open
PERSON = "maya"  # of finance, which the shipped bundle asks about refunds
PAGES = {"needs me": "/", "all open": "/?tab=open", "decided": "/?tab=decided"}


def _worst(one: Mapping[str, Sample]) -> float:
    """The tab that grew most."""
    return max(one[f"{page}: long"][P50] / one[f"{page}: short"][P50] for page in PAGES)


ROWS = (
    Row("Q5", "the queue's tabs: 100,000 decided and 1,000 open \N{DIVISION SIGN} 100 and 10 (the worst)",
        "needs me: long", "needs me: short", P50, MOST + "2", of=_worst,
        more=tuple(f"{page}: {size}" for page in PAGES for size in SIZES)),
)  # fmt: skip


def _grow(database: Path, decided: int, waiting: int) -> None:
    """Open copies by their number from 1; decided ones above them."""
    with growing(database) as db:
        total = decided + waiting
        # Every open one, and of the decided ones those a page shows: the newest.
        copy_reviews(db, total, f"n <= {waiting} OR n > {total - 200}")
        copy_rows(db, "review_groups", waiting, "1", {"review_id": f"'rev_' || {SHORT}"})
        db.execute(
            "UPDATE reviews SET state = 'denied', settled_at = opened_at "
            f"WHERE review_id > printf('rev_%026d', {waiting}) AND review_id < 'rev_1'"
        )


@contextmanager
def cases(folder: Path, wanted: frozenset[str]) -> Iterator[list[Case]]:
    """A service of each size, with a person who is asked."""
    with ExitStack() as running:
        made: list[Case] = []
        for size, (decided, waiting) in SIZES.items():
            data = folder / f"queueing-{size}"
            shrink = SHRINK if size == "long" else 1
            grow = partial(_grow, decided=decided // shrink, waiting=waiting // shrink)
            grown, cookie = running.enter_context(grown_service(data, grow, PERSON))
            made += [
                page_case(f"{page}: {size}", grown, path, cookie, b"data-review=")
                for page, path in PAGES.items()
            ]
        yield [case for case in made if case.name in wanted]


GROUP = Group(ROWS, cases)
