"""The same delivery twice, late, swapped, by both ways, captured and sent again: each decision exactly once."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from policy_service.channels.slack import commands, dispatcher
from policy_service.errors import StorageUnavailableError
from policy_service.storage.slack_tables import SlackDeliveryRow, SlackInvitationRow
from policy_service.storage.tables import CommentRow
from tests.fakes.slack_deliveries import Answer, BothWays, Delivery, Kind, Manner, Twice, Unheard, signed
from tests.integration.slack.attacking import value_of
from tests.integration.slack.conftest import OpenOffice
from tests.integration.slack.office import APPROVALS, Office, until, words

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("each_press_is_answered")]

MAYA = ("maya", "approve", False)
TWICE = Twice()


async def test_a_payment_is_asked_about_and_approved_by_a_press_which_comes_again(office: Office) -> None:
    dana = await office.link("maya")
    manners: list[Manner] = [TWICE, Unheard()]
    for manner in manners:
        view, card = await office.asked(500, str(manner))
        assert "acct-1" in words(card)
        office.faults.deliveries.how.next("interactive", manner)
        await office.slack.click(APPROVALS, card["ts"], dana, "approve")
        assert "Approve " not in words(await office.shows("Approved and released"))
        assert await office.state(view) == "released"
        await office.quiet()
        assert [kind for kind, _ in await office.world.log(view["txn"])].count("vote_recorded") == 1
    assert await office.votes() == [MAYA, MAYA]
    assert await office.slack.ephemerals(APPROVALS, dana) == [], "a repeat is no news to anybody"


async def test_a_press_for_a_form_that_comes_twice_at_once_opens_one(office: Office) -> None:
    """The trigger is valid once: a second call would fail, and its error would reach the user with the open form."""
    dana = await office.link("maya")
    _, card = await office.asked()
    for does in ("deny", "ask"):
        office.faults.calls.clear()
        office.faults.deliveries.how.next("interactive", TWICE)
        await office.slack.click(APPROVALS, card["ts"], dana, does)
        await office.quiet()
        assert len(office.calls("views.open")) == 1, does
    assert await office.slack.ephemerals(APPROVALS, dana) == []


async def test_a_repeated_approval_is_reported_as_already_recorded(office: Office) -> None:
    dana, felix = await office.link("maya"), await office.link("tomas")
    _, card = await office.asked(5_000)
    await office.pressed(dana, card)
    assert await office.answers() == []
    await office.pressed(dana, card)
    await office.private_message(dana, "Your approval is recorded already, and it waits for others.")
    assert "recorded already" in await office.sent(dana, "approve", value_of(card))
    await office.pressed(felix, card)
    await office.pressed(dana, card)
    await office.private_message(dana, "Your approval is recorded already, and it was approved.")
    assert [vote for vote in await office.votes() if not vote[2]] == [MAYA, ("tomas", "approve", False)]


async def test_a_reason_longer_than_any_channel_takes_is_refused(office: Office) -> None:
    dana = await office.link("maya")
    _, card = await office.asked(5_000)
    for kind in ("approve", "deny", "ask"):
        assert "4,000 characters at most" in await office.sent(dana, kind, value_of(card), "x" * 4_001), kind
    assert await office.nothing_said()
    for kind in ("ask", "approve", "deny"):
        assert await office.sent(dana, kind, value_of(card), "x" * 4_000) == "", kind
    assert await office.votes() == [MAYA, ("maya", "deny", False)]


def captured(office: Office, payload: dict[str, Any], kind: Kind = "interactive") -> Delivery:
    """A delivery with the signature it has for its five minutes."""
    return Delivery(kind, payload, *signed(kind, payload, office.faults.secret, office.faults.clock()))


async def sent(office: Office, delivery: Delivery, times: int = 1, status: int = 200) -> None:
    """Have it delivered so often, one time after the other."""
    for _ in range(times):
        assert (await office.faults.deliveries.send(delivery)).status == status


def invitation_in(answer: Answer) -> str | None:
    """The secret that an answer to `/countersign link` hands out."""
    for block in answer.json.get("blocks", []):
        for element in block.get("elements", []):
            if "invitation=" in str(element.get("url", "")):
                return parse_qs(urlsplit(element["url"]).query)["invitation"][0]
    return None


async def out_of_space(*given: Any, **how: Any) -> bool:
    raise StorageUnavailableError("the disk is full")


async def test_a_press_that_is_sent_again_is_acted_on_once(office: Office) -> None:
    dana = await office.link("maya")
    view, card = await office.asked(5_000)
    await sent(office, captured(office, office.press(dana, card)), 3)
    assert await office.votes() == [MAYA]
    assert await office.count(SlackDeliveryRow) == 1
    assert await office.answers() == []
    await sent(office, captured(office, office.press("U0SAM", card)), 3)
    assert len(await office.answers()) == 1, "a press that was refused is answered once"
    ask = captured(office, office.form(dana, "ask", value_of(card), "which invoice?"))
    await asyncio.gather(*(sent(office, ask) for _ in range(4)))
    assert await office.count(CommentRow) == 1, "a question is asked once"
    assert await office.state(view) == "review"


async def test_a_denial_that_is_sent_again_denies_nothing_that_was_asked_anew(office: Office) -> None:
    dana = await office.link("maya")
    view, card = await office.asked()
    deny = captured(office, office.form(dana, "deny", value_of(card), "no"))
    await sent(office, deny)
    assert await office.state(view) == "denied"
    again = await office.pay(600)
    await sent(office, deny)
    assert await office.state(again) == "review"


async def test_a_command_that_is_sent_again_hands_out_no_invitation(office: Office) -> None:
    """An attacker who copies the payload in transit must not get a second invitation."""
    delivery = captured(office, office.command("U0DANA", "link"), "slash_commands")
    first = invitation_in(await office.faults.deliveries.send(delivery))
    assert first
    again = await office.faults.deliveries.send(delivery)
    assert (again.status, invitation_in(again)) == (200, None)
    assert first not in again.body.decode()
    for _ in range(2):
        delivery = captured(office, office.command("U0DANA", "link"), "slash_commands")
        answers = await asyncio.gather(*(office.faults.deliveries.send(delivery) for _ in range(5)))
        assert sum(invitation_in(answer) is not None for answer in answers) == 1
    assert await office.count(SlackInvitationRow) == 1
    # nothing would tell it from the same one again
    nameless = await office.say("U0DANA", "link", trigger_id="")
    assert (nameless.status, invitation_in(nameless)) == (400, None)


async def test_a_home_button_sent_again_does_nothing(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it could not be done, it is done when it is delivered again."""
    dana = await office.link("maya")
    unlink = captured(office, office.press_at_home(dana, "unlink"))
    with monkeypatch.context() as patch:
        patch.setattr(commands, "unlink", out_of_space)
        await sent(office, unlink, status=503)
    assert await office.linked(dana) is True
    await sent(office, unlink)
    assert await office.linked(dana) is False
    await office.link("maya")
    await sent(office, unlink)
    assert await office.linked(dana) is True


async def test_a_double_click_is_one_vote(office: Office) -> None:
    dana = await office.link("maya")
    view, card = await office.asked(5_000)
    await asyncio.gather(*(office.pressed(dana, card) for _ in range(4)))
    assert await office.votes() == [MAYA]
    assert all("is recorded already" in one["sentence"] for one in await office.answers())
    assert await office.state(view) == "review"


async def test_a_lost_answer_makes_no_second_vote(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vote was written and what remembers the press was not: Slack heard an error."""
    dana = await office.link("maya")
    _, card = await office.asked(5_000)
    press = captured(office, office.press(dana, card))
    with monkeypatch.context() as patch:
        patch.setattr(dispatcher, "record_interaction", out_of_space)
        await sent(office, press, status=503)
    assert await office.votes() == [MAYA]
    await sent(office, press)
    assert await office.votes() == [MAYA]


async def test_a_card_of_before_a_restart_is_pressed_after_it(open_office: OpenOffice) -> None:
    async with open_office() as before:
        dana = await before.link("maya")
        view, card = await before.asked()
        press = captured(before, before.press(dana, card))
        robot = before.robot
    async with open_office(robot="robot-2") as after:
        after.robot.key, after.robot.name = robot.key, robot.name
        await sent(after, press, 2)
        assert await after.votes() == [MAYA]
        assert await after.state(view) == "released"
        await after.shows("Approved and released")


async def test_what_comes_by_both_ways_is_acted_on_once(open_office: OpenOffice) -> None:
    async with open_office(ways=("signing", "app")) as office:
        deliveries = office.faults.deliveries
        await office.faults.relay.until_open()
        dana = await office.link("maya")
        view, card = await office.asked(5_000)
        deliveries.how.next("interactive", BothWays())
        await office.slack.click(APPROVALS, card["ts"], dana, "approve")
        assert await until(office.votes) == [MAYA]
        ask = captured(office, office.form(dana, "ask", value_of(card), "which invoice?"))
        answers = await asyncio.gather(deliveries.send(ask), deliveries.send_by_socket(ask))
        assert [answer.status for answer in answers] == [200, 200]
        assert await office.count(CommentRow) == 1
        link = captured(office, office.command("U0SAM", "link"), "slash_commands")
        both = await asyncio.gather(deliveries.send(link), deliveries.send_by_socket(link))
        assert sum(invitation_in(answer) is not None for answer in both) == 1
        assert await office.state(view) == "review"
