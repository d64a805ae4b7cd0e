"""Where in a text something deceives: positions only, no words.

Pure. Every scan is linear in the text: an agent chooses these strings, and the page must stay quick.
"""

import re
import unicodedata

from policy_service.channels.presentation.homoglyphs import (
    FALSE_SIGNS,
    LOOKS_LIKE,
    ascii_lookalike,
    is_emoji_joiner,
    is_invisible,
    is_styled_letter,
)
from policy_service.queries.view_digest import PADDING

MAX_STACKED_MARKS = 4  # on one letter: Vietnamese needs 2, pointed Hebrew up to 4

_FOLDED_BY_A_PAGE = re.compile(r"[\t\n]+| {2,}")
_WORD = re.compile(r"[^\W_]+")
_TOKEN = re.compile(r"[^\s<>\"'()\[\]{},;|]+")
_DOTS_AND_ATS = frozenset(".@") | FALSE_SIGNS
_LABEL = re.compile(rf"[^@:/.?#&={''.join(map(re.escape, sorted(FALSE_SIGNS)))}]+")
_SHARED_SHAPES = frozenset(LOOKS_LIKE.values())


def gap_positions(text: str, *, block: bool, edges: bool) -> set[int]:
    """Whitespace that a page would fold, or that pushes text away; with `edges`, also where the text ends."""
    patterns = [PADDING] if block else [PADDING, _FOLDED_BY_A_PAGE]
    found = {i for pattern in patterns for match in pattern.finditer(text) for i in range(*match.span())}
    if edges and not (block and "\n" in text):
        found |= set(range(len(text) - len(text.lstrip(" ")))) | set(range(len(text.rstrip(" ")), len(text)))
    return found


def hidden_positions(text: str) -> set[int]:
    """Characters that leave no mark, and combining marks beyond those a letter can carry."""
    unseen = {i for i, char in enumerate(text) if is_invisible(char) and not is_emoji_joiner(text, i)}
    return unseen | _stacked_positions(text)


def _stacked_positions(text: str) -> set[int]:
    found: set[int] = set()
    depth = 0
    for i, char in enumerate(text):
        depth = depth + 1 if not char.isascii() and unicodedata.category(char) in ("Mn", "Me") else 0
        if depth > MAX_STACKED_MARKS:
            found.add(i)
    return found


def suspect_positions(text: str, *, address: bool) -> set[int]:
    """Letters that pass for others: where two scripts meet in a word, or anywhere inside an address."""
    found = {i for i, char in enumerate(text) if not char.isascii() and is_styled_letter(char)}
    for match in _WORD.finditer(text):
        found |= _suspects_in_word(match.group(), match.start())
    for start, end in [(0, len(text))] if address else address_spans(text):
        found |= _suspects_in_address(text, start, end)
    return found


def address_spans(text: str) -> list[tuple[int, int]]:
    """Stretches that read as a host, a link or a mailbox."""
    return [m.span() for m in _TOKEN.finditer(text) if not _DOTS_AND_ATS.isdisjoint(m.group()[1:-1])]


def _suspects_in_word(word: str, start: int) -> set[int]:
    """Two scripts in one word: the fewer letters intrude, and only those that pass for the others."""
    if word.isascii():
        return set()
    twins = {start + i for i, char in enumerate(word) if ascii_lookalike(char, in_address=False)}
    if not twins:
        return set()
    latin = {start + i for i, char in enumerate(word) if char.isascii() and char.isalpha()}
    foreign = sum(1 for char in word if char.isalpha() and not _is_latin(char))
    if latin and len(latin) < foreign:
        return {i for i in latin if word[i - start] in _SHARED_SHAPES}
    return twins if any(char.isascii() for char in word) else set()


def _suspects_in_address(text: str, start: int, end: int) -> set[int]:
    """A label made of nothing but look-alikes deceives as well as one letter does; an honest one does not."""
    found = {i for i in range(start, end) if text[i] in FALSE_SIGNS}
    for label in _LABEL.finditer(text, start, end):
        foreign = [i for i in range(*label.span()) if not text[i].isascii()]
        twins = {i for i in foreign if ascii_lookalike(text[i], in_address=True)}
        if twins and not any(text[i].isalpha() and i not in twins for i in foreign):
            found |= twins
    return found


def _is_latin(char: str) -> bool:
    return char.isascii() or unicodedata.name(char, "").startswith("LATIN")
