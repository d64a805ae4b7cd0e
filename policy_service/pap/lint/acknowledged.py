"""Findings that an author has seen and means: `// countersign: allow CODE -- why`, above the policy.

Rules kept here: it stands in a comment above the policy it is about, names one finding and says why; one without a
reason acknowledges nothing, and one whose finding is gone is a finding itself, so that none outlives its reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from policy_service.pap.policies import Policy
from policy_service.pap.problems import Problem
from policy_service.pap.scan import Statement, comments

_ALLOW: Final = re.compile(r"//\s*countersign\s*:\s*allow\b\s*(?P<code>[a-z-]*)\s*(?:--\s*(?P<why>.*\S))?")
_FORM: Final = "write `// countersign: allow CODE -- why`"


@dataclass(frozen=True, slots=True)
class _Allowed:
    file: str
    line: int
    first: int
    last: int
    code: str
    why: str

    def covers(self, finding: Problem) -> bool:
        return (
            bool(self.why and self.code)
            and (finding.file, finding.code) == (self.file, self.code)
            and finding.line is not None
            and self.first <= finding.line <= self.last
        )


def without_acknowledged(
    findings: Sequence[Problem], files: Mapping[str, bytes], policies: Mapping[str, Policy]
) -> list[Problem]:
    """The findings nobody has acknowledged, and what is wrong with the acknowledgements."""
    allowed = list(_allowed(files, [policy.statement for policy in policies.values()]))
    left = [finding for finding in findings if not any(one.covers(finding) for one in allowed)]
    return [*left, *_useless(allowed, findings)]


def _allowed(files: Mapping[str, bytes], statements: Iterable[Statement]) -> Iterator[_Allowed]:
    spans: dict[str, list[tuple[int, int]]] = {}
    for statement in statements:
        span = statement.line, statement.line + statement.text.count("\n")
        spans.setdefault(statement.file, []).append(span)
    for file, raw in files.items():
        if not file.endswith(".cedar"):
            continue
        for line, comment in comments(raw.decode("utf-8")):
            if (match := _ALLOW.match(comment)) is not None:
                first, last = next((s for s in sorted(spans.get(file, ())) if s[1] >= line), (0, 0))
                yield _Allowed(file, line, first, last, match["code"], match["why"] or "")


def _useless(allowed: Iterable[_Allowed], findings: Sequence[Problem]) -> Iterator[Problem]:
    for one in allowed:
        where = Problem(one.file, one.line, "")
        if not one.why or not one.code:
            yield Problem(where.file, where.line, f"acknowledges nothing; {_FORM}").as_finding(
                "bad-acknowledgement"
            )
        elif not any(one.covers(finding) for finding in findings):
            message = f"the policy below it has no finding {one.code!r} (any more); take the line away"
            yield Problem(where.file, where.line, message).as_finding("bad-acknowledgement")
