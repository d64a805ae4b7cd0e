"""A message's name, its digest and its pointers; and the pen that writes it."""

from dataclasses import replace

import pytest
from slack_sdk.models.blocks import DividerBlock

from policy_service.channels.slack.blocks.block_kit import (
    Pointer,
    RenderedMessage,
    TextWriter,
    block_id,
    bold,
    escape_markup,
    our_text,
    quote,
    render_message,
    rich_text,
    section,
)
from policy_service.channels.slack.blocks.card import card
from policy_service.channels.slack.blocks.card_body import canonical_from_layout
from policy_service.queries.review_models import ReviewPage
from tests.fakes import reviews
from tests.fakes.blocks import words

POINTER = Pointer("card_01", "ab" * 32)


def carded(page: ReviewPage, outbox_id: str = "o1", pointer: Pointer = POINTER) -> RenderedMessage:
    return card(page, pointer=pointer, outbox_id=outbox_id, public_url="https://c.example", now=reviews.NOW)


def test_the_first_block_is_named_for_review_revision_and_outbox_row() -> None:
    assert carded(reviews.deploy()).blocks[0]["block_id"] == "cs/rev_01KAHX04QE/2/o1"
    assert not any("block_id" in block for block in carded(reviews.deploy()).blocks[1:])
    assert len(block_id("r" * 244, 1, "o" * 5)) == 255
    with pytest.raises(ValueError, match="255 characters at most, not 256"):
        block_id("r" * 245, 1, "o" * 5)


def test_equal_content_has_an_equal_digest_for_any_time_and_row() -> None:
    page, url = reviews.refund(), "https://c.example"
    assert carded(page, "o1").digest() == carded(page, "o2").digest()
    assert carded(page, "o1") != carded(page, "o2")
    early = card(page, pointer=POINTER, outbox_id="o", public_url=url, now=page.opened_at)
    assert early.digest() == carded(page).digest()


def test_other_content_has_another_digest() -> None:
    same = carded(reviews.refund())
    pages = (reviews.refund(rev=2), reviews.refund("rev_2"), reviews.refund(agent="other"))
    others = list(map(carded, pages))
    others += [carded(reviews.refund(), pointer=Pointer("card_02", "ab" * 32)), replace(same, text="other")]
    assert len({one.digest() for one in (same, *others)}) == 6


VIEW = "ab" * 32
NO_POINTERS = [None, 7, "", "card_01", *(f"{version}:card_01:{VIEW}" for version in ("cs2", " cs1", "cs1:"))]
NO_POINTERS += [f"cs1:card_01:{view}" for view in (VIEW[2:], VIEW.upper(), f"{VIEW}\n", f"{VIEW}:approve")]
NO_POINTERS += [f"cs1:{card}:{VIEW}" for card in ("", "card/01", "c" * 65, "c\u0430rd")]


def test_only_exact_pointers_are_parsed() -> None:
    assert Pointer.read(POINTER.value) == POINTER
    assert [value for value in NO_POINTERS if Pointer.read(value) is not None] == []


@pytest.mark.parametrize(("card", "view"), [("", "ab" * 32), ("a:b", "ab" * 32), ("a", ""), ("a", "x" * 64)])
def test_an_unparsable_pointer_is_not_created(card: str, view: str) -> None:
    with pytest.raises(ValueError, match="no pointer can be made"):
        Pointer(card, view)


def test_message_limits_are_counted_as_slack_counts() -> None:
    assert len(render_message("", [DividerBlock()] * 50).blocks) == 50
    with pytest.raises(ValueError, match="50 blocks at most, not 51"):
        render_message("", [DividerBlock()] * 51)
    with pytest.raises(ValueError, match="10,000 characters at most"):
        render_message("", [rich_text(section(our_text("x" * 10_000)))])
    sizes = {render_message("", [rich_text(section(our_text(text)))]).size for text in ("\U0001f600", "xx")}
    assert len(sizes) == 1


PENNED = {
    "plain": ("a & b <c>", "a & b <c>"),
    "exactly as long as its place": ("x" * 80, "x" * 80),
    "one more": ("x" * 81, "x" * 80 + "… (the first 80 of 81 characters)"),
    "hidden": ("a\u202eb", "a‹U+202E›b"),
    "a run": ("a" + "\u200b" * 12, "a‹12 × U+200B›"),
    "a line break": ("a\nb", "a‹U+000A›b"),
    "a look-alike": ("p\u0430y", "p\u0430‹U+0430›y"),
    "a hidden one at the end": ("x" * 79 + "\u202ey", "x" * 79 + "… (the first 79 of 81 characters)"),
    "never half an emoji": ("x" * 79 + "\U0001f600", "x" * 79 + "… (the first 79 of 80 characters)"),
    "nothing": ("", ""),
}


@pytest.mark.parametrize(("text", "shown"), PENNED.values(), ids=PENNED)
def test_a_cut_text_says_how_much_is_shown(text: str, shown: str) -> None:
    pen = TextWriter()
    assert pen.shown(text) == shown
    assert pen.cut is ("…" in shown)


def test_newlines_invisible_runs_and_empty_texts_are_escaped() -> None:
    assert TextWriter().shown("a\nb", block=True) == "a\nb"
    run = range(0xE0041, 0xE0041 + 15)
    assert TextWriter().shown("".join(map(chr, run)), 300) == "".join(f"‹U+{code:X}›" for code in run)
    assert words(rich_text(section(our_text(""))).to_dict()) == "(empty)"
    assert TextWriter().spoken((reviews.value(""),)) == "(empty)"
    assert escape_markup("<!channel> & <@U1>") == "&lt;!channel&gt; &amp; &lt;@U1&gt;"


NO_LAYOUT = ["", '  "a": 1', '{\n  "a": 1', '{\n"a": 1\n}', "{\n  1\n}", '{\n  "a: 1\n}']


@pytest.mark.parametrize("text", NO_LAYOUT)
def test_text_in_another_layout_has_no_canonical_bytes(text: str) -> None:
    assert canonical_from_layout(text, {}) is None


def test_removing_the_layout_gives_the_canonical_bytes() -> None:
    assert canonical_from_layout('{\n  "a": 1,\n  "b ": " : ,"\n}', {}) == b'{"a":1,"b ":" : ,"}'
    assert canonical_from_layout('{\n  "k": (hidden, 3 bytes)\n}', {"k": '"s"'}) == b'{"k":"s"}'
    assert canonical_from_layout('{\n  "k": (hidden, 3 bytes)\n}', {}) == b'{"k":(hidden, 3 bytes)}'


def test_paragraphs_that_follow_each_other_are_lines_of_one_section() -> None:
    first, second = section(our_text("a")), section(our_text("b"), bold("c"))
    output = rich_text(first, second, quote(our_text("d")), section(our_text("e"))).to_dict()
    kinds = [one["type"].removeprefix("rich_text_") for one in output["elements"]]
    assert kinds == ["section", "quote", "section"]
    assert [part["text"] for part in output["elements"][0]["elements"]] == ["a", "\n", "b", "c"]
