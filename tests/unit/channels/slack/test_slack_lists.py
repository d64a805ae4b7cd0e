"""Threads, digests, forms, the home and the answers to one person."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from policy_service.channels.slack.drawing.answers import (
    link_offer,
    my_reviews,
    refusal,
    said,
    simulated,
    usage,
)
from policy_service.channels.slack.drawing.digest import DigestLine, digest
from policy_service.channels.slack.drawing.home import home
from policy_service.channels.slack.drawing.message import Drawn, Pointer
from policy_service.channels.slack.drawing.modals import approve_modal, ask_modal, deny_modal
from policy_service.channels.slack.drawing.thread import reply
from policy_service.workflow.reading.queue import Count, QueuePage, TabCounts
from policy_service.workflow.reading.reviews import EventLine
from tests.fakes import policies, reviews
from tests.fakes.blocks import buttons, nodes, refused, refused_view, values, words

POINTER = Pointer("card_01", "ab" * 32)
URL = "https://countersign.example/"
NOW = reviews.NOW


def checked(message: Drawn) -> str:
    assert refused(message.blocks) == []
    assert "<" not in message.text
    return words(message.blocks)


# -- threads ----------------------------------------------------------------------------------------------------------


def replied(line: EventLine, written: str | None) -> Drawn:
    return reply(line, written, review_id="rev_1", rev=3, outbox_id="o1", public_url=URL)


def test_a_reply_tells_what_happened_by_whom_which_way_and_when() -> None:
    line = EventLine(NOW, "vote_recorded", "Denied", "Maya Okafor", "slack", "9f3c1ab" + "0" * 33)
    told = replied(line, "Wrong <!channel> card\nsee 48811")
    assert replied(replace(line, text="<!here>"), None).text == "&lt;!here&gt;"
    assert checked(told).splitlines() == [
        "Denied: Maya Okafor, in Slack, rules at 9f3c1ab00000 · 19 Nov 2026, 14:26 UTC",
        "Wrong <!channel> card",
        "see 48811",
    ]
    assert told.blocks[0]["block_id"] == "cs/rev_1/3/o1"


def test_a_reply_without_words_has_none() -> None:
    told = replied(EventLine(NOW, "effect_expired", "Expired; nothing fired", ""), None)
    assert checked(told) == "Expired; nothing fired · 19 Nov 2026, 14:26 UTC"


def test_what_another_line_says_already_is_not_said_again() -> None:
    released = EventLine(NOW, "effect_released", "Released", "Maya Okafor")
    assert checked(replied(released, None)) == "Released · 19 Nov 2026, 14:26 UTC"
    asked = EventLine(NOW, "question_asked", "Asked the agent something in Slack", "Maya Okafor", "slack")
    assert checked(replied(asked, "which?")).splitlines() == [
        "Asked the agent something in Slack: Maya Okafor · 19 Nov 2026, 14:26 UTC",
        "which?",
    ]


def test_words_that_hide_something_show_it() -> None:
    assert "ok‹U+202E›" in checked(replied(EventLine(NOW, "k", "Commented", "A"), "ok\u202e no"))


def test_words_as_long_as_people_may_write_them_stand_there_whole() -> None:
    assert "x" * 4_000 in checked(replied(EventLine(NOW, "k", "Commented", "A"), "x" * 4_000))
    assert "Read all of it" in checked(replied(EventLine(NOW, "k", "Commented", "A"), "x" * 4_001))


# -- a digest ---------------------------------------------------------------------------------------------------------


def line_of(page: Any) -> DigestLine:
    return DigestLine(page.review_id, page.sentence, page.state, page.answer_by)


def digested(lines: list[DigestLine], more: int, **changes: Any) -> Drawn:
    asked: dict[str, Any] = {"digest_id": "dig_1", "outbox_id": "o1", "public_url": URL, "now": NOW}
    return digest(lines, more, **(asked | changes))


def test_a_digest_lists_reviews_each_with_its_link() -> None:
    message = digested([line_of(reviews.refund()), line_of(reviews.denied())], 30)
    told = checked(message)
    assert told.splitlines()[0] == "31 reviews wait here, listed together."
    assert "To be answered by 19 Nov 2026, 17:07 UTC · Open" in told
    assert "Denied · Open" in told
    assert "30 more stand on the web." in told
    assert message.blocks[0]["block_id"] == "cs/dig_1/0/o1"
    links = [node["url"] for node in nodes(message.blocks) if node.get("type") == "link"]
    assert links[0] == "https://countersign.example/reviews/rev_01KAHV6T3M"


def test_a_digest_has_no_buttons() -> None:
    assert buttons(digested([line_of(reviews.refund())], 0).blocks) == {}


def test_a_digest_in_which_nobody_is_asked_any_more_says_so() -> None:
    late = digested([line_of(reviews.refund())], 0, now=reviews.refund().answer_by)
    assert checked(late).startswith("Nobody is asked about these any more")
    assert "Time was up 19 Nov 2026, 17:07 UTC" in checked(late)


def test_what_does_not_fit_in_a_digest_is_counted() -> None:
    lines = [
        line_of(reviews.refund(f"rev_{i}", sentence=(reviews.value("x" * 300),) * 3)) for i in range(200)
    ]
    message = digested(lines, 5)
    shown = sum(node.get("text") == "Open" for node in nodes(message.blocks))
    assert 5 < shown <= 20
    assert f"{205 - shown} more stand on the web." in checked(message)


# -- forms ------------------------------------------------------------------------------------------------------------

FORMS = {"deny": deny_modal, "ask": ask_modal, "approve": approve_modal}


@pytest.mark.parametrize("kind", FORMS)
def test_a_form_carries_the_pointer_and_one_field(kind: str) -> None:
    view = FORMS[kind](reviews.refund(reason_required=True), POINTER)
    assert refused_view(view) == []
    assert (view["type"], view["callback_id"], view["private_metadata"]) == ("modal", kind, POINTER.value)
    [field] = [block for block in view["blocks"] if block["type"] == "input"]
    assert (field["block_id"], field["element"]["action_id"]) == ("reason", "words")
    assert (field["element"]["max_length"], field["element"]["multiline"], field["optional"]) == (
        3_000,
        True,
        False,
    )


def test_the_forms_say_what_they_do() -> None:
    page = reviews.refund(siblings=(), reason_required=True)
    denying, asking, approving = (form(page, POINTER) for form in FORMS.values())
    assert denying["submit"]["text"] == "Deny this effect"
    assert "One denial settles it. The agent and Jonas Lindqvist will read this." in words(denying)
    assert asking["submit"]["text"] == "Ask"
    assert approving["submit"]["text"] == "Countersign and release"
    assert "You sign: refund $1,240.00 USD to Dana Whitfield, card card_visa_4242, once." in words(approving)
    assert all("This cannot be undone." in words(form) for form in (denying, asking, approving))
    assert values(denying) == ["$1,240.00", "Dana Whitfield", "card_visa_4242"]


def test_a_sentence_of_too_many_parts_is_signed_by_its_digest() -> None:
    page = reviews.refund(sentence=(reviews.value("x"),) * 41)
    assert f"digest {page.effect_digest[:4]} {page.effect_digest[4:8]}, once." in words(
        approve_modal(page, POINTER)
    )


@pytest.mark.parametrize("kind", FORMS)
def test_a_form_about_a_long_effect_still_fits(kind: str) -> None:
    page = reviews.refund(sentence=(reviews.value("\U0001f600" * 5_000),) * 60, agent_owner="x" * 5_000)
    assert refused_view(FORMS[kind](page, POINTER)) == []


# -- the home ---------------------------------------------------------------------------------------------------------

ROWS = tuple(map(reviews.row_of, (reviews.refund(), reviews.hostile(), reviews.credit(1))))
QUEUE = QueuePage(ROWS, None, TabCounts(me=Count(7)))


def at_home(waiting: QueuePage | None, **changes: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "name": "Maya Okafor",
        "direct": False,
        "public_url": URL,
        "now": NOW,
    }
    view = home(waiting, **(asked | changes))
    assert refused_view(view) == []
    assert view["type"] == "home"
    return view


def test_a_home_lists_what_waits_and_how_many_more() -> None:
    told = words(at_home(QUEUE))
    assert "7 reviews wait for you" in told
    assert "Low risk · goodwill-desk · 0 of 1 signed · by 19 Nov 2026, 21:27 UTC · Open" in told
    assert "4 more stand on the web." in told
    assert "You are Maya Okafor here." in told


def test_a_home_with_nothing_says_so() -> None:
    assert "Nothing waits for you" in words(at_home(QueuePage(())))


def test_a_count_that_stops_at_its_cap_says_so() -> None:
    page = QueuePage(ROWS, "next", TabCounts(me=Count(1_000, capped=True)))
    told = words(at_home(page))
    assert "1,000+ reviews wait for you" in told
    assert "997+ more stand on the web." in told


def test_somebody_unknown_sees_the_way_to_link_and_nothing_else() -> None:
    view = at_home(None, name=None)
    assert buttons(view) == {}
    assert "Refund" not in words(view)
    assert "/countersign link" in words(view)


@pytest.mark.parametrize(("linked", "ways"), [(False, ["open"]), (True, ["open", "unlink"])])
def test_somebody_who_decides_nothing_here_sees_why_and_no_way_that_leads_nowhere(
    linked: bool, ways: list[str]
) -> None:
    why = "This Slack account is a guest's <!here>."
    view = at_home(None, name=None, why_not=why, linked=linked, slack_note=why)
    assert words(view).count(why) == 1
    assert list(buttons(view)) == ways
    assert "/countersign link" not in words(view)


@pytest.mark.parametrize(
    ("direct", "label", "value"),
    [(True, "Stop direct messages", "off"), (False, "Send me direct messages", "on")],
)
def test_direct_messages_are_switched_at_home(direct: bool, label: str, value: str) -> None:
    button = buttons(at_home(QUEUE, direct=direct))["direct"]
    assert (button["text"]["text"], button["value"]) == (label, value)


def test_what_is_wrong_with_slack_is_said_first() -> None:
    view = at_home(QUEUE, slack_note="Slack was away; 3 messages were late")
    assert words(view).startswith("Slack was away; 3 messages were late")


def test_a_row_that_cannot_be_read_is_told_as_one() -> None:
    broken = QueuePage((replace(ROWS[0], broken=True, sentence=()),))
    assert "This one cannot be read: Open" in words(at_home(broken))


# -- answers ----------------------------------------------------------------------------------------------------------


def test_a_refusal_says_why_in_its_own_words_and_where_to_go() -> None:
    message = refusal("nobody decides <!channel>: you are not in finance", url="https://c.example/x")
    assert checked(message).startswith("Nobody decides <!channel>: you are not in finance.")
    assert message.text == "Nobody decides &lt;!channel&gt;: you are not in finance."
    assert buttons(message.blocks)["open"]["url"] == "https://c.example/x"
    assert buttons(refusal("no", url=None).blocks) == {}


def test_the_answers_to_a_command() -> None:
    assert "7 reviews wait for you." in checked(my_reviews(QUEUE, public_url=URL))
    assert checked(my_reviews(QueuePage(()), public_url=URL)) == "Nothing waits for you."
    assert "works once, and for 10 minutes." in checked(link_offer("https://c.example/link", 10))
    assert "/countersign simulate <agent> <tool>" in checked(usage())
    assert checked(said("done <!here>")) == "Done <!here>."


@pytest.mark.parametrize(
    ("outcome", "words_"),
    [
        ("release", "It would be released"),
        ("review", "People would be asked."),
        ("deny", "It would be denied."),
    ],
)
def test_a_trial_says_what_would_be_decided_and_that_nothing_was(outcome: Any, words_: str) -> None:
    told = checked(simulated(policies.tried(outcome=outcome)))
    assert told.startswith(words_)
    assert "Nothing was recorded and nothing fires." in told


def test_a_trial_with_many_reasons_counts_the_rest() -> None:
    tried = policies.tried(reasons=tuple(f"r{i}" for i in range(9)), policies=policies.tried().policies * 8)
    told = checked(simulated(tried))
    assert "3 more reasons." in told
    assert "2 more policies." in told


def test_lists_of_long_rows_fit() -> None:
    long = reviews.refund(sentence=(reviews.value("\u202e" * 4_000),) * 30, agent="x" * 4_000)
    many = QueuePage(
        tuple(reviews.row_of(replace(long, answer_by=NOW + timedelta(days=i))) for i in range(60))
    )
    assert len(at_home(many)["blocks"]) <= 100
    checked(my_reviews(many, public_url=URL))
