"""Threads, digests, forms, the home and the answers to one person."""

from dataclasses import replace
from typing import Any

import pytest

from policy_service.channels.slack.blocks import views
from policy_service.channels.slack.blocks.block_kit import Pointer, RenderedMessage
from policy_service.channels.slack.blocks.card import DigestLine, digest, thread_reply
from policy_service.queries.queue import CappedCount, QueuePage, TabCounts
from policy_service.queries.review_models import EventLine, ReviewPage
from tests.fakes import policies, reviews
from tests.fakes.blocks import buttons, nodes, refused, refused_view, values, words

POINTER = Pointer("card_01", "ab" * 32)
URL = "https://countersign.example/"
NOW = reviews.NOW
REFUND = reviews.refund()


def checked(message: RenderedMessage) -> str:
    assert refused(message.blocks) == []
    assert "<" not in message.text
    return words(message.blocks)


# -- threads ----------------------------------------------------------------------------------------------------------


def replied(line: EventLine, written: str | None) -> RenderedMessage:
    return thread_reply(line, written, review_id="rev_1", rev=3, outbox_id="o1", public_url=URL)


def test_a_reply_names_event_actor_channel_and_time() -> None:
    line = EventLine(NOW, "vote_recorded", "Denied", "Maya Okafor", "slack", "9f3c1ab" + "0" * 33)
    output = replied(line, "Wrong <!channel> card\nsee 48811")
    assert replied(replace(line, text="<!here>"), None).text == "&lt;!here&gt;"
    assert checked(output).splitlines() == [
        "Denied: Maya Okafor, in Slack, rules at 9f3c1ab00000 · 19 Nov 2026, 14:26 UTC",
        "Wrong <!channel> card",
        "see 48811",
    ]
    assert output.blocks[0]["block_id"] == "cs/rev_1/3/o1"


def test_a_reply_says_nothing_twice() -> None:
    expired = EventLine(NOW, "effect_expired", "Expired; nothing fired", "")
    released = EventLine(NOW, "effect_released", "Released", "Maya Okafor")
    asked = EventLine(NOW, "question_asked", "Asked the agent something in Slack", "Maya Okafor", "slack")
    at = "· 19 Nov 2026, 14:26 UTC"
    assert checked(replied(expired, None)) == f"Expired; nothing fired {at}"
    assert checked(replied(released, None)) == f"Released {at}"
    text = f"Asked the agent something in Slack: Maya Okafor {at}\nwhich?"
    assert checked(replied(asked, "which?")) == text


def test_quoted_text_is_escaped_and_complete_up_to_the_limit() -> None:
    def wrote(text: str) -> str:
        return checked(replied(EventLine(NOW, "k", "Commented", "A"), text))

    assert "ok‹U+202E›" in wrote("ok\u202e no")
    assert "x" * 4_000 in wrote("x" * 4_000)
    assert "Read the full text" in wrote("x" * 4_001)


# -- a digest ---------------------------------------------------------------------------------------------------------


def digested(pages: list[ReviewPage], more: int, **changes: Any) -> RenderedMessage:
    asked: dict[str, Any] = {"digest_id": "dig_1", "outbox_id": "o1", "public_url": URL, "now": NOW}
    lines = [DigestLine(page.review_id, page.sentence, page.state, page.answer_by) for page in pages]
    return digest(lines, more, **(asked | changes))


def test_a_digest_lists_reviews_each_with_its_link_and_without_buttons() -> None:
    message = digested([REFUND, reviews.denied()], 30)
    output = checked(message)
    assert output.splitlines()[0] == "31 reviews wait here, listed together."
    lines = ("To be answered by 19 Nov 2026, 17:07 UTC · Open", "Denied · Open", "30 more are on the web.")
    assert [line for line in lines if line not in output] == []
    assert message.blocks[0]["block_id"] == "cs/dig_1/0/o1"
    links = [node["url"] for node in nodes(message.blocks) if node.get("type") == "link"]
    assert links[0] == "https://countersign.example/reviews/rev_01KAHV6T3M"
    assert buttons(message.blocks) == {}
    late = checked(digested([REFUND], 0, now=REFUND.answer_by))
    assert late.startswith("None of these is open any more")
    assert "Time was up 19 Nov 2026, 17:07 UTC" in late


def test_what_does_not_fit_in_a_digest_is_counted() -> None:
    pages = [reviews.refund(f"rev_{i}", sentence=(reviews.value("x" * 300),) * 3) for i in range(200)]
    message = digested(pages, 5)
    shown = sum(node.get("text") == "Open" for node in nodes(message.blocks))
    assert 5 < shown <= 20
    assert f"{205 - shown} more are on the web." in checked(message)


# -- forms ------------------------------------------------------------------------------------------------------------

FORMS = {"deny": views.deny_modal, "ask": views.ask_modal, "approve": views.approve_modal}
LONG = reviews.refund(sentence=(reviews.value("\U0001f600" * 5_000),) * 60, agent_owner="x" * 5_000)


@pytest.mark.parametrize("kind", FORMS)
def test_a_form_carries_the_pointer_and_one_field(kind: str) -> None:
    view = FORMS[kind](reviews.refund(reason_required=True), POINTER)
    assert refused_view(view) == refused_view(FORMS[kind](LONG, POINTER)) == []
    assert (view["type"], view["callback_id"], view["private_metadata"]) == ("modal", kind, POINTER.value)
    [field] = [block for block in view["blocks"] if block["type"] == "input"]
    element = field["element"]
    assert (field["block_id"], element["action_id"], field["optional"]) == ("reason", "words", False)
    assert (element["max_length"], element["multiline"]) == (3_000, True)


def test_the_forms_say_what_they_do() -> None:
    page = reviews.refund(siblings=(), reason_required=True)
    denying, asking, approving = (form(page, POINTER) for form in FORMS.values())
    submits = [form["submit"]["text"] for form in (denying, asking, approving)]
    assert submits == ["Deny this effect", "Ask", "Countersign and release"]
    assert "One denial settles it. The agent and Jonas Lindqvist will read this." in words(denying)
    assert "You sign: refund $1,240.00 USD to Dana Whitfield, card card_visa_4242, once." in words(approving)
    assert all("This cannot be undone." in words(form) for form in (denying, asking, approving))
    assert values(denying) == ["$1,240.00", "Dana Whitfield", "card_visa_4242"]
    parts = reviews.refund(sentence=(reviews.value("x"),) * 41)
    digest = f"digest {parts.effect_digest[:4]} {parts.effect_digest[4:8]}, once."
    assert digest in words(views.approve_modal(parts, POINTER))


# -- the home ---------------------------------------------------------------------------------------------------------

ROWS = tuple(map(reviews.row_of, (reviews.refund(), reviews.hostile(), reviews.credit(1))))
QUEUE = QueuePage(ROWS, None, TabCounts(me=CappedCount(7)))


def at_home(waiting: QueuePage | None, **changes: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {"name": "Maya Okafor", "direct": False, "public_url": URL, "now": NOW}
    view = views.home_view(waiting, **(asked | changes))
    assert (refused_view(view), view["type"]) == ([], "home")
    return view


CAPPED = QueuePage(ROWS, "next", TabCounts(me=CappedCount(1_000, capped=True)))
AT_HOME = [
    (QUEUE, "7 reviews wait for you"),
    (QUEUE, "Low risk · goodwill-desk · 0 of 1 signed · by 19 Nov 2026, 21:27 UTC · Open"),
    (QUEUE, "4 more are on the web."),
    (QUEUE, "You are Maya Okafor here."),
    (QueuePage(()), "Nothing waits for you"),
    (CAPPED, "1,000+ reviews wait for you"),
    (CAPPED, "997+ more are on the web."),
    (QueuePage((replace(ROWS[0], broken=True, sentence=()),)), "This one cannot be read: Open"),
]


def test_a_home_lists_what_waits_and_how_many_more() -> None:
    assert [output for page, output in AT_HOME if output not in words(at_home(page))] == []
    late = "Slack was away; 3 messages were late"
    assert words(at_home(QUEUE, slack_note=late)).startswith(late)
    direct = [buttons(at_home(QUEUE, direct=on))["direct"] for on in (True, False)]
    labels = [("Stop direct messages", "off"), ("Send me direct messages", "on")]
    assert [(one["text"]["text"], one["value"]) for one in direct] == labels


def test_an_unlinked_account_sees_only_how_to_link() -> None:
    view = at_home(None, name=None)
    assert buttons(view) == {}
    assert "Refund" not in words(view)
    assert "/countersign link" in words(view)


@pytest.mark.parametrize(("linked", "ways"), [(False, ["open"]), (True, ["open", "unlink"])])
def test_a_person_who_may_not_decide_sees_why_and_a_link(linked: bool, ways: list[str]) -> None:
    why = "This Slack account is a guest's <!here>."
    view = at_home(None, name=None, why_not=why, linked=linked, slack_note=why)
    assert (words(view).count(why), list(buttons(view))) == (1, ways)
    assert "/countersign link" not in words(view)


# -- answers ----------------------------------------------------------------------------------------------------------


def test_a_refusal_has_a_reason_and_a_link() -> None:
    message = views.refusal_message("not now <!channel>: you are not in finance", url="https://c.example/x")
    assert checked(message).startswith("Not now <!channel>: you are not in finance.")
    assert message.text == "Not now &lt;!channel&gt;: you are not in finance."
    assert buttons(message.blocks)["open"]["url"] == "https://c.example/x"
    assert buttons(views.refusal_message("no", url=None).blocks) == {}


def test_the_answers_to_a_command() -> None:
    assert "7 reviews wait for you." in checked(views.my_reviews_message(QUEUE, public_url=URL))
    assert checked(views.my_reviews_message(QueuePage(()), public_url=URL)) == "Nothing waits for you."
    assert "It works once, within 10 minutes." in checked(views.link_invitation("https://c.example/link", 10))
    assert "/countersign simulate <agent> <tool>" in checked(views.usage_message())
    assert checked(views.text_message("done <!here>")) == "Done <!here>."


TRIED = [("release", "It would be rel"), ("review", "It would require"), ("deny", "It would be den")]


@pytest.mark.parametrize(("outcome", "begins"), TRIED)
def test_simulate_shows_the_decision_and_that_nothing_was_recorded(outcome: Any, begins: str) -> None:
    output = checked(views.simulation_message(policies.tried(outcome=outcome)))
    assert output.startswith(begins)
    assert "Nothing was recorded and nothing fires." in output


def test_simulate_counts_further_reasons() -> None:
    tried = policies.tried(reasons=tuple(f"r{i}" for i in range(9)), policies=policies.tried().policies * 8)
    output = checked(views.simulation_message(tried))
    assert "3 more reasons." in output
    assert "2 more policies." in output


READ_ON = " Open the review on the web."


def test_a_short_refusal_is_complete_below_its_field() -> None:
    assert views.field_error("write why: they read it", elsewhere=False) == "Write why: they read it."
    assert views.field_error("sign in on the web", elsewhere=True) == f"Sign in on the web.{READ_ON}"
    assert views.field_error("x" * 149, elsewhere=False) == "X" + "x" * 148 + "."


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("text", ["word " * 40, "x" * 400, "a, " * 60, "word " * 25 + "x" * 60])
def test_a_long_refusal_is_cut_at_a_word_and_links_to_the_web(text: str, elsewhere: bool) -> None:
    output = views.field_error(text, elsewhere=elsewhere)
    assert len(output) <= views.MAX_FIELD_ERROR
    head = output.removesuffix(f"…{READ_ON}")
    assert head != output
    assert text.casefold().startswith(head.casefold())
    assert " " not in text or not text[len(head)].isalnum()
