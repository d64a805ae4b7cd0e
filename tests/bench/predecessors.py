"""R: what a staged effect costs through the whole SDK, compared with other runtimes.

Ours is a transaction of a hundred effects in front of a fake service in this process: bytes, digests, journal, a
release verified for each, the receipt, FIRING, the call in its thread, the outcome. What the fake spends on deciding
and signing counts against us; the others ask no service and sign nothing.

The others are measured where `make predecessors` has fetched them (Python 3.12), each in a process of its own. Their
databases wait for the disk as they come.
"""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from countersign import transaction
from tests.bench.measuring import TIME, Case, Group, Row, Sample
from tests.fakes.desk import Desk, make_desk, make_runtime, refund_tool

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
    Row("R7", f"a staged effect, durable{OVER}a call of AgentHelm", "staged", "agenthelm", TIME),
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


def _ours(desk: Desk, refund: Callable[[str, int, list[str]], object]) -> Callable[[float], Sample]:
    runs = itertools.count(1)

    def measure(_: float) -> Sample:
        start = time.perf_counter()
        with transaction(f"staged-{next(runs)}", runtime=desk.runtime) as txn, txn.repeat():
            for number in range(CALLS):
                refund(f"o-{number}", 100, BODY)
        return {TIME: (time.perf_counter() - start) / CALLS * 1e6}

    return measure


def _desk(folder: Path, *, in_memory: bool) -> Desk:
    folder.mkdir()
    desk = make_desk(folder)
    if not in_memory:
        return desk
    settings = replace(desk.runtime.settings, journal_path=Path(":memory:"))
    return replace(desk, runtime=make_runtime(settings, desk.face, desk.registry, desk.clock))


@contextmanager
def cases(folder: Path, wanted: frozenset[str]) -> Iterator[list[Case]]:
    """Our effects, and the others as far as they are here."""
    with ExitStack() as stack:
        made: list[Case] = []
        for suffix in ("", " in memory"):
            desk = _desk(folder / f"desk{suffix.replace(' ', '-')}", in_memory=bool(suffix))
            refund = refund_tool(desk)
            stack.callback(desk.runtime.close)
            made.append(Case(f"staged{suffix}", _ours(desk, refund)))
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
