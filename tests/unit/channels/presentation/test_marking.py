"""Marking of untrusted text: hidden and deceptive characters are visible to the reader."""

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_service.channels.presentation.marked_text import Marked, mark, plain_text
from policy_service.channels.web.rendering import shown
from tests.bench.hostile import TEXTS

CYRILLIC_A = "\u0430"


def hidden(marked: Marked) -> list[str]:
    return [span.code for span in marked.spans if span.kind == "hidden"]


def suspects(marked: Marked) -> str:
    return "".join(span.text for span in marked.spans if span.kind == "suspect")


def kinds(marked: Marked) -> list[str]:
    return [finding.kind for finding in marked.findings]


# Overrides, isolates, spaces and joiners without a width, separators, control and tag characters, variation selectors,
# fillers, what is private or unassigned, and a no-break space.
HIDDEN = "202E 2066 2069 200B 00AD FEFF 2028 001B 0000 E0041 FE0F E0101 3164 2800 034F E000 E0FFF 200D 00A0".split()


@pytest.mark.parametrize("code", HIDDEN)
def test_an_invisible_character_is_shown_as_its_code_point(code: str) -> None:
    assert hidden(mark(f"a{chr(int(code, 16))}b", block=True)) == [f"U+{code}"]


# The last are pointed Hebrew, emoji with joiners and variation selectors, and decomposed Vietnamese.
CALM = ["", "a < b and b > c", "Refund for Dana Whitfield", "Zoë café naïve Łódź", "kısa yazı"]
CALM += ["münchen.example", "Москва", "пример.рф", "5 μg and Δt", "東京 Tokyo ひらがな"]
CALM += ["مرحبا", "שָׁלוֹם", "👩\u200d💻 👨\u200d👩\u200d👧"]
CALM += ["❤\ufe0f", "1\ufe0f\u20e3", unicodedata.normalize("NFD", "Nguyễn Việt")]


@pytest.mark.parametrize("text", CALM)
def test_honest_text_has_no_findings(text: str) -> None:
    assert (mark(text, block=True).findings, suspects(mark(text, block=True))) == ((), "")


APPLE, BOLD = "\u0430\u0440\u0440\u04cf\u0435", "\U0001d40f\U0001d41a\U0001d432"
SUSPECT = {
    "one Cyrillic letter in a Latin word": (f"p{CYRILLIC_A}ypal", CYRILLIC_A),
    "one Latin letter in a Cyrillic word": ("Москвa", "a"),
    "a Greek letter in a Latin word": ("micr\u03bfsoft", "\u03bf"),
    "mathematical letters anywhere": (f"{BOLD} now", BOLD),
    "fullwidth letters among Latin ones": ("p\uff41ypal", "\uff41"),
    "digits of another script among ours": ("12\u0664", "\u0664"),
    "a label of nothing but look-alikes": (f"{APPLE}.com", APPLE),
    "a dotless i in an address": ("tw\u0131tter.example", "\u0131"),
    "a slash that is none, in an address": ("example.com\u2044login.evil.example", "\u2044"),
    "a full stop that is none": ("example\u2024com", "\u2024"),
}


@pytest.mark.parametrize(("text", "marked"), SUSPECT.values(), ids=SUSPECT)
def test_a_lookalike_letter_is_marked(text: str, marked: str) -> None:
    assert suspects(mark(text)) == marked
    assert "lookalike" in kinds(mark(text))


def test_a_deceptive_domain_is_shown_in_punycode() -> None:
    [finding] = mark(f"accounts@northwind-st{CYRILLIC_A}tements.example").findings
    assert finding.wire == "xn--northwind-sttements-1op.example"
    assert "U+0430 Cyrillic small letter a, not a" in finding.sentence


def test_a_link_with_user_info_is_reported() -> None:
    [finding] = mark("https://bank.example@evil.example/login").findings
    assert (finding.kind, finding.wire) == ("userinfo", "evil.example")


def test_a_recipient_is_read_as_an_address_even_without_a_dot() -> None:
    assert suspects(mark("\u0440\u0430\u0443", address=True)) == "\u0440\u0430\u0443"
    assert suspects(mark("\u0440\u0430\u0443")) == ""


PADDED = ["a\n\n\n\nb", "a\n  \n  \n  \nb", "a" + " " * 16 + "b"]


def test_padding_is_reported() -> None:
    assert [kinds(mark(text, block=True)) for text in PADDED] == [["padding"]] * 3
    short = ("a\n\n\nb", "a" + " " * 15 + "b", "a\n\n\n\n\n")
    assert [kinds(mark(text, block=True)) for text in short] == [[]] * 3


def test_a_run_of_the_same_hidden_character_is_counted() -> None:
    [span] = [span for span in mark("a" + "\n" * 64 + "b", block=True).spans if span.kind == "hidden"]
    assert (span.code, span.name, span.count) == ("U+000A", "line break", 64)


def test_in_one_line_every_space_a_page_would_fold_is_shown() -> None:
    found = [hidden(mark(text)) for text in ("amount ", " amount", "a\nb\tc", "a  b", "a b")]
    assert found == [["U+0020"], ["U+0020"], ["U+000A", "U+0009"], ["U+0020"], []]


def test_stacked_marks_are_counted_beyond_what_a_letter_carries() -> None:
    assert [kinds(mark("e" + "\u0301" * many)) for many in (4, 5)] == [[], ["stacked"]]


def test_markup_is_reported_and_shown_as_text() -> None:
    marked = mark("<img src=x onerror=alert(1)>")
    assert (kinds(marked), str(shown(marked))) == (["markup"], "&lt;img src=x onerror=alert(1)&gt;")


def test_a_long_run_of_different_hidden_characters_says_how_many_more() -> None:
    smuggled = "".join(chr(0xE0041 + i % 26) for i in range(40))
    assert [span.code for span in mark("x" + smuggled).spans[-2:]] == ["U+E0048", "+ 32"]
    assert len(hidden(mark("x" + smuggled, every=True))) == 40


def test_a_title_shows_hidden_characters_as_code_points() -> None:
    assert plain_text("pay \u202egpj.exe") == "pay [U+202E]gpj.exe"


# What no page may draw: the directions of text, and what has no width.
TAGS = ('<span class="hid" title="', '<span class="sus" title="', '">', "</span>", '<span class="sr')
UNDRAWN = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\u200e\u200f")


def assert_whole(text: str) -> None:
    """No character is lost, no angle bracket or quote survives, nothing invisible reaches the page."""
    for block, every in ((True, True), (True, False), (False, True), (False, False)):
        marked = mark(text, block=block, every=every)
        assert "".join(span.text for span in marked.spans) == text
        bare = str(shown(marked))
        for tag in TAGS:
            bare = bare.replace(tag, "")
        assert not set(bare) & set("<>\"'")
        drawn = "".join(span.text for span in marked.spans if span.kind != "hidden")
        assert not [char for char in drawn if unicodedata.category(char) == "Cc" and char not in "\n\t"]
        assert not set(drawn) & UNDRAWN


@given(st.text() | st.text(alphabet="a\u0430.@:/ \n\t\u200b\u200d\u202e\u0301<&\"'\U000e0041👩"))
def test_every_character_of_any_text_is_in_the_spans(text: str) -> None:
    assert_whole(text)


def test_the_big_list_of_naughty_strings_is_inert_and_whole() -> None:
    source = Path(__file__).parents[3] / "vectors/third_party/naughty/blns.json"
    strings = json.loads(source.read_text(encoding="utf-8"))
    assert len(strings) > 500
    for text in strings:
        assert_whole(text)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_all_admitted_text_is_marked_completely(text: str) -> None:
    # quadratic work even on a quarter ends at the limit every test has; how it grows is row H1 of the bench
    part = text[: len(text) // 4] + text[-1]
    assert "".join(span.text for span in mark(part, block=True).spans) == part
