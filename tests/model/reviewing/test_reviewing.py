"""Reviews against the model, on both engines: I-4, I-5 and I-6."""

from __future__ import annotations

import pytest

from tests.model.machine import machine_on
from tests.model.playing import LONG, Databases, play
from tests.model.reviewing.governing import EverybodyDecides
from tests.model.reviewing.stories import STORIES, Teller

SEEDS = {"sqlite": 40 if LONG else 1, "postgresql": 10 if LONG else 1}
STEPS = 60 if LONG else 30

SEEN = (
    "vote approve: done", "vote deny: done", "vote approve: 403 not_eligible", "accept by agent: done",
    "redeem: spent", "redeem: nothing", "break the glass: done",
)  # fmt: skip
"""A machine that does not get as far as these shows nothing."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def test_each_rule_is_played_once(databases: Databases) -> None:
    teller = machine_on(Teller, databases)()
    try:
        for story in STORIES:
            print(story.__name__)  # told when it fails
            teller.begin()
            story(teller)
        teller.begin()
    finally:
        teller.teardown()


@pytest.mark.long  # in the short suite each rule is played once, above
@pytest.mark.timeout(3_600 if LONG else 600)
@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_reviews_go_as_the_model_says(engine: str, databases: Databases) -> None:
    machine = machine_on(EverybodyDecides, databases)
    play(machine, SEEDS[engine], STEPS)
    assert not LONG or [what for what in SEEN if not machine.steps[what]] == []  # few runs see little
