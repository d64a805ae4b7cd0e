"""The card of a review: what stands on it, when it has buttons, and why it has none."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from policy_service.channels.slack.drawing.arguments import MAX_ARGS_CHARACTERS, MAX_ARGS_LINES, laid_out
from policy_service.channels.slack.drawing.buttons import MAX_LABEL, deciding
from policy_service.channels.slack.drawing.card import bare_card, buttons_withheld, card
from policy_service.channels.slack.drawing.message import Drawn, Pointer
from policy_service.channels.slack.drawing.people import MOST_GATES
from policy_service.workflow.reading.pieces import NOT_IN_THE_SCHEMA, ArgRow, Money, Piece
from policy_service.workflow.reading.reviews import (
    BreakGlassView,
    Change,
    DeniedBefore,
    ProposalCard,
    ReviewPage,
    RuleChange,
    VoteView,
)
from tests.fakes import reviews
from tests.fakes.blocks import buttons, code, kinds, refused, values, words

POINTER = Pointer("card_01", "ab" * 32)
URL = "https://countersign.example"
NOW = reviews.NOW


def drawn(page: ReviewPage, **changes: Any) -> Drawn:
    asked: dict[str, Any] = {"pointer": POINTER, "outbox_id": "out_1", "public_url": URL, "now": NOW}
    message = card(page, **(asked | changes))
    assert refused(message.blocks) == []
    return message


def text(page: ReviewPage, **changes: Any) -> str:
    return words(drawn(page, **changes).blocks)


# -- what stands on it ------------------------------------------------------------------------------------------------


def test_our_words_are_plain_and_values_are_bold() -> None:
    first = drawn(reviews.refund()).blocks[0]
    assert words(first).splitlines()[0] == "Refund $1,240.00 to Dana Whitfield, card card_visa_4242."
    assert values(first) == ["$1,240.00", "Dana Whitfield", "card_visa_4242"]
    assert "This cannot be undone." in words(first)


def test_the_arguments_are_the_json_a_member_a_line() -> None:
    page = reviews.with_args(
        reviews.refund(), reviews.arg("b", {"y": [1, "é\n"]}, "object"), reviews.arg("a", 1, "integer")
    )
    assert code(drawn(page).blocks) == '{\n  "a": 1,\n  "b": {"y":[1,"é\\n"]}\n}'


def test_an_effect_without_arguments_shows_the_empty_object() -> None:
    page = replace(reviews.refund(), args=(), canonical=b"{}")
    assert code(drawn(page).blocks) == "{}"
    assert "approve" in buttons(drawn(page).blocks)


def test_a_secret_is_its_size() -> None:
    message = drawn(reviews.deploy())
    assert '"deploy_key": (hidden, 17 bytes),' in code(message.blocks)
    assert "s3cr3t" not in str(message)
    assert "approve" in buttons(message.blocks)


def test_the_card_names_rule_people_agent_and_time() -> None:
    told = text(reviews.deploy())
    for line in (
        "1 of 2 approvals by release-captains or sre-oncall: Tomás Reyes.",
        "Ingrid Vik, Anna Berg, Sven Öst, Wen Li, Amara Obi, José Díaz and 4 more could sign.",
        "Not Jonas Lindqvist, on the asking side.",
        "Answer by 19 Nov 2026, 14:38 UTC, else it expires unfired.",
        "prod-deploy-needs-two.",
        "revision 2 · Rule deploys.cedar line 22 at commit 9f3c1ab",
        "Asked by ship-bot, for Jonas Lindqvist.",
        f"effect {reviews.deploy().effect_digest[:4]} {reviews.deploy().effect_digest[4:8]} · revision 2",
    ):
        assert line in told


def test_how_far_it_has_come_is_told_before_the_rules_and_their_places_last() -> None:
    told = text(reviews.deploy())
    places = [told.index(one) for one in ("1 of 2 approvals", "Answer by", "prod-deploy-needs-two.", "Rule ")]
    assert places == sorted(places)


def test_whom_each_of_several_gates_asks_is_told() -> None:
    (one,) = reviews.refund().gates
    several = (
        one,
        replace(one, policy_id="second", title="Second", groups=("legal",), quorum=2, own_quorum=2),
    )
    told = text(reviews.refund(gates=several))
    assert "Second. It asks 2 people in legal." in told
    assert "It asks" not in text(reviews.refund())
    assert "with a passkey" in text(reviews.refund(gates=(replace(one, own_step_up="passkey"),)))


def test_each_gate_tells_its_own_quorum_and_the_count_that_of_all() -> None:
    one = replace(reviews.refund().gates[0], quorum=2, step_up="passkey")
    second = replace(one, policy_id="second", title="Second", own_quorum=2, own_step_up="passkey")
    told = text(reviews.refund(gates=(one, second)))
    assert "0 of 2 approvals by finance" in told
    assert "refund-needs-finance. It asks 1 person in finance." in told
    assert "Second. It asks 2 people in finance, with a passkey." in told


def test_an_agent_without_an_owner_is_told_as_one() -> None:
    assert "for nobody: this agent has no owner" in text(reviews.refund(agent_owner=None))


def test_what_the_agent_claims_is_on_the_page_and_not_here() -> None:
    told = text(reviews.refund())
    assert "On the page: 3 facts looked up, and what the agent says of it, unchecked." in told
    assert "hot water for three of four nights and the hotel has confirmed it" not in told


def test_amounts_are_told_as_people_say_them() -> None:
    assert "amount_cents is $1,240.00 USD." in text(reviews.refund())


def test_the_effects_that_commit_together_are_all_told() -> None:
    told = text(reviews.refund())
    assert "One of 2 effects that commit together." in told
    assert "Effect 2: E-mail dana@example.com about it." in told
    assert "Approving this releases nothing yet: 1 more of its transaction waits for people." in told


def test_what_bears_on_a_decision_is_told() -> None:
    page = reviews.refund(
        denied_before=(DeniedBefore("rev_0", NOW, "Ingrid Vik", "Voucher <!here>", ("amount_cents",)),),
        rule_changes=(RuleChange(NOW, "a" * 40, "b" * 40, "Asks finance now"),),
        since_staged=(Change("amount_cents", "1", "2"),),
        unanswerable="nobody in finance is left",
    )
    told = text(page)
    for line in (
        "Denied before by Ingrid Vik · 19 Nov 2026, 14:26 UTC. Different here: amount_cents.",
        "Voucher <!here>",
        "The rules changed while this waited. Asks finance now",
        "Changed since the agent staged it: amount_cents.",
        "Waiting does not help: nobody in finance is left",
    ):
        assert line in told
    assert "approve" in buttons(drawn(page).blocks)


def test_whom_escalation_asks_is_told() -> None:
    assert "Board is asked as well by now." in text(reviews.talked())


def test_an_approval_that_does_not_count_is_told() -> None:
    vote = VoteView("Wen Li", "approve", "", NOW, False, "oidc")
    assert "What Wen Li approved does not count as things stand." in text(reviews.refund(votes=(vote,)))


def test_a_signature_in_an_emergency_is_told_as_nobodys_approval() -> None:
    vote = VoteView("Wen Li", "break_glass", "fire", NOW, True, "oidc")
    assert "Signed, to open it in an emergency, by Wen Li" in text(
        reviews.refund(break_glass=BreakGlassView((vote,)))
    )
    opened = reviews.fired(effect_state="released", break_glass=BreakGlassView((vote,), NOW))
    assert "Opened in an emergency by Wen Li" in text(opened)
    assert "Approved by" not in text(opened)


# -- buttons ----------------------------------------------------------------------------------------------------------


def test_a_button_carries_a_pointer_and_nothing_else() -> None:
    found = buttons(drawn(reviews.refund()).blocks)
    assert list(found) == ["approve", "deny", "ask", "edit", "open"]
    assert {name: one.get("value") for name, one in found.items()} == {
        "approve": POINTER.value, "deny": POINTER.value, "ask": POINTER.value, "edit": None, "open": None,
    }  # fmt: skip
    assert found["open"]["url"] == f"{URL}/reviews/rev_01KAHV6T3M"
    assert found["edit"]["url"] == f"{URL}/reviews/rev_01KAHV6T3M/propose"
    assert not any("style" in one for one in found.values())


def test_approving_takes_two_presses_and_the_second_names_what_is_signed() -> None:
    approve = buttons(drawn(reviews.refund(siblings=())).blocks)["approve"]
    confirm = {name: part["text"] for name, part in approve["confirm"].items()}
    assert approve["text"]["text"] == "Approve $1,240.00"
    assert confirm == {
        "title": "Countersign",
        "text": "You sign: refund $1,240.00 USD to Dana Whitfield, card card_visa_4242, once. This cannot be undone.",
        "confirm": "Countersign and release",
        "deny": "Go back",
    }


def test_a_press_that_releases_nothing_yet_does_not_say_release() -> None:
    approve = buttons(drawn(reviews.refund()).blocks)["approve"]
    assert approve["confirm"]["confirm"]["text"] == "Countersign"


def test_where_a_gate_wants_a_reason_a_form_follows_instead() -> None:
    approve = buttons(drawn(reviews.refund(reason_required=True)).blocks)["approve"]
    assert approve["text"]["text"] == "Approve $1,240.00…"
    assert "confirm" not in approve


def test_what_is_too_long_to_confirm_is_named_by_its_digest() -> None:
    long = reviews.refund(sentence=(Piece("Refund "), reviews.value("x" * 290)))
    said = buttons(drawn(long).blocks)["approve"]["confirm"]["text"]["text"]
    digest = f"{long.effect_digest[:4]} {long.effect_digest[4:8]}"
    assert (
        said
        == f"You sign the effect as it stands in the message, digest {digest}, once. This cannot be undone."
    )


@pytest.mark.parametrize("finality", ["This cannot be undone. If it fails, the others go on.", "f" * 250])
def test_the_dialog_says_whether_it_can_be_taken_back(finality: str) -> None:
    said = buttons(drawn(reviews.refund(finality=finality)).blocks)["approve"]["confirm"]["text"]["text"]
    assert finality[:100] in said
    assert len(said) <= 300


def with_value(name: str, value: object, **more: Any) -> ReviewPage:
    page = reviews.credit(1)
    return reviews.with_args(page, *page.args, reviews.arg(name, value, "string", **more))


def numbers(many: int) -> tuple[ArgRow, ...]:
    return tuple(reviews.arg(f"a{place:03}", place, "integer") for place in range(many))


def of_characters(many: int) -> ReviewPage:
    """A page whose arguments are shown in so many characters."""
    frame = len(laid_out(with_value("memo", "")))
    return with_value("memo", "x" * (many - frame))


def proposal() -> ProposalCard:
    return ProposalCard("p", "Wen Li", "less", NOW, "oidc", (), (), 1, mine=False, may_answer=False)


WITHHELD: dict[str, tuple[ReviewPage, str]] = {
    "the rows are not the bytes": (replace(reviews.refund(), canonical=b'{"a":2}'), "do not add up"),
    "a bidi override": (with_value("memo", "a\u202eb"), "can mislead"),
    "a zero width space": (with_value("memo", "a\u200bb"), "can mislead"),
    "a look-alike letter": (with_value("memo", "p\u0430yment"), "can mislead"),
    "a look-alike host": (with_value("to", f"a@b{reviews.CYRILLIC_A}nk.example", recipient=True), "can mislead"),
    "padding by lines": (with_value("memo", "a" + "\n" * 9 + "b"), "can mislead"),
    "padding by spaces": (with_value("memo", "a" + " " * 40 + "b"), "can mislead"),
    "a link that leads elsewhere": (with_value("memo", "https://bank.example@evil.example/"), "can mislead"),
    "markup": (with_value("memo", "<b>approved</b>"), "can mislead"),
    "a hidden character in a name": (with_value("me\u200bmo", 1), "can mislead"),
    "a name like another": (with_value("customer ", "cus_2"), "can mislead"),
    "a name the schema does not know": (
        reviews.with_args(reviews.credit(1), *reviews.credit(1).args, reviews.arg("x", 1, NOT_IN_THE_SCHEMA)),
        "can mislead",
    ),
    "something hidden in the sentence": (
        reviews.refund(sentence=(Piece("Refund "), reviews.value("1\u202e2"))), "can mislead",
    ),
    "something hidden in the sentence of another effect": (
        reviews.refund(siblings=(replace(reviews.refund().siblings[0], sentence=(reviews.value("1\u202e2"),)),)),
        "can mislead",
    ),
    "a space that is none": (with_value("memo", "a\u00a0b"), "cannot be seen"),
    "one character too many": (of_characters(MAX_ARGS_CHARACTERS + 1), "longer than a message"),
    "one line too many": (
        reviews.with_args(reviews.refund(), *numbers(MAX_ARGS_LINES - 1)),
        "longer than a message",
    ),
    "a long sentence": (reviews.refund(sentence=(reviews.value("x" * 301),)), "more than a message"),
    "a sentence of many parts": (reviews.refund(sentence=(reviews.value("x"),) * 41), "more than a message"),
    "many gates": (reviews.refund(gates=reviews.refund().gates * (MOST_GATES + 1)), "more than a message"),
    "many effects": (reviews.refund(siblings=reviews.refund().siblings * 7), "more than a message"),
    "a passkey": (reviews.refund(gates=(replace(reviews.refund().gates[0], step_up="passkey"),)), "a passkey"),
    "an unknown tool": (reviews.refund(warnings=("UNKNOWN TOOL. No bundle describes it.",)), "a warning"),
    "a tool that changed": (reviews.refund(warnings=("No longer holds this version.",)), "a warning"),
    "an open proposal": (reviews.refund(proposals=(proposal(),)), "Other arguments are proposed"),
    "another revision": (reviews.refund(superseded_by=2), "Replaced by revision 2"),
    "a settled review": (reviews.fired(), "nobody is asked here any more"),
}  # fmt: skip


@pytest.mark.parametrize(("page", "why"), WITHHELD.values(), ids=WITHHELD)
def test_a_card_without_buttons_says_why_and_where_to_go(page: ReviewPage, why: str) -> None:
    message = drawn(page)
    told = buttons_withheld(page)
    assert told is not None
    assert why in told
    assert {"approve", "deny", "ask"}.isdisjoint(buttons(message.blocks))
    assert POINTER.value not in str(message.blocks)
    assert buttons(message.blocks)["open"]["url"] == f"{URL}/reviews/{page.review_id}"
    if page.state == "open" and page.superseded_by is None:
        assert f"Decide on the page. {told}" in words(message.blocks)
        assert buttons(message.blocks)["open"]["text"]["text"] == "Open to review"


ALLOWED: dict[str, ReviewPage] = {
    "the most characters": of_characters(MAX_ARGS_CHARACTERS),
    "the most lines": reviews.with_args(
        reviews.refund(), *numbers(MAX_ARGS_LINES - 2)
    ),
    "the most gates": reviews.refund(gates=reviews.refund().gates * MOST_GATES),
    "a word of another script": with_value("memo", "Оплата за ноябрь\nСпасибо"),
    "an emoji that is glued together": with_value("memo", "\U0001f468\u200d\U0001f4bb"),
    "what would be a mention": with_value("memo", "@channel #general :tada: *bold* `code`"),
}  # fmt: skip


@pytest.mark.parametrize("page", ALLOWED.values(), ids=ALLOWED)
def test_what_is_whole_and_plain_has_buttons(page: ReviewPage) -> None:
    assert buttons_withheld(page) is None
    assert {"approve", "deny", "ask"} <= set(buttons(drawn(page).blocks))


def test_when_the_time_is_up_there_are_no_buttons() -> None:
    page = reviews.refund()
    assert "approve" in buttons(drawn(page, now=page.answer_by - timedelta(microseconds=1)).blocks)
    late = drawn(page, now=page.answer_by)
    assert list(buttons(late.blocks)) == ["open"]
    assert "Time is up: it expired at 19 Nov 2026, 17:07 UTC. Nothing fired." in words(late.blocks)


# -- what does not fit, and what deceives -----------------------------------------------------------------------------


def test_many_lines_show_the_first_with_the_exact_count() -> None:
    page = reviews.with_args(reviews.refund(), *numbers(338))
    message = drawn(page)
    assert f"The first 20 of 340 lines; all {len(page.canonical):,} bytes are on the page." in words(
        message.blocks
    )
    assert code(message.blocks).count("\n") == 19


def test_a_long_value_shows_its_beginning_with_the_exact_count() -> None:
    page = with_value("memo", "x" * 18_000)
    message = drawn(page)
    whole = len(code(drawn(with_value("memo", "")).blocks)) + 18_000
    note = f"The first 600 of {whole:,} characters; all {len(page.canonical):,} bytes are on the page."
    assert note in words(message.blocks)
    assert len(code(message.blocks)) == 600


def test_arguments_that_are_not_the_bytes_are_not_shown() -> None:
    message = drawn(replace(reviews.refund(), canonical=b'{"a":2}'))
    assert code(message.blocks) == ""
    assert "The arguments are not shown: they do not add up to the canonical bytes." in words(message.blocks)


def test_what_cannot_be_seen_is_written_out_and_told() -> None:
    message = drawn(reviews.hostile())
    told = words(message.blocks)
    assert told.startswith("E-mail 48,210 customers from")
    assert told.index("5 things here can mislead you") < told.index("{\n")
    assert "accounts@northwind-st\u0430‹U+0430›tements.example" in told
    assert "On the wire this host is xn--northwind-sttements-1op.example." in told
    assert "right-to-left override" in told
    assert not any(char in str(message) for char in "\u202e\u202c\u200b")


def test_a_hidden_character_of_the_arguments_stands_in_its_place() -> None:
    assert '"memo": "a‹U+202E›b‹3 × U+200B›"' in code(
        drawn(with_value("memo", "a\u202eb" + "\u200b" * 3)).blocks
    )


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
    assert "<" not in message.text
    assert "&lt;!channel&gt;" in message.text
    assert "&amp;lt;" in message.text


# -- states -----------------------------------------------------------------------------------------------------------

STATES: dict[str, tuple[ReviewPage, tuple[str, ...]]] = {
    "released": (
        reviews.fired(effect_state="released"),
        ("Approved by Maya Okafor · 19 Nov 2026, 11:18 UTC", "refund-desk may fire it now, once."),
    ),
    "redeemed": (reviews.fired(effect_state="redeemed"), ("Redeemed, once",)),
    "fired": (reviews.fired(), ("Approved by Maya Okafor", "Fired", "It happened, once.")),
    "failed": (reviews.fired(effect_state="failed"), ("Failed", "known not to have happened")),
    "unknown": (reviews.fired(effect_state="unknown"), ("We do not know whether this fired",)),
    "unused": (reviews.fired(effect_state="unused"), ("Not used", "Nothing fired.")),
    "compensated": (reviews.fired(effect_state="compensated"), ("Undone",)),
    "compensation_failed": (reviews.fired(effect_state="compensation_failed"), ("It could not be undone",)),
    "denied": (
        reviews.denied(),
        ("Denied by Tomás Reyes · 19 Nov 2026, 14:22 UTC", "Guest already has a voucher", "Nothing fired."),
    ),
    "denied by policy": (reviews.refund(state="denied", effect_state="denied"), ("Denied", "Nothing fired.")),
    "expired": (
        reviews.refund(state="expired", effect_state="expired"),
        ("Expired · 19 Nov 2026, 17:07 UTC", "Nothing fired."),
    ),
    "withdrawn": (
        reviews.refund(state="withdrawn", effect_state="withdrawn"),
        ("Withdrawn", "Nothing fired."),
    ),
    "replaced": (
        reviews.refund(state="withdrawn", effect_state="withdrawn", superseded_by=2, replaced_by="rev_2"),
        ("Replaced by revision 2", "Nothing of this one fired.", "Read revision 2"),
    ),
    "revoked": (reviews.refund(state="revoked", effect_state="revoked"), ("Revoked", "Nothing fired.")),
    "a state of a later version": (
        reviews.refund(state="paused", effect_state="paused"),
        ("Closed: paused",),
    ),
}


@pytest.mark.parametrize(("page", "lines"), STATES.values(), ids=STATES)
def test_a_settled_card_says_what_became_of_it_and_keeps_the_effect(
    page: ReviewPage, lines: tuple[str, ...]
) -> None:
    message = drawn(page)
    told = words(message.blocks)
    for line in lines:
        assert line in told
    assert told.startswith("Refund $1,240.00 to Dana Whitfield")
    assert '"amount_cents": 124000' in code(message.blocks)
    assert {"approve", "deny", "ask"}.isdisjoint(buttons(message.blocks))
    assert "could sign" not in told


@pytest.mark.parametrize("page", [reviews.denied(), reviews.fired(effect_state="released")])
def test_who_settled_it_and_what_became_of_it_are_one_line(page: ReviewPage) -> None:
    told = text(page)
    assert told.count("Denied") + told.count("Approved") == 1
    assert told.index("Denied" if page.state == "denied" else "Approved") < told.index("{\n")


def test_whether_it_can_be_undone_is_told_of_what_fires_and_of_nothing_else() -> None:
    assert "This cannot be undone." in text(reviews.fired())
    for page in (reviews.denied(), reviews.refund(state="expired", effect_state="expired")):
        assert "cannot be undone" not in text(page)


def test_a_replaced_card_leads_to_what_replaced_it() -> None:
    page = reviews.refund(state="withdrawn", superseded_by=2, replaced_by="rev_2")
    assert buttons(drawn(page).blocks)["open_newer"]["url"] == f"{URL}/reviews/rev_2"


def test_two_approvals_are_told_with_the_time_of_the_last() -> None:
    votes = (
        VoteView("Ana Ito", "approve", "", NOW, True, "oidc"),
        VoteView("Ben Roe", "approve", "", NOW + timedelta(minutes=41), True, "oidc"),
    )
    assert "Approved by Ana Ito and Ben Roe · 19 Nov 2026, 15:07 UTC" in text(reviews.fired(votes=votes))


# -- the bare one -----------------------------------------------------------------------------------------------------


def test_a_bare_card_holds_tool_agent_state_and_link() -> None:
    message = bare_card(reviews.hostile(), outbox_id="out_1", public_url=URL, now=NOW)
    assert refused(message.blocks) == []
    told = words(message.blocks)
    assert "Review wanted: send_campaign, asked by campaign-writer." in told
    assert "northwind" not in told
    assert buttons(message.blocks)["open"]["url"] == f"{URL}/reviews/rev_hostile"
    assert message.blocks[0]["block_id"] == "cs/rev_hostile/1/out_1"


def test_a_bare_card_knows_that_the_time_is_up() -> None:
    message = bare_card(reviews.refund(), outbox_id="o", public_url=URL, now=reviews.refund().answer_by)
    assert "Time is up" in words(message.blocks)
    assert buttons(message.blocks)["open"]["text"]["text"] == "Open"


def test_a_page_that_is_too_much_for_a_message_is_drawn_without_buttons() -> None:
    gate = replace(
        reviews.refund().gates[0], doc="d" * 400, could_sign=("n" * 80,) * 6, barred=("b" * 80,) * 6
    )
    gates = tuple(replace(gate, policy_id=f"g{i}", groups=(f"{i}" * 80,) * 6) for i in range(4))
    page = reviews.refund(gates=gates, sentence=(reviews.value("x" * 300),) * 2)
    assert buttons_withheld(page) == "It is more than a message shows: on the page all of it stands."
    message = drawn(page)
    assert list(buttons(message.blocks)) == ["open"]
    assert "3 more gates asked: they are on the page." in words(message.blocks)
    assert '"amount_cents": 124000' in code(message.blocks)


def test_a_page_that_is_too_much_even_so_is_drawn_bare() -> None:
    gate = replace(reviews.refund().gates[0], groups=("g" * 200,) * 6, added=("a" * 200,) * 6, doc="d" * 900)
    gate = replace(gate, could_sign=("c" * 200,) * 9, barred=("b" * 200,) * 9)
    page = reviews.refund(gates=(gate,), warnings=("w" * 900,) * 9, sentence=(reviews.value("x" * 900),) * 3)
    page = replace(page, rule_changes=(RuleChange(NOW, "a", "b", "r" * 900),) * 2, unanswerable="u" * 900)
    message = drawn(page)
    assert "It cannot be shown here. All of it stands on the page." in words(message.blocks)
    assert list(buttons(message.blocks)) == ["open"]


def test_an_amount_that_is_longer_than_a_button_is_left_to_the_sentence() -> None:
    money = Money(10**90, "USD", "$1" + "0" * 88 + ".00")
    page = reviews.with_args(reviews.refund(), reviews.arg("amount_cents", 1, "integer", money=money))
    assert MAX_LABEL < len(money.text) < 2 * MAX_LABEL
    assert buttons(deciding(page, POINTER, URL).to_dict())["approve"]["text"]["text"] == "Approve"
