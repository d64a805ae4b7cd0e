"""Mark untrusted text so that nothing in it can be hidden from its reader.

Pure: text in, spans and findings out; nothing is HTML.

- Every character of the text is in the spans, in order. A run may be one code point and a count.
- Invisible characters (bidi controls, zero width, tags, selectors, control characters) become their code point.
- A lookalike letter is marked where two scripts meet in a word, and anywhere in an address.
- Line breaks or spaces that push text out of sight are counted, not drawn.
"""

import re
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, TypeAlias

from policy_service.channels.presentation.deceptive_text import (
    gap_positions,
    hidden_positions,
    suspect_positions,
)
from policy_service.channels.presentation.homoglyphs import character_name, code_point
from policy_service.channels.presentation.text_findings import TextFinding, find_problems

SpanKind: TypeAlias = Literal["plain", "hidden", "suspect"]

MAX_HIDDEN_IN_A_ROW = 12  # of a longer run only the first 8 are drawn
_DRAWN_OF_A_LONG_RUN = 8
_ODD = re.compile(r"[^\x20-\x7e\t\n]")


@dataclass(frozen=True, slots=True)
class Span:
    """A run of one kind. A hidden span represents `count` times the same character."""

    kind: SpanKind
    text: str
    code: str = ""
    name: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Marked:
    """A text ready to be shown."""

    spans: tuple[Span, ...]
    findings: tuple[TextFinding, ...] = ()


def mark(
    text: str, *, block: bool = False, address: bool = False, every: bool = False, edges: bool = True
) -> Marked:
    """Mark one text.

    `block` text keeps its line breaks; otherwise a line break is a hidden character, because HTML folds it.
    `address` marks the whole text as a recipient. `every` draws each hidden character, without shortening
    runs. `edges` marks leading and trailing spaces; excerpts go without.
    """
    gaps = gap_positions(text, block=block, edges=edges)
    if not gaps and not _ODD.search(text):
        return Marked((Span("plain", text),) if text else (), find_problems(text, [], []))
    hidden = hidden_positions(text) | gaps
    suspects = suspect_positions(text, address=address) - hidden
    spans = _spans(text, hidden, suspects)
    return Marked(
        tuple(spans if every else _shorten_runs(spans)), find_problems(text, sorted(hidden), sorted(suspects))
    )


def plain_text(text: str) -> str:
    """One line without markup, for titles; hidden characters are written as code points."""
    return "".join(span.text if span.kind != "hidden" else f"[{span.code}]" for span in mark(text).spans)


def typed_json(text: str) -> str:
    """JSON text for a form field: the same value with invisible characters as \\u escapes and line breaks
    kept.
    """
    lines = text.replace("\r\n", "\n")
    hidden = hidden_positions(lines)
    return "".join(
        _escaped(char) if i in hidden or not (char in "\n\t" or char.isprintable()) else char
        for i, char in enumerate(lines)
    )


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def _spans(text: str, hidden: set[int], suspects: set[int]) -> list[Span]:
    def kind_at(i: int) -> tuple[SpanKind, str]:
        if i in hidden:
            return ("hidden", text[i])
        return ("suspect", text[i]) if i in suspects else ("plain", "")

    spans: list[Span] = []
    start = 0
    for (kind, char), positions in groupby(range(len(text)), key=kind_at):
        end = start + sum(1 for _ in positions)
        code, name = (code_point(char), character_name(char)) if char else ("", "")
        spans.append(Span(kind, text[start:end], code, name, end - start if char else 1))
        start = end
    return spans


def _shorten_runs(spans: list[Span]) -> list[Span]:
    """Draw the first characters of a long run of hidden characters and count the rest."""
    short: list[Span] = []
    for is_hidden, run in groupby(spans, key=lambda span: span.kind == "hidden"):
        members = list(run)
        if not is_hidden or len(members) <= MAX_HIDDEN_IN_A_ROW:
            short.extend(members)
            continue
        rest = members[_DRAWN_OF_A_LONG_RUN:]
        count = sum(span.count for span in rest)
        note = f"{count} more hidden characters in a row; the canonical bytes show each"
        short.extend(members[:_DRAWN_OF_A_LONG_RUN])
        short.append(Span("hidden", "".join(span.text for span in rest), f"+ {count:,}", note))
    return short
