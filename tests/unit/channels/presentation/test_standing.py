"""Signatures, outcomes, and the formatting of times."""

from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from countersign.contract import TaskKind
from policy_service.channels.admin.dev.output import print_task
from policy_service.channels.presentation import formatting, review_status
from policy_service.channels.presentation.formatting import question_text
from policy_service.channels.web.presenters.queue_rows import queue_groups
from policy_service.channels.web.presenters.review_page import change_notice, page_fingerprint
from policy_service.channels.web.rendering import cedar_tokens
from policy_service.channels.web.tasks import task_question
from policy_service.queries.queue import QueueFilter
from policy_service.queries.review_models import BreakGlassView, GateView, ReviewPage, RuleChange
from tests.fakes import reviews

NOW = reviews.NOW
DEPLOY = reviews.deploy()


def gate(groups: str, need: int = 1, **changes: Any) -> GateView:
    base = replace(reviews.refund().gates[0], could_sign=(), could_sign_more=0, barred=(), have=0)
    values = {"policy_id": groups + str(need), "groups": tuple(groups.split()), "quorum": need}
    return replace(base, **(values | changes))


def lines(*gates: GateView, **changes: Any) -> list[str]:
    status = review_status.quorum_status(reviews.refund(gates=gates, **changes))
    return [line.by for line in status.open_lines]


def test_a_missing_signature_names_possible_signers() -> None:
    assert lines(gate("finance")) == ["You, or anyone in finance"]
    assert lines(gate("finance cfo", 2)) == ["You, or anyone in finance or cfo", "Another person of these"]
    assert len(lines(gate("finance cfo"), gate("cfo finance", 2))) == 2, "the same groups are one question"
    assert lines(gate("finance"), gate("legal")) == ["You, or anyone in finance", "You, or anyone in legal"]
    assert lines(gate("cfo", also=("finance",))) == ["You, or anyone in cfo or finance"]
    [shared] = lines(gate("unseen", shared=True))
    assert shared.endswith("A signature for another gate counts here too")
    assert lines(gate("finance"), why_not="You are on the asking side.") == ["Anyone in finance"]
    two = ("Ann", "Bo")
    assert lines(gate("finance", could_sign=two)) == ["You, Ann or Bo"]
    assert lines(gate("finance", could_sign=two, could_sign_more=4)) == ["You, Ann, Bo and 4 more"]
    assert lines(gate("finance", could_sign_more=4)) == ["You, or anyone in finance"]
    barred = gate("finance", could_sign=("Ann",), barred=("Cy",))
    assert lines(barred) == ["You or Ann. Not Cy, who belongs to the requester"]


def test_only_votes_that_count_are_signatures() -> None:
    late = replace(DEPLOY, votes=(replace(DEPLOY.votes[0], counted=False),))
    assert [vote.person_name for vote in review_status.quorum_status(DEPLOY).signed] == ["Tomás Reyes"]
    assert review_status.quorum_status(late).signed == ()


def test_a_break_glass_release_is_not_shown_as_approved() -> None:
    opened = reviews.fired(effect_state="released", break_glass=BreakGlassView(opened_at=NOW))
    outcome = review_status.outcome_text(opened)
    assert (outcome.tone, outcome.tag) == ("why-bad", "Break-glass")
    assert "without approvals" in outcome.text
    assert review_status.short_outcome_text("met", "released", opened=True).tag == "Break-glass"
    assert review_status.short_outcome_text("met", "fired", opened=True).tag == "Fired"


APPROVED = {"fired": "Fired", "released": "Approved and released", "redeemed": "Redeemed, once"}
APPROVED |= {"unknown": "We do not know whether this fired", "unused": "Not used", "failed": "Failed"}
APPROVED |= {"compensated": "Undone", "compensation_failed": "It could not be undone"}
CLOSED = {"expired": "Expired", "withdrawn": "Withdrawn", "revoked": "Revoked", "paused": "Closed: paused"}
WAITS = reviews.fired(effect_state="released", siblings=reviews.refund().siblings)
OUTCOMES = [
    *((reviews.fired(effect_state=state), heading) for state, heading in APPROVED.items()),
    *((reviews.refund(state=state, effect_state=state), heading) for state, heading in CLOSED.items()),
    (reviews.denied(), "Denied"),
    (WAITS, "Approved; the transaction waits"),
    (reviews.refund(superseded_by=2, effect_state="withdrawn"), "Replaced by revision 2"),
]


@pytest.mark.parametrize(("page", "heading"), OUTCOMES)
def test_a_settled_review_shows_the_outcome_of_the_effect(page: ReviewPage, heading: str) -> None:
    assert review_status.outcome_text(page).heading == heading


@pytest.mark.parametrize("state", ["denied", "expired", "withdrawn", "revoked"])
def test_where_nothing_fired_the_page_says_so(state: str) -> None:
    assert "Nothing fired" in review_status.outcome_text(reviews.refund(state=state, effect_state=state)).text


def test_the_denial_that_settled_it_is_found() -> None:
    found = review_status.counted_denial(reviews.denied())
    assert found is not None and found.person_name == "Tomás Reyes"
    assert review_status.counted_denial(reviews.fired()) is None


RULES = RuleChange(NOW, "a" * 40, "b" * 40, "People are now asked by Legal looks at it")
RULED = reviews.deploy(rule_changes=(RULES,))
TALKED = reviews.talked()
ANSWERED = replace(TALKED.comments[2], answer="4711", answered_at=NOW)
UNASKED = replace(TALKED, gates=tuple(replace(gate, added=()) for gate in TALKED.gates))
SILENT = reviews.talked(comments=())
# What a page shows, what was shown when it was opened, and how what happened since begins.
SINCE = [
    (DEPLOY, None, "A vote came in: 1 of 2 now, load again"),
    (DEPLOY, DEPLOY, ""),
    (reviews.denied(), None, "Denied meanwhile, show it"),
    (reviews.refund(superseded_by=4), None, "Revision 4 replaced it, load again"),
    (RULED, DEPLOY, "The gates have changed, load again"),
    (RULED, RULED, ""),
    (TALKED, SILENT, "There is a new comment, load again"),
    (replace(TALKED, comments=(*TALKED.comments[:2], ANSWERED)), TALKED, "There is a new comment"),
    (TALKED, UNASKED, "It was escalated, load again"),
    (replace(TALKED, votes=reviews.fired().votes), SILENT, "A vote came in"),
]


@pytest.mark.parametrize(("page", "before", "expected"), SINCE)
def test_an_open_page_is_notified_of_changes(page: ReviewPage, before: Any, expected: str) -> None:
    since = change_notice(page, "" if before is None else page_fingerprint(before))
    assert since.startswith(expected) and bool(since) is bool(expected)


def test_what_is_signed_is_the_sentence_with_currency_codes() -> None:
    text = "".join(piece.text for piece in review_status.signed_sentence(reviews.refund()))
    assert text == "refund $1,240.00 USD to Dana Whitfield, card card_visa_4242"


SPANS = {"under 1 min": 59, "1 min": 60, "59 min": 3_599, "1 h": 3_600, "2 h 41 min": 9_660}
SPANS |= {"2 d": 172_800, "3 d 4 h": 274_140}


def test_a_duration_has_at_most_two_units() -> None:
    assert [formatting.span_words(timedelta(seconds=span)) for span in SPANS.values()] == list(SPANS)


def test_the_deadline_is_exclusive_and_the_ring_turns_red_15_minutes_before() -> None:
    moment, quarter = timedelta(microseconds=1), timedelta(minutes=15)
    left = (0 * moment, moment, quarter - moment, quarter)
    found = [formatting.deadline_of(NOW - timedelta(hours=1), NOW + one, NOW) for one in left]
    assert [one.over for one in found] == [True, False, False, False]
    assert [one.soon for one in found[1:]] == [True, True, False]


def test_a_clock_time_has_a_date_unless_it_is_today() -> None:
    moments = ["2026-11-19T17:07:00Z", "2026-11-20T09:00:00Z", "2027-01-02T09:00:00Z"]
    times = [formatting.clock_time(datetime.fromisoformat(moment), NOW) for moment in moments]
    assert times == ["17:07", "20 Nov, 09:00", "2 Jan 2027, 09:00"]


def test_a_digest_is_shortened_and_nothing_else_is() -> None:
    assert formatting.short_digest("7c1e09af4b52d8e0" + "0" * 44 + "31fa") == "7c1e 09af 4b52 d8e0 … 31fa"
    assert formatting.short_digest("rev_01KAHV6T3M") == "rev_01KAHV6T3M"


def test_rows_are_grouped_by_the_time_they_have() -> None:
    left = [timedelta(0), timedelta(minutes=60), timedelta(hours=2), timedelta(days=2)]
    rows = [reviews.row_of(reviews.refund(f"rev_{one}", answer_by=NOW + one)) for one in left]
    groups = [group.name for group in queue_groups(rows, NOW, QueueFilter())]
    assert groups == ["Time is up", "Within the hour", "Within a day", "Later"]


def test_cedar_highlighting_keeps_the_whole_text() -> None:
    text = reviews.REFUND_GATE + ' // in "comments" nothing is\n@doc("a \\" b")'
    pieces = list(cedar_tokens(text))
    assert "".join(piece for _, piece in pieces) == text
    found = [("k", "forbid"), ("a", "@approval"), ("s", '"finance"'), ("d", "5000"), ("s", '"a \\" b"')]
    assert {*found, ("c", '// in "comments" nothing is')} <= set(pieces)


URL = "http://127.0.0.1:1/tasks/task_1"


@pytest.mark.parametrize("of_compensation", [False, True])
@pytest.mark.parametrize("kind", TaskKind)
def test_every_task_kind_has_a_question_in_every_channel(
    kind: TaskKind, of_compensation: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = question_text(kind, of_compensation=of_compensation)
    task = SimpleNamespace(kind=kind.value, of_compensation=of_compensation)
    drawn = task_question(cast("Any", task))
    print_task("refund", kind, URL, of_compensation=of_compensation)
    said = "".join(capsys.readouterr())
    assert drawn.text == asked and len(drawn.tag.split()) <= 2
    assert f"refund: {asked[0].lower()}{asked[1:]}" in said
    assert f" settle it here: {URL}" in said
    assert "_" not in asked and "?;" not in said


@pytest.mark.parametrize("kind", [TaskKind.UNKNOWN, TaskKind.RESTORED])
def test_an_unknown_compensation_is_not_shown_as_an_unknown_effect(kind: TaskKind) -> None:
    texts = [question_text(kind, of_compensation=one) for one in (True, False)]
    assert ["undone" in text for text in texts] == [True, False]
    assert "fired" in question_text(TaskKind.STANDING, of_compensation=True)
