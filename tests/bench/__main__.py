"""`python -m tests.bench`: measure, print one table of ratios, write everything measured as JSON.

The last line is one JSON object: the median ratio of each row by its name, null where it could not be measured.

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

from countersign.contract import keys as ed25519
from examples.local_service import end_in_order_on_signals
from tests.bench import (
    activating,
    base,
    contract,
    deciding,
    growing,
    hostile,
    journaling,
    predecessors,
    queueing,
    spends,
    submitting,
    waiting,
)
from tests.bench.measuring import Case, Group, Row, Samples, run_rounds, summary

GROUPS: tuple[Group, ...] = (
    submitting.GROUP, deciding.GROUP, activating.GROUP, contract.GROUP, journaling.GROUP, predecessors.GROUP,
    hostile.GROUP, growing.GROUP, queueing.GROUP, spends.GROUP, waiting.GROUP,
)  # fmt: skip
RESULTS = Path(__file__).parents[2] / "bench-results"
PACKAGES = "fastapi starlette uvicorn uvloop httptools pydantic sqlalchemy cedarpy cryptography orjson rfc8785".split()


def main() -> None:
    """Run the bench as asked on the command line."""
    asked = _arguments()
    end_in_order_on_signals()  # no service and no worktree outlives a run that is stopped
    began: dict[str, object] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": list(os.getloadavg()),
        "durability": submitting.durability(),
        "ed25519": "OpenSSL" if ed25519.FASTEST is ed25519.openssl else "libsodium",
    }
    wanted = [
        (group, rows) for group in GROUPS if (rows := [row for row in group.rows if _chosen(row, asked.only)])
    ]
    if not wanted:
        sys.exit(
            f"no row is named {asked.only!r}; rows are {', '.join(r.name for g in GROUPS for r in g.rows)}"
        )
    samples = _measure(wanted, rounds=asked.rounds, seconds=asked.seconds, commit=asked.base)
    rows = [row for _, chosen in wanted for row in chosen]
    print(_table(rows, samples, asked.base))
    print(_notes(rows, samples, asked.rounds, began))
    print(f"written to {_write(rows, samples, asked, began)}")
    print(json.dumps({row.name: _middle(row.ratios(samples)) for row in rows}))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="how long one measurement over a socket takes"
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each case is measured")
    parser.add_argument(
        "--base",
        default="",
        help="a commit whose cases are measured in the same rounds (make bench BASE=...)",
    )
    parser.add_argument("--only", default="", help="rows by name or its beginning, with commas: P1,V,C1")
    return parser.parse_args()


def _chosen(row: Row, only: str) -> bool:
    return not only or any(row.name.startswith(name.strip()) for name in only.split(",") if name.strip())


def _measure(wanted: list[tuple[Group, list[Row]]], *, rounds: int, seconds: float, commit: str) -> Samples:
    with tempfile.TemporaryDirectory(prefix="countersign-bench-") as folder, ExitStack() as open_:
        cases: list[Case] = []
        tree = open_.enter_context(base.checkout(commit)) if commit else None
        for group, rows in wanted:
            needed = frozenset(name for row in rows for name in row.needs)
            made = open_.enter_context(group.cases(Path(folder), needed))
            chosen = [case for case in made if case.name in needed]
            cases += chosen
            if tree is not None:
                ours = frozenset(case.name for case in chosen if not case.reference)
                cases += open_.enter_context(
                    base.cases(tree, group.cases.__module__, Path(folder) / "base", ours)
                )
        samples = run_rounds(cases, rounds=rounds, seconds=seconds, tell=_tell)
        shared = {base.OF_BASE + case.name: samples[case.name] for case in cases if case.reference}
        return samples | shared


def _tell(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------------- reporting


def _table(rows: list[Row], samples: Samples, commit: str) -> str:
    of_base = base.samples_of(samples)
    lines = [["", "ratio", "median (min\N{EN DASH}max)", "goal", f"at {commit}"]]
    lines += [
        [row.name, row.what, summary(row.ratios(samples)), row.goal, summary(row.ratios(of_base))]
        for row in rows
    ]
    if not commit:
        lines = [line[:-1] for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _notes(rows: list[Row], samples: Samples, rounds: int, began: dict[str, object]) -> str:
    notes = [
        f"\n{rounds} rounds; each ratio is of one round, all cases interleaved in random order; "
        f"load when it began: {began['load']}; "
        f"the service's commits: {began['durability']}; signatures by {began['ed25519']}"
    ]
    notes += [
        f"{row.name} was not measured: {group.missing[name]()}"
        for group in GROUPS
        for row in group.rows
        for name in row.needs
        if row in rows and name not in samples and name in group.missing
    ]
    if "waits" in samples:
        notes.append(
            f"M2: {samples['waits'][0]['waiters']:.0f} waits were open at once, on as many connections"
        )
    notes += [
        f"{name}: server {_share(taken, 'server_busy')} of a core, client {_share(taken, 'client_busy')}, "
        f"machine idle {_share(taken, 'machine_idle')}"
        for name, taken in samples.items()
        if "server_busy" in taken[0]
    ]
    return "\n".join(notes)


def _middle(ratios: list[float]) -> float | None:
    return round(median(ratios), 4) if ratios else None


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
                "goal": row.goal, "median": _middle(row.ratios(samples)), "ratios": row.ratios(samples),
                "ratios of base": row.ratios(base.samples_of(samples)),
            }
            for row in rows
        },
        "samples": samples,
    }  # fmt: skip
    file.write_text(json.dumps(written, indent=1))
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file


if __name__ == "__main__":
    main()
