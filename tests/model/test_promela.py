"""The protocol in every order: spin tries countersign.pml, without a fault and with each of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

from tests.counterparts import require

MODEL = Path(__file__).with_name("countersign.pml")
LONG = settings().max_examples > 1_000  # HYPOTHESIS_PROFILE=long
SECONDS = 3_000 if LONG else 500
pytestmark = pytest.mark.timeout(SECONDS + 60)

ONE_LIST = ("-DREVISIONS=1", "-DNO_RESTORE", "-DCHANGES=0")
TWO_LISTS = ("-DREVISIONS=2", "-DNO_RESTORE", "-DCHANGES=0", "-DCRASHES=0")
A_CHANGE = ("-DREVISIONS=1", "-DNO_RESTORE", "-DCRASHES=0")
A_RESTORE = ("-DREVISIONS=1", "-DCHANGES=0", "-DCRASHES=0")

FAULTLESS = {
    "one list and a crash of each process": ONE_LIST,
    "two lists": TWO_LISTS,
    "a change of policy": A_CHANGE,
    "a restore": A_RESTORE,
}
LARGER = {
    "a change of policy and a crash of each process": ("-DREVISIONS=1", "-DNO_RESTORE"),
    "a restore and a crash of each process": ("-DREVISIONS=1", "-DCHANGES=0"),
    "two lists and a change of policy": ("-DREVISIONS=2", "-DNO_RESTORE", "-DCRASHES=0"),
    "a change of policy and a restore": ("-DREVISIONS=1", "-DCRASHES=0"),
}


@dataclass(frozen=True)
class Fault:
    """One rule that is taken away."""

    what: str
    breaks: str
    where: tuple[str, ...] = ONE_LIST
    depth: int = 100_000


FAULTS = {
    1: Fault("the UPDATE of a redemption has no condition", "I_3"),
    2: Fault("a vote on an old revision counts", "I_5", TWO_LISTS),
    3: Fault(
        "the policy is not asked again at redemption", "I_4", LARGER["two lists and a change of policy"], 55
    ),
    4: Fault("what has expired can be redeemed", "I_4"),
    5: Fault("the token's decision is not compared", "I_2", TWO_LISTS),
    6: Fault("no answer is taken for a yes", "I_1"),
    7: Fault("what was FIRING is fired again after a crash", "I_3"),
    8: Fault("the answer leaves before the commit", "I_7"),
    9: Fault("a restore begins no new epoch and doubts nothing", "I_3", A_RESTORE),
    10: Fault("a late vote revives what has expired", "I_6"),
    11: Fault("the owner's vote counts", "I_5"),
    12: Fault("two sweeps give one reservation back twice", "I_10"),
    14: Fault("a freeze is not looked at", "I_4"),
}
EVERY_DAY = {7}
"""Enough for every day: each fault is a program that must be compiled."""


@dataclass(frozen=True)
class Verdict:
    """What the search found."""

    complete: bool
    violated: str | None
    states: int
    out: str


@pytest.fixture
def spin() -> str:
    """The model checker, with a compiler for what it writes."""
    require("a C compiler", shutil.which("gcc"), "apt-get install gcc libc6-dev")
    return require("spin", shutil.which("spin"), "apt-get install spin")


def search(
    spin: str,
    folder: Path,
    flags: tuple[str, ...],
    *,
    depth: int = 100_000,
    live: bool = False,
    level: str = "-O2",
) -> Verdict:
    """Try every order."""
    shutil.copy(MODEL, folder)
    _run([spin, "-a", *flags, MODEL.name], folder)
    how = ["-DNFAIR=4"] if live else ["-DSAFETY", "-DNOCLAIM"]
    _run(["gcc", level, "-w", "-DCOLLAPSE", *how, "-o", "pan", "pan.c"], folder)
    out = _run(["./pan", f"-m{depth}", "-n", *(["-a", "-f"] if live else [])], folder)
    cycle = "acceptance cycle (" in out
    stored = re.search(r"(\d+) states, stored", out)
    errors = re.search(r"errors: (\d+)", out)
    assert stored is not None and errors is not None, out
    complete = errors.group(1) == "0" and "Search not completed" not in out and "max search depth" not in out
    violated = _named(spin, folder, flags) if "assertion violated" in out else None
    return Verdict(complete, "I_14" if cycle else violated, int(stored.group(1)), out)


def _named(spin: str, folder: Path, flags: tuple[str, ...]) -> str:
    """The invariant that failed: the replay names the line, and a line asserts one."""
    output = _run([spin, "-t", *flags, MODEL.name], folder)
    line = re.search(rf"{MODEL.name}:(\d+), Error: assertion violated", output)
    assert line is not None, output
    asserted = re.findall(r"assert\((I_\d+)\)", MODEL.read_text().splitlines()[int(line.group(1)) - 1])
    assert len(asserted) == 1, output
    name: str = asserted[0]
    return name


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0 or command[0] == "./pan" or "-t" in command, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.deep
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(flags, id=name, marks=[] if flags == ONE_LIST else [pytest.mark.long])
        for name, flags in FAULTLESS.items()
    ],
)
def test_every_order_keeps_the_invariants(spin: str, tmp_path: Path, flags: tuple[str, ...]) -> None:
    found = search(spin, tmp_path, flags, level="-O2" if LONG else "-O1")
    assert found.violated is None and found.complete, found.out
    assert found.states > 50_000, "a model that does nothing breaks nothing"


@pytest.mark.long
@pytest.mark.parametrize("flags", LARGER.values(), ids=LARGER)
def test_larger_worlds_keep_the_invariants(spin: str, tmp_path: Path, flags: tuple[str, ...]) -> None:
    found = search(spin, tmp_path, flags)
    assert found.violated is None and found.complete, found.out


NUMBERS = [pytest.param(n, marks=[] if n in EVERY_DAY else [pytest.mark.long]) for n in FAULTS]


@pytest.mark.parametrize("number", NUMBERS)
def test_each_fault_is_found_by_the_invariant_it_breaks(spin: str, tmp_path: Path, number: int) -> None:
    fault = FAULTS[number]
    level = "-O2" if LONG else "-O0"  # it is found at once, and compiling takes longer than looking
    found = search(spin, tmp_path, (f"-DFAULT_{number}", *fault.where), depth=fault.depth, level=level)
    assert found.violated == fault.breaks, f"{fault.what}: {found.out}"


LIVE = (*ONE_LIST, "-DTICKING")


@pytest.mark.long
def test_what_can_be_finished_is_finished(spin: str, tmp_path: Path) -> None:
    """I-14, under weak fairness; with crashes in the long profile."""
    flags = LIVE if LONG else (*LIVE, "-DCRASHES=0")
    found = search(spin, tmp_path, flags, live=True)
    assert found.violated is None and found.complete, found.out


@pytest.mark.long
def test_a_missing_task_for_an_unreported_effect_is_found(spin: str, tmp_path: Path) -> None:
    found = search(spin, tmp_path, ("-DFAULT_13", *LIVE), live=True)
    assert found.violated == "I_14", found.out


@pytest.mark.long
def test_a_backup_from_before_the_last_submission_is_a_limit_of_the_design(spin: str, tmp_path: Path) -> None:
    """The list was spent after the backup; another journal submits it anew and knows nothing of that."""
    found = search(spin, tmp_path, ("-DOLD_BACKUP", "-DREVISIONS=2", "-DCHANGES=0", "-DCRASHES=0"))
    assert found.violated == "I_3", found.out
