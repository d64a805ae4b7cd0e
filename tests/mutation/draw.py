"""Draw a set of mutants that the suite kills: as many for each folder, and every switch of the verifications.

    python -m tests.mutation.draw SEED [--each 6] [--jobs 2] [--out tests/mutation/mutants.json]

Needs the table of `python -m tests.mutation.reach`. A mutant is taken if a test that passes without it fails with it,
among the quickest tests that reach it, 12 seconds of them. What the file holds already is kept, and counts.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tests.conventions.repository import ROOT
from tests.mutation.mutants import Mutant, candidates, put_in, switches
from tests.mutation.reach import require_table, tests_of
from tests.mutation.trials import Result, Trial, load_libraries, make_copies, run

SET = Path(__file__).with_name("mutants.json")
_SECONDS, _LIMIT_S = 12, 60


class Draw:
    """Goes through the folders until each has its number; what was found is written as it comes."""

    def __init__(self, seed: int, each: int, out: Path) -> None:
        self.each, self.out = each, out
        self.left: dict[str, list[Mutant]] = defaultdict(list)
        for one in candidates():
            self.left[one.folder].append(one)
        chance = random.Random(seed)
        for ones in self.left.values():
            chance.shuffle(ones)
        self.switches = frozenset(switches())
        self.left["switches"] = sorted(self.switches, key=lambda one: (one.file, one.function))
        self.taken: dict[str, list[Mutant]] = defaultdict(list)
        known = [Mutant(**one) for one in json.loads(out.read_text("utf-8"))] if out.exists() else []
        for one in known:
            self.taken[self._folder(one)].append(one)
        self.left = {folder: [one for one in ones if one not in known] for folder, ones in self.left.items()}
        self.under_way: dict[str, int] = defaultdict(int)
        self.sound: set[str] = set()

    def short(self) -> bool:
        """Whether a folder has fewer than it should and something left to draw."""
        folders = [folder for folder, ones in self.left.items() if ones and folder != "switches"]
        return any(self._missing(folder) > 0 for folder in folders)

    def trials(self) -> Iterator[Trial]:
        """A mutant after another, as long as its folder has too few with those that are being tried."""
        for folder, ones in sorted(self.left.items()):
            while ones and (folder == "switches" or self._missing(folder) > 0):
                mutant = ones.pop()
                chosen = _quickest(mutant)
                if chosen:
                    self.under_way[folder] += 1
                    yield Trial(mutant, chosen, _LIMIT_S)

    def _folder(self, mutant: Mutant) -> str:
        return "switches" if mutant in self.switches else mutant.folder

    def _missing(self, folder: str) -> int:
        return self.each - len(self.taken[folder]) - self.under_way[folder]

    def take(self, result: Result, copies: list[Path]) -> None:
        mutant, failed = result.trial.mutant, result.failed
        assert mutant is not None
        folder = self._folder(mutant)
        self.under_way[folder] -= 1
        verdict = "lives" if failed is None else "killed"
        if failed is not None and failed != "collection" and not self._passes_without(failed, copies):
            verdict = "not by a sound test"
        if verdict == "killed":
            self.taken[folder].append(mutant)
            every = [asdict(one) for ones in self.taken.values() for one in ones]
            self.out.write_text(json.dumps(every, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        count = sum(map(len, self.taken.values()))
        line = f"{count:4} {verdict:8} {result.seconds:6.1f} s  {folder}  {mutant.function}  {failed or ''}"
        print(line, flush=True)

    def _passes_without(self, test: str, copies: list[Path]) -> bool:
        if test not in self.sound:
            (alone,) = run(iter([Trial(None, [test], _LIMIT_S)]), copies)
            if alone.complete and alone.failed is None:
                self.sound.add(test)
        return test in self.sound


def _quickest(mutant: Mutant) -> list[str]:
    path, _, lines = put_in(mutant, ROOT)
    chosen, seconds = [], 0.0
    for test in tests_of(path.relative_to(ROOT).as_posix(), lines):
        seconds += test.seconds
        if seconds > _SECONDS or len(chosen) == 150:
            break
        chosen.append(test.name)
    return chosen


def main() -> None:
    """Draw and write the set."""
    read = argparse.ArgumentParser(description=__doc__)
    read.add_argument("seed", type=int)
    read.add_argument("--each", type=int, default=6)
    read.add_argument("--jobs", type=int, default=2)
    read.add_argument("--out", type=Path, default=SET)
    chosen = read.parse_args()
    require_table()
    load_libraries()
    # One copy more than trials at a time, for running a test without the fault.
    *copies, spare = make_copies(chosen.jobs + 1)
    draw = Draw(chosen.seed, chosen.each, chosen.out)
    while True:
        for result in run(draw.trials(), copies):
            draw.take(result, [spare])
        if not draw.short():
            return


if __name__ == "__main__":
    sys.exit(main())
