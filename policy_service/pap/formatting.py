"""Policy text in one layout: the engine's own, with a scope on one line where it fits.

Rules kept here: statement by statement, in the order they stand; what a statement means (its syntax tree) and its
comments are the same before and after, and one that the engine's formatter would change is left as it was and named;
text between statements is comments and keeps its words; formatting twice changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from cedarpy import format_policies, policies_to_pst

from policy_service.pap.problems import BundleError, Problem
from policy_service.pap.scan import Statement, comments, hidden_characters, scan

WIDTH: Final = 110
INDENT: Final = 4

_SCOPE: Final = re.compile(r"^(permit|forbid) \(\n(.*?)\n\)(;?)$", re.MULTILINE | re.DOTALL)
_ROUNDS: Final = 3  # the engine's formatter needs a second round for some comments


@dataclass(frozen=True, slots=True)
class Formatted:
    """The text of one file in our layout, and the statements that were left as they are."""

    text: str
    left: tuple[Problem, ...] = ()


def format_file(file: str, raw: bytes) -> Formatted:
    """One policy file in our layout.

    Raises:
        BundleError: it is not UTF-8 or not Cedar, so nobody can say what it means.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BundleError([Problem(file, None, f"byte {error.start} is not UTF-8")]) from None
    statements, problems = scan(file, text)
    problems += [*hidden_characters(file, text), *_unparsable(statements)]
    if problems:
        raise BundleError(problems)
    pieces: list[str] = []
    left: list[Problem] = []
    end = 0
    for statement in statements:
        start = text.index(statement.text, end)
        pieces.append(_between(text[end:start], first=not pieces))
        laid_out = _formatted(statement)
        if laid_out is None:
            message = (
                "left as it is: the engine's formatter would move or drop something in it; lay it out by hand"
            )
            left.append(statement.problem(message).as_finding("not-formatted"))
        pieces.append(statement.text if laid_out is None else laid_out)
        end = start + len(statement.text)
    pieces.append(_between(text[end:] + "\n", first=not pieces))
    whole = "".join(pieces).rstrip()
    if _comments(whole) != _comments(text):
        raise BundleError(
            [Problem(file, None, "a comment would be lost; lay this file out by hand, and tell us")]
        )
    return Formatted(whole + "\n" if whole else "", tuple(left))


def _unparsable(statements: list[Statement]) -> Iterator[Problem]:
    for statement in statements:
        try:
            policies_to_pst(statement.text)
        except ValueError as error:
            yield statement.problem(f"this is not Cedar: {error}")


def _formatted(statement: Statement) -> str | None:
    """The statement laid out, or None where that would change it or never settles."""
    before = statement.text
    for _ in range(_ROUNDS):
        after = _laid_out(before)
        if after == before:
            return after if _same(replace(statement, text=after), statement) else None
        before = after
    return None


def _laid_out(text: str) -> str:
    return _SCOPE.sub(_on_one_line, format_policies(text, WIDTH, INDENT).strip())


def _on_one_line(match: re.Match[str]) -> str:
    effect, inside, end = match.groups()
    line = f"{effect} ({' '.join(part.strip() for part in inside.splitlines())}){end}"
    return match[0] if "//" in inside or len(line) > WIDTH else line


def _same(one: Statement, other: Statement) -> bool:
    return _comments(one.text) == _comments(other.text) and _tree(one.text) == _tree(other.text)


def _tree(text: str) -> object:
    try:
        return policies_to_pst(text)
    except ValueError:
        return text  # what is no policy any more equals no tree


def _comments(text: str) -> list[str]:
    return [comment.strip() for _, comment in comments(text)]


def _between(text: str, *, first: bool) -> str:
    """The comments between two statements, apart by one blank line from the one before; trailing ones stay there."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")  # a comment ends at a carriage return, too
    beside, _, rest = ("", "", text) if first else text.partition("\n")
    kept: list[str] = []
    for line in (line.strip() for line in rest.split("\n")[:-1]):
        if line or (kept and kept[-1]):
            kept.append(line)
    block = "".join(f"{line}\n" for line in kept)
    trailing = f"  {beside.strip()}" if beside.strip() else ""
    return block if first else f"{trailing}\n\n{block}"
