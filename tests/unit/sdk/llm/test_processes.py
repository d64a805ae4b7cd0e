"""Several processes on one journal: together they never take more than a budget has, whoever dies in between."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from countersign.journal import Journal, holding
from countersign.journal.database import Database
from countersign.journal.holding import Hold
from countersign.journal.place import JournalPlace
from tests.unit.sdk.journals import BOTH

MODEL = "example-small"
ON_BOTH = pytest.mark.parametrize("engine", BOTH)


@ON_BOTH
def test_two_cannot_take_the_same(place: JournalPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """W13 again, with the moment between looking and taking held open: of a cap of 100, one of two 90s goes through."""
    cap = Hold("cap", "tokens", "day", "", 100, "2026-11-23", 90)
    second_done = threading.Event()
    looked: list[str] = []
    look, unit = holding.shortage, Database.unit

    def look_and_wait(*given: Any) -> Any:
        found = look(*given)
        looked.append(threading.current_thread().name)
        if looked == ["first"]:
            second_done.wait(0.5)  # in vain, where the second has to wait for the first
        return found

    def unit_and_wait(self: Database, *, durable: bool) -> Any:
        if looked and threading.current_thread().name == "first":
            second_done.wait(5)  # never, where looking and taking are one unit
        return unit(self, durable=durable)

    def reserve(name: str) -> object:
        threading.current_thread().name = name
        if name == "second":
            while not looked:
                time.sleep(0.001)
        journal = Journal(place)
        try:
            return journal.spending.reserve(name, None, MODEL, [cap])
        finally:
            journal.close()
            if name == "second":
                second_done.set()

    monkeypatch.setattr(holding, "shortage", look_and_wait)
    monkeypatch.setattr(Database, "unit", unit_and_wait)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(reserve, ["first", "second"])
    assert (first, second) == (None, holding.Shortage(cap, 0, 90))
    journal = Journal(place)
    assert [row["call_id"] for row in journal.spending.calls(9)] == ["first"]
    journal.close()
