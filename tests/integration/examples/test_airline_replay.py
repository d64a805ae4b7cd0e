"""The replay as `make airline` runs it, on a small airline and on the recorded runs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from countersign import Runtime, use_runtime
from examples.airline import data, report
from examples.airline.__main__ import AGENT, BUNDLE, FACTS, ROLE, approving_people
from examples.airline.database import AirlineDatabase
from examples.airline.replay import People, Verdict, no_approvals, replay
from examples.airline.tools import DATABASE
from examples.local_service import REPOSITORY, LocalService, free_port
from tests.counterparts import require
from tests.fakes.local_service import WarmService
from tests.integration.examples import airline_world
from tests.integration.examples.airline_world import ANA, BO

ENVIRONMENT = os.environ | {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'sdk/python'}"}
AIRLINE = [sys.executable, "-m", "examples.airline"]


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    env = ENVIRONMENT | {data.VARIABLE: str(folder)}
    return subprocess.run(AIRLINE, env=env, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def write(step: int, tool: str, gold: bool, **args: Any) -> dict[str, Any]:
    return {"step": step, "tool": tool, "args": args, "write": True, "matches_gold": gold}


def cancel(step: int, key: str, gold: bool = False) -> dict[str, Any]:
    return write(step, "cancel_reservation", gold, reservation_id=key)


def recorded(task: int, trial: int, *calls: dict[str, Any]) -> dict[str, Any]:
    return {"task_id": task, "trial": trial, "calls": list(calls)}


SEEN = {"step": 0, "tool": "get_reservation_details", "args": {"reservation_id": "BUSI01"}}
TURNED = {"reservation_id": "ECON01", "passengers": [BO, ANA]}
RUNS = [
    recorded(1, 0, SEEN, cancel(1, "BUSI01", gold=True), cancel(2, "BUSI01")),
    # the same call in the next run: the database has been put back
    recorded(1, 1, cancel(0, "BUSI01", gold=True)),
    # approved by people, it is cancelled and cannot be cancelled again; left open, it asks again
    recorded(2, 0, cancel(0, "INSUR1", gold=True), cancel(1, "INSUR1")),
    # what the tools do not take never reaches the service, and is no release
    recorded(
        3, 0,
        write(0, "cancel_reservation", False, reservation_id="BUSI01", reason="weather"),
        write(1, "cancel_reservation", False),
        write(2, "delete_airline", False),
        write(3, "send_certificate", False, user_id="gold_1", amount="all"),
        write(4, "update_reservation_passengers", True, **TURNED),
    ),
]  # fmt: skip


@dataclass(frozen=True)
class World:
    """A service with the airline's bundle, an enrolled agent, and the small airline's recorded runs."""

    airline: AirlineDatabase
    runtime: Runtime
    service: LocalService
    runs: list[data.Run]

    def replay(self, people: People, prefix: str, flip: bool = False) -> list[Verdict]:
        """All runs under names of their own: the same service has seen them before."""
        runs = []
        for run in self.runs:
            calls = tuple(replace(call, matches_gold=call.matches_gold ^ flip) for call in run.calls)
            runs.append(data.Run(f"{prefix}-{run.name}", calls))
        with use_runtime(self.runtime):
            return list(replay(runs, self.airline, self.runtime, people))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("replay")
    source = airline_world.write(folder / "data", RUNS)
    airline = AirlineDatabase(folder / "airline.sqlite3", source)
    environment = {**ENVIRONMENT, FACTS: f"sqlite:///{airline.path}"}
    service = WarmService(folder / "service", BUNDLE, port=free_port(), environment=environment)
    with pytest.MonkeyPatch.context() as patch, service:
        patch.setenv(DATABASE, str(airline.path))
        runtime = Runtime(service.enroll(AGENT, ROLE))
        yield World(airline, runtime, service, list(data.runs(source)))
        runtime.close()
    airline.close()


def decisions(verdicts: list[Verdict]) -> list[str]:
    return [verdict.decision for verdict in verdicts]


APPROVED = ["released", "denied", "released", "reviewed", "denied", *["denied"] * 4, "released"]
LEFT_OPEN = ["released", "denied", "released", "reviewed", "reviewed", *["denied"] * 4, "released"]


def test_what_people_approve_happens_and_is_found_by_the_next_call(world: World) -> None:
    with approving_people(world.service) as people:
        verdicts = world.replay(people, "approved")

    assert decisions(verdicts) == APPROVED
    assert verdicts[3].became == "fired"
    assert verdicts[4].policies == ("change-standing-reservation",)


def test_without_people_a_question_stays_open_and_the_report_counts_by_label(world: World) -> None:
    verdicts = world.replay(no_approvals, "absent")

    assert decisions(verdicts) == LEFT_OPEN
    assert verdicts[3].became == "left open"
    assert verdicts[3].policies == ("cancel-insured-reason",)
    assert [verdict.policies for verdict in verdicts[5:9]] == [("sdk",)] * 4
    counts = {"released": 3, "reviewed": 1, "denied": 0}, {"released": 0, "reviewed": 1, "denied": 5}
    assert json.loads(report.summary(verdicts)) == {"gold": counts[0], "other": counts[1], "calls": 10}
    output = report.disagreements(verdicts, report.rules_of((BUNDLE / "airline.cedar").read_text()))
    assert "cancel_reservation (matches gold): reviewed by cancel-insured-reason; then left open" in output
    assert "health or weather reasons" in output
    assert "(other)" not in output  # nothing was released that is not gold
    assert decisions(world.replay(no_approvals, "flipped", flip=True)) == LEFT_OPEN, "labels decide nothing"


PAGE = (BUNDLE / "README.md").read_text()


def shown_table() -> list[str]:
    """The table of the bundle's README, line by line as `make airline` prints it."""
    return [line.rstrip() for line in PAGE.partition("```text\n")[2].partition("\n```")[0].splitlines()]


@pytest.mark.long
def test_no_recorded_write_that_is_right_is_denied_and_the_readme_shows_the_table() -> None:
    folder = (REPOSITORY / os.environ.get(data.VARIABLE, data.DEFAULT)).resolve()
    found = folder if (folder / "trajectories.jsonl").is_file() else None
    done = run(require("tau-airline data", found, data.HOW_TO_OBTAIN))
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])

    printed = done.stdout.partition("\n\n")[0].splitlines()
    assert [line.rstrip() for line in printed] == shown_table()
    assert counts["gold"]["denied"] == 0
    assert counts["gold"]["released"] >= 2 * counts["gold"]["reviewed"]
    assert sum(counts["gold"].values()) + sum(counts["other"].values()) == counts["calls"]
