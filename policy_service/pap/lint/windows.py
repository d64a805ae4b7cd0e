"""Questions that are over before anybody could have read them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from policy_service.pap.lint.subject import Subject
from policy_service.pap.problems import Problem

SHORTEST: Final = timedelta(minutes=5)


def short_windows(subject: Subject) -> Iterator[Problem]:
    """A gate whose question expires before people have seen it denies, whatever they would have said."""
    gate = subject.policy.source.gate
    if gate is not None and gate.answer_within < SHORTEST:
        yield subject.finding(
            "short-window",
            f"people have {int(gate.answer_within.total_seconds())} s to answer, at night too, and what nobody answers "
            "expires; give them 5 minutes at least, or write a plain forbid",
        )
