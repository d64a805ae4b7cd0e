"""H: the cost of the worst input against good input of its size. Nothing an agent may send may grow faster than it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from countersign.contract import AdmissionError, load
from policy_service.channels.presentation.marked_text import mark
from tests.bench.measuring import TIME, Case, Group, Row, Sample, cpu_case
from tests.unit.contract.reading import raw, read

MOST: Final = "\N{LESS-THAN OR EQUAL TO} "
OVER: Final = " \N{DIVISION SIGN} "
PART: Final = 8
TEXTS: Final = {
    "look-alikes in pairs": "\u0430a" * 60_000,
    "dotted look-alikes": "\u0430.a" * 40_000,
    "zero width, alternating": "\u200b\u200c" * 40_000,
    "one long word": "a" * 262_144,
    "a sea of spaces": "x" + " " * 262_000 + "y",
    "broken links": "://a" * 60_000,
    "open brackets": "<a" * 130_000,
    "lines of one space": " \n" * 130_000 + "x",
    "at signs": "@" * 262_144,
}
_WHOLE = [f"marking: {name}" for name in TEXTS]
_PARTS = [f"{name}: an eighth" for name in _WHOLE]


def _growth(one: Mapping[str, Sample]) -> float:
    """The worst text: the whole, over eight times its eighth. Linear is 1, quadratic 8."""
    return max(one[whole][TIME] / one[part][TIME] / PART for whole, part in zip(_WHOLE, _PARTS, strict=True))


ROWS = (
    Row("H1", f"marking hostile text of 256 KiB{OVER}eight times an eighth of it (the worst)", _WHOLE[0], _PARTS[0],
        TIME, MOST + "1.5", of=_growth, more=(*_WHOLE[1:], *_PARTS[1:])),
    Row("H2", f"refusing hostile bytes (the dearest){OVER}admitting 200 KB of good ones", "refusing", "admitting",
        TIME, MOST + "1"),
)  # fmt: skip


def _refusal(hostile: bytes) -> Callable[[], None]:
    def refuse() -> None:
        with suppress(AdmissionError):
            load(hostile)

    return refuse


def _dearest(refused: list[dict[str, Any]]) -> Case:
    """All of them, each by itself; what the dearest took."""
    each = [cpu_case(str(number), _refusal(raw(case))) for number, case in enumerate(refused)]

    def measure(seconds: float) -> Sample:
        return max((case.measure(seconds / len(each)) for case in each), key=lambda sample: sample[TIME])

    return Case("refusing", measure)


@contextmanager
def cases(folder: Path, wanted: frozenset[str]) -> Iterator[list[Case]]:
    """Texts an agent may send, and bytes it may not."""
    del folder, wanted
    good = json.dumps(
        [{"order": f"o-{n}", "note": "shipped " * 8, "cents": n} for n in range(2_000)]
    ).encode()
    made = [_dearest(read("admission/refused.json")["cases"]), cpu_case("admitting", lambda: load(good))]
    for name, part, text in zip(_WHOLE, _PARTS, TEXTS.values(), strict=True):
        made.append(cpu_case(name, lambda text=text: mark(text, block=True)))
        made.append(cpu_case(part, lambda text=text: mark(text[: len(text) // PART], block=True)))
    yield made


GROUP = Group(ROWS, cases)
