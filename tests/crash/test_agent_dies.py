"""kill -9 of the agent before and after each fault point of the SDK; then another life, and the invariants."""

from __future__ import annotations

import pytest

from tests.crash.conftest import STORIES, Stories
from tests.crash.dying import Death
from tests.crash.matrix import matrix
from tests.crash.points import agent_points
from tests.crash.where import AGENT_NEVER, AGENT_WHERE

pytestmark = STORIES

_REDEEMED, _CALLED = "service.client.Service.redeem", "commit.executor:EffectExecutor._call"
EVERY_DAY = {("sqlite", _REDEEMED, "after"), ("sqlite", _CALLED, "after")}
EVERY_DAY |= {("sqlite", "journal.effects:EffectLog.write", "before")}
_REQUESTS = [f"service.client.Service.{verb}" for verb in ("submit", "redeem", "report")]
ON_POSTGRESQL = (*_REQUESTS, _CALLED, *(f"journal.effects:EffectLog.{verb}" for verb in ("begin", "write")))
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
