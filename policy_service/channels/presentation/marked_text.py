"""Mark untrusted text so that nothing in it can be hidden from its reader.

Pure: text in, spans and findings out; nothing is HTML.

- Every character of the text is in the spans, in order. A run may be one code point and a count.
- Invisible characters (bidi controls, zero width, tags, selectors, control characters) become their code point.
- A lookalike letter is marked where two scripts meet in a word, and anywhere in an address.
- Line breaks or spaces that push text out of sight are counted, not drawn.
"""

import re
import unicodedata
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, TypeAlias

from policy_service.channels.presentation.deceptive_text import (
    address_spans,
    ascii_lookalike,
    character_name,
    code_point,
    gap_positions,
    hidden_positions,
    is_bidi_control,
    is_invisible,
    is_unusual_space,
    suspect_positions,
)
from policy_service.queries.view_digest import PADDING

TextFindingKind: TypeAlias = Literal["hidden", "padding", "stacked", "lookalike", "userinfo", "markup"]

MAX_NAMED = 4  # characters named in one sentence; others are counted
_MARKUP = re.compile(r"<[/!?]?[a-zA-Z][^<>]*>|<!--|javascript:", re.IGNORECASE)
_USERINFO = re.compile(r"://[^\s/?#@]+@([^\s/?#]+)")
_BEFORE_HOST = re.compile(r"^.*(?:://|[@\uff20\ufe6b])", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TextFinding:
    """One way the text can mislead; `wire` is the affected host in punycode."""

    kind: TextFindingKind
    short: str
    sentence: str
    wire: str = ""


def find_problems(text: str, hidden: list[int], suspects: list[int]) -> tuple[TextFinding, ...]:
    """All findings of a text, given its hidden and suspect positions."""
    found = (
        _lookalike(text, suspects),
        _hidden([text[i] for i in hidden]),
        _padding(text),
        _userinfo(text),
        _markup(text),
    )
    return tuple(finding for finding in found if finding is not None)


def to_punycode(host: str) -> str:
    """Punycode of every label that is not ASCII, without checking whether the name is valid."""
    labels = unicodedata.normalize("NFKC", host).lower().replace("\u3002", ".").split(".")
    return ".".join(_wire_label(label) for label in labels)


def _wire_label(label: str) -> str:
    return label if label.isascii() else "xn--" + label.encode("punycode").decode("ascii")


def _lookalike(text: str, suspects: list[int]) -> TextFinding | None:
    if not suspects:
        return None
    kinds = list(dict.fromkeys(text[i] for i in suspects))
    named = _enumerate([_describe(char) for char in kinds])
    if len(suspects) == 1:
        sentence = f"The marked character is {named}."
    else:
        sentence = f"{_count(len(suspects), 'marked character')} are lookalikes: {named}."
    return TextFinding("lookalike", "lookalike letters", sentence, _wire_of(text, suspects))


def _describe(char: str) -> str:
    twin = ascii_lookalike(char, in_address=True)
    return f"{code_point(char)} {character_name(char)}" + (f", not {twin}" if twin else "")


def _wire_of(text: str, suspects: list[int]) -> str:
    """The host that contains a marked letter; "" if none does."""
    for start, end in address_spans(text):
        if any(start <= i < end for i in suspects):
            host = _BEFORE_HOST.sub("", text[start:end]).split("/")[0].rstrip(".:!?")
            if "." in (wire := to_punycode(host)) and wire != host.lower():
                return wire
    return ""


def _hidden(chars: list[str]) -> TextFinding | None:
    alarming = [char for char in chars if char not in " \n\t" and not is_unusual_space(char)]
    unseen = [char for char in alarming if is_invisible(char)]
    if not alarming:
        return None
    if not unseen:
        marks = _count(len(alarming), "stacked mark")
        return TextFinding("stacked", "stacked marks", f"{marks} would cover the text around them.")
    sentence = (
        f"{_count(len(unseen), 'hidden character')}: {_enumerate([character_name(char) for char in unseen])}."
    )
    if any(is_bidi_control(char) for char in unseen):
        sentence += " Unmarked, they would change the order in which this is read."
    return TextFinding("hidden", "hidden characters", sentence)


def _padding(text: str) -> TextFinding | None:
    for match in PADDING.finditer(text):
        if match.end() < len(text) and match.start():
            breaks = match.group().count("\n")
            what = _count(breaks, "line break") if breaks else _count(len(match.group()), "space")
            sentence = f"{what} push the rest out of sight. They are counted here, and kept in the bytes."
            return TextFinding("padding", f"text pushed away by {what}", sentence)
    return None


def _userinfo(text: str) -> TextFinding | None:
    match = _USERINFO.search(text)
    if match is None:
        return None
    sentence = "The part before the @ in this link is a user name. The link leads to another host."
    return TextFinding(
        "userinfo", "a link that names one host and leads to another", sentence, to_punycode(match.group(1))
    )


def _markup(text: str) -> TextFinding | None:
    if not _MARKUP.search(text):
        return None
    return TextFinding("markup", "markup", "This contains markup. It is shown as plain text.")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _enumerate(names: list[str]) -> str:
    distinct = list(dict.fromkeys(names))
    rest = len(distinct) - MAX_NAMED
    more = f"; and {_count(rest, 'other kind')}" if rest > 0 else ""
    return "; ".join(distinct[:MAX_NAMED]) + more


SpanKind: TypeAlias = Literal["plain", "hidden", "suspect"]

MAX_HIDDEN_IN_A_ROW = 12  # of a longer run only the first 8 are drawn
_DRAWN_OF_A_LONG_RUN = 8
_UNUSUAL = re.compile(r"[^\x20-\x7e\t\n]")


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
    if not gaps and not _UNUSUAL.search(text):
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
