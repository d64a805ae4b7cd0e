"""Words that are not what they look like: patterns without wildcard, names of two alphabets, groups of nobody."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Final

from cedarpy import pst

from policy_service.pap.lint.subject import Subject, expressions
from policy_service.pap.parts import Parts
from policy_service.pap.problems import Problem

_ALPHABETS: Final = frozenset(
    {"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "FULLWIDTH", "MATHEMATICAL"}
)


def patterns(subject: Subject) -> Iterator[Problem]:
    """`like` without a `*` is `==` in disguise: whoever wrote it meant the beginning or a part."""
    for expr in dict.fromkeys(expressions(subject.condition)):
        if isinstance(expr, pst.Like) and not any(isinstance(one, pst.Wildcard) for one in expr.pattern):
            text = "".join(one.value for one in expr.pattern if isinstance(one, pst.Char))
            yield subject.finding(
                "like-without-wildcard", f"like {text!r} has no *, so it means ==; write == or add a *"
            )


def mixed_alphabets(subject: Subject) -> Iterator[Problem]:
    """A word of letters of two alphabets looks like another word and equals no word anybody types."""
    for text in dict.fromkeys(_texts(subject)):
        for word in text.split():
            if len(found := _alphabets(word)) > 1:
                yield subject.finding(
                    "mixed-alphabets",
                    f"{word!a} mixes {' and '.join(sorted(name.title() for name in found))} letters, so it equals no "
                    "word that looks like it; type it anew",
                )


def empty_groups(parts: Parts, subject: Subject) -> Iterator[Problem]:
    """A gate may ask several groups; one of them without people is a name nobody answers to. Who is in a directory's
    group is not known here.
    """
    gate = subject.policy.source.gate
    if gate is None:
        return
    for annotation, groups in (("approval", gate.groups), ("escalate", gate.escalate)):
        for group in sorted(groups):
            if group not in parts.directory.elsewhere and not parts.directory.members(group):
                message = f"@{annotation} names {group!r}, which has no members in groups.toml"
                yield subject.finding("empty-group", message, "warning", annotation)


def _texts(subject: Subject) -> Iterator[str]:
    for expr in expressions(subject.condition):
        if isinstance(expr, pst.StringLit):
            yield expr.value
        elif isinstance(expr, pst.EntityLit):
            yield expr.value.id
        elif isinstance(expr, pst.Like):
            yield "".join(one.value if isinstance(one, pst.Char) else " " for one in expr.pattern)


def _alphabets(word: str) -> frozenset[str]:
    letters = [char for char in word if char.isalpha()]
    names = {unicodedata.name(char, "").partition(" ")[0] for char in letters}
    return frozenset(names & _ALPHABETS)
