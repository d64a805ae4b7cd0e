"""Put every mutant of the set in and see whether the tests find it; print how many, folder by folder.

    python -m tests.mutation.run [--set tests/mutation/mutants.json] [--jobs 2] [--only FOLDER]

Needs the table of `python -m tests.mutation.reach` of the same tree; the tests in it are the suite that is judged.
The exit status is 1 where fewer than 95 in 100 are killed, or one lives in a folder that allows none.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.conventions.repository import ROOT
from tests.mutation.draw import SET
from tests.mutation.mutants import MissingError, Mutant, put_in
from tests.mutation.reach import require_table, tests_of
from tests.mutation.trials import Trial, load_libraries, make_copies, run

# Where nothing may live: what is signed, decided, spent and written down.
STRICT = ("contract", "domain", "pdp", "tokens", "releases", "reviews", "storage", "commit", "journal")
SHARE, _LIMIT_S = 0.95, 1_200


def trials(mutants: list[Mutant], gone: list[Mutant], lives: list[Mutant]) -> Iterator[Trial]:
    """A trial for each mutant that is still in the code and is reached; the others go to `gone` and `lives`."""
    for mutant in mutants:
        try:
            path, _, lines = put_in(mutant, ROOT)
        except MissingError:
            gone.append(mutant)
            continue
        file = path.relative_to(ROOT).as_posix()
        # What runs as the module is imported is of no test; any that uses the module imports it.
        found = tests_of(file, lines) or tests_of(file, set(range(100_000)))[:5]
        reaching = [test.name for test in found]
        if reaching:
            yield Trial(mutant, reaching, _LIMIT_S)
        else:
            lives.append(mutant)


def main() -> int:
    """Run the set; the exit status."""
    read = argparse.ArgumentParser(description=__doc__)
    read.add_argument("--set", type=Path, default=SET)
    read.add_argument("--jobs", type=int, default=2)
    read.add_argument("--only", default="", help="a folder as the table names it, or the beginning of one")
    chosen = read.parse_args()
    mutants = [Mutant(**one) for one in json.loads(chosen.set.read_text(encoding="utf-8"))]
    mutants = [one for one in mutants if one.folder.startswith(chosen.only)]
    require_table()
    gone: list[Mutant] = []
    lives: list[Mutant] = []
    load_libraries()
    for done, result in enumerate(run(trials(mutants, gone, lives), make_copies(chosen.jobs)), 1):
        mutant = result.trial.mutant
        assert mutant is not None
        if result.failed is None:
            lives.append(mutant)
        print(
            f"{done:4} {result.failed or 'LIVES':80} {result.seconds:6.1f} s  {mutant.function}", flush=True
        )
    return _report(mutants, gone, lives)


def _report(mutants: list[Mutant], gone: list[Mutant], lives: list[Mutant]) -> int:
    every, missed, lost = (Counter(one.folder for one in ones) for ones in (mutants, lives, gone))
    for folder in sorted(every):
        there = every[folder] - lost[folder]
        note = f", {lost[folder]} no longer in the code" if lost[folder] else ""
        print(f"{folder:36} {there - missed[folder]:4} of {there:4}{note}")
    there = len(mutants) - len(gone)
    killed = there - len(lives)
    print(f"{'all':36} {killed:4} of {there:4}")
    for one in (*lives, *gone):
        where = f"{'lives' if one in lives else 'gone'}: {one.file} {one.function}"
        print(f"\n{where}\n  - {one.old}\n  + {one.new}")
    strict = any(set(one.folder.split("/")) & set(STRICT) for one in lives)
    return 0 if killed >= SHARE * there and not strict else 1


if __name__ == "__main__":
    sys.exit(main())
