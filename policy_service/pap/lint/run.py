"""All lints over one bundle that has been checked.

Rules kept here: a finding never keeps a bundle from becoming active, so a lint may think longer than activation may; it
is for authors and their continuous integration. Every finding has a stable code (policies/README.md lists them).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from policy_service.pap.checks import warnings_about
from policy_service.pap.lint.acknowledged import without_acknowledged
from policy_service.pap.lint.matching import given_up, never_matching, outside_the_schema, shadowed
from policy_service.pap.lint.missing import missing_entities
from policy_service.pap.lint.overflow import overflowing
from policy_service.pap.lint.subject import Subject, subjects_of
from policy_service.pap.lint.windows import short_windows
from policy_service.pap.lint.wording import empty_groups, mixed_alphabets, patterns
from policy_service.pap.parts import Parts, read_parts
from policy_service.pap.policies import Policy, read_policies
from policy_service.pap.problems import BundleError, Problem


def findings_about(files: Mapping[str, bytes]) -> tuple[Problem, ...]:
    """Every finding about the files of a valid bundle: by file and line, warnings and notes.

    Raises:
        BundleError: they are no valid bundle after all.
    """
    parts, problems = read_parts(files)
    policies, policy_problems = read_policies(files, parts.directory.groups)
    if problems or policy_problems:
        raise BundleError([*problems, *policy_problems])
    found = dict.fromkeys(_all(parts, policies))
    kept = without_acknowledged(list(found), files, policies)
    return tuple(sorted(kept, key=lambda finding: (finding.file, finding.line or 0, finding.code)))


def _all(parts: Parts, policies: Mapping[str, Policy]) -> Iterator[Problem]:
    yield from warnings_about(parts, policies)
    yield from _unseen(parts)
    if not parts.tools:
        return  # a beginning: there is no tool yet that a rule could be about
    subjects = subjects_of(parts, policies)
    for subject in subjects:
        yield from _about(parts, subject)
    yield from shadowed(subjects)


def _about(parts: Parts, subject: Subject) -> Iterable[Problem]:
    yield from never_matching(subject)
    yield from outside_the_schema(subject)
    yield from overflowing(subject)
    yield from missing_entities(subject)
    yield from patterns(subject)
    yield from mixed_alphabets(subject)
    yield from empty_groups(parts, subject)
    yield from short_windows(subject)
    yield from given_up(subject)


def _unseen(parts: Parts) -> Iterator[Problem]:
    for version in parts.tools:
        if version.unseen:
            message = f"policy cannot see {', '.join(version.unseen)}: a call that carries one asks people, unless a "
            yield Problem(version.file, None, f"{message}permit names it with @unseen").as_finding(
                "unseen-fields", "note"
            )
