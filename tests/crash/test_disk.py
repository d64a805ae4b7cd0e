"""A full or broken disk under the service's SQLite file, its epoch mark, and the agent's journal.

After any fault: nothing acknowledged is lost, nothing fires without a redemption, the error has a type (503, or a
typed error of the SDK), and once the disk is well again everything is finished without help.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.crash.agent import Life, lines
from tests.crash.chapters import finished
from tests.crash.children import Child, _live
from tests.crash.conftest import STORIES, Stories
from tests.crash.disk import Fault, failing
from tests.crash.story import Story

pytestmark = STORIES
ERRORS = ("EIO", "ENOSPC")

DATABASE = ("countersign.db", "countersign.db-wal", "countersign.db-journal")
MARK = ("keys/epoch.json", "keys/epoch.json.new", "keys")
JOURNAL = ("journal.db", "journal.db-wal", "journal.db-journal")

EVERY_DAY_AGENT = {Fault("pwrite64", "ENOSPC", 7, on=True)}

ONCE = range(1, 2)
MADE_BY_AN_AGENT = {"pwrite64": range(3, 84, 4), "fdatasync": range(1, 8), "openat": range(1, 4)}
MADE_BY_AN_AGENT |= {"fsync": ONCE, "ftruncate": ONCE}
"""Which calls of one life on its journal fail, from the first to (nearly) the last it makes; a fault further on tests
nothing, and is red.
"""


def _marked(case: Any, every_day: Any, *values: Any) -> Any:
    marks = [] if case in every_day else [pytest.mark.long]
    return pytest.param(*values, marks=marks, id="-".join(map(str, values)))


def service_faults() -> list[Any]:
    faults = [("db", Fault(call, error, nth, on))
              for call, many in (("pwrite64", 6), ("fdatasync", 4)) for error in ERRORS
              for nth in range(1, many + 1) for on in (False, True)]  # fmt: skip
    faults += [("mark", Fault(call, error, nth, on))
               for call in ("openat", "write", "fsync", "rename") for error in ERRORS
               for nth in (1, 2) for on in (False, True)]  # fmt: skip
    return [_marked(case, (), *case) for case in faults]


def agent_faults() -> list[Any]:
    made = [(call, nth) for call, counts in MADE_BY_AN_AGENT.items() for nth in counts]
    faults = [Fault(call, error, nth, on) for call, nth in made for error in ERRORS for on in (False, True)]
    return [_marked(fault, EVERY_DAY_AGENT, fault) for fault in faults]


@pytest.mark.parametrize(("file", "fault"), service_faults())
def test_a_failing_disk_loses_and_releases_nothing(stories: Stories, file: str, fault: Fault) -> None:
    story = stories("sqlite")
    story.begin()
    assert story.service is not None
    files = tuple(story.data / name for name in (DATABASE if file == "db" else MARK))
    with failing(story.service.pid, files, fault, story.folder / "strace.log") as injected:
        for flow in ("small", "large"):
            story.try_to_live(flow, flow)
        injected.wait()
    assert injected.hits, "the fault was met"
    assert not story.service.ended, "the service goes on"
    for answer in lines(story.agent / "answers.jsonl"):
        if answer["status"] >= 500:
            assert (answer["status"], answer["body"]["code"]) == (503, "storage_unavailable"), answer
    story.live("small", "small")
    story.answer_review(story.live("large", "large"), "maya")
    story.live("resume")
    finished(story, refund=2)
    assert story.breaches() == []


@pytest.mark.parametrize("fault", agent_faults())
def test_a_failing_disk_of_the_journal_fires_nothing_twice(stories: Stories, fault: Fault) -> None:
    story = stories("sqlite", side="agent")
    story.begin()
    story.live("invoice", "before")
    said, hits = _on_a_failing_disk(story, "two", fault)
    assert hits, "the fault was met"
    assert said["raised"] in {None, "JournalError", "OutcomeUnknown"}, said
    for _ in range(2):
        story.live("two", "two")
    story.finish()
    assert story.breaches() == []


def _on_a_failing_disk(story: Story, flow: str, fault: Fault) -> tuple[dict[str, Any], int]:
    """One life of the agent whose journal fails it."""
    gate: Path = story.folder / "gate"
    life = Life(story.agent, story.url, flow, flow, gate=gate)
    (story.agent / "result.json").unlink()
    child = Child(_live, life)
    try:
        files = tuple(story.agent / name for name in JOURNAL)
        with failing(child.pid, files, fault, story.folder / "strace.log") as injected:
            gate.touch()
            code = child.wait()
    finally:
        child.close()
    assert code == 0, f"an error without a type: the agent's process ended with {code}"
    return json.loads((story.agent / "result.json").read_text()), injected.hits
