"""I-7: an acknowledged unit survives any crash; an unacknowledged one is absent or complete."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from policy_service.storage.database import Database

LONG = functools.partial(pytest.param, marks=pytest.mark.long)
ROOT = Path(__file__).resolve().parents[2]


def start(url: str, first: int, *limit: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.crash.acknowledging", url, str(first), *map(str, limit)]
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def pairs(url: str) -> dict[int, int]:
    with Database.open(url) as db:  # refuses a damaged file
        rows = db.read_sync(lambda conn: conn.execute(text("SELECT n, COUNT(*) FROM pairs GROUP BY n")).all())
    return {n: count for n, count in rows}  # noqa: C416  rows are no pairs to a type checker


@pytest.mark.parametrize("acknowledged_before_the_kill", [20, *(LONG(many) for many in (1, 90, 300))])
def test_a_kill_never_loses_an_acknowledged_unit(sqlite_url: str, acknowledged_before_the_kill: int) -> None:
    acknowledged: set[int] = set()
    for life in range(2):
        child = start(sqlite_url, life * 1_000_000)
        assert child.stdout is not None
        for _ in range(acknowledged_before_the_kill):
            acknowledged.add(int(child.stdout.readline()))
        child.kill()
        rest = child.stdout.read()
        child.stdout.close()
        child.wait()
        acknowledged |= {int(line) for line in rest.split("\n")[:-1]}
    found = pairs(sqlite_url)
    assert acknowledged <= found.keys()
    assert set(found.values()) == {2}, "a unit is there whole or not at all"


@pytest.mark.parametrize("limit", [200_000, *(LONG(limit) for limit in (60_000, 1_000_000, 2_500_000))])
def test_a_file_that_cannot_grow_refuses_and_keeps_what_it_acknowledged(sqlite_url: str, limit: int) -> None:
    child = start(sqlite_url, 0, limit)
    output, _ = child.communicate(timeout=60)
    lines = [line for line in output.splitlines() if line.isdigit() or line.startswith("REFUSED ")]
    assert child.returncode == 0
    refused = {int(line.removeprefix("REFUSED ")) for line in lines if line.startswith("REFUSED")}
    assert refused, "the limit was met"
    acknowledged = {int(line) for line in lines if line.isdigit()}
    found = pairs(sqlite_url)
    assert found.keys() == acknowledged, "nothing refused is there, nothing acknowledged is missing"
    assert set(found.values()) <= {2}
