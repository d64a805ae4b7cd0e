"""Run all lints on a valid bundle, without the findings its author has acknowledged.

A finding never prevents activation, so a lint may take longer than an activation; it is for authors and their CI. Every
finding has a stable code (policies/README.md lists them). An acknowledgement is a comment above its policy,
`// countersign: allow CODE -- why`. It covers one code and needs a reason. One that covers no finding is a finding
itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from policy_service.pap.check import bundle_warnings
from policy_service.pap.lint.checks import CHECKS, check_shadowed, linted_policies
from policy_service.pap.parts import BundleParts, read_parts
from policy_service.pap.policies import Policy, read_policies
from policy_service.pap.problems import BundleError, Problem
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


def drop_acknowledged(
    findings: Sequence[Problem], files: Mapping[str, bytes], policies: Mapping[str, Policy]
) -> list[Problem]:
    """The unacknowledged findings, and the problems of the acknowledgements."""
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
        if not one.why or not one.code:
            message = f"acknowledges nothing; {_FORM}"
        elif not any(one.covers(finding) for finding in findings):
            message = f"the policy below it has no finding {one.code!r} (any more); remove the line"
        else:
            continue
        yield Problem(one.file, one.line, message).as_finding("bad-acknowledgement")


def lint_files(files: Mapping[str, bytes]) -> tuple[Problem, ...]:
    """Every warning and note about the files of a valid bundle, by file and line.

    Raises:
        BundleError: they are not a valid bundle.
    """
    parts, problems = read_parts(files)
    policies, policy_problems = read_policies(files, parts.directory.groups)
    if problems or policy_problems:
        raise BundleError([*problems, *policy_problems])
    found = dict.fromkeys(_all(parts, policies))
    kept = drop_acknowledged(list(found), files, policies)
    return tuple(sorted(kept, key=lambda finding: (finding.file, finding.line or 0, finding.code)))


def _all(parts: BundleParts, policies: Mapping[str, Policy]) -> Iterator[Problem]:
    yield from bundle_warnings(parts, policies)
    yield from _unseen(parts)
    if not parts.tools:
        return  # a new bundle: no rule can be about a tool yet
    subjects = linted_policies(parts, policies)
    for subject in subjects:
        for check in CHECKS:
            yield from check(subject)
    yield from check_shadowed(subjects)


def _unseen(parts: BundleParts) -> Iterator[Problem]:
    for version in parts.tools:
        if version.unseen:
            message = f"policy cannot see {', '.join(version.unseen)}: a call that carries one asks people, unless a "
            yield Problem(version.file, None, f"{message}permit names it with @unseen").as_finding(
                "unseen-fields", "note"
            )
