"""A journal that was copied, or holds rows of another: it is believed as far as the service confirms it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from countersign import AlreadyRedeemed, ReviewPending, Runtime, resume, transaction
from tests.fakes.desk import Desk, make_runtime, refund_tool

LARGE = 90_000


def copied(desk: Desk, name: str) -> Path:
    """The journal as it is now, taken elsewhere: a snapshot, a backup, a second host."""
    desk.runtime.close()
    path = desk.runtime.settings.journal_path
    other = path.with_name(name)
    for part in path.parent.glob(f"{path.name}*"):
        shutil.copy2(part, path.parent / part.name.replace(path.name, name))
    return other


@contextmanager
def host(desk: Desk, journal: Path) -> Iterator[Runtime]:
    settings = replace(desk.runtime.settings, journal_path=journal)
    with make_runtime(settings, desk.face, desk.registry, desk.clock) as runtime:
        yield runtime


def test_a_copy_from_before_the_redemption_finds_it_spent(desk: Desk) -> None:
    """Both hosts staged the same list; the attempt is in both journals, and the second learns the outcome."""
    refund = refund_tool(desk)
    with pytest.raises(ReviewPending) as pending, desk.step():
        refund("o-1", LARGE)
    desk.service.approve(pending.value.txn)
    copy = copied(desk, "copy.db")
    assert [one.after for one in resume(desk.runtime)] == ["settled"]
    with host(desk, copy) as second:
        resume(second)
        with pytest.raises(AlreadyRedeemed, match="fired"), transaction("t-1", runtime=second):
            refund("o-1", LARGE)
    assert desk.done == [("refund", "o-1", LARGE)]


def test_a_copy_fires_nothing_that_the_first_has_reported(desk: Desk) -> None:
    """Taken between the redemption and the fire: the copy has to ask for more time, and is told the outcome instead."""
    refund = refund_tool(desk)
    desk.face.faults["/v1/transactions"] = ["lost_answer"] * 10
    with pytest.raises(Exception, match="Nothing was fired"), desk.step():
        refund("o-1", 100)
    desk.face.faults.clear()
    copy = copied(desk, "copy.db")
    assert [one.after for one in resume(desk.runtime)] == ["settled"]
    assert desk.done == [("refund", "o-1", 100)]
    with host(desk, copy) as second:
        resume(second)
        resume(second)
    assert desk.done == [("refund", "o-1", 100)]
