"""What a button says is a pointer: whatever it points to, the press counts only where the message stands and as it is.

The one who presses is maya, who may approve all of it: what is refused here is refused for what was pressed.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from policy_service.channels.slack.drawing.message import Pointer
from policy_service.storage.core import change
from policy_service.storage.slack_tables import SlackCardRow
from policy_service.workflow.effects.activate import ask_about_open
from policy_service.workflow.pages.reviews import read_view
from policy_service.workflow.reviews.shown import SLACK, view_of
from policy_service.workflow.slack.subjects import ONLOOKER
from tests.fakes.payments import ANYBODY, Payments, gate
from tests.fakes.slack_deliveries import Json
from tests.integration.service.effects import pay
from tests.integration.slack.attacking import Attacker, value_of
from tests.integration.slack.office import PAYMENTS, Office, until, words

pytestmark = pytest.mark.anyio

APPROVE: Final = {"type": "button", "action_id": "approve"}


@pytest.fixture
async def dana(office: Office) -> str:
    return await office.link("maya")


async def pointer_now(office: Office, card_id: str) -> str:
    """What a button of this card says, or would say."""
    ctx = office.world.service.ctx
    (row,) = [one for one in await Attacker(office).cards() if one["card_id"] == card_id]
    page = await ctx.db.read(lambda conn: read_view(conn, ctx, ONLOOKER, row["review_id"], ctx.clock()))
    assert page is not None
    return Pointer(card_id, view_of(page, SLACK).digest).value


async def card_of(office: Office, view: Json) -> Json:
    """The stored card of a payment."""
    review = view["effects"][0]["review"]["review_id"]

    async def there() -> Json | None:
        return next((one for one in await Attacker(office).cards() if one["review_id"] == review), None)

    return await until(there)


async def test_a_value_that_is_no_pointer_of_this_message_decides_nothing(
    office: Office, attacker: Attacker, dana: str
) -> None:
    await office.pay(500, "a")
    card = await office.card()
    good = value_of(card)
    _, card_id, digest = good.split(":")
    garbage: dict[str, Any] = {
        "nothing": "", "a space": " ", "none at all": None,
        "2,000 characters": "a" * 2_000, "a pointer and 2,000 characters": good + "a" * 2_000,
        "the card alone": card_id, "the digest alone": digest, "the review": card["blocks"][0]["block_id"],
        "another version": f"cs2:{card_id}:{digest}", "no card": f"cs1::{digest}", "no digest": f"cs1:{card_id}:",
        "a digest in upper case": f"cs1:{card_id}:{digest.upper()}", "a line end": f"{good}\n",
        "a card that is not there": f"cs1:card_{'0' * 20}:{digest}", "a path": f"cs1:../{card_id}:{digest}",
        "a digest of nothing": f"cs1:{card_id}:{'0' * 64}", "JSON": '{"review": 1, "person": "maya"}',
        "a wildcard": f"cs1:%:{digest}", "full-width digits": f"cs1:{card_id}:{'０' * 64}", "markup": "<!channel>",
    }  # fmt: skip
    for why, value in garbage.items():
        press = attacker.press_of(dana, card, APPROVE | {"value": value})
        assert (await attacker.deliver(press)).status == 200, why
        for kind in ("approve", "deny", "ask") if why not in ("a digest of nothing",) else ("approve",):
            form = attacker.form(dana, kind, value if isinstance(value, str) else "", "because")
            answer = await attacker.deliver(form)
            assert answer.json["response_action"] == "errors", (why, kind)
    assert await attacker.nothing_said()
    assert len(await attacker.answers()) == len(garbage)
    assert all(one["sentence"].startswith("Nothing was decided: ") for one in await attacker.answers())


async def test_what_no_database_keeps_is_no_press(office: Office, attacker: Attacker, dana: str) -> None:
    await office.pay(500, "a")
    card = await office.card()
    good = value_of(card)
    for button in (APPROVE | {"value": f"{good}\0"}, APPROVE | {"value": good, "action_id": "approve\0"}):
        assert (await attacker.deliver(attacker.press_of(dana, card, button))).status == 400
    assert await attacker.nothing_said()


async def test_an_action_that_is_none_of_ours_does_nothing(
    office: Office, attacker: Attacker, dana: str
) -> None:
    view = await office.pay(500, "a")
    card = await office.card()
    for action in (
        "approve ",
        "APPROVE",
        "break_glass",
        "release",
        "",
        "unlink",
        "direct",
        "open",
    ):
        button = {"type": "button", "action_id": action, "value": value_of(card)}
        answer = await attacker.deliver(attacker.press_of(dana, card, button))
        assert (answer.status, answer.body) == (200, b""), action
        form = attacker.form(dana, action, value_of(card), "because")
        assert (await attacker.deliver(form)).body == b"", action
    assert (await attacker.deliver(attacker.press(dana, card, actions=[]))).status == 200
    assert (
        await attacker.deliver(attacker.form(dana, "approve", value_of(card), "x", view=None))
    ).status == 200
    assert await attacker.nothing_said()
    assert await attacker.answers() == []
    assert await office.state(view) == "review"


async def test_the_pointer_of_another_card_decides_neither(
    office: Office, attacker: Attacker, dana: str
) -> None:
    one, other = await office.pay(500, "a"), await office.pay(700, "b", account="acct-2")
    first, second = await office.card(nth=-2), await office.card()
    press = attacker.press_of(dana, first, APPROVE | {"value": value_of(second)})
    assert (await attacker.deliver(press)).status == 200
    assert await attacker.nothing_said()
    (told,) = await attacker.answers()
    assert "a copy of one" in told["sentence"]
    assert [await office.state(view) for view in (one, other)] == ["review", "review"]


async def test_an_old_view_of_the_same_card_approves_nothing_and_may_still_deny(
    office: Office, attacker: Attacker, dana: str, bundle: Payments
) -> None:
    view = await office.pay(500, "a")
    card = await office.card()
    before = value_of(card)
    bundle.rules(gate("more", "cfo", "context.input.amount > 100"))
    assert await office.world.activate()
    await ask_about_open(office.world.service.ctx)
    press = attacker.press_of(dana, card, APPROVE | {"value": before})
    assert (await attacker.deliver(press)).status == 200
    assert await attacker.nothing_said()
    (told,) = await attacker.answers()
    assert "has changed since this message was drawn" in told["sentence"]
    form = attacker.form(dana, "approve", before, "because")
    assert "has changed" in (await attacker.deliver(form)).body.decode()
    assert await attacker.nothing_said()
    assert (await attacker.deliver(attacker.form(dana, "deny", before, "because"))).body == b""
    assert await office.state(view) == "denied"


async def test_the_pointer_of_the_revision_before_decides_nothing(
    office: Office, attacker: Attacker, dana: str
) -> None:
    await office.pay(500, "a")
    card = await office.card()
    view = await office.pay(900, "a")
    for action in ("approve", "deny"):
        assert (await attacker.deliver(attacker.press(dana, card, action))).status == 200
    form = attacker.form(dana, "deny", value_of(card), "because")
    assert (await attacker.deliver(form)).json["response_action"] == "errors"
    assert await office.state(view) == "review"
    assert [vote for vote in await attacker.votes() if not vote[2]] == []


ELSEWHERE: Final[list[dict[str, Any]]] = [
    {"container__channel_id": PAYMENTS, "channel__id": PAYMENTS},
    {"container__message_ts": "1795000000.000001"},
    {"container__channel_id": "D0DANA"},
    {"container__channel_id": None},
    {"container__message_ts": None},
    {"container__channel_id": "", "container__message_ts": ""},
    {"container": {"type": "message_attachment"}},
]


async def test_a_copy_of_the_message_anywhere_else_decides_nothing(
    office: Office, attacker: Attacker, dana: str
) -> None:
    view = await office.pay(500, "a")
    card = await office.card()
    await office.quiet()  # one that was just posted counts wherever it stands in its channel
    for place in ELSEWHERE:
        for action in ("approve", "deny", "ask"):
            assert (await attacker.deliver(attacker.press(dana, card, action, **place))).status == 200, place
        assert await attacker.nothing_said(), place
        assert await office.state(view) == "review"
        assert await office.slack.modals() == []


async def test_a_card_that_is_not_posted_yet_is_pressed_only_where_it_will_stand(
    office: Office, attacker: Attacker, dana: str
) -> None:
    """Slack may deliver a press before we hear that the message stands; from nowhere else, though."""
    view = await office.pay(500, "a")
    card = await office.card()
    (row,) = await attacker.cards()
    await _unposted(office, row["card_id"])
    elsewhere = attacker.press(dana, card, container__channel_id=PAYMENTS)
    assert (await attacker.deliver(elsewhere)).status == 200
    assert await attacker.nothing_said()
    assert (await attacker.deliver(attacker.press(dana, card))).status == 200
    assert await office.state(view) == "released"


async def _unposted(office: Office, card_id: str) -> None:
    where, was = {"card_id": card_id}, {"ts": None, "channel": None}
    await office.world.service.db.write(lambda tx: change(tx.conn, SlackCardRow, where, was))


async def test_a_review_that_a_digest_holds_has_no_buttons_to_press(
    office: Office, attacker: Attacker, dana: str
) -> None:
    view = await office.pay(500, "a")
    card = await office.card()
    (row,) = await attacker.cards()
    await _unposted(office, row["card_id"])
    held = {"digest_id": "card_of_a_digest"}
    where = {"card_id": row["card_id"]}
    await office.world.service.db.write(lambda tx: change(tx.conn, SlackCardRow, where, held))
    for action in ("approve", "deny", "ask"):
        assert (await attacker.deliver(attacker.press(dana, card, action))).status == 200
        form = attacker.form(dana, action, value_of(card), "because")
        assert (await attacker.deliver(form)).json["response_action"] == "errors"
    assert await attacker.nothing_said()
    assert await office.state(view) == "review"


WITHHELD: Final[dict[str, dict[str, Any]]] = {
    "longer than a message": {"items": ["x" * 4_000, "y" * 4_000]},
    "hidden characters": {"account": "acct\u202e1-tcca"},
    "a letter that passes for another": {"account": "аcct-1"},
    "nothing that can be seen": {"account": "\u200b\u2060"},
}


@pytest.mark.parametrize("args", WITHHELD.values(), ids=WITHHELD)
async def test_a_card_without_buttons_takes_no_approval(
    office: Office, attacker: Attacker, dana: str, args: dict[str, Any]
) -> None:
    answer = await office.robot.submit(await pay(office.world, **({"amount": 500} | args)), run_key="long")
    assert answer.is_success, answer.text
    view = answer.json()
    message = await office.card()
    row = await card_of(office, view)
    assert "approve" not in {
        one.get("action_id") for block in message["blocks"] for one in block.get("elements", [])
    }
    pointer = await pointer_now(office, row["card_id"])
    assert (
        await attacker.deliver(attacker.press_of(dana, message, APPROVE | {"value": pointer}))
    ).status == 200
    form = attacker.form(dana, "approve", pointer, "because")
    assert (await attacker.deliver(form)).json["response_action"] == "errors"
    assert await attacker.nothing_said()
    assert await office.state(view) == "review"
    (told,) = await attacker.answers()
    assert told["url"].endswith(f"/reviews/{row['review_id']}")


async def test_a_gate_that_wants_a_reason_takes_no_bare_press(
    office: Office, attacker: Attacker, dana: str, bundle: Payments
) -> None:
    bundle.policies(ANYBODY + gate("why", "finance", reason=""))
    assert await office.world.activate()
    view = await office.pay(500, "a")
    card = await office.card()
    assert (await attacker.deliver(attacker.press(dana, card))).status == 200
    assert await attacker.nothing_said()
    for text in (None, "", "  \n\t "):
        answer = await attacker.deliver(attacker.form(dana, "approve", value_of(card), text))
        assert answer.json["response_action"] == "errors", text
    values: tuple[Any, ...] = ({}, [], "because", {"reason": []}, {"reason": {"words": {"value": 5}}})
    for state in values:
        form = attacker.form(dana, "approve", value_of(card), "x", view__state={"values": state})
        assert (await attacker.deliver(form)).json["response_action"] == "errors", state
    assert await attacker.nothing_said()
    assert (await attacker.deliver(attacker.form(dana, "approve", value_of(card), "invoice 7"))).body == b""
    assert await office.state(view) == "released"


@pytest.mark.parametrize("how", ["denied", "withdrawn", "expired"])
async def test_a_form_of_a_review_that_is_over_says_so(
    office: Office, attacker: Attacker, dana: str, how: str
) -> None:
    view = await office.pay(500, "a")
    value = value_of(await office.card())
    if how == "denied":
        tomas = await office.world.person("tomas")
        assert (await tomas.vote(view, "deny", reason="no")).status_code == 200
    elif how == "withdrawn":
        await office.world.operator(
            "revoke-effect", {"effect_id": view["effects"][0]["effect_id"], "reason": "no"}
        )
    else:
        office.world.clock.pass_(days=30)
        await office.world.person("maya")
        await office.world.sweep()
    for kind in ("approve", "ask"):
        form = attacker.form(dana, kind, value, "because")
        answer = await attacker.deliver(form, at=office.world.clock().timestamp())
        assert answer.json["response_action"] == "errors", kind
        assert "Nothing was decided" in words(answer.json["errors"])
    assert [vote for vote in await attacker.votes() if vote[0] == "maya" and not vote[2]] == []
