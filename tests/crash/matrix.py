"""The cases of a crash matrix: each point, before and after, on each engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import pytest

from tests.crash.dying import Death
from tests.crash.points import PHASES


def matrix(points: Mapping[str, Sequence[str]], every_day: Set[tuple[str, str, str]]) -> list[Any]:
    """Parameters ``engine, death``; what is not in ``every_day`` (engine, point, phase) is for `make test-long`.

    Raises:
        ValueError: an entry of ``every_day`` is at no point; a renamed one would run in `make test-long` only.
    """
    places = [(engine, point) for engine, reached in points.items() for point in reached]
    cases = {(engine, point, phase) for engine, point in places for phase in PHASES}
    if unknown := every_day - cases:
        raise ValueError(f"these deaths are at no point of the code: {sorted(unknown)}")
    ordered = [(engine, point, phase) for engine, point in places for phase in PHASES]
    return [
        pytest.param(engine, Death(point, phase), marks=marks, id=f"{engine}-{phase}-{point}")
        for engine, point, phase in ordered
        for marks in [_marks(engine, daily=(engine, point, phase) in every_day)]
    ]


def _marks(engine: str, *, daily: bool) -> list[pytest.MarkDecorator]:
    marks = [] if daily else [pytest.mark.long]
    if engine == "postgresql":
        marks.append(pytest.mark.xdist_group("postgresql"))
    return marks
