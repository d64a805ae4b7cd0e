"""Cases and rows: measure every case in every round, in random order, and compare within a round only.

A case measures something and answers quantities; a row divides one case's quantity by a baseline's of the same
round. The result is the median of these ratios, with the smallest and the largest. Nothing here passes or fails.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

Sample = dict[str, float]
Samples = dict[str, list[Sample]]

RATE, CPU, TIME, P50, BYTES = "per_second", "server_cpu_us", "us", "p50_us", "bytes"
_BATCH = 10
_SHARE = 0.15  # of --seconds that one measurement without sockets takes: it needs less to be steady
_DISK_SHARE = 0.3  # the same where the disk is waited for


class BenchError(Exception):
    """Something was answered that must not be measured; the sentence says what."""


@dataclass(frozen=True)
class Case:
    """Something that is measured for about so many seconds."""

    name: str
    measure: Callable[[float], Sample]
    once: bool = False  # dear, and not a matter of moments: measured before the rounds, for all of them
    reference: bool = False  # nothing of ours: what another commit does is compared with it too


@dataclass(frozen=True)
class Row:
    """One line of the table: a quantity of one case, divided by the same quantity of a baseline.

    Where a ratio is made of more, `of` says how, and `more` names the other cases it needs.
    """

    name: str
    what: str
    case: str
    baseline: str
    quantity: str
    goal: str = ""
    of: Callable[[Mapping[str, Sample]], float] | None = None
    more: tuple[str, ...] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """The cases it is made of."""
        return (self.case, self.baseline, *self.more)

    def ratios(self, samples: Samples) -> list[float]:
        """One ratio for each round; none where a case could not be measured."""
        if any(name not in samples for name in self.needs):
            return []
        rounds = zip(*(samples[name] for name in self.needs), strict=True)
        return [self._ratio(dict(zip(self.needs, one, strict=True))) for one in rounds]

    def _ratio(self, one: Mapping[str, Sample]) -> float:
        if self.of is not None:
            return self.of(one)
        return one[self.case][self.quantity] / one[self.baseline][self.quantity]


@dataclass(frozen=True)
class Group:
    """Rows that share a setting: the rows, and how to make the cases they need in a folder.

    `cases` gets the names of the wanted cases, because some are slow to set up. `missing` says why a case is not there.
    """

    rows: tuple[Row, ...]
    cases: Callable[[Path, frozenset[str]], AbstractContextManager[Sequence[Case]]]
    missing: Mapping[str, Callable[[], str]] = field(default_factory=dict)


def run_rounds(cases: Sequence[Case], *, rounds: int, seconds: float, tell: Callable[[str], None]) -> Samples:
    """Measure every case once in each round, each round in another order; a first round is thrown away."""
    samples: Samples = {case.name: [] for case in cases}
    once = {case.name: case.measure(seconds) for case in cases if case.once}
    for number in range(rounds + 1):
        tell("warming up" if number == 0 else f"round {number} of {rounds}")
        for case in random.sample(cases, len(cases)):
            sample = once.get(case.name) or case.measure(seconds if number else seconds / 4)
            if number:
                samples[case.name].append(sample)
    return samples


def summary(ratios: Iterable[float]) -> str:
    """Median (smallest to largest), with three figures; a dash for nothing."""
    ordered = sorted(ratios)
    if not ordered:
        return "\N{EM DASH}"
    if len(set(ordered)) == 1:
        return _figures(ordered[0])
    return f"{_figures(median(ordered))} ({_figures(ordered[0])}\N{EN DASH}{_figures(ordered[-1])})"


def _figures(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def cpu_case(name: str, work: Callable[[], object], *, reference: bool = False) -> Case:
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

    return Case(name, measure, reference=reference)


def wall_case(
    name: str, batch: Callable[[int], Sequence[Callable[[], None]]], *, reference: bool = False
) -> Case:
    """A case that waits for a disk: time on the wall for one piece of work, prepared before the clock starts."""

    def measure(seconds: float) -> Sample:
        times: list[float] = []
        while sum(times) < seconds * _DISK_SHARE:
            works = batch(_BATCH)
            with without_collection():
                for work in works:
                    start = time.perf_counter()
                    work()
                    times.append(time.perf_counter() - start)
        return {TIME: sum(times) / len(times) * 1e6, P50: median(times) * 1e6}

    return Case(name, measure, reference=reference)


def _spend(work: Callable[[], object], calls: int) -> float:
    with without_collection():
        start = time.thread_time()
        for _ in range(calls):
            work()
        return time.thread_time() - start


class without_collection:  # noqa: N801  reads as a phrase in a with statement
    """No garbage collection inside: it would be charged to the case being measured."""

    def __enter__(self) -> None:
        gc.collect()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.enable()
