"""The value of a button is a pointer: a press counts only in the place of the message and as the message is.

The one who presses is maya, who may approve all of it: what is refused here is refused for what was pressed.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from policy_service.storage.slack_tables import SlackCardRow
from policy_service.workflow.effects.activate import reevaluate_open_effects
from tests.fakes.payments import ANYBODY, Payments, gate
from tests.integration.slack.attacking import value_of
from tests.integration.slack.office import PAYMENTS, Office

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_press_is_answered")]

EVERY: Final = ("approve", "deny", "ask")


@pytest.fixture
async def dana(office: Office) -> str:
    return await office.link("maya")


async def test_an_invalid_pointer_decides_nothing(office: Office, dana: str) -> None:
    """The forms of a pointer are in `tests/unit/channels/slack/test_slack_message.py`."""
    _, card = await office.asked()
    good = value_of(card)
    _, card_id, digest = good.split(":")
    garbage: list[Any] = [
        "", None, "a" * 2_000, good + "a" * 2_000, card_id, card["blocks"][0]["block_id"], f"cs2:{card_id}:{digest}",
        f"cs1:card_{'0' * 20}:{digest}", f"cs1:../{card_id}:{digest}", f"cs1:{card_id}:{'0' * 64}",
        f"cs1:%:{digest}", "<!channel>",
    ]  # fmt: skip
    for value in garbage:
        await office.forged(dana, card, value=value)
        assert await office.sent(dana, "approve", value if isinstance(value, str) else "") != "", value
        if value != f"cs1:{card_id}:{'0' * 64}":  # a digest of nothing may still deny
            assert await office.sent(dana, "deny", value if isinstance(value, str) else "") != "", value
    assert await office.nothing_said()
    assert len(await office.answers()) == len(garbage)
    assert all(one["sentence"].startswith("Nothing was decided: ") for one in await office.answers())
    for button in ({"value": f"{good}\0"}, {"value": good, "action_id": "approve\0"}):
        press = office.press_of(dana, card, {"type": "button", "action_id": "approve"} | button)
        assert (await office.deliver(press)).status == 400, "no database keeps it"
    assert await office.nothing_said()


async def test_an_action_that_is_none_of_ours_does_nothing(office: Office, dana: str) -> None:
    view, card = await office.asked()
    value = value_of(card)
    for action in ("approve ", "APPROVE", "break_glass", "release", "", "unlink", "direct", "open"):
        await office.forged(dana, card, action_id=action, value=value)
        assert await office.sent(dana, action, value) == "", action
    await office.pressed(dana, card, actions=[])
    assert await office.sent(dana, "approve", value, view=None) == ""
    assert await office.nothing_said()
    assert await office.answers() == []
    assert await office.state(view) == "review"


async def test_the_pointer_of_another_card_decides_neither(office: Office, dana: str) -> None:
    (one, first), (other, second) = await office.asked(), await office.asked(700, "b", "acct-2")
    await office.forged(dana, first, value=value_of(second))
    assert await office.nothing_said()
    assert "a copy of one" in (await office.answer())["sentence"]
    assert [await office.state(view) for view in (one, other)] == ["review", "review"]


async def test_an_old_view_may_only_deny(office: Office, dana: str, bundle: Payments) -> None:
    view, card = await office.asked()
    before = value_of(card)
    bundle.rules(gate("more", "cfo", "context.input.amount > 100"))
    assert await office.world.activate()
    await reevaluate_open_effects(office.world.service.ctx)
    await office.forged(dana, card, value=before)
    assert "has changed since this message was posted" in (await office.answer())["sentence"]
    assert "has changed" in await office.sent(dana, "approve", before)
    assert await office.nothing_said()
    assert await office.sent(dana, "deny", before) == ""
    assert await office.state(view) == "denied"


async def test_the_pointer_of_the_revision_before_decides_nothing(office: Office, dana: str) -> None:
    _, card = await office.asked()
    view = await office.pay(900)
    await office.pressed(dana, card, "approve", "deny")
    assert await office.sent(dana, "deny", value_of(card)) != ""
    assert await office.state(view) == "review"
    assert [vote for vote in await office.votes() if not vote[2]] == []


ELSEWHERE: Final[list[dict[str, Any]]] = [
    {"container__channel_id": PAYMENTS, "channel__id": PAYMENTS},
    {"container__message_ts": "1795000000.000001"},
    {"container__channel_id": "D0DANA"},
    {"container__channel_id": None},
    {"container__message_ts": None},
    {"container": {"type": "message_attachment"}},
]
NOWHERE: Final[dict[str, Any]] = {"ts": None, "channel": None}


async def test_a_copy_of_the_message_anywhere_else_decides_nothing(office: Office, dana: str) -> None:
    # a card that was just posted counts anywhere in its channel
    view, card = await office.asked(quiet=True)
    for n, place in enumerate(ELSEWHERE):
        await office.pressed(dana, card, *(EVERY if n == 0 else EVERY[:1]), **place)
        assert await office.nothing_said(), place
    assert await office.state(view) == "review"
    assert await office.slack.modals() == []


async def test_a_card_not_yet_posted_accepts_presses_only_in_its_place(office: Office, dana: str) -> None:
    """Slack may deliver a press before it acknowledges the message, but only from its place."""
    view, card = await office.asked(quiet=True)
    await office.change(SlackCardRow, {"place": "#approvals"}, NOWHERE)
    await office.pressed(dana, card, container__channel_id=PAYMENTS)
    assert await office.nothing_said()
    await office.pressed(dana, card)
    assert await office.state(view) == "released"


async def test_a_review_that_a_digest_holds_has_no_buttons_to_press(office: Office, dana: str) -> None:
    view, card = await office.asked()
    held = NOWHERE | {"digest_id": "card_of_a_digest"}
    await office.change(SlackCardRow, {"place": "#approvals"}, held)
    await office.pressed(dana, card, *EVERY)
    for kind in EVERY:
        assert await office.sent(dana, kind, value_of(card)) != ""
    assert await office.nothing_said()
    assert await office.state(view) == "review"
    await office.change(SlackCardRow, {"place": "#approvals"}, {"digest_id": None})


async def test_a_card_without_buttons_takes_no_approval(office: Office, dana: str) -> None:
    """Why a card has none is in `tests/unit/channels/slack/test_slack_card.py`."""
    withheld: list[dict[str, Any]] = [{"items": ["x" * 4_000, "y" * 4_000]}, {"account": "acct\u202e1-tcca"}]
    for output, args in enumerate(withheld, 1):
        view, card = await office.asked(500, f"run-{output}", **args)
        row, pointer = await office.card_of(view), await office.pointer(view)
        assert "'approve'" not in str(card["blocks"])
        await office.forged(dana, card, value=pointer)
        assert await office.sent(dana, "approve", pointer) != ""
        assert await office.nothing_said()
        assert await office.state(view) == "review"
        answers = await office.answers()
        assert len(answers) == output
        assert answers[-1]["url"].endswith(f"/reviews/{row.review_id}")


async def test_a_gate_with_a_reason_takes_no_bare_press(office: Office, dana: str, bundle: Payments) -> None:
    bundle.policies(ANYBODY + gate("why", "finance", reason=""))
    assert await office.world.activate()
    view, card = await office.asked()
    await office.pressed(dana, card)
    assert await office.nothing_said()
    for text in (None, "", "  \n\t "):
        assert await office.sent(dana, "approve", value_of(card), text) != "", text
    values: tuple[Any, ...] = ({}, [], "because", {"reason": []}, {"reason": {"words": {"value": 5}}})
    for state in values:
        form = await office.sent(dana, "approve", value_of(card), "x", view__state={"values": state})
        assert form != "", state
    assert await office.nothing_said()
    assert await office.sent(dana, "approve", value_of(card), "invoice 7") == ""
    assert await office.state(view) == "released"


@pytest.mark.parametrize("how", ["denied", "withdrawn", "expired"])
async def test_a_form_of_a_review_that_is_over_says_so(office: Office, dana: str, how: str) -> None:
    view, card = await office.asked()
    if how == "denied":
        await office.vote(view, "deny", by="tomas")
    elif how == "withdrawn":
        effect_id = view["effects"][0]["effect_id"]
        await office.world.operator("revoke-effect", {"effect_id": effect_id, "reason": "no"})
    else:
        office.world.clock.pass_(days=30)
        await office.world.person("maya")
        await office.world.sweep()
    for kind in ("approve", "ask"):
        assert "Nothing was decided" in await office.sent(dana, kind, value_of(card)), kind
    assert [vote for vote in await office.votes() if vote[0] == "maya" and not vote[2]] == []
