"""Reviews against the model, on both engines."""

from __future__ import annotations

import pytest

from tests.model.machine import machine_on
from tests.model.playing import Databases
from tests.model.reviewing.stories import STORIES, Teller


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
