"""Letters that pass for other letters, and the characters nobody sees.

Pure tables and questions about single characters; `deceptions.py` asks them. The tables hold the letters of
the scripts that share shapes with Latin, not the whole of Unicode TS 39: what they miss is still shown
exactly as it was sent. They are written as code points, so that this file holds none of what it describes.
"""

import unicodedata


def _table(pairs: str) -> dict[str, str]:
    """`0430a` says: U+0430 looks like a."""
    return {chr(int(pair[:-1], 16)): pair[-1] for pair in pairs.split()}


# Letters of another script that look like an ASCII letter in common fonts.
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

# Latin letters with an ASCII twin belong to living languages, so they count only inside an address.
_LATIN_TWINS = _table("0131i 0251a 0269i 01C0l 217Cl 2170i 217Dc 217Ed 217Fm 2113l 1D0Fo A731s ")

# Signs that seem to part an address where nothing parts it.
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
    """`U+202E`."""
    return f"U+{ord(char):04X}"


def character_name(char: str) -> str:
    """The character's name in words: `right-to-left override`, `Cyrillic small letter a`."""
    if known := _CONTROL_NAMES.get(ord(char)):
        return known
    name = unicodedata.name(char, "")
    if not name:
        return {"Cc": "control character", "Co": "private use", "Cs": "lone surrogate"}.get(
            unicodedata.category(char), "unassigned"
        )
    return name.capitalize() if unicodedata.category(char).startswith(("L", "N")) else name.lower()


def is_bidi_control(char: str) -> bool:
    """True for the characters that reorder what is read."""
    return char in _BIDI


def is_unusual_space(char: str) -> bool:
    """A space that is not U+0020: shown, but common enough in honest text to raise no alarm."""
    return unicodedata.category(char) == "Zs" and char != " "


def is_invisible(char: str) -> bool:
    """True for what leaves no mark on a page (line breaks and tabs aside) or no meaning in a font."""
    if char in "\n\t ":
        return False
    category = unicodedata.category(char)
    selector = "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"
    return category[0] == "C" or category in ("Zl", "Zp", "Zs") or char in _BLANK or selector


def is_emoji_joiner(text: str, at: int) -> bool:
    """A single joiner or style selector inside an emoji, where it belongs and hides nothing."""
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
    """The ASCII character this one passes for, or None."""
    if char.isascii():
        return None
    if twin := LOOKS_LIKE.get(char):
        return twin
    if in_address and (twin := _LATIN_TWINS.get(char) or _FALSE_SIGNS.get(char)):
        return twin
    return _plain_form(char)


def _plain_form(char: str) -> str | None:
    """Styled letters and foreign digits: mathematical, fullwidth, Arabic-Indic: ASCII in disguise."""
    if unicodedata.category(char) == "Nd":
        return str(unicodedata.decimal(char))
    if not unicodedata.name(char, "").startswith(("MATHEMATICAL", "FULLWIDTH")):
        return None
    plain = unicodedata.normalize("NFKC", char)
    return plain if plain.isascii() and plain.isalnum() else None


def is_styled_letter(char: str) -> bool:
    """Mathematical letters are never anybody's handwriting: they are marked wherever they stand."""
    return unicodedata.name(char, "").startswith("MATHEMATICAL") and char.isalnum()
