"""Show text that somebody else wrote so that nobody can hide in it.

Pure: text in, spans and findings out. Rules kept here:
- every character of the text is in the spans, in order; a run may be written as one code point and a count;
- what cannot be seen (bidi controls, zero width, tags, selectors, control characters) becomes its code point;
- a letter that passes for another is marked where two scripts meet in a word, or anywhere inside an address;
- line breaks or spaces in such numbers that they push text out of sight are counted, not drawn.
Nothing here is HTML; the one place that escapes is `rendering.py`.
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

MAX_HIDDEN_IN_A_ROW = 12  # different ones, drawn one by one; of a longer run the first 8 are
_DRAWN_OF_A_LONG_RUN = 8
_ODD = re.compile(r"[^\x20-\x7e\t\n]")


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of text of one kind. A hidden one stands for `count` times the same character."""

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

    `block` text keeps its line breaks; elsewhere a line break is a hidden character, because a page folds it.
    `address` says that the whole text is a recipient. `every` draws each hidden character, however many.
    `edges` marks spaces at both ends; a piece out of the middle of a text goes without.
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
    """One line without markup, for a title: what is hidden is written out."""
    return "".join(span.text if span.kind != "hidden" else f"[{span.code}]" for span in mark(text).spans)


def typed_json(text: str) -> str:
    """JSON text for a field: the same value, its lines kept, whatever cannot be seen written as \\u and its number."""
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
    """A long run of different hidden characters: draw the first, count the rest, say so."""
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
