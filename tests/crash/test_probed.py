"""kill -9 while a payment is being made whose bank can be asked: both answers, in front of the real service."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest

from countersign.journal import Journal
from tests.crash.agent import lines
from tests.crash.conftest import STORIES, Stories
from tests.crash.dying import Death
from tests.crash.invariants import counted
from tests.crash.story import PATIENCE_S, Story

pytestmark = STORIES

_PAYING = "commit.firing:FireRun._call"  # the second call of it: the charge goes before
_WRITING = "journal.firing:Firing.write"


def journal(story: Story) -> dict[str, str]:
    """What the agent's journal says of each tool."""
    with closing(Journal(story.agent / "journal.db")) as opened:
        (record,) = opened.transactions.find("probed")
        rows = opened.transactions.effects(record)
        return {"txn": record.state} | {row.tool: row.state.value for row in rows}


def settle(story: Story) -> None:
    """Resume until nothing is unknown: "it is not there" counts once the payment cannot be on its way any more."""
    until = time.monotonic() + PATIENCE_S
    while journal(story)["txn"] != "settled":
        assert time.monotonic() < until
        story.live("resume")
        time.sleep(0.2)


@pytest.mark.long
@pytest.mark.parametrize("again", [None, "before", "after"], ids=["once", "and before", "and after"])
@pytest.mark.parametrize(
    ("phase", "ends", "calls"),
    [
        ("after", {"txn": "settled", "charge": "fired", "pay": "fired"}, {"charge": 1, "pay": 1}),
        ("before", {"txn": "settled", "charge": "compensated", "pay": "failed"}, {"charge": 1, "void": 1}),
    ],
    ids=["it happened", "it did not"],
)
def test_what_was_firing_is_settled_by_its_probe_as_the_world_has_it(
    stories: Stories, phase: str, ends: dict[str, str], calls: dict[str, int], again: str | None
) -> None:
    """I-1 to I-3 and the rest; also where whoever settles it is killed while writing it down."""
    story = stories("sqlite", side="agent", death=None)
    story.begin()
    story.live("probed", "probed", dies=Death(_PAYING, phase, 2))
    assert journal(story)["pay"] == "firing"
    if again is not None:
        story.live("resume", dies=Death(_WRITING, again))
    settle(story)
    assert journal(story) == ends
    world: list[dict[str, Any]] = lines(story.agent / "world.jsonl")
    assert counted(world) == calls
    for _ in range(2):
        assert story.live("resume")["resumed"] == []
    assert (journal(story), lines(story.agent / "world.jsonl")) == (ends, world)
    story.finish()
    assert story.breaches() == []
