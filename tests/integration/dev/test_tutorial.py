"""Run docs/tutorial/first-hour.md: its programs, policies and cases, in its order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conventions.documents import Block, blocks
from tests.conventions.repository import ROOT
from tests.fakes.sitting import PATHS, Sitting

PAGE = "docs/tutorial/first-hour.md"
BLOCKS = blocks(PAGE, (ROOT / PAGE).read_text())
ASKED = r"send_coupon waits for developers; decide here: (\S+)"


def texts(language: str) -> list[str]:
    return [block.text for block in BLOCKS if block.language == language]


def command(folder: Path, *words: str) -> str:
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": PATHS}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lines_of(block: Block) -> list[str]:
    """The lines of a block that the script prints."""
    return [line for line in block.text.splitlines() if not line.startswith("dev |")]


@pytest.mark.long  # starts a service, a person and a script
def test_every_step_of_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    first, last = texts("python")
    policies, cases = texts("cedar")[0], texts("yaml")[0]
    outputs = [block for block in BLOCKS if block.language == "text"]
    (tmp_path / "my_agent.py").write_text(first)
    with Sitting(tmp_path) as sitting:
        link = sitting.waits_for(r"sign in as \w+: (\S+)")[1]
        sitting.approves(link, sitting.waits_for(ASKED)[1])
        sitting.waits_for("coupon-1: approved; running my_agent.py again")
        sitting.waits_for(lines_of(outputs[1])[0])
        sitting.waits_for("ended; it runs again")
        starter = tmp_path / "policies/starter.cedar"
        before, _, rest = starter.read_text().partition('@id("writes-need-a-person")')
        after = rest.partition("};\n")[2]
        sitting.saves(before + policies + after, "policies/starter.cedar")
        sitting.waits_for("policies reloaded")
        sitting.saves(first.replace("coupon-1", "coupon-2").replace("1500", "800"))
        sitting.waits_for(lines_of(outputs[2])[0])
        sitting.waits_for("ended; it runs again")
        sitting.saves(first.replace("coupon-1", "coupon-3").replace("1500", "20000"))
        sitting.waits_for(r"Denied: .*no-coupons-above-100.*starter\.cedar:\d+")
        sitting.waits_for("ended with exit status 1")
        (tmp_path / "policies/cases").mkdir()
        (tmp_path / "policies/cases/coupons.yaml").write_text(cases)
        tested = command(tmp_path, "policy_service.cli", "test", "--mutate", "policies")
        assert "4 cases pass, 0 fail" in tested and " 0 survive" in tested
        sitting.saves(last)
        for line in lines_of(outputs[3]):
            sitting.waits_for(line.replace("{", r"\{").replace("}", r"\}"))
        sitting.types("q")
        assert sitting.end() == 0
