"""The context panel: differences of values, labels of outcomes, lengths of bars."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_service.channels.web.presenters.context_panel import (
    CELL_CHARS,
    Cell,
    approval_effect,
    compare_args,
    context_panel_view,
)
from policy_service.channels.web.presenters.review_page import timeline_line
from policy_service.channels.web.rendering import shown
from policy_service.queries.context_panel import ContextPanel, MeterLimit, MeterLine, Precedents
from policy_service.queries.review_models import EventLine, Sibling
from tests.fakes.reviews import NOW, arg, hostile, refund, usd


def text_of(cell: Cell | None) -> str:
    assert cell is not None
    return "".join(span.text for span in cell.text.spans)


def compared(then: Any, now: Any) -> Any:
    """The one row that differs."""
    (row,) = compare_args([then], [now]).rows
    return row


def names(marked: Any) -> list[str]:
    return ["".join(span.text for span in one.spans) for one in marked]


# -------------------------------------------------------------------------------------------------- the difference


def test_each_argument_is_changed_same_or_hidden() -> None:
    then = [arg("a", 1, ""), arg("b", "x", ""), arg("gone", True, ""), arg("key", "s", "", secret=True)]
    now = [arg("a", 1, ""), arg("b", "y", ""), arg("new", None, ""), arg("key", "s", "")]
    found = compare_args(then, now)
    sides = [(*names([row.name]), row.then is None, row.now is None) for row in found.rows]
    assert sides == [("b", False, False), ("new", True, False), ("gone", False, True)]
    assert (names(found.same), names(found.hidden)) == (["a"], ["key"])
    assert compared(arg("n", "1", ""), arg("n", 1, "")), "a text and a number that read alike"


@pytest.mark.parametrize("now", ["same", "other"])
def test_a_change_of_a_hidden_value_is_not_revealed(now: str) -> None:
    found = compare_args([arg("key", "same", "", secret=True)], [arg("key", now, "", secret=True)])
    assert (found.rows, found.same, names(found.hidden)) == ((), (), ["key"])


def test_a_long_value_is_cut_to_its_first_difference() -> None:
    row = compared(*(arg("b", "a" * 5_000 + word + "b" * 5_000, "") for word in ("cat", "dog")))
    assert "cat" in text_of(row.then) and "dog" in text_of(row.now)
    assert (row.now.cut_before, row.now.cut_after, row.now.size) == (True, True, 10_003)
    assert len(text_of(row.now)) == CELL_CHARS


def test_a_value_that_only_grew_shows_its_new_end() -> None:
    row = compared(arg("b", "a" * 400, ""), arg("b", "a" * 400 + "rm -rf /", ""))
    assert text_of(row.now).endswith("rm -rf /")


@given(st.text(max_size=400), st.text(max_size=400), st.integers(0, 400), st.text(max_size=400))
def test_a_difference_is_never_cut_away(before: str, one: str, many: int, other: str) -> None:
    """Where two values differ, the two cells differ even if cut, and a cut cell states the full length."""
    then, now = before + "a" * many + one, before + "a" * many + other
    if then == now:
        return
    row = compared(arg("x", then, ""), arg("x", now, ""))
    assert text_of(row.then) != text_of(row.now) or row.then.size != row.now.size
    for cell, whole in ((row.then, then), (row.now, now)):
        assert (cell.size > 0) == (len(whole) > CELL_CHARS)
        assert cell.cut_before or cell.cut_after or cell.size == 0


def test_both_sides_carry_the_marks_of_the_sheet() -> None:
    page = hostile()
    assert page.panel is not None and page.panel.last is not None
    rows: Any = {names([row.name])[0]: row for row in compare_args(page.panel.last.args, page.args).rows}
    old = rows["old \u200bname"]
    assert 'class="sus"' in shown(rows["from"].now.text)
    assert "U+202E" in shown(rows["subject"].then.text)
    assert "U+200B" in shown(old.name)
    assert "<script" not in shown(old.then.text)


def paid(cents: int, currency: str = "USD") -> Any:
    return arg("n", cents, "", money=replace(usd(cents), currency=currency))


NO_NOTES: list[tuple[Any, Any]] = [(100, 199), (100, 1), (0, 9), ("1", "200")]
NOTES = {
    "fourteen times": (paid(8_640), paid(124_000), "14 t"),
    **{f"from {then!r} to {now!r}": (arg("n", then, ""), arg("n", now, ""), "") for then, now in NO_NOTES},
    "another currency": (paid(1), paid(200, "JPY"), ""),
    "to another": (arg("n", "a", "", recipient=True), arg("n", "b", "", recipient=True), "another recipient"),
}


@pytest.mark.parametrize(("then", "now", "note"), NOTES.values(), ids=NOTES)
def test_a_changed_argument_has_a_note(then: Any, now: Any, note: str) -> None:
    text = compared(then, now).note
    assert text.startswith(note) and bool(text) == bool(note)


# ---------------------------------------------------------------------------------------------------------- meters


def bar(before: int, this: int | None, limit: int | None = 1_000) -> Any:
    cap = None if limit is None else MeterLimit(limit, "cap", "cap", asks=False)
    line = MeterLine("spent", "", "principal", "24h", None, before, this, None, cap)
    (found,) = context_panel_view(refund(panel=ContextPanel(meters=(line,))), 1, NOW).bars
    return found


def test_a_bar_is_what_was_held_then_this_then_what_is_left() -> None:
    found = bar(620, 248)
    assert (found.used_width, found.this_width) == (62.0, 24.8)
    assert found.label == "620 before, 248 for this effect, 132 left of 1,000"
    for before, this in ((900, 500), (5_000, 10), (0, 2**53)):
        found = bar(before, this)
        assert 0 <= found.used_width + found.this_width <= 100
        assert found.over and "over the limit of 1,000" in found.label
    for number, limit in ((10, None), (None, 1_000), (10, 0)):
        assert bar(10, number, limit).used_width is None, "without both numbers there is no bar"


# -------------------------------------------------------------------------------------- the past and the transaction


def counts(capped: bool = False, **states: int) -> str:
    past = Precedents(30, "Account", False, states, capped, ())
    return context_panel_view(refund(panel=ContextPanel(past=past)), 1, NOW).past_counts


def test_counts_are_a_sentence() -> None:
    text = counts(fired=9, compensated=1, denied=1, unknown=1)
    assert text == "12 like it in 30 days: 10 fired, 1 denied, 1 unknown"
    assert counts(True, denied=200) == "The newest 200 like it in 30 days: 200 denied"


def siblings(*states: str) -> tuple[Sibling, ...]:
    return tuple(Sibling(place, (), state) for place, state in enumerate(states, 2))


NOT_YET = "Approving this releases nothing yet: "
ALL_3 = "Approving this releases all 3 effects of its transaction together, if the policy still agrees."
WHOLE = {
    "alone": ("", 1, ""),
    "another signature": ("", 2, NOT_YET + "1 more signature is required."),
    "two more": ("review", 3, NOT_YET + "2 more signatures are required."),
    "a sibling waits": ("review released", 1, NOT_YET + "1 more of its transaction waits for people."),
    "the last": ("released released", 1, ALL_3),
}


@pytest.mark.parametrize(("states", "wanted", "text"), WHOLE.values(), ids=WHOLE)
def test_the_effect_of_an_approval_on_the_transaction_is_stated(states: str, wanted: int, text: str) -> None:
    page = refund(siblings=siblings(*states.split()))
    assert approval_effect(page, wanted) == text
    assert context_panel_view(page, wanted, NOW).releases == (wanted == 1 and "nothing yet" not in text)
    assert approval_effect(replace(page, state="met"), wanted) == "", "a settled review promises nothing"


# ---------------------------------------------------------------------------------------------- lines and the story


def test_a_timeline_line_shows_actor_channel_and_commit() -> None:
    event = EventLine(NOW, "decision_made", "Asked", "service", "web", "9f3c1ab" + "0" * 33, "a1")
    line = timeline_line(event, NOW)
    assert (line.more, line.anchor) == ("service, on the web, rules at 9f3c1ab00000", "log-a1")
    assert timeline_line(EventLine(NOW, "x", "y", ""), NOW).more == ""
