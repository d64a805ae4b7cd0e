"""D2 and A1: what policies that speak of other tools cost a decision, and what a new bundle costs requests meanwhile.

A1 counts how late an event loop is that wants to decide every millisecond, while it prepares 1,000 policies too.
A machine that has other work makes it late as well: how late it is with nothing to prepare is the row A0.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from policy_service.pap.bundle import Bundle
from policy_service.pap.subprocess_loader import BundleLoader
from tests.bench.deciding import PAYMENT, decide_case, generated
from tests.bench.measuring import P50, TIME, Case, Group, Row, Sample

OTHERS = {"D2a": 100, "D2b": 1_000, "D2c": 9_980}
_OF_THE_TOOL, _TICK_S, _IDLE_S = 20, 0.001, 1.0

ROWS = (
    *(
        Row(name, f"a decision next to {count:,} policies of other actions \N{DIVISION SIGN} next to none",
            f"decide, {count:,} others", "decide, no others", TIME, "<= 1.1")
        for name, count in OTHERS.items()
    ),
    Row("A1", "a loop's worst delay while 1,000 policies come into force \N{DIVISION SIGN} a decision",
        "activate 1,000", "one decision of 1,000", TIME, "<= 1"),
    Row("A1n", "99 of 100 delays meanwhile \N{DIVISION SIGN} a decision", "activate 1,000, most",
        "one decision of 1,000", TIME),
    Row("A0", "a loop's worst delay with nothing to prepare \N{DIVISION SIGN} a decision", "activate nothing",
        "one decision of 1,000", TIME),
)  # fmt: skip


async def _late(work: Callable[[], object]) -> list[float]:
    """How late each tick of a loop was, in seconds, while work goes on in a thread."""
    late: list[float] = []
    done = asyncio.get_running_loop().run_in_executor(None, work)
    while not done.done():
        began = time.perf_counter()
        await asyncio.sleep(_TICK_S)
        late.append(time.perf_counter() - began - _TICK_S)
    await done
    return sorted(late)


def _activating(bundle: Bundle) -> tuple[Case, Case]:
    """The worst delay, and that of 99 of 100, of one and the same activation."""
    last: list[float] = []

    def prepare() -> None:
        made, _ = BundleLoader().prepare(bundle.source)
        made.close()

    def worst(seconds: float) -> Sample:
        del seconds
        last[:] = asyncio.run(_late(prepare))
        return {TIME: last[-1] * 1e6, P50: last[len(last) // 2] * 1e6}

    def most(seconds: float) -> Sample:
        if not last:
            worst(seconds)
        return {TIME: last[len(last) * 99 // 100] * 1e6}

    return Case("activate 1,000", worst), Case("activate 1,000, most", most)


def _idle(seconds: float) -> Sample:
    del seconds
    return {TIME: asyncio.run(_late(lambda: time.sleep(_IDLE_S)))[-1] * 1e6}


@contextmanager
def cases(folder: Path, wanted: frozenset[str]) -> Iterator[list[Case]]:
    """The bundles that are asked for: the largest takes half a minute to load, once."""
    found: list[Case] = []
    if any(name.startswith("decide,") for name in wanted):
        found.append(
            decide_case("decide, no others", generated(folder / "none", 1, _OF_THE_TOOL), "pay", PAYMENT)
        )
    for count in OTHERS.values():
        if (name := f"decide, {count:,} others") in wanted:
            policies = count + _OF_THE_TOOL
            bundle = generated(folder / str(count), policies // _OF_THE_TOOL, policies)
            found.append(decide_case(name, bundle, "pay", PAYMENT))
    if any("activate" in name for name in wanted):
        bundle = generated(folder / "activate", 50)
        found += [
            decide_case("one decision of 1,000", bundle, "pay", PAYMENT),
            *_activating(bundle),
            Case("activate nothing", _idle),
        ]
    yield [case for case in found if case.name in wanted]


GROUP = Group(ROWS, cases)
