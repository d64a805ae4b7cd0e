"""Cases and rows: measure every case in every round, in random order, and compare within a round only.

A case measures something and answers quantities; a row divides one case's quantity by a baseline's of the same
round. What is told is the median of these ratios, with the smallest and the largest. Nothing here passes or fails.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

Sample = dict[str, float]
Samples = dict[str, list[Sample]]

RATE, CPU, TIME = "per_second", "server_cpu_us", "us"
_SHARE = 0.15  # of --seconds that one measurement without sockets takes: it needs less to be steady


class BenchError(Exception):
    """Something was answered that must not be measured; the sentence says what."""


@dataclass(frozen=True)
class Case:
    """Something that is measured for about so many seconds."""

    name: str
    measure: Callable[[float], Sample]


@dataclass(frozen=True)
class Row:
    """One line of the table: a quantity of one case, divided by the same quantity of a baseline."""

    name: str
    what: str
    case: str
    baseline: str
    quantity: str
    goal: str = ""

    def ratios(self, samples: Samples) -> list[float]:
        """One ratio for each round."""
        pairs = zip(samples[self.case], samples[self.baseline], strict=True)
        return [case[self.quantity] / baseline[self.quantity] for case, baseline in pairs]


@dataclass(frozen=True)
class Group:
    """Rows that share a setting: the rows, and how to make the cases they need in a folder."""

    rows: tuple[Row, ...]
    cases: Callable[[Path], AbstractContextManager[Sequence[Case]]]


def run_rounds(cases: Sequence[Case], *, rounds: int, seconds: float, tell: Callable[[str], None]) -> Samples:
    """Measure every case once in each round, each round in another order; a first round is thrown away."""
    samples: Samples = {case.name: [] for case in cases}
    for number in range(rounds + 1):
        tell("warming up" if number == 0 else f"round {number} of {rounds}")
        for case in random.sample(cases, len(cases)):
            sample = case.measure(seconds if number else seconds / 4)
            if number:
                samples[case.name].append(sample)
    return samples


def told(ratios: Iterable[float]) -> str:
    """Median (smallest to largest), with three figures."""
    ordered = sorted(ratios)
    return f"{_figures(median(ordered))} ({_figures(ordered[0])}\N{EN DASH}{_figures(ordered[-1])})"


def _figures(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def cpu_case(name: str, work: Callable[[], object]) -> Case:
    """A case of pure computing: processor time of this thread for one call, so that other load counts for less."""
    calls = 1

    def measure(seconds: float) -> Sample:
        nonlocal calls
        wanted = seconds * _SHARE
        while True:
            spent = _spend(work, calls)
            if spent >= wanted / 2:
                break
            calls = max(calls * 2, int(calls * wanted / spent) if spent else 0)
        one, calls = spent / calls, max(1, int(calls * wanted / spent))
        return {TIME: one * 1e6}

    return Case(name, measure)


def _spend(work: Callable[[], object], calls: int) -> float:
    with without_collection():
        start = time.thread_time()
        for _ in range(calls):
            work()
        return time.thread_time() - start


class without_collection:  # noqa: N801  reads as a phrase in a with statement
    """No garbage collection inside: it would be charged to whoever happens to be measured."""

    def __enter__(self) -> None:
        gc.collect()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.enable()
