"""Several processes on one journal: together they never take more than a budget has, whoever dies in between."""

from __future__ import annotations

import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from countersign import Budget, BudgetExceeded, Runtime, Settings, llm_call
from countersign.journal import Journal, holding
from countersign.journal.database import Database
from countersign.journal.holding import Hold
from countersign.journal.place import JournalPlace
from tests.fakes.desk import Desk, make_desk
from tests.fakes.llm_answers import OPENAI_CHAT, with_count
from tests.unit.sdk.journals import BOTH

FORK = multiprocessing.get_context("fork")
MODEL = "example-small"
BUDGETS = (
    Budget("money", "money", "0.0264", "day", "USD"),  # forty calls of 0.00066
    Budget("tokens", "tokens", 100_000, "day"),
    Budget("run", "calls", 17, "run"),
)
ANSWER = with_count(OPENAI_CHAT, 800, "usage", "completion_tokens")  # 1200 in, 800 out: all that was reserved
PRICE = """
[[price]]
models = "*"
currency = "USD"
valid_from = 2020-01-01
input = 0.15
output = 0.60
cached_input = 0.15
"""
ON_BOTH = pytest.mark.parametrize("engine", BOTH)
EACH = {"max_tokens": 800, "input_tokens": 1200}


@pytest.fixture
def desk(tmp_path: Path, place: JournalPlace) -> Desk:
    prices = tmp_path / "prices.toml"
    prices.write_text(PRICE)
    return make_desk(tmp_path, budgets=BUDGETS, prices_path=prices, journal_path=place)


def spend(settings: Settings, run: str, barrier: Any, done: Connection) -> None:
    """A program that calls its model until it may not."""
    made = 0
    with Runtime(settings) as runtime:
        barrier.wait(30)
        while True:
            try:
                with llm_call(MODEL, run=run, runtime=runtime, **EACH) as call:
                    made += 1
                    call.record(ANSWER)
            except BudgetExceeded as error:
                done.send((made, error.budget))
                return


def together(desk: Desk, *runs: str) -> list[tuple[int, str]]:
    """Start a program for each run, let them go at once, and wait for what they say."""
    barrier = FORK.Barrier(len(runs))
    pipes = [FORK.Pipe(duplex=False) for _ in runs]
    started = [
        FORK.Process(target=spend, args=(desk.runtime.settings, run, barrier, theirs))
        for run, (_, theirs) in zip(runs, pipes, strict=True)
    ]
    for one in started:
        one.start()
    for one in started:
        one.join(60)
    assert {one.exitcode for one in started} == {0}
    said = [ours.recv() for ours, _ in pipes]
    for ours, theirs in pipes:
        ours.close()
        theirs.close()
    return said


def stands(desk: Desk) -> dict[tuple[str, str], tuple[int, int]]:
    """What is spent and reserved, of the days and of each run."""
    found = {}
    for budget in desk.runtime.journal.spending.budgets():
        for row in desk.runtime.journal.spending.periods(budget["name"], 100):
            period = "day" if budget["per"] == "day" else row["period"]
            found[budget["name"], period] = (row["spent"], row["reserved"])
            assert row["spent"] + row["reserved"] <= budget["most"]
    return found


@ON_BOTH
def test_processes_share_a_budget_exactly(desk: Desk) -> None:
    """W13 of Pherix: of a cap of 100, two overlapping 90s both went through."""
    said = together(desk, "a", "b", "b", "c")
    assert sum(made for made, _ in said) == 40
    found = stands(desk)
    assert found["money", "day"] == (26_400_000_000, 0)
    assert found["tokens", "day"] == (80_000, 0)
    assert sum(found["run", run][0] for run in "abc") == 40
    assert "money" in {budget for _, budget in said} <= {"money", "run"}
    desk.runtime.close()


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
