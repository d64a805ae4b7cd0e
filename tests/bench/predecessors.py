"""R: what a staged and a live effect cost through the whole SDK, compared with a bare insert and other runtimes.

Ours is a transaction of a hundred effects in front of a fake service in this process: bytes, digests, journal, a
release verified for each, the receipt, FIRING, the call in its thread, the outcome. What the fake spends on deciding
and signing counts against us; the others ask no service and sign nothing.

The others are measured where `make predecessors` has fetched them (Python 3.12), each in a process of its own. Their
databases wait for the disk as they come.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from countersign import MemoryAdapter, SQLiteAdapter, tool, transaction
from tests.bench.journaling import bare_table, void
from tests.bench.measuring import TIME, Case, Group, Row, Sample, wall_case
from tests.fakes.desk import Desk, make_desk, make_runtime, note_tool, notes_database, refund_tool

PYTHON: Final = Path(__file__).parents[2] / ".venv-predecessors/bin/python"
RUNTIMES: Final = ("agenthelm", "agentrelay", "pherix")
CALLS: Final = 100
BODY: Final = ["shipped " * 9] * 10
MOST = "\N{LESS-THAN OR EQUAL TO} "
OVER = " \N{DIVISION SIGN} "

ROWS = (
    Row("R1", f"a staged effect, durable{OVER}one of Pherix", "staged", "pherix", TIME, MOST + "0.4"),
    Row("R2", f"a staged effect, durable{OVER}a call of AgentRelay", "staged", "agentrelay", TIME, MOST + "0.4"),
    Row("R3", f"the same in memory{OVER}one of Pherix", "staged in memory", "pherix in memory", TIME, MOST + "1"),
    Row("R4", f"a staged effect, durable{OVER}one insert FULL", "staged", "bare insert FULL", TIME),
    Row("R5", f"a live effect, durable{OVER}one insert FULL", "live", "bare insert FULL", TIME),
    Row("R6", f"a live effect{OVER}a staged one, in memory", "live in memory", "staged in memory", TIME),
    Row("R7", f"a staged effect, durable{OVER}a call of AgentHelm", "staged", "agenthelm", TIME),
    Row("R8", f"a live effect on values in memory{OVER}one write into a dict", "live on values", "bare dict", TIME),
    Row("R9", f"a staged effect{OVER}one insert, in memory", "staged in memory", "bare insert in memory", TIME),
    Row("R10", f"a live effect{OVER}one insert, in memory", "live in memory", "bare insert in memory", TIME),
    Row("R11", f"a live effect, durable{OVER}one of Pherix", "live", "pherix", TIME),
    Row("R12", f"a live effect, durable{OVER}a call of AgentRelay", "live", "agentrelay", TIME),
)  # fmt: skip


class _Elsewhere:
    """Another runtime, in a process of its own."""

    def __init__(self, runtime: str, place: str) -> None:
        script = Path(__file__).with_name("elsewhere.py")
        self._process = subprocess.Popen(
            [PYTHON, str(script), runtime, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def measure(self, _: float) -> Sample:
        """One run of a hundred calls."""
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("the process was opened with both")
        self._process.stdin.write(f"{CALLS}\n")
        self._process.stdin.flush()
        return {TIME: float(self._process.stdout.readline()) / CALLS * 1e6}

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def _ours(desk: Desk, lane: str, call: Callable[[int], object]) -> Callable[[float], Sample]:
    runs = 0

    def measure(_: float) -> Sample:
        nonlocal runs
        runs += 1
        start = time.perf_counter()
        with transaction(f"{lane}-{runs}", runtime=desk.runtime) as txn, txn.repeat():
            for number in range(CALLS):
                call(number)
        return {TIME: (time.perf_counter() - start) / CALLS * 1e6}

    return measure


def _desk(folder: Path, *, in_memory: bool) -> Desk:
    folder.mkdir()
    desk = make_desk(folder)
    if not in_memory:
        return desk
    settings = replace(desk.runtime.settings, journal_path=Path(":memory:"))
    return replace(desk, runtime=make_runtime(settings, desk.face, desk.registry, desk.clock))


def _keeping(desk: Desk) -> Callable[[int], object]:
    values = MemoryAdapter()

    @tool("keep", lane="live", adapter=values, registry=desk.registry)
    def keep(order_id: str, text: str) -> None:
        """Keep a value."""
        values[order_id] = text

    return lambda number: keep(f"o-{number}", BODY[0] * 10)


def _dict(_: float) -> Sample:
    """A hundred writes, a thousand times, for one is shorter than the clock can tell."""
    orders, text = [f"o-{number}" for number in range(CALLS)], BODY[0] * 10
    start = time.perf_counter()
    for _run in range(1_000):
        values: dict[str, str] = {}
        for order in orders:
            values[order] = text
    return {TIME: (time.perf_counter() - start) / CALLS / 1_000 * 1e6}


@contextmanager
def cases(folder: Path, wanted: frozenset[str]) -> Iterator[list[Case]]:
    """Our effects, bare inserts, and the others as far as they are here."""
    with ExitStack() as stack:
        made: list[Case] = []
        for suffix in ("", " in memory"):
            desk = _desk(folder / f"desk{suffix.replace(' ', '-')}", in_memory=bool(suffix))
            refund = refund_tool(desk)
            note = note_tool(desk, SQLiteAdapter(notes_database(desk.folder)))
            stack.callback(desk.runtime.close)
            made.append(
                Case(
                    f"staged{suffix}",
                    _ours(desk, "staged", lambda n, refund=refund: refund(f"o-{n}", 100, BODY)),
                )
            )
            made.append(
                Case(f"live{suffix}", _ours(desk, "live", lambda n, note=note: note(f"o-{n}", BODY[0] * 10)))
            )
            if suffix:
                made.append(Case("live on values", _ours(desk, "values", _keeping(desk))))
        made.append(Case("bare dict", _dict, reference=True))
        row = ("t" * 64, (BODY[0] * 10).encode())
        insert = "INSERT INTO effects (txn, args) VALUES (?, ?)"
        for name, place in (("bare insert FULL", desk.folder), ("bare insert in memory", None)):
            bare = bare_table(place, "FULL")
            stack.callback(bare.close)
            made.append(
                wall_case(
                    name, lambda n, bare=bare: [lambda: void(bare.execute(insert, row))] * n, reference=True
                )
            )
        for name in RUNTIMES if PYTHON.exists() else ():
            for suffix, kept in (("", str(folder)), (" in memory", "memory")):
                if f"{name}{suffix}" in wanted:
                    other = _Elsewhere(name, kept)
                    stack.callback(other.close)
                    made.append(Case(f"{name}{suffix}", other.measure, reference=True))
        yield made


def _absent() -> str:
    return "the other runtimes are not here: make predecessors"


GROUP = Group(ROWS, cases, missing=dict.fromkeys((*RUNTIMES, "pherix in memory"), _absent))
