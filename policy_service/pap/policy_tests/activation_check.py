"""Run the cases that guard an activation, and count how many cases a bundle has and which policies they cover.

Rules kept here: a candidate passes its own cases and those of the bundle in force. A case of the bundle in force that
the candidate answers more strictly than expected opens nothing, so it does not block; neither does one that the bundle
in force fails too. One that needs a database or a host is not run, but counted, because an activation and a page wait
for nothing else. A deleted case is still a case of the bundle in force: deleting a rule and its case together is
refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from policy_service.domain.decision import Decision
from policy_service.facts.config import AGENT
from policy_service.pap.bundle import Bundle, build_bundle
from policy_service.pap.policy_tests.case import AnyCase, Case
from policy_service.pap.policy_tests.parser import read_cases
from policy_service.pap.policy_tests.runner import (
    CaseFailure,
    determining_policies,
    failure_of,
    prepare_cases,
)
from policy_service.pap.problems import BundleError, Problem, RejectionReason
from policy_service.pap.source import BundleFiles

MAX_REPORTED: Final = 50
"""Failing cases that are told one by one; the rest is a number."""


@dataclass(frozen=True, slots=True)
class CaseCheck:
    """How many cases were run, and how many were not because they need facts from elsewhere."""

    run: int = 0
    not_run: int = 0


class CasesError(BundleError):
    """A bundle that loads and does not pass the cases it has to."""

    why: RejectionReason = "cases"


def require_cases_pass(candidate: Bundle, active: BundleFiles | None) -> CaseCheck:
    """Run both bundles' cases in the candidate. Blocks, for about half a millisecond a case.

    The bundle in force is prepared only where a case of its own fails: it may never have held.

    Raises:
        CasesError: which do not hold, and where they are written.
    """
    own, theirs = _read(candidate.source.files), _in_force(active)
    failing, run, not_run = _failing(candidate, own)
    problems = [_problem(case, failure, "a case of its own") for case, failure in failing]
    told = {case.it for case, _ in failing}
    failing, run_too, not_run_too = _failing(candidate, theirs)
    opened = [(case, failure) for case, failure in failing if not failure.stricter and case.it not in told]
    problems += [_problem(*one, "a case of the bundle in force") for one in _held_before(opened, active)]
    if problems:
        raise CasesError(_bounded(problems))
    return CaseCheck(run + run_too, not_run + not_run_too)


FailingCases = list[tuple[AnyCase, CaseFailure]]


def _read(files: Mapping[str, bytes]) -> list[AnyCase]:
    try:
        return read_cases(files)
    except BundleError as error:
        raise CasesError(_bounded(error.problems)) from error


def _in_force(active: BundleFiles | None) -> list[AnyCase]:
    """Those of the bundle in force; it may have come into force when nobody asked whether its cases can be read."""
    try:
        return [] if active is None else read_cases(active.files)
    except BundleError:
        return []


def _failing(bundle: Bundle, cases: Sequence[AnyCase]) -> tuple[FailingCases, int, int]:
    """The cases that do not hold, how many were run, and how many were not."""
    asked = [case for case in cases if not needs_external_facts(bundle, case)]
    try:
        prepared = prepare_cases(bundle, asked)
    except BundleError as error:  # facts or meters that this bundle does not have
        raise CasesError(_bounded(error.problems)) from error
    answers = [(case, one.ask(bundle.rules)) for case, one in zip(asked, prepared, strict=True)]
    failing = [(case, failure_of(answered)) for case, answered in answers if not answered.holds]
    return failing, len(asked), len(cases) - len(asked)


def needs_external_facts(bundle: Bundle, case: AnyCase) -> bool:
    """Whether its facts are in a database or at a host: written facts are the case's own."""
    if not isinstance(case, Case) or case.facts is not None or case.tool not in bundle.manifests:
        return False
    config, kind = bundle.facts.config, bundle.manifests[case.tool].resource.type
    sources = (*config.sources_for(kind, case.tool), *config.sources_for(AGENT, case.tool))
    return any(source.file is None for source in sources)


def _held_before(opened: FailingCases, active: BundleFiles | None) -> FailingCases:
    """Those that the bundle in force passes."""
    if not opened or active is None:
        return opened
    never = {case.it for case, _ in _failing(build_bundle(active), [case for case, _ in opened])[0]}
    return [(case, failure) for case, failure in opened if case.it not in never]


def _problem(case: AnyCase, failure: CaseFailure, whose: str) -> Problem:
    return Problem(case.file, case.line, f"{whose} does not hold: {case.it}: {failure.words}", "cases")


def _bounded(problems: Sequence[Problem]) -> list[Problem]:
    told = list(problems[:MAX_REPORTED])
    if more := len(problems) - len(told):
        told.append(Problem("cases", None, f"and {more} more; `policy-service test` tells all", "cases"))
    return told


@dataclass(frozen=True, slots=True)
class CaseSummary:
    """The cases of a bundle. ``by_policy``: how many of them each policy determines."""

    cases: int = 0
    failing: int = 0
    not_run: int = 0
    by_policy: Mapping[str, int] = field(default_factory=dict)
    problem: str | None = None  # why none could be run


def summarize_cases(bundle: Bundle) -> CaseSummary:
    """Run a bundle's own cases. Blocks, for about half a millisecond a case."""
    try:
        cases = read_cases(bundle.source.files)
        asked = [case for case in cases if not needs_external_facts(bundle, case)]
        answers = [case.ask(bundle.rules) for case in prepare_cases(bundle, asked)]
    except BundleError as error:
        return CaseSummary(problem=str(error.problems[0]))
    said = (determining_policies(each.answer) for each in answers if isinstance(each.answer, Decision))
    return CaseSummary(
        cases=len(cases),
        failing=sum(not each.holds for each in answers),
        not_run=len(cases) - len(asked),
        by_policy=Counter(name for names in said for name in names),
    )
