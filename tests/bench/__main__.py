"""`python -m tests.bench`: measure, print one table of ratios, write everything measured as JSON.

Nothing passes or fails here. Absolute figures are in the file only: they belong to the machine and its minute.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

from tests.bench import contract, deciding, journaling, submitting
from tests.bench.measuring import Group, Row, Samples, run_rounds, told

GROUPS: tuple[Group, ...] = (submitting.GROUP, deciding.GROUP, contract.GROUP, journaling.GROUP)
RESULTS = Path(__file__).parents[2] / "bench-results"
PACKAGES = "fastapi starlette uvicorn uvloop httptools pydantic sqlalchemy cedarpy cryptography orjson rfc8785".split()


def main() -> None:
    """Run the bench as asked on the command line."""
    asked = _arguments()
    began: dict[str, object] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": list(os.getloadavg()),
        "durability": submitting.durability(),
    }
    wanted = [
        (group, rows) for group in GROUPS if (rows := [row for row in group.rows if _chosen(row, asked.only)])
    ]
    if not wanted:
        sys.exit(
            f"no row is named {asked.only!r}; rows are {', '.join(r.name for g in GROUPS for r in g.rows)}"
        )
    samples = _measure(wanted, rounds=asked.rounds, seconds=asked.seconds)
    rows = [row for _, chosen in wanted for row in chosen]
    print(_table(rows, samples))
    print(_notes(samples, asked.rounds, began))
    print(f"written to {_write(rows, samples, asked, began)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="how long one measurement over a socket takes"
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each case is measured")
    parser.add_argument("--only", default="", help="rows by name or its beginning, with commas: P1,V,C1")
    return parser.parse_args()


def _chosen(row: Row, only: str) -> bool:
    return not only or any(row.name.startswith(name.strip()) for name in only.split(",") if name.strip())


def _measure(wanted: list[tuple[Group, list[Row]]], *, rounds: int, seconds: float) -> Samples:
    needed = {name for _, rows in wanted for row in rows for name in (row.case, row.baseline)}
    with tempfile.TemporaryDirectory(prefix="countersign-bench-") as folder, ExitStack() as open_:
        cases = [
            case
            for group, _ in wanted
            for case in open_.enter_context(group.cases(Path(folder)))
            if case.name in needed
        ]
        return run_rounds(cases, rounds=rounds, seconds=seconds, tell=_tell)


def _tell(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------ telling


def _table(rows: list[Row], samples: Samples) -> str:
    lines = [("", "ratio", "median (min\N{EN DASH}max)", "goal")]
    lines += [(row.name, row.what, told(row.ratios(samples)), row.goal) for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _notes(samples: Samples, rounds: int, began: dict[str, object]) -> str:
    notes = [
        f"\n{rounds} rounds; each ratio is of one round, all cases interleaved in random order; "
        f"load when it began: {began['load']}; the service's commits: {began['durability']}"
    ]
    notes += [
        f"{name}: server {_share(taken, 'server_busy')} of a core, client {_share(taken, 'client_busy')}, "
        f"machine idle {_share(taken, 'machine_idle')}"
        for name, taken in samples.items()
        if "server_busy" in taken[0]
    ]
    return "\n".join(notes)


def _share(taken: list[dict[str, float]], what: str) -> str:
    return f"{median(one[what] for one in taken):.0%}"


def _write(rows: list[Row], samples: Samples, asked: argparse.Namespace, began: dict[str, object]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    written = {
        **began,
        "asked": vars(asked),
        "machine": {
            "cores": os.cpu_count(), "machine": platform.machine(), "system": platform.platform(),
            "python": platform.python_version(), "sqlite": sqlite3.sqlite_version,
            **{name: version(name) for name in PACKAGES},
        },
        "rows": {
            row.name: {
                "what": row.what, "case": row.case, "baseline": row.baseline, "quantity": row.quantity,
                "goal": row.goal, "median": median(row.ratios(samples)), "ratios": row.ratios(samples),
            }
            for row in rows
        },
        "samples": samples,
    }  # fmt: skip
    file.write_text(json.dumps(written, indent=1))
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file


if __name__ == "__main__":
    main()
