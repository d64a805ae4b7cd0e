"""Split policy text into statements before the parser runs, and format policy files.

The engine's parser recurses. About 630 nested brackets, or 1,300 operators in one chain, end the process with a
segmentation fault (measured with 8 MiB of stack; a thread with 1 MiB takes 76 and 150). So depth and chains are counted
here first. Strings and comments are skipped exactly as Cedar's lexer does; a comment also ends at a carriage return. A
statement without `;` is an error. The parser gets one statement at a time.

The format is the engine's own, with a scope on one line where it fits. Syntax tree and comments of a statement do not
change. A statement that the engine's formatter would change is left as it is and reported. Formatting is idempotent.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from cedarpy import format_policies, policies_to_pst

from policy_service.pap.problems import BundleError, Problem, invalid_bundle

MAX_NESTING: Final = 64
"""Nested brackets; a thread with a small stack can parse this many."""

MAX_CHAIN: Final = 500
"""Operators, member accesses and ifs in one statement; each may add a level to the parser's tree."""

_TOKEN: Final = re.compile(
    r"""
    (?P<blank>\s++ | //[^\n\r]*+)
  | (?P<string>"(?:[^"\\]++|\\.)*+")
  | (?P<unclosed>")
  | (?P<annotation>@\s*+[A-Za-z_][A-Za-z0-9_]*+)
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*+)
  | (?P<open>[(\[{])
  | (?P<close>[)\]}])
  | (?P<end>;)
  | (?P<chain>&&|\|\||[-+*.!])
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_RULES: Final = frozenset({"permit", "forbid"})
_CHAIN_WORDS: Final = frozenset({"if", "has", "like", "is", "in"})


@dataclass(frozen=True, slots=True)
class Statement:
    """One policy as written. `annotation_lines` locates problems with one annotation."""

    file: str
    line: int
    text: str
    annotation_lines: dict[str, int] = field(default_factory=dict)

    def problem(self, message: str, annotation: str | None = None) -> Problem:
        """A problem with this statement, or with one of its annotations."""
        return Problem(self.file, self.annotation_lines.get(annotation or "", self.line), message)


@dataclass(slots=True)
class _Open:
    """The statement being read."""

    start: int | None = None
    line: int = 0
    depth: int = 0
    chain: int = 0
    ruled: bool = False  # its `permit` or `forbid` was read
    annotations: dict[str, int] = field(default_factory=dict)


def scan(file: str, text: str) -> tuple[list[Statement], list[Problem]]:
    """The statements of a policy file. Those that are unsafe to parse are left out and reported."""
    statements: list[Statement] = []
    problems: list[Problem] = []
    current = _Open()
    deepest = longest = 0
    for kind, token, position, line in _tokens(text):
        if current.start is not None and current.ruled and current.depth <= 0 and _begins(kind, token):
            problems.append(
                Problem(file, current.line, f"this policy does not end before line {line}; add ';'")
            )
            current, deepest, longest = _Open(), 0, 0
        if current.start is None:
            current.start, current.line = position, line
        if kind == "unclosed":  # from here on, text inside and outside of strings cannot be distinguished
            problems.append(Problem(file, line, "this text in quotes does not end; close it"))
            return statements, problems
        _count(current, kind, token, line)
        deepest, longest = max(deepest, current.depth), max(longest, current.chain)
        if kind == "end" and current.depth <= 0:
            statement = Statement(file, current.line, text[current.start : position + 1], current.annotations)
            refused = _refusal(statement, deepest, longest)
            problems += refused
            statements += [] if refused else [statement]
            current, deepest, longest = _Open(), 0, 0
    if current.start is not None:
        problems.append(
            Problem(file, current.line, "this statement does not end; close its brackets and add ';'")
        )
    return statements, problems


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Every comment of a policy file with its line."""
    line = 1
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token.startswith("//"):
            yield line, token
        line += token.count("\n")


def hidden_character_problems(file: str, text: str) -> Iterator[Problem]:
    """Characters that make a rule look different from what is parsed: bidirectional controls and invisible ones."""
    for number, content in enumerate(text.split("\n"), start=1):
        if content.replace("\t", "").replace("\r", "").isprintable():
            continue  # fast path for almost every line
        hidden = next((char for char in content if _is_hidden(char)), None)
        if hidden is not None:
            message = (
                f"the character U+{ord(hidden):04X} is invisible and makes a rule look different from what is parsed; "
                "remove it (write it as \\u{...} where a text needs it)"
            )
            yield Problem(file, number, message)


def _is_hidden(char: str) -> bool:
    return char not in "\t\r" and unicodedata.category(char) in {"Cc", "Cf", "Zl", "Zp", "Co", "Cs"}


def _tokens(text: str) -> Iterator[tuple[str, str, int, int]]:
    line = 1
    for match in _TOKEN.finditer(text):
        kind, token = str(match.lastgroup), match.group()
        if kind != "blank":
            yield kind, token, match.start(), line
        line += token.count("\n")


def _begins(kind: str, text: str) -> bool:
    """Whether a token outside all brackets is the first of a policy."""
    return kind == "annotation" or (kind == "word" and text in _RULES)


def _count(current: _Open, kind: str, text: str, line: int) -> None:
    current.ruled = current.ruled or (kind == "word" and text in _RULES)
    if kind == "open":
        current.depth += 1
        current.chain += text != "{"  # an index or a call deepens like a member access
    elif kind == "close":
        current.depth -= 1
    elif kind == "chain" or (kind == "word" and text in _CHAIN_WORDS):
        current.chain += 1
    elif kind == "annotation":
        current.annotations.setdefault(text.lstrip("@ \t\r\n"), line)


def _refusal(statement: Statement, deepest: int, longest: int) -> list[Problem]:
    if deepest > MAX_NESTING:
        return [
            statement.problem(
                f"brackets are nested {deepest} deep; {MAX_NESTING} is the limit, split the policy"
            )
        ]
    if longest > MAX_CHAIN:
        return [
            statement.problem(
                f"{longest} operators in one policy; {MAX_CHAIN} is the limit, split the policy"
            )
        ]
    return []


WIDTH: Final = 110
INDENT: Final = 4

_SCOPE: Final = re.compile(r"^(permit|forbid) \(\n(.*?)\n\)(;?)$", re.MULTILINE | re.DOTALL)
_ROUNDS: Final = 3  # the engine's formatter needs a second round for some comments


@dataclass(frozen=True, slots=True)
class FormattedFile:
    """The formatted text of one file, and the statements that were left unchanged."""

    text: str
    left: tuple[Problem, ...] = ()


def format_file(file: str, raw: bytes) -> FormattedFile:
    """Format one policy file.

    Raises:
        BundleError: it is not UTF-8 or not Cedar.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid_bundle(file, f"byte {error.start} is not UTF-8") from None
    statements, problems = scan(file, text)
    problems += [*hidden_character_problems(file, text), *_unparsable(statements)]
    if problems:
        raise BundleError(problems)
    pieces: list[str] = []
    left: list[Problem] = []
    end = 0
    for statement in statements:
        start = text.index(statement.text, end)
        pieces.append(_between(text[end:start], first=not pieces))
        formatted = _formatted(statement)
        if formatted is None:
            message = (
                "left unchanged: the engine's formatter would move or drop something in it; format it by hand"
            )
            left.append(statement.problem(message).as_finding("not-formatted"))
        pieces.append(statement.text if formatted is None else formatted)
        end = start + len(statement.text)
    pieces.append(_between(text[end:] + "\n", first=not pieces))
    whole = "".join(pieces).rstrip()
    if _comments(whole) != _comments(text):
        raise invalid_bundle(file, "a comment would be lost; format this file by hand, and report the bug")
    return FormattedFile(whole + "\n" if whole else "", tuple(left))


def _unparsable(statements: list[Statement]) -> Iterator[Problem]:
    for statement in statements:
        try:
            policies_to_pst(statement.text)
        except ValueError as error:
            yield statement.problem(f"this is not Cedar: {error}")


def _formatted(statement: Statement) -> str | None:
    """The formatted statement; None if formatting changes its meaning or does not converge."""
    before = statement.text
    for _ in range(_ROUNDS):
        after = _format_once(before)
        if after == before:
            return after if _same(replace(statement, text=after), statement) else None
        before = after
    return None


def _format_once(text: str) -> str:
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
        return text  # no longer a policy: equal to no tree


def _comments(text: str) -> list[str]:
    return [comment.strip() for _, comment in comments(text)]


def _between(text: str, *, first: bool) -> str:
    """The comments between two statements, after one blank line; a trailing comment stays on its line."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")  # a comment also ends at a carriage return
    same_line, _, rest = ("", "", text) if first else text.partition("\n")
    kept: list[str] = []
    for line in (line.strip() for line in rest.split("\n")[:-1]):
        if line or (kept and kept[-1]):
            kept.append(line)
    block = "".join(f"{line}\n" for line in kept)
    trailing = f"  {same_line.strip()}" if same_line.strip() else ""
    return block if first else f"{trailing}\n\n{block}"
