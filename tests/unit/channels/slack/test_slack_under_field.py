"""A refusal under a field of a form: as short as Slack wants it, and never cut in silence."""

from __future__ import annotations

import pytest

from policy_service.channels.slack.drawing.answers import MOST_UNDER_FIELD, under_field

READ_ON = " Open the review on the web."


def test_a_short_refusal_stands_whole_under_its_field() -> None:
    assert under_field("write why: whoever staged it reads it", elsewhere=False) == (
        "Write why: whoever staged it reads it."
    )
    assert under_field("sign in on the web", elsewhere=True) == f"Sign in on the web.{READ_ON}"
    assert under_field("x" * 149, elsewhere=False) == "X" + "x" * 148 + "."


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("text", ["word " * 40, "x" * 400, "a, " * 60, "word " * 25 + "x" * 60])
def test_a_long_refusal_is_shortened_at_a_word_and_says_where_the_rest_is(text: str, elsewhere: bool) -> None:
    told = under_field(text, elsewhere=elsewhere)
    assert len(told) <= MOST_UNDER_FIELD
    head = told.removesuffix(f"…{READ_ON}")
    assert head != told
    assert text.casefold().startswith(head.casefold())
    assert " " not in text or not text[len(head)].isalnum()
