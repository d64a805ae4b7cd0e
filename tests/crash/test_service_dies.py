"""kill -9 before and after each fault point of the service, on both engines; then a restart, and the invariants."""

from __future__ import annotations

import pytest

from tests.crash.chapters import BACKGROUND, RENEWING
from tests.crash.conftest import STORIES, Stories
from tests.crash.dying import Death
from tests.crash.matrix import matrix
from tests.crash.points import service_points
from tests.crash.story import passed
from tests.crash.where import NEVER, ONE_ENGINE, OPERATORS, WHERE, chapter_of
from tests.integration.service.engines import ENGINES

pytestmark = STORIES

SUBMITTED = ("sqlite", "workflow.releases.submit:_submit_and_redeem", "after")
EVERY_DAY = {SUBMITTED, ("sqlite", "workflow.releases.redeem:_redeem", "before")}
"""Enough for every day; `make test-long` dies at every point."""


def reachable(engine: str) -> list[str]:
    """The points a story can reach on that engine."""
    elsewhere = tuple(start for start, only in ONE_ENGINE.items() if only != engine)
    return [point for point in service_points() if point not in NEVER and not point.startswith(elsewhere)]


@pytest.mark.parametrize(("engine", "death"), matrix({one: reachable(one) for one in ENGINES}, EVERY_DAY))
def test_every_invariant_holds_after_a_restart(stories: Stories, engine: str, death: Death) -> None:
    chapter = chapter_of(death.point)
    assert chapter is not None
    side = "operator" if chapter in OPERATORS else "service"
    story = stories(engine, side=side, death=death)
    chapter(story)
    assert story.died, f"it did not pass {death}; it passed {passed(story.folder / 'points.log')}"
    assert story.breaches() == []


def test_every_point_of_the_code_has_a_chapter() -> None:
    assert [point for point in service_points() if point not in NEVER and chapter_of(point) is None] == []


def test_no_chapter_is_named_for_a_point_that_is_gone() -> None:
    points = service_points()
    assert [start for start in WHERE if not any(point.startswith(start) for point in points)] == []
    assert NEVER.keys() <= set(points)
    assert {point for _, point, _ in EVERY_DAY} <= set(points)
    for start in (RENEWING, *BACKGROUND):
        assert any(point.startswith(start) for point in points)
