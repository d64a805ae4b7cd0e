"""Cases of a small bundle folder, read and asked: tests say what differs and nothing else."""

from __future__ import annotations

from pathlib import Path

from policy_service.pap.policy_tests.case import AnyCase
from policy_service.pap.policy_tests.parser import read_cases
from policy_service.pap.policy_tests.runner import CaseResult, prepare_cases
from policy_service.pap.problems import BundleError
from tests.fakes.bundles import BundleFolder

HEAD = """\
agents:
  robot: { name: robot, roles: [payer] }
defaults:
  agent: robot
  tool: pay
  args: { account: a1, amount: 100 }
cases:
"""

ALL_CASES = (
    HEAD
    + """\
  - {it: the edge, args: {amount: 100}, expect: release}
  - {it: above, args: {amount: 101}, expect: review, needs: {finance: {people: 2, reason: true}}}
  - {it: a stranger, agent: {name: x}, expect: deny, reasons: [no_permit]}
  - {it: below a million, args: {amount: 999999}, expect: review, gates: [large]}
  - {it: a million, args: {amount: 1000000}, expect: deny, reasons: [never-a-million]}
  - {it: more, args: {amount: 1000001}, expect: deny, reasons: [never-a-million]}
"""
)
"""Cases that hold every rule below, and notice every small slip in one."""

RULES = """\
@id("payers-may-pay")
permit (principal in Role::"payer", action == Action::"pay", resource);

@id("large") @approval("finance") @quorum("2") @reason
forbid (principal, action == Action::"pay", resource)
when { context.input.amount > 100 };

@id("never-a-million")
forbid (principal, action == Action::"pay", resource)
when { context.input.amount >= 1000000 };
"""


def one_case(text: str) -> str:
    """A cases file with one case, of these lines."""
    lines = text.strip().splitlines()
    marked = [f"  {'- ' if number == 0 else '  '}{line}\n" for number, line in enumerate(lines)]
    return HEAD + "".join(marked)


def read(text: str) -> list[AnyCase]:
    """The cases of one file."""
    return read_cases({"cases/a.yaml": text.encode()})


def problems(text: str) -> list[str]:
    """What reading has against a file; empty when it is read."""
    try:
        read(text)
    except BundleError as error:
        return [str(problem) for problem in error.problems]
    return []


def ask(folder: BundleFolder, text: str) -> list[CaseResult]:
    """Every case of a file, asked of the folder's rules."""
    bundle = folder.load()
    return [prepared.ask(bundle.rules) for prepared in prepare_cases(bundle, read(text))]


def small_bundle(path: Path) -> BundleFolder:
    """A folder with the rules above."""
    return BundleFolder(path).policies(RULES)
