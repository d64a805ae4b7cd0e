"""What holds the rules of a bundle: how many cases there are, whether they pass, and which rules they speak of.

Rules kept here: a case that needs a database or a host is counted and not run: a page that people open asks nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from policy_service.domain.decision import Decision
from policy_service.pap.bundle import Bundle
from policy_service.pap.cases.comparing import determining
from policy_service.pap.cases.guarding import needs_others
from policy_service.pap.cases.reading import cases_in
from policy_service.pap.cases.running import prepare_cases
from policy_service.pap.problems import BundleError


@dataclass(frozen=True, slots=True)
class Held:
    """The cases of a bundle. ``by_policy``: how many of them each policy determines."""

    cases: int = 0
    failing: int = 0
    not_run: int = 0
    by_policy: Mapping[str, int] = field(default_factory=dict)
    problem: str | None = None  # why none could be run


def held(bundle: Bundle) -> Held:
    """Run a bundle's own cases. Blocks, for about half a millisecond a case."""
    try:
        cases = cases_in(bundle.source.files)
        asked = [case for case in cases if not needs_others(bundle, case)]
        answers = [case.ask(bundle.rules) for case in prepare_cases(bundle, asked)]
    except BundleError as error:
        return Held(problem=str(error.problems[0]))
    said = (determining(each.answer) for each in answers if isinstance(each.answer, Decision))
    return Held(
        cases=len(cases),
        failing=sum(not each.holds for each in answers),
        not_run=len(cases) - len(asked),
        by_policy=Counter(name for names in said for name in names),
    )
