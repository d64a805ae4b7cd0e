"""The rows and the bytes of an effect must agree, or voting is disabled."""

from dataclasses import replace

import pytest

from policy_service.channels.presentation.arguments import arg_views, canonical_view, fold, matches_canonical
from policy_service.channels.web.presenters.review_page import argument_warnings
from policy_service.channels.web.rendering import shown
from policy_service.queries.effects import NOT_IN_THE_SCHEMA, ArgRow
from policy_service.queries.review_models import ReviewPage
from tests.fakes import reviews
from tests.fakes.reviews import arg

REFUND, DEPLOY = reviews.refund(), reviews.deploy()
AMOUNT = arg("amount", 1, "integer")


def text_of(page: ReviewPage) -> str:
    return "".join(
        f"<{stretch}>" if isinstance(stretch, int) else "".join(span.text for span in stretch.spans)
        for stretch in canonical_view(page).stretches
    )


@pytest.mark.parametrize("page", [REFUND, DEPLOY, reviews.hostile(), reviews.fired()])
def test_rows_reproduce_the_canonical_bytes(page: ReviewPage) -> None:
    assert matches_canonical(page)
    assert matches_canonical(replace(page, args=(), canonical=b"{}"))


def test_names_are_ordered_by_utf_16_units_as_the_canonical_form_does() -> None:
    rows = (arg("\ufb33", 1, "integer"), arg("\U0001f600", 2, "integer"))
    assert matches_canonical(replace(REFUND, args=rows, canonical='{"\U0001f600":2,"\ufb33":1}'.encode()))


def tampered(place: int, **changes: object) -> ReviewPage:
    rows = list(REFUND.args)
    rows[place] = replace(rows[place], **changes)  # type: ignore[arg-type]
    return replace(REFUND, args=tuple(rows))


BROKEN = {
    "a row is missing": replace(REFUND, args=REFUND.args[1:]),
    "a row is shown twice": replace(REFUND, args=(*REFUND.args, REFUND.args[0])),
    "a value differs": tampered(1, value_json="124001", value_text="124001"),
    "the text shown is not the value": tampered(0, value_text="pay_other"),
    "a number is shown otherwise": tampered(1, value_text="1240.00"),
    "the bytes have one more member": replace(REFUND, canonical=REFUND.canonical[:-1] + b',"z":1}'),
    "the bytes have a space": replace(REFUND, canonical=REFUND.canonical.replace(b":", b": ", 1)),
}


@pytest.mark.parametrize("page", BROKEN.values(), ids=BROKEN)
def test_rows_that_do_not_reproduce_the_bytes_are_noticed(page: ReviewPage) -> None:
    assert not matches_canonical(page)


def test_bytes_show_the_size_of_a_secret_and_not_its_value() -> None:
    assert "s3cr3t" not in text_of(DEPLOY)
    assert '"deploy_key":<19>,"image"' in text_of(DEPLOY)
    assert canonical_view(DEPLOY).size == len(DEPLOY.canonical)


def test_no_bytes_are_shown_if_a_secret_cannot_be_located() -> None:
    page = replace(DEPLOY, canonical=DEPLOY.canonical.replace(b'"100"', b"1").replace(b"4.18", b"4.19"))
    assert canonical_view(page).stretches == (len(page.canonical),)


FOLDS = [
    *((text, "") for text in ("x" * 320, "x\n" * 5 + "x", "x" + "\n" * 64 + "y")),
    *(("x" * 321, "Show all 321 bytes"), ("é" * 161, "Show all 322 bytes")),
    ("x\n" * 6 + "x", "First 5 of 7 lines. Show all 13 bytes"),
]


@pytest.mark.parametrize(("text", "label"), FOLDS)
def test_a_long_value_is_folded_with_its_size(text: str, label: str) -> None:
    value = fold(text)
    assert value.label == label
    assert "".join(span.text for span in value.whole.spans) == text
    assert (value.preview is None) == (label == "")


def test_a_finding_in_folded_text_is_reported() -> None:
    [view] = arg_views(replace(REFUND, args=(arg("memo", "x" * 400 + "\u202e", "string"),)))
    assert [finding.kind for finding in view.findings] == ["hidden"]


def test_a_name_with_a_space_at_its_end_shows_it() -> None:
    [view] = arg_views(replace(REFUND, args=(arg("amount ", 1, "integer"),)))
    assert "U+0020" in shown(view.name)


def test_a_secret_with_hidden_characters_has_no_findings() -> None:
    [view] = arg_views(replace(REFUND, args=(arg("key", "a\u200bb", "string", secret=True),)))
    assert view.findings == ()


def said_of(*rows: ArgRow) -> dict[str, list[str]]:
    """What is said of each name."""
    views = arg_views(replace(REFUND, args=rows))
    return {view.row.name: [finding.short for finding in view.of_names] for view in views}


SIMILAR = ["amount ", "Amount", "am\u200bount", "\u0430mount", "a_mount", "amount.", "ａmount"]


@pytest.mark.parametrize("other", SIMILAR)
def test_similar_names_are_both_reported(other: str) -> None:
    said = said_of(AMOUNT, arg(other, 9, "integer"), arg("to", "x", "string"))
    assert said == {"amount": ["a name similar to another"], other: ["a name similar to another"], "to": []}


def test_a_name_missing_in_the_schema_is_reported() -> None:
    """Unless the tool has no schema, which knows none of them."""
    unknown = arg("more", 9, NOT_IN_THE_SCHEMA)
    assert said_of(AMOUNT, unknown) == {"amount": [], "more": ["not in the schema"]}
    assert said_of(arg("amount", 1, NOT_IN_THE_SCHEMA), unknown) == {"amount": [], "more": []}


def test_name_findings_count_as_warnings() -> None:
    page = replace(REFUND, args=(AMOUNT, arg("Amount", 9, "integer")))
    assert [one.text for one in argument_warnings(arg_views(page))] == ["a name similar to another"] * 2
