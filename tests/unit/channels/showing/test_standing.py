"""The lines to sign on, what became of an effect, and how times are said."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from policy_service.channels.showing import wording
from policy_service.channels.showing.signing import signing
from policy_service.channels.showing.standing import denial, outcome, quorum, short_outcome
from policy_service.channels.web.drawing.cedar_text import stretches
from policy_service.channels.web.drawing.queue_views import queue_groups
from policy_service.channels.web.drawing.views import as_shown, changed_since
from policy_service.workflow.reading.queue import Wanted
from policy_service.workflow.reading.reviews import BreakGlassView, GateView, ReviewPage, RuleChange
from tests.fakes import reviews

NOW = reviews.NOW


def gate(groups: tuple[str, ...], need: int = 1, have: int = 0, *, shared: bool = False) -> GateView:
    base = reviews.refund().gates[0]
    nobody: dict[str, Any] = {"could_sign": (), "could_sign_more": 0, "barred": ()}
    name = "-".join(groups) + str(need)
    return replace(base, policy_id=name, groups=groups, quorum=need, have=have, shared=shared, **nobody)


def lines(*gates: GateView) -> list[str]:
    return [line.by for line in quorum(reviews.refund(gates=gates)).open_lines]


def test_an_open_line_names_who_may_sign_it() -> None:
    assert lines(gate(("finance",))) == ["You, or anyone in finance"]
    assert lines(gate(("finance", "cfo"), 2)) == [
        "You, or anyone in finance or cfo",
        "Another person of these",
    ]


def test_gates_that_ask_the_same_groups_are_one_question() -> None:
    assert len(lines(gate(("finance", "cfo"), 1), gate(("cfo", "finance"), 2))) == 2


def test_gates_of_other_groups_have_lines_of_their_own() -> None:
    assert lines(gate(("finance",)), gate(("legal",))) == [
        "You, or anyone in finance",
        "You, or anyone in legal",
    ]


def test_an_open_line_names_the_groups_of_the_gate_that_another_vote_can_move_from() -> None:
    moved = replace(gate(("cfo",)), also=("finance",))
    assert lines(moved) == ["You, or anyone in cfo or finance"]


def test_a_shared_gate_says_that_other_signatures_count() -> None:
    [line] = lines(gate(("unseen",), shared=True))
    assert line.endswith("A signature on another line counts here too")


def test_somebody_who_may_not_vote_is_not_invited() -> None:
    page = reviews.refund(why_not="You are on the asking side.", gates=(gate(("finance",)),))
    assert [line.by for line in quorum(page).open_lines] == ["Anyone in finance"]


def test_only_votes_that_count_are_signatures() -> None:
    page = reviews.deploy()
    late = replace(page, votes=(replace(page.votes[0], counted=False),))
    assert [vote.person_name for vote in quorum(page).signed] == ["Tomás Reyes"]
    assert quorum(late).signed == ()


def test_what_nobody_approved_is_not_told_as_approved() -> None:
    opened = BreakGlassView(opened_at=NOW)
    told = outcome(reviews.fired(effect_state="released", break_glass=opened))
    assert (told.heading, told.tone, told.tag) == ("Opened in an emergency", "why-bad", "Break-glass")
    assert "Nobody's approval" in told.text
    assert short_outcome("met", "released", opened=True).tag == "Break-glass"
    assert short_outcome("met", "fired", opened=True).tag == "Fired"


OUTCOMES = {
    "fired": (reviews.fired(), "Fired"),
    "denied": (reviews.denied(), "Denied"),
    "released": (reviews.fired(effect_state="released"), "Approved and released"),
    "waiting for its siblings": (
        reviews.fired(effect_state="released", siblings=reviews.refund().siblings),
        "Approved; the transaction waits",
    ),
    "redeemed": (reviews.fired(effect_state="redeemed"), "Redeemed, once"),
    "unknown": (reviews.fired(effect_state="unknown"), "We do not know whether this fired"),
    "unused": (reviews.fired(effect_state="unused"), "Not used"),
    "failed": (reviews.fired(effect_state="failed"), "Failed"),
    "compensated": (reviews.fired(effect_state="compensated"), "Undone"),
    "not to be undone": (reviews.fired(effect_state="compensation_failed"), "It could not be undone"),
    "expired": (reviews.refund(state="expired", effect_state="expired"), "Expired"),
    "withdrawn": (reviews.refund(state="withdrawn", effect_state="withdrawn"), "Withdrawn"),
    "revoked": (reviews.refund(state="revoked", effect_state="revoked"), "Revoked"),
    "replaced": (reviews.refund(superseded_by=2, effect_state="withdrawn"), "Replaced by revision 2"),
    "a state of a later version": (reviews.refund(state="paused", effect_state="paused"), "Closed: paused"),
}


@pytest.mark.parametrize(("page", "heading"), OUTCOMES.values(), ids=OUTCOMES)
def test_a_settled_review_says_what_became_of_the_effect(page: ReviewPage, heading: str) -> None:
    assert outcome(page).heading == heading


@pytest.mark.parametrize("state", ["denied", "expired", "withdrawn", "revoked"])
def test_where_nothing_fired_the_page_says_so(state: str) -> None:
    assert "Nothing fired" in outcome(reviews.refund(state=state, effect_state=state)).text


def test_the_denial_that_settled_it_is_found() -> None:
    found = denial(reviews.denied())
    assert found is not None
    assert found.person_name == "Tomás Reyes"
    assert denial(reviews.fired()) is None


def test_a_page_is_told_what_happened_since_it_was_opened() -> None:
    assert changed_since(reviews.deploy(), "") == "A vote came in: 1 of 2 now, load again"
    assert changed_since(reviews.denied(), "") == "Denied while you read, show it"
    assert changed_since(reviews.refund(superseded_by=4), "") == "Replaced by revision 4, load again"
    assert changed_since(reviews.deploy(), as_shown(reviews.deploy())) == ""


def test_a_page_is_told_that_the_rules_ask_something_else() -> None:
    change = RuleChange(reviews.NOW, "a" * 40, "b" * 40, "People are now asked by Legal looks at it")
    page = reviews.deploy(rule_changes=(change,))
    told = "The rules changed what they ask here, load again"
    assert changed_since(page, as_shown(reviews.deploy())) == told
    assert changed_since(page, as_shown(page)) == ""


def test_a_page_is_told_that_somebody_wrote_or_that_more_people_are_asked() -> None:
    silent, page = reviews.talked(comments=()), reviews.talked()
    answered = replace(page.comments[2], answer="4711", answered_at=reviews.NOW)
    wrote, more = "Somebody wrote here, load again", "More people are asked now, load again"
    assert changed_since(page, as_shown(silent)) == wrote
    assert changed_since(replace(page, comments=(*page.comments[:2], answered)), as_shown(page)) == wrote
    plain = tuple(replace(gate, added=()) for gate in page.gates)
    assert changed_since(page, as_shown(replace(page, gates=plain))) == more
    voted = replace(page, votes=reviews.fired().votes)
    assert changed_since(voted, as_shown(silent)).startswith("A vote came in")


def test_what_is_signed_is_the_sentence_with_currency_codes() -> None:
    text = "".join(piece.text for piece in signing(reviews.refund()))
    assert text == "refund $1,240.00 USD to Dana Whitfield, card card_visa_4242"


SPANS = {
    "under a minute": (timedelta(seconds=59), "under 1 min"),
    "a minute": (timedelta(seconds=60), "1 min"),
    "rounded down": (timedelta(minutes=59, seconds=59), "59 min"),
    "a whole hour": (timedelta(hours=1), "1 h"),
    "hours": (timedelta(hours=2, minutes=41), "2 h 41 min"),
    "days": (timedelta(days=3, hours=4, minutes=9), "3 d 4 h"),
    "whole days": (timedelta(days=2), "2 d"),
}


@pytest.mark.parametrize(("span", "words"), SPANS.values(), ids=SPANS)
def test_a_span_is_said_in_two_units_at_most(span: timedelta, words: str) -> None:
    assert wording.span_words(span) == words


def test_the_answer_time_itself_is_too_late() -> None:
    opened = NOW - timedelta(hours=4)
    assert wording.due(opened, NOW, NOW).over
    assert not wording.due(opened, NOW + timedelta(microseconds=1), NOW).over


def test_the_ring_turns_red_below_a_quarter_of_an_hour() -> None:
    opened = NOW - timedelta(hours=1)
    assert not wording.due(opened, NOW + timedelta(minutes=15), NOW).soon
    assert wording.due(opened, NOW + timedelta(minutes=14, seconds=59), NOW).soon


def test_a_clock_time_names_its_day_when_it_is_not_today() -> None:
    assert wording.clock(datetime(2026, 11, 19, 17, 7, tzinfo=UTC), NOW) == "17:07"
    assert wording.clock(datetime(2026, 11, 20, 9, 0, tzinfo=UTC), NOW) == "20 Nov, 09:00"
    assert wording.clock(datetime(2027, 1, 2, 9, 0, tzinfo=UTC), NOW) == "2 Jan 2027, 09:00"


def test_a_digest_is_shortened_and_nothing_else_is() -> None:
    assert wording.short_digest("7c1e09af4b52d8e0" + "0" * 44 + "31fa") == "7c1e 09af 4b52 d8e0 … 31fa"
    assert wording.short_digest("rev_01KAHV6T3M") == "rev_01KAHV6T3M"


def test_rows_are_grouped_by_the_time_they_have() -> None:
    rows = [
        reviews.row_of(reviews.refund(f"rev_{i}", answer_by=NOW + left))
        for i, left in enumerate((timedelta(0), timedelta(minutes=60), timedelta(hours=2), timedelta(days=2)))
    ]
    assert [group.name for group in queue_groups(rows, NOW, Wanted())] == [
        "Time is up",
        "Within the hour",
        "Within a day",
        "Later",
    ]


def test_cedar_text_is_whole_and_its_words_are_told_apart() -> None:
    text = reviews.REFUND_GATE + ' // in "comments" nothing is\n@doc("a \\" b")'
    pieces = list(stretches(text))
    assert "".join(piece for _, piece in pieces) == text
    assert ("k", "forbid") in pieces
    assert ("a", "@approval") in pieces
    assert ("s", '"finance"') in pieces
    assert ("d", "5000") in pieces
    assert ("c", '// in "comments" nothing is') in pieces
    assert ("s", '"a \\" b"') in pieces
