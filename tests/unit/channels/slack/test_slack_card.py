"""The card of a review: its content, when it has buttons, and why it has none."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from policy_service.channels.slack.blocks.block_kit import Pointer, RenderedMessage
from policy_service.channels.slack.blocks.buttons import MAX_LABEL, decision_buttons
from policy_service.channels.slack.blocks.card import card, minimal_card, no_buttons_reason
from policy_service.channels.slack.blocks.card_body import MAX_ARGS_CHARACTERS, MAX_ARGS_LINES, lay_out_args
from policy_service.channels.slack.blocks.people import MAX_GATES
from policy_service.queries import review_models as reading
from policy_service.queries.effects import NOT_IN_THE_SCHEMA, ArgRow, Money, Piece
from policy_service.queries.review_models import BreakGlassView, ReviewPage, RuleChange, VoteLine
from tests.fakes import reviews
from tests.fakes.blocks import buttons, code, kinds, refused, values, words

POINTER = Pointer("card_01", "ab" * 32)
URL = "https://countersign.example"
NOW = reviews.NOW
REFUND, DEPLOY = reviews.refund(), reviews.deploy()
(GATE,) = REFUND.gates


def drawn(page: ReviewPage, **changes: Any) -> RenderedMessage:
    asked: dict[str, Any] = {"pointer": POINTER, "outbox_id": "out_1", "public_url": URL, "now": NOW}
    message = card(page, **(asked | changes))
    assert refused(message.blocks) == []
    return message


def text(page: ReviewPage) -> str:
    return words(drawn(page).blocks)


def approving(page: ReviewPage) -> Any:
    """The button that approves."""
    return buttons(drawn(page).blocks)["approve"]


def voted(name: str, verdict: str = "approve", *, after_min: int = 0, counted: bool = True) -> VoteLine:
    words = "fire" if verdict == "break_glass" else ""
    return VoteLine(name, verdict, words, NOW + timedelta(minutes=after_min), counted, "oidc")


def test_our_words_are_plain_and_values_are_bold() -> None:
    first = drawn(REFUND).blocks[0]
    assert words(first).splitlines()[0] == "Refund $1,240.00 to Dana Whitfield, card card_visa_4242."
    assert values(first) == ["$1,240.00", "Dana Whitfield", "card_visa_4242"]
    assert "This cannot be undone." in words(first)


def test_the_arguments_are_the_json_a_member_a_line() -> None:
    args = reviews.arg("b", {"y": [1, "é\n"]}, "object"), reviews.arg("a", 1, "integer")
    assert code(drawn(reviews.with_args(REFUND, *args)).blocks) == '{\n  "a": 1,\n  "b": {"y":[1,"é\\n"]}\n}'
    empty = drawn(replace(REFUND, args=(), canonical=b"{}")).blocks
    assert code(empty) == "{}" and "approve" in buttons(empty)


def test_a_secret_is_its_size() -> None:
    message = drawn(DEPLOY)
    assert '"deploy_key": (hidden, 17 bytes),' in code(message.blocks) and "s3cr3t" not in str(message)
    assert "approve" in buttons(message.blocks)


SIGNED = BreakGlassView((voted("Wen Li", "break_glass"),))
OPENED = reviews.fired(effect_state="released", break_glass=replace(SIGNED, opened_at=NOW))
NOT_COUNTED = reviews.refund(votes=(voted("Wen Li", counted=False),))
ASKED_TWO = replace(GATE, quorum=2, step_up="passkey")
SECOND = replace(ASKED_TWO, policy_id="second", title="Second", own_quorum=2, own_step_up="passkey")
TWO_GATES = reviews.refund(gates=(ASKED_TWO, SECOND))
OF_LEGAL = reviews.refund(gates=(GATE, replace(SECOND, groups=("legal",), own_step_up=None)))
BEFORE = reviews.refund(
    denied_before=(reading.RecentDenial("rev_0", NOW, "Ingrid Vik", "Voucher <!here>", ("amount_cents",)),),
    rule_changes=(RuleChange(NOW, "a" * 40, "b" * 40, "Asks finance now"),),
    since_staged=(reading.ArgChange("amount_cents", "1", "2"),),
    unanswerable="finance is empty",
)
OUTPUT = [
    (DEPLOY, "1 of 2 approvals by release-captains or sre-oncall: Tomás Reyes."),
    (DEPLOY, "Ingrid Vik, Anna Berg, Sven Öst, Wen Li, Amara Obi, José Díaz and 4 more could sign."),
    (DEPLOY, "Not Jonas Lindqvist, on the requester's side."),
    (DEPLOY, "Answer by 19 Nov 2026, 14:38 UTC, else it expires unfired."),
    (DEPLOY, "prod-deploy-needs-two."),
    (DEPLOY, "revision 2 · Rule deploys.cedar line 22 at commit 9f3c1ab"),
    (DEPLOY, "Asked by ship-bot, for Jonas Lindqvist."),
    (DEPLOY, f"effect {DEPLOY.effect_digest[:4]} {DEPLOY.effect_digest[4:8]} · revision 2"),
    (REFUND, "amount_cents is $1,240.00 USD."),
    (REFUND, "One of 2 effects that commit together."),
    (REFUND, "Effect 2: E-mail dana@example.com about it."),
    (REFUND, "Approving this releases nothing yet: 1 more of its transaction waits for people."),
    (REFUND, "On the web: 3 facts looked up, and the agent's unverified explanation."),
    (reviews.refund(gates=(replace(GATE, own_step_up="passkey"),)), "with a passkey"),
    (TWO_GATES, "0 of 2 approvals by finance"),
    (TWO_GATES, "refund-needs-finance. It asks 1 person in finance."),
    (TWO_GATES, "Second. It asks 2 people in finance, with a passkey."),
    (OF_LEGAL, "Second. It asks 2 people in legal."),
    (reviews.refund(agent_owner=None), "; this agent has no owner"),
    (reviews.talked(), "Board is asked as well by now."),
    (NOT_COUNTED, "What Wen Li approved does not count at present."),
    (reviews.refund(break_glass=SIGNED), "Signed for break-glass by Wen Li"),
    (OPENED, "Released by break-glass by Wen Li"),
    (BEFORE, "Denied before by Ingrid Vik · 19 Nov 2026, 14:26 UTC. Different here: amount_cents."),
    (BEFORE, "Voucher <!here>"),
    (BEFORE, "The rules changed while this waited. Asks finance now"),
    (BEFORE, "Changed since the agent staged it: amount_cents."),
    (BEFORE, "Waiting does not help: finance is empty"),
]
NOT_SHOWN = [(REFUND, "hot water for three of four nights"), (REFUND, "It asks"), (OPENED, "Approved by")]


def test_card_lines() -> None:
    assert [line for page, line in OUTPUT if line not in text(page)] == []
    assert [line for page, line in NOT_SHOWN if line in text(page)] == []
    assert "approve" in buttons(drawn(BEFORE).blocks)


def test_the_quorum_comes_first_and_rule_locations_last() -> None:
    output = text(DEPLOY)
    lines = ("1 of 2 approvals", "Answer by", "prod-deploy-needs-two.", "Rule ")
    assert sorted(lines, key=output.index) == list(lines)


def test_a_button_carries_a_pointer_and_nothing_else() -> None:
    found = buttons(drawn(REFUND).blocks)
    assert list(found) == ["approve", "deny", "ask", "edit", "open"]
    assert [one.get("value") for one in found.values()] == [POINTER.value] * 3 + [None] * 2
    assert found["open"]["url"] == f"{URL}/reviews/rev_01KAHV6T3M"
    assert found["edit"]["url"] == f"{URL}/reviews/rev_01KAHV6T3M/propose"
    assert not any("style" in one for one in found.values())


def test_approving_takes_two_presses_and_the_second_names_what_is_signed() -> None:
    approve = approving(reviews.refund(siblings=()))
    assert approve["text"]["text"] == "Approve $1,240.00"
    said = {name: part["text"] for name, part in approve["confirm"].items()}
    assert said["text"].startswith("You sign: refund $1,240.00 USD to Dana Whitfield, card card_visa_4242,")
    assert (said["title"], said["confirm"]) == ("Countersign", "Countersign and release")
    assert approving(REFUND)["confirm"]["confirm"]["text"] == "Countersign", "it releases nothing yet"
    with_form = approving(reviews.refund(reason_required=True))
    assert with_form["text"]["text"] == "Approve $1,240.00…" and "confirm" not in with_form


def test_a_sentence_too_long_to_confirm_is_replaced_by_its_digest() -> None:
    long = reviews.refund(sentence=(Piece("Refund "), reviews.value("x" * 290)))
    digest = f"{long.effect_digest[:4]} {long.effect_digest[4:8]}"
    said = f"You sign the effect as shown in the message, digest {digest}, once. This cannot be undone."
    assert approving(long)["confirm"]["text"]["text"] == said


@pytest.mark.parametrize("finality", ["This cannot be undone. If it fails, the others go on.", "f" * 250])
def test_the_dialog_says_whether_the_effect_can_be_reversed(finality: str) -> None:
    said = approving(reviews.refund(finality=finality))["confirm"]["text"]["text"]
    assert finality[:100] in said
    assert len(said) <= 300


def with_value(name: str, value: object, **more: Any) -> ReviewPage:
    page = reviews.credit(1)
    return reviews.with_args(page, *page.args, reviews.arg(name, value, "string", **more))


def unknown_name() -> ReviewPage:
    page = reviews.credit(1)
    return reviews.with_args(page, *page.args, reviews.arg("x", 1, NOT_IN_THE_SCHEMA))


def numbers(many: int) -> tuple[ArgRow, ...]:
    return tuple(reviews.arg(f"a{place:03}", place, "integer") for place in range(many))


def of_characters(many: int) -> ReviewPage:
    """A page whose arguments are shown in so many characters."""
    return with_value("memo", "x" * (many - len(lay_out_args(with_value("memo", "")))))


HIDDEN = (Piece("Refund "), reviews.value("1\u202e2"))
PROPOSAL = reading.ProposalCard("p", "Wen Li", "less", NOW, "oidc", (), (), 1, mine=False, may_answer=False)
MISLEADS, TOO_LONG, TOO_MUCH = "can mislead", "longer than a message", "larger than a message"
WITHHELD: dict[str, tuple[ReviewPage, str]] = {
    "the rows are not the bytes": (replace(REFUND, canonical=b'{"a":2}'), "do not match"),
    "a bidi override": (with_value("memo", "a\u202eb"), MISLEADS),
    "a look-alike host": (with_value("to", f"a@b{reviews.CYRILLIC_A}nk.example", recipient=True), MISLEADS),
    "a name like another": (with_value("customer ", "cus_2"), MISLEADS),
    "a name the schema does not know": (unknown_name(), MISLEADS),
    "hidden in the sentence": (reviews.refund(sentence=HIDDEN), MISLEADS),
    "hidden in a sibling": (reviews.refund(siblings=(replace(REFUND.siblings[0], sentence=HIDDEN),)), MISLEADS),
    "a space that is none": (with_value("memo", "a\u00a0b"), "invisible characters"),
    "one character too many": (of_characters(MAX_ARGS_CHARACTERS + 1), TOO_LONG),
    "one line too many": (reviews.with_args(REFUND, *numbers(MAX_ARGS_LINES - 1)), TOO_LONG),
    "a long sentence": (reviews.refund(sentence=(reviews.value("x" * 301),)), TOO_MUCH),
    "a sentence of many parts": (reviews.refund(sentence=(reviews.value("x"),) * 41), TOO_MUCH),
    "many gates": (reviews.refund(gates=REFUND.gates * (MAX_GATES + 1)), TOO_MUCH),
    "many effects": (reviews.refund(siblings=REFUND.siblings * 7), TOO_MUCH),
    "a passkey": (reviews.refund(gates=(replace(GATE, step_up="passkey"),)), "a passkey"),
    "an unknown tool": (reviews.refund(warnings=("UNKNOWN TOOL. No bundle describes it.",)), "a warning"),
    "a tool that changed": (reviews.refund(warnings=("No longer holds this version.",)), "a warning"),
    "an open proposal": (reviews.refund(proposals=(PROPOSAL,)), "Other arguments are proposed"),
    "another revision": (reviews.refund(superseded_by=2), "Replaced by revision 2"),
    "a settled review": (reviews.fired(), "this review is no longer open"),
}  # fmt: skip


@pytest.mark.parametrize(("page", "why"), WITHHELD.values(), ids=WITHHELD)
def test_a_card_without_buttons_says_why_and_where_to_go(page: ReviewPage, why: str) -> None:
    message = drawn(page)
    output = no_buttons_reason(page)
    assert output is not None
    assert why in output
    assert {"approve", "deny", "ask"}.isdisjoint(buttons(message.blocks))
    assert POINTER.value not in str(message.blocks)
    assert buttons(message.blocks)["open"]["url"] == f"{URL}/reviews/{page.review_id}"
    if page.state == "open" and page.superseded_by is None:
        assert f"Decide on the web. {output}" in words(message.blocks)
        assert buttons(message.blocks)["open"]["text"]["text"] == "Open to review"


ALLOWED: dict[str, ReviewPage] = {
    "the most characters": of_characters(MAX_ARGS_CHARACTERS),
    "the most lines": reviews.with_args(REFUND, *numbers(MAX_ARGS_LINES - 2)),
    "the most gates": reviews.refund(gates=REFUND.gates * MAX_GATES),
    "a word of another script": with_value("memo", "Оплата за ноябрь\nСпасибо"),
    "an emoji that is glued together": with_value("memo", "\U0001f468\u200d\U0001f4bb"),
    "what would be a mention": with_value("memo", "@channel #general :tada: *bold* `code`"),
}  # fmt: skip


@pytest.mark.parametrize("page", ALLOWED.values(), ids=ALLOWED)
def test_a_complete_unchanged_effect_has_buttons(page: ReviewPage) -> None:
    assert no_buttons_reason(page) is None
    assert {"approve", "deny", "ask"} <= set(buttons(drawn(page).blocks))


def test_an_expired_card_has_no_buttons() -> None:
    before, late = (drawn(REFUND, now=REFUND.answer_by - timedelta(microseconds=n)) for n in (1, 0))
    assert "approve" in buttons(before.blocks)
    assert list(buttons(late.blocks)) == ["open"]
    assert "Time is up: it expired at 19 Nov 2026, 17:07 UTC. Nothing fired." in words(late.blocks)


def test_many_lines_and_long_values_show_their_beginning_with_the_exact_count() -> None:
    lines, long = reviews.with_args(REFUND, *numbers(338)), with_value("memo", "x" * 18_000)
    whole = len(code(drawn(with_value("memo", "")).blocks)) + 18_000
    for page, output in ((lines, "20 of 340 lines"), (long, f"600 of {whole:,} characters")):
        assert f"The first {output}; all {len(page.canonical):,} bytes are on the web." in text(page)
    assert (code(drawn(lines).blocks).count("\n"), len(code(drawn(long).blocks))) == (19, 600)


def test_arguments_that_are_not_the_bytes_are_not_shown() -> None:
    message = drawn(replace(REFUND, canonical=b'{"a":2}'))
    assert code(message.blocks) == ""
    assert "The arguments are not shown: they do not match the canonical bytes." in words(message.blocks)


def test_invisible_characters_are_escaped_and_warned_of() -> None:
    message = drawn(reviews.hostile())
    output = words(message.blocks)
    assert output.startswith("E-mail 48,210 customers from")
    assert output.index("5 things here can mislead you") < output.index("{\n")
    host = "On the wire this host is xn--northwind-sttements-1op.example."
    for line in ("accounts@northwind-st\u0430‹U+0430›tements.example", host, "right-to-left override"):
        assert line in output
    assert not any(char in str(message) for char in "\u202e\u202c\u200b")


def test_an_invisible_character_of_the_arguments_is_escaped_in_place() -> None:
    shown = code(drawn(with_value("memo", "a\u202eb" + "\u200b" * 3)).blocks)
    assert '"memo": "a‹U+202E›b‹3 × U+200B›"' in shown


def test_text_of_others_is_never_markup() -> None:
    bad = "<!channel> <@U1> <https://evil.example|bank> *b* `c` :tada: & &lt;"
    page = with_value("memo", bad)
    page = replace(page, agent=bad, agent_owner=bad, sentence=(Piece("Pay "), reviews.value(bad)))
    message = drawn(page)
    assert bad in words(message.blocks)
    assert kinds(message.blocks) <= {
        "rich_text", "rich_text_section", "rich_text_preformatted", "rich_text_quote", "text", "date", "context",
        "plain_text", "actions", "button",
    }  # fmt: skip
    assert "<" not in message.text and "&lt;!channel&gt;" in message.text and "&amp;lt;" in message.text


def closed(state: str, effect_state: str | None = None, **changes: Any) -> ReviewPage:
    return reviews.refund(state=state, effect_state=effect_state or state, **changes)


def came(effect_state: str) -> ReviewPage:
    return reviews.fired(effect_state=effect_state)


REPLACED = closed("withdrawn", superseded_by=2, replaced_by="rev_2")
BY_TWO = reviews.fired(votes=(voted("Ana Ito"), voted("Ben Roe", after_min=41)))
BY_MAYA = "Approved by Maya Okafor · 19 Nov 2026, 11:18 UTC"
STATES: list[tuple[ReviewPage, tuple[str, ...]]] = [
    (came("released"), (BY_MAYA, "refund-desk may fire it now, once.")),
    (came("fired"), ("Approved by Maya Okafor", "It happened, once.", "This cannot be undone.")),
    (came("unused"), ("Not used", "Nothing fired.")),
    (reviews.denied(), ("Denied by Tomás Reyes · 19 Nov 2026, 14:22 UTC", "Guest already has a voucher")),
    (closed("denied"), ("Denied", "Nothing fired.")),
    (closed("expired"), ("Expired · 19 Nov 2026, 17:07 UTC", "Nothing fired.")),
    (REPLACED, ("Replaced by revision 2", "Nothing of this one fired.", "Read revision 2")),
    (closed("paused"), ("Closed: paused",)),
    (BY_TWO, ("Approved by Ana Ito and Ben Roe · 19 Nov 2026, 15:07 UTC",)),
]


@pytest.mark.parametrize(("page", "lines"), STATES)
def test_a_settled_card_shows_the_outcome_and_keeps_the_effect(page: ReviewPage, lines: Any) -> None:
    message = drawn(page)
    output = words(message.blocks)
    assert [line for line in lines if line not in output] == []
    assert output.startswith("Refund $1,240.00 to Dana Whitfield")
    assert '"amount_cents": 124000' in code(message.blocks)
    assert {"approve", "deny", "ask"}.isdisjoint(buttons(message.blocks))
    assert "could sign" not in output
    assert page.state not in ("denied", "expired") or "cannot be undone" not in output


@pytest.mark.parametrize("page", [reviews.denied(), reviews.fired(effect_state="released")])
def test_decider_and_outcome_are_one_line(page: ReviewPage) -> None:
    output = text(page)
    assert buttons(drawn(REPLACED).blocks)["open_newer"]["url"] == f"{URL}/reviews/rev_2"
    assert output.count("Denied") + output.count("Approved") == 1
    assert output.index("Denied" if page.state == "denied" else "Approved") < output.index("{\n")


def test_a_minimal_card_has_tool_agent_state_and_link() -> None:
    message = minimal_card(reviews.hostile(), outbox_id="out_1", public_url=URL, now=NOW)
    assert refused(message.blocks) == []
    output = words(message.blocks)
    assert "Review wanted: send_campaign, asked by campaign-writer." in output
    assert "northwind" not in output
    assert buttons(message.blocks)["open"]["url"] == f"{URL}/reviews/rev_hostile"
    assert message.blocks[0]["block_id"] == "cs/rev_hostile/1/out_1"
    late = minimal_card(REFUND, outbox_id="o", public_url=URL, now=REFUND.answer_by)
    assert "Time is up" in words(late.blocks)
    assert buttons(late.blocks)["open"]["text"]["text"] == "Open"


def test_a_review_too_large_for_a_message_has_no_buttons() -> None:
    gate = replace(GATE, doc="d" * 400, could_sign=("n" * 80,) * 6, barred=("b" * 80,) * 6)
    gates = tuple(replace(gate, policy_id=f"g{i}", groups=(f"{i}" * 80,) * 6) for i in range(4))
    page = reviews.refund(gates=gates, sentence=(reviews.value("x" * 300),) * 2)
    assert no_buttons_reason(page) == "It is larger than a message: read it on the web."
    message = drawn(page)
    assert list(buttons(message.blocks)) == ["open"]
    assert "3 more gates apply: see the web." in words(message.blocks)
    assert '"amount_cents": 124000' in code(message.blocks)


def test_a_review_too_large_even_then_gets_a_minimal_card() -> None:
    gate = replace(GATE, groups=("g" * 200,) * 6, added=("a" * 200,) * 6, doc="d" * 900)
    gate = replace(gate, could_sign=("c" * 200,) * 9, barred=("b" * 200,) * 9)
    page = reviews.refund(gates=(gate,), warnings=("w" * 900,) * 9, sentence=(reviews.value("x" * 900),) * 3)
    page = replace(page, rule_changes=(RuleChange(NOW, "a", "b", "r" * 900),) * 2, unanswerable="u" * 900)
    message = drawn(page)
    assert "It cannot be shown here. Read it on the web." in words(message.blocks)
    assert list(buttons(message.blocks)) == ["open"]


def test_an_amount_that_is_longer_than_a_button_is_left_to_the_sentence() -> None:
    money = Money(10**90, "USD", "$1" + "0" * 88 + ".00")
    page = reviews.with_args(REFUND, reviews.arg("amount_cents", 1, "integer", money=money))
    assert MAX_LABEL < len(money.text) < 2 * MAX_LABEL
    assert buttons(decision_buttons(page, POINTER, URL).to_dict())["approve"]["text"]["text"] == "Approve"
