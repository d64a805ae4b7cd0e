"""Where the recorded runs and the airline's data come from.

The folder is named by TAU_AIRLINE_DATA (default `../shared/data/tau-airline`, next to the repository). It is
read, never written. A missing folder or file is an error that says how to obtain it; nothing is downloaded.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "TAU_AIRLINE_DATA"
DEFAULT = "../shared/data/tau-airline"
FILES = ("flights.json", "users.json", "reservations.json", "trajectories.jsonl")
HOW_TO_OBTAIN = (
    "the data are those of github.com/sierra-research/tau-bench (commit 59a200c6d575, MIT): "
    "flights.json, users.json and reservations.json from tau_bench/envs/airline/data, and one line of "
    'trajectories.jsonl for each recorded run: {"task_id", "trial", "calls": [{"step", "tool", "args", '
    '"write"?, "matches_gold"?}]}'
)


class DataMissingError(Exception):
    """The data folder lacks something; the sentence says what, and where it can be had."""


@dataclass(frozen=True)
class Call:
    """One recorded tool call. `matches_gold` is a label for the report: nothing that decides may read it."""

    step: int
    tool: str
    args: dict[str, Any]
    write: bool
    matches_gold: bool


@dataclass(frozen=True)
class Run:
    """One recorded conversation of the agent: its calls in order."""

    name: str
    calls: tuple[Call, ...]


def folder() -> Path:
    """The data folder, complete, or DataMissingError."""
    repository = Path(__file__).parents[2]
    path = (repository / os.environ.get(VARIABLE, DEFAULT)).resolve()
    missing = [name for name in FILES if not (path / name).is_file()]
    if missing:
        raise DataMissingError(f"{', '.join(missing)} not found in {path}; set {VARIABLE}; {HOW_TO_OBTAIN}")
    return path


def table(path: Path, name: str) -> dict[str, dict[str, Any]]:
    """One of the airline's tables, rows by their key."""
    rows: dict[str, dict[str, Any]] = json.loads((path / f"{name}.json").read_bytes())
    return rows


def runs(path: Path) -> Iterator[Run]:
    """The recorded runs in the order of the file."""
    with (path / "trajectories.jsonl").open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _run(json.loads(line), number)


def _run(row: dict[str, Any], number: int) -> Run:
    # The line number keeps two runs apart that a file names alike.
    name = f"task-{row['task_id']}-trial-{row['trial']}-line-{number}"
    return Run(name, tuple(_call(call) for call in row["calls"]))


def _call(row: dict[str, Any]) -> Call:
    write = bool(row.get("write", False))
    return Call(row["step"], row["tool"], row["args"], write, bool(row.get("matches_gold", False)))
