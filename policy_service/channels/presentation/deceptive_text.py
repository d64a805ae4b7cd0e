"""Positions of deceptive characters in a text.

Pure. Every scan is linear in the length: agents choose these strings, and pages must stay fast.
"""

import re
import unicodedata

from policy_service.queries.view_digest import PADDING


def _table(pairs: str) -> dict[str, str]:
    """`0430a` means: U+0430 looks like a."""
    return {chr(int(pair[:-1], 16)): pair[-1] for pair in pairs.split()}


# Letters of other scripts that look like an ASCII letter in common fonts.
LOOKS_LIKE = _table(
    # Cyrillic and Latin IPA
    "0430a 0441c 0435e 043Eo 0440p 0445x 0443y 0455s 0456i 0458j 04CFl 04BBh 0501d 051Bq 051Dw 0475v "
    "043Ak 0433r 0261g 0410A 0412B 0415E 0405S 0406I 0408J 041AK 041CM 041DH 041EO 0420P 0421C 0422T "
    "0423Y 0425X 04AEY 050CG 051AQ 051CW 0417Z 044Fr "
    # Greek
    "03BFo 03B1a 03BDv 03C1p 03C5u 03B9i 03BAk 03B7n 03C9w 03C7x 03B3y 03C4t 03F2c 03F3j 0391A 0392B "
    "0395E 0396Z 0397H 0399I 039AK 039CM 039DN 039FO 03A1P 03A4T 03A5Y 03A7X 03F9C "
    # Armenian
    "0585o 057Du 0570h 0578n 0566q 0581g 054DU 0555O 053CL "
    # Cherokee
    "13A0D 13A1R 13A2T 13AAA 13ABJ 13ACE 13B3W 13B7M 13BBH 13C0G 13C3Z 13DAS 13DFC 13E2P 13E6K 13DEL "
    "13F4B 13D9V "
    # Lisu
    "A4D0B A4D1P A4D2d A4D3D A4D4T A4D6G A4D7K A4D9J A4DAC A4DCZ A4DDF A4DFM A4E0N A4E1L A4E2S A4E3R "
    "A4E6V A4E7H A4EAW A4EBX A4ECY A4EEA A4F0E A4F2I A4F3O A4F4U "
)

# Latin letters of living languages that resemble ASCII letters: suspect only in addresses.
_LATIN_TWINS = _table("0131i 0251a 0269i 01C0l 217Cl 2170i 217Dc 217Ed 217Fm 2113l 1D0Fo A731s ")

# Characters that look like address separators and are none.
_FALSE_SIGNS = _table("2024. FF0E. 3002. 2044/ 2215/ FF0F/ 29F8/ FF1A: 2236: A789: FF20@ FE6B@ ")

FALSE_SIGNS = frozenset(_FALSE_SIGNS)

# Invisible although their general category says letter, mark or symbol.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
_JOINER, _EMOJI_STYLE = "\u200d", "\ufe0f"
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_CONTROL_NAMES = {
    0x00: "null", 0x07: "bell", 0x08: "backspace", 0x09: "tab", 0x0A: "line break", 0x0B: "vertical tab",
    0x0C: "form feed", 0x0D: "carriage return", 0x1B: "escape", 0x20: "space", 0x7F: "delete",
    0x85: "next line",
}  # fmt: skip


def code_point(char: str) -> str:
    """For example `U+202E`."""
    return f"U+{ord(char):04X}"


def character_name(char: str) -> str:
    """The character's name: `right-to-left override`, `Cyrillic small letter a`."""
    if known := _CONTROL_NAMES.get(ord(char)):
        return known
    name = unicodedata.name(char, "")
    if not name:
        return {"Cc": "control character", "Co": "private use", "Cs": "lone surrogate"}.get(
            unicodedata.category(char), "unassigned"
        )
    return name.capitalize() if unicodedata.category(char).startswith(("L", "N")) else name.lower()


def is_bidi_control(char: str) -> bool:
    """Whether the character reorders text."""
    return char in _BIDI


def is_unusual_space(char: str) -> bool:
    """A space other than U+0020: marked, but common in honest text and no finding."""
    return unicodedata.category(char) == "Zs" and char != " "


def is_invisible(char: str) -> bool:
    """Whether the character is invisible (line breaks and tabs aside) or has no assigned glyph."""
    if char in "\n\t ":
        return False
    category = unicodedata.category(char)
    selector = "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"
    return category[0] == "C" or category in ("Zl", "Zp", "Zs") or char in _BLANK or selector


def is_emoji_joiner(text: str, at: int) -> bool:
    """A joiner or style selector inside an emoji, where it hides nothing."""
    before = text[at - 1] if at else ""
    after = text[at + 1] if at + 1 < len(text) else ""
    if text[at] == _EMOJI_STYLE:
        return _is_pictograph(before) or (before in "0123456789#*" and before != "" and after == "\u20e3")
    if text[at] != _JOINER:
        return False
    base = text[at - 2] if before == _EMOJI_STYLE and at > 1 else before
    return _is_pictograph(base) and _is_pictograph(after)


def _is_pictograph(char: str) -> bool:
    if char == "":
        return False
    skin_tone = "\U0001f3fb" <= char <= "\U0001f3ff"
    return unicodedata.category(char) == "So" or skin_tone or char in "\u2194\u2195\u203c\u2049"


def ascii_lookalike(char: str, *, in_address: bool) -> str | None:
    """The ASCII character this one resembles, or None."""
    if char.isascii():
        return None
    if twin := LOOKS_LIKE.get(char):
        return twin
    if in_address and (twin := _LATIN_TWINS.get(char) or _FALSE_SIGNS.get(char)):
        return twin
    return _plain_form(char)


def _plain_form(char: str) -> str | None:
    """The ASCII form of styled letters and foreign digits (mathematical, fullwidth, Arabic-Indic)."""
    if unicodedata.category(char) == "Nd":
        return str(unicodedata.decimal(char))
    if not unicodedata.name(char, "").startswith(("MATHEMATICAL", "FULLWIDTH")):
        return None
    plain = unicodedata.normalize("NFKC", char)
    return plain if plain.isascii() and plain.isalnum() else None


def is_styled_letter(char: str) -> bool:
    """Mathematical letters are never ordinary text, so they are marked everywhere."""
    return unicodedata.name(char, "").startswith("MATHEMATICAL") and char.isalnum()


MAX_STACKED_MARKS = 4  # on one letter: Vietnamese needs 2, pointed Hebrew up to 4

_FOLDED_BY_A_PAGE = re.compile(r"[\t\n]+| {2,}")
_WORD = re.compile(r"[^\W_]+")
_TOKEN = re.compile(r"[^\s<>\"'()\[\]{},;|]+")
_DOTS_AND_ATS = frozenset(".@") | FALSE_SIGNS
_LABEL = re.compile(rf"[^@:/.?#&={''.join(map(re.escape, sorted(FALSE_SIGNS)))}]+")
_SHARED_SHAPES = frozenset(LOOKS_LIKE.values())


def gap_positions(text: str, *, block: bool, edges: bool) -> set[int]:
    """Whitespace that HTML would fold or that pushes text out of sight; with `edges` also at both ends."""
    patterns = [PADDING] if block else [PADDING, _FOLDED_BY_A_PAGE]
    found = {i for pattern in patterns for match in pattern.finditer(text) for i in range(*match.span())}
    if edges and not (block and "\n" in text):
        found |= set(range(len(text) - len(text.lstrip(" ")))) | set(range(len(text.rstrip(" ")), len(text)))
    return found


def hidden_positions(text: str) -> set[int]:
    """Invisible characters, and more combining marks than a letter can carry."""
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
    """Lookalike letters: where two scripts meet in a word, or anywhere in an address."""
    found = {i for i, char in enumerate(text) if not char.isascii() and is_styled_letter(char)}
    for match in _WORD.finditer(text):
        found |= _suspects_in_word(match.group(), match.start())
    for start, end in [(0, len(text))] if address else address_spans(text):
        found |= _suspects_in_address(text, start, end)
    return found


def address_spans(text: str) -> list[tuple[int, int]]:
    """Spans that look like a host, a link or a mailbox."""
    return [m.span() for m in _TOKEN.finditer(text) if not _DOTS_AND_ATS.isdisjoint(m.group()[1:-1])]


def _suspects_in_word(word: str, start: int) -> set[int]:
    """In a word of two scripts, the script with fewer letters is suspect, and only its lookalikes."""
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
    """A label made only of lookalikes is as deceptive as one letter; a label with other foreign letters is
    honest.
    """
    found = {i for i in range(start, end) if text[i] in FALSE_SIGNS}
    for label in _LABEL.finditer(text, start, end):
        foreign = [i for i in range(*label.span()) if not text[i].isascii()]
        twins = {i for i in foreign if ascii_lookalike(text[i], in_address=True)}
        if twins and not any(text[i].isalpha() and i not in twins for i in foreign):
            found |= twins
    return found


def _is_latin(char: str) -> bool:
    return char.isascii() or unicodedata.name(char, "").startswith("LATIN")
