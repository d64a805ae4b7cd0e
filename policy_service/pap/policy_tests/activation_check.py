"""Run the cases required for an activation, and summarize a bundle's cases for pages.

A candidate must pass its own cases and those of the active bundle. A case of the active bundle does not block when the
candidate answers more strictly than expected, or when the active bundle fails it too. A case that needs a database or a
host is counted and not run, because an activation must not wait for other systems. A deleted case is still a case of
the active bundle, so deleting a rule together with its case is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from policy_service.domain.policy_request import Decision
from policy_service.facts.config import AGENT
from policy_service.facts.sources import sources_for
from policy_service.pap.bundle import Bundle, build_bundle
from policy_service.pap.policy_tests.case import AnyCase, Case
from policy_service.pap.policy_tests.parser import read_cases
from policy_service.pap.policy_tests.runner import CaseResult, determining_policies, run_cases
from policy_service.pap.problems import BundleError, Problem, RejectionReason
from policy_service.pap.source import BundleFiles

MAX_REPORTED: Final = 50
"""Failing cases that are listed; the rest is a number."""


@dataclass(frozen=True, slots=True)
class CaseCheck:
    """How many cases were run, and how many were not because they need external facts."""

    run: int = 0
    not_run: int = 0


class CasesError(BundleError):
    """A valid bundle that does not pass the required cases."""

    why: RejectionReason = "cases"


def require_cases_pass(candidate: Bundle, active: BundleFiles | None) -> CaseCheck:
    """Run both bundles' cases on the candidate. Blocks, for about half a millisecond a case.

    The active bundle is built only when one of its cases fails, to see whether it failed there too.

    Raises:
        CasesError: the failing cases, and where they are written.
    """
    own, theirs = _read(candidate.source.files), _in_force(active)
    failing, run, not_run = _failing(candidate, own)
    problems = [_problem(one, "a case of its own") for one in failing]
    reported = {one.case.it for one in failing}
    failing, run_too, not_run_too = _failing(candidate, theirs)
    opened = [one for one in failing if not one.is_stricter and one.case.it not in reported]
    problems += [_problem(one, "a case of the bundle in force") for one in _held_before(opened, active)]
    if problems:
        raise CasesError(_bounded(problems))
    return CaseCheck(run + run_too, not_run + not_run_too)


def _read(files: Mapping[str, bytes]) -> list[AnyCase]:
    try:
        return read_cases(files)
    except BundleError as error:
        raise CasesError(_bounded(error.problems)) from error


def _in_force(active: BundleFiles | None) -> list[AnyCase]:
    """The cases of the active bundle; none if they are unreadable, because it may predate the requirement."""
    try:
        return [] if active is None else read_cases(active.files)
    except BundleError:
        return []


def _failing(bundle: Bundle, cases: Sequence[AnyCase]) -> tuple[list[CaseResult], int, int]:
    """The failing cases, the number of run cases, and the number of those not run."""
    asked = [case for case in cases if not needs_external_facts(bundle, case)]
    try:
        results = run_cases(bundle, asked)
    except BundleError as error:  # a case names facts or meters that this bundle does not have
        raise CasesError(_bounded(error.problems)) from error
    return [one for one in results if not one.holds], len(asked), len(cases) - len(asked)


def needs_external_facts(bundle: Bundle, case: AnyCase) -> bool:
    """Whether its facts come from a database or a host, and not from the case or from files."""
    if not isinstance(case, Case) or case.facts is not None or case.tool not in bundle.manifests:
        return False
    config, kind = bundle.facts.config, bundle.manifests[case.tool].resource.type
    sources = (*sources_for(config, kind, case.tool), *sources_for(config, AGENT, case.tool))
    return any(source.file is None for source in sources)


def _held_before(opened: list[CaseResult], active: BundleFiles | None) -> list[CaseResult]:
    """The failing cases that the active bundle passes."""
    if not opened or active is None:
        return opened
    failing, _, _ = _failing(build_bundle(active), [one.case for one in opened])
    never = {one.case.it for one in failing}
    return [one for one in opened if one.case.it not in never]


def _problem(failing: CaseResult, whose: str) -> Problem:
    case = failing.case
    return Problem(case.file, case.line, f"{whose} does not hold: {case.it}: {failing.words}", "cases")


def _bounded(problems: Sequence[Problem]) -> list[Problem]:
    listed = list(problems[:MAX_REPORTED])
    if more := len(problems) - len(listed):
        listed.append(Problem("cases", None, f"and {more} more; `policy-service test` lists all", "cases"))
    return listed


@dataclass(frozen=True, slots=True)
class CaseSummary:
    """Counts of a bundle's cases. ``by_policy``: how many of them each policy determines."""

    cases: int = 0
    failing: int = 0
    not_run: int = 0
    by_policy: Mapping[str, int] = field(default_factory=dict)
    problem: str | None = None  # why no case could be run


def summarize_cases(bundle: Bundle) -> CaseSummary:
    """Run a bundle's own cases. Blocks, for about half a millisecond a case."""
    try:
        cases = read_cases(bundle.source.files)
        asked = [case for case in cases if not needs_external_facts(bundle, case)]
        answers = run_cases(bundle, asked)
    except BundleError as error:
        return CaseSummary(problem=str(error.problems[0]))
    said = (determining_policies(each.answer) for each in answers if isinstance(each.answer, Decision))
    return CaseSummary(
        cases=len(cases),
        failing=sum(not each.holds for each in answers),
        not_run=len(cases) - len(asked),
        by_policy=Counter(name for names in said for name in names),
    )
