"""kill -9 of the agent before and after each fault point of the SDK; then another life, and the invariants."""

from __future__ import annotations

import pytest

from tests.crash.conftest import STORIES, Stories
from tests.crash.dying import Death
from tests.crash.matrix import matrix
from tests.crash.points import agent_points
from tests.crash.where import AGENT_NEVER, AGENT_WHERE

pytestmark = STORIES

EVERY_DAY = {
    ("sqlite", "service.client.Service.redeem", "after"),
    ("sqlite", "commit.executor:EffectExecutor._call", "after"),
    ("sqlite", "journal.effects:EffectLog.write", "before"),
}
ON_POSTGRESQL = (
    *(f"service.client.Service.{verb}" for verb in ("submit", "redeem", "report")),
    *(f"journal.effects:EffectLog.{verb}" for verb in ("begin", "write")),
    "commit.executor:EffectExecutor._call",
)
"""The SDK does not know which database the service has; a few are tried on the other one as well."""
SQLITE = [point for point in agent_points() if point not in AGENT_NEVER]
REACHED = {"sqlite": SQLITE, "postgresql": ON_POSTGRESQL}


@pytest.mark.parametrize(("engine", "death"), matrix(REACHED, EVERY_DAY))
def test_every_invariant_holds_in_the_next_life(stories: Stories, engine: str, death: Death) -> None:
    chapter = AGENT_WHERE[death.point]
    story = stories(engine, side="agent", death=death)
    chapter(story)
    assert story.died, f"{chapter.__name__} did not pass {death}"
    assert story.breaches() == []


def test_every_point_of_the_code_has_a_chapter() -> None:
    assert set(agent_points()) == AGENT_WHERE.keys() | AGENT_NEVER.keys()
    assert {*ON_POSTGRESQL} <= {*agent_points()}
    assert not AGENT_WHERE.keys() & AGENT_NEVER.keys()
