"""What a marked text does to its reader, said in one sentence each.

Pure. A finding never guesses at intent: it names the characters and what they do.
"""

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal, TypeAlias

from policy_service.channels.presentation.deceptive_text import address_spans
from policy_service.channels.presentation.homoglyphs import (
    ascii_lookalike,
    character_name,
    code_point,
    is_bidi_control,
    is_invisible,
    is_unusual_space,
)
from policy_service.queries.view_digest import PADDING

TextFindingKind: TypeAlias = Literal["hidden", "padding", "stacked", "lookalike", "userinfo", "markup"]

MAX_NAMED = 4  # different characters named in one sentence; the rest are counted
_MARKUP = re.compile(r"<[/!?]?[a-zA-Z][^<>]*>|<!--|javascript:", re.IGNORECASE)
_USERINFO = re.compile(r"://[^\s/?#@]+@([^\s/?#]+)")
_BEFORE_HOST = re.compile(r"^.*(?:://|[@\uff20\ufe6b])", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TextFinding:
    """One thing that can mislead; `wire` is the host it is about, as the network sees it."""

    kind: TextFindingKind
    short: str
    sentence: str
    wire: str = ""


def find_problems(text: str, hidden: list[int], suspects: list[int]) -> tuple[TextFinding, ...]:
    """All findings of a text whose hidden and suspect positions are known."""
    found = (
        _lookalike(text, suspects),
        _hidden([text[i] for i in hidden]),
        _padding(text),
        _userinfo(text),
        _markup(text),
    )
    return tuple(finding for finding in found if finding is not None)


def to_punycode(host: str) -> str:
    """Punycode every label that is not ASCII, without judging whether the name may exist."""
    labels = unicodedata.normalize("NFKC", host).lower().replace("\u3002", ".").split(".")
    return ".".join(_wire_label(label) for label in labels)


def _wire_label(label: str) -> str:
    return label if label.isascii() else "xn--" + label.encode("punycode").decode("ascii")


def _lookalike(text: str, suspects: list[int]) -> TextFinding | None:
    if not suspects:
        return None
    kinds = list(dict.fromkeys(text[i] for i in suspects))
    named = _listed([_introduced(char) for char in kinds])
    if len(suspects) == 1:
        sentence = f"The marked character is {named}."
    else:
        sentence = f"{_count(len(suspects), 'marked character')} are not what they seem: {named}."
    return TextFinding("lookalike", "letters that pass for others", sentence, _wire_of(text, suspects))


def _introduced(char: str) -> str:
    twin = ascii_lookalike(char, in_address=True)
    return f"{code_point(char)} {character_name(char)}" + (f", not {twin}" if twin else "")


def _wire_of(text: str, suspects: list[int]) -> str:
    """The host that holds a marked letter; nothing when no host does."""
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
        return TextFinding("stacked", "stacked marks", f"{marks} would paint over the text beside them.")
    sentence = (
        f"{_count(len(unseen), 'hidden character')}: {_listed([character_name(char) for char in unseen])}."
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
    sentence = "What stands before the @ in this link is a user name. It leads to another host."
    return TextFinding(
        "userinfo", "a link that names one host and leads to another", sentence, to_punycode(match.group(1))
    )


def _markup(text: str) -> TextFinding | None:
    if not _MARKUP.search(text):
        return None
    return TextFinding(
        "markup", "markup", "This holds markup. It is shown as plain text and does nothing here."
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _listed(names: list[str]) -> str:
    distinct = list(dict.fromkeys(names))
    rest = len(distinct) - MAX_NAMED
    more = f"; and {_count(rest, 'other kind')}" if rest > 0 else ""
    return "; ".join(distinct[:MAX_NAMED]) + more
