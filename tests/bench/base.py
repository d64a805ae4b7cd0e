"""`make bench BASE=<commit>`: the cases of another commit, measured in the same rounds.

The commit gets a worktree of its own, and an environment that its own Makefile builds from its own lock. Its own bench
runs there, in a process that measures a case whenever it is asked. Of this tree it runs this file alone.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.measuring import BenchError, Case, Sample, Samples

REPOSITORY = Path(__file__).parents[2]
OF_BASE = "base: "  # begins the names of the other commit's cases


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A worktree of this commit with a `.venv` of its own, removed afterwards."""
    worktree = ["git", "-C", str(REPOSITORY), "worktree"]
    with tempfile.TemporaryDirectory(prefix="countersign-base-") as home:
        tree = Path(home) / "tree"
        subprocess.run([*worktree, "add", "--quiet", "--detach", tree, commit], check=True)
        try:
            subprocess.run(["make", "-s", "-C", tree, "env", f"PYTHON={sys.executable}"], check=True)
            yield tree
        finally:
            subprocess.run([*worktree, "remove", "--force", tree], check=True)


@contextmanager
def cases(tree: Path, module: str, folder: Path, wanted: frozenset[str]) -> Iterator[list[Case]]:
    """The wanted cases of one module of its bench, as far as it has them."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"PYTHONPATH": os.pathsep.join([str(tree), str(tree / "sdk/python")])}
    with subprocess.Popen(
        [tree / ".venv/bin/python", "-P", __file__, module, folder, *wanted],
        cwd=tree, env=os.environ | paths, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        once: dict[str, bool] = _read(process)
        yield [
            Case(OF_BASE + name, partial(_measure, process, name), once=once[name])
            for name in wanted & once.keys()
        ]
        process.communicate()  # it ends with its input


def samples_of(samples: Samples) -> Samples:
    """The samples of the other commit, by the names its cases have here."""
    return {name.removeprefix(OF_BASE): taken for name, taken in samples.items() if name.startswith(OF_BASE)}


def _measure(process: subprocess.Popen[str], name: str, seconds: float) -> Sample:
    print(json.dumps([name, seconds]), file=process.stdin, flush=True)
    sample: Sample = _read(process)
    return sample


def _read(process: subprocess.Popen[str]) -> Any:
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise BenchError("the bench of the other commit ended")
    return json.loads(line)


def measure_on_request(module: str, folder: str, *wanted: str) -> None:
    """In the other process: name the cases, then measure the one that each line names."""
    group = importlib.import_module(module).GROUP
    with group.cases(Path(folder), frozenset(wanted)) as made:
        found = {case.name: case for case in made}
        print(json.dumps({name: case.once for name, case in found.items()}), flush=True)
        for line in sys.stdin:
            name, seconds = json.loads(line)
            print(json.dumps(found[name].measure(seconds)), flush=True)


if __name__ == "__main__":
    measure_on_request(*sys.argv[1:])
