"""The rows and the bytes of an effect say the same, or nobody can vote."""

from dataclasses import replace

import pytest

from policy_service.channels.showing.arguments import arg_views, canonical_bytes, folded, same_bytes
from policy_service.channels.web.drawing.views import warned
from policy_service.channels.web.rendering import shown
from policy_service.workflow.reading.pieces import NOT_IN_THE_SCHEMA, ArgRow
from policy_service.workflow.reading.reviews import ReviewPage
from tests.fakes import reviews


def text_of(page: ReviewPage) -> str:
    return "".join(
        f"<{stretch}>" if isinstance(stretch, int) else "".join(span.text for span in stretch.spans)
        for stretch in canonical_bytes(page).stretches
    )


@pytest.mark.parametrize("page", [reviews.refund(), reviews.deploy(), reviews.hostile(), reviews.fired()])
def test_rows_reproduce_the_canonical_bytes(page: ReviewPage) -> None:
    assert same_bytes(page)


def test_an_effect_without_arguments_is_the_empty_object() -> None:
    assert same_bytes(replace(reviews.refund(), args=(), canonical=b"{}"))


def test_names_are_ordered_by_utf_16_units_as_the_canonical_form_does() -> None:
    rows = (reviews.arg("\ufb33", 1, "integer"), reviews.arg("\U0001f600", 2, "integer"))
    data = '{"\U0001f600":2,"\ufb33":1}'.encode()
    assert same_bytes(replace(reviews.refund(), args=rows, canonical=data))


def tampered(page: ReviewPage, place: int, **changes: object) -> ReviewPage:
    rows = list(page.args)
    rows[place] = replace(rows[place], **changes)  # type: ignore[arg-type]
    return replace(page, args=tuple(rows))


BROKEN = {
    "a row is missing": lambda page: replace(page, args=page.args[1:]),
    "a row is shown twice": lambda page: replace(page, args=(*page.args, page.args[0])),
    "a value differs": lambda page: tampered(page, 1, value_json="124001", value_text="124001"),
    "the text shown is not the value": lambda page: tampered(page, 0, value_text="pay_other"),
    "a number is shown otherwise": lambda page: tampered(page, 1, value_text="1240.00"),
    "the bytes have one more member": lambda page: replace(page, canonical=page.canonical[:-1] + b',"z":1}'),
    "the bytes have a space": lambda page: replace(page, canonical=page.canonical.replace(b":", b": ", 1)),
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_rows_that_do_not_reproduce_the_bytes_are_noticed(change: object) -> None:
    assert not same_bytes(change(reviews.refund()))  # type: ignore[operator]


def test_a_secret_is_in_no_stretch_but_its_size_is() -> None:
    page = reviews.deploy()
    assert "s3cr3t" not in text_of(page)
    assert '"deploy_key":<19>,"image"' in text_of(page)
    assert canonical_bytes(page).size == len(page.canonical)


def test_a_secret_that_cannot_be_told_apart_takes_all_the_bytes_with_it() -> None:
    page = replace(
        reviews.deploy(),
        canonical=reviews.deploy().canonical.replace(b'"100"', b"1").replace(b"4.18", b"4.19"),
    )
    assert canonical_bytes(page).stretches == (len(page.canonical),)


FOLDS = {
    "320 bytes are shown": ("x" * 320, ""),
    "321 are folded": ("x" * 321, "Show all 321 bytes"),
    "bytes are counted, not characters": ("é" * 161, "Show all 322 bytes"),
    "six lines are shown": ("x\n" * 5 + "x", ""),
    "seven are folded": ("x\n" * 6 + "x", "First 5 of 7 lines. Show all 13 bytes"),
    "padding is counted where it stands": ("x" + "\n" * 64 + "y", ""),
}


@pytest.mark.parametrize(("text", "label"), FOLDS.values(), ids=FOLDS)
def test_a_long_value_is_folded_and_says_how_much_it_holds(text: str, label: str) -> None:
    value = folded(text)
    assert value.label == label
    assert "".join(span.text for span in value.whole.spans) == text
    assert (value.preview is None) == (label == "")


def test_a_finding_beyond_the_fold_is_still_told() -> None:
    row = reviews.arg("memo", "x" * 400 + "\u202e", "string")
    [view] = arg_views(replace(reviews.refund(), args=(row,)))
    assert [finding.kind for finding in view.findings] == ["hidden"]


def test_a_name_with_a_space_at_its_end_shows_it() -> None:
    [view] = arg_views(replace(reviews.refund(), args=(reviews.arg("amount ", 1, "integer"),)))
    assert "U+0020" in shown(view.name)


def test_a_secret_with_hidden_characters_tells_nothing_of_them() -> None:
    [view] = arg_views(
        replace(reviews.refund(), args=(reviews.arg("key", "a\u200bb", "string", secret=True),))
    )
    assert view.findings == ()


def said_of(*rows: ArgRow) -> dict[str, list[str]]:
    """What is said of each name."""
    views = arg_views(replace(reviews.refund(), args=rows))
    return {view.row.name: [finding.short for finding in view.of_names] for view in views}


LIKE = ["amount ", "Amount", "am\u200bount", "\u0430mount", "a_mount", "amount.", "ａmount"]


@pytest.mark.parametrize("other", LIKE)
def test_a_name_that_reads_like_another_is_told_at_both(other: str) -> None:
    rows = (
        reviews.arg("amount", 1, "integer"),
        reviews.arg(other, 9, "integer"),
        reviews.arg("to", "x", "string"),
    )
    assert said_of(*rows) == {"amount": ["a name like another"], other: ["a name like another"], "to": []}


def test_a_name_the_schema_does_not_know_is_told() -> None:
    rows = (reviews.arg("amount", 1, "integer"), reviews.arg("more", 9, NOT_IN_THE_SCHEMA))
    assert said_of(*rows) == {"amount": [], "more": ["not in the schema"]}


def test_of_a_tool_without_a_schema_no_name_is_told_apart() -> None:
    rows = (reviews.arg("amount", 1, NOT_IN_THE_SCHEMA), reviews.arg("to", 9, NOT_IN_THE_SCHEMA))
    assert said_of(*rows) == {"amount": [], "to": []}


def test_what_is_said_of_a_name_counts_among_the_warnings() -> None:
    rows = (reviews.arg("amount", 1, "integer"), reviews.arg("Amount", 9, "integer"))
    page = replace(reviews.refund(), args=rows)
    assert [warning.text for warning in warned(arg_views(page))] == ["a name like another"] * 2
