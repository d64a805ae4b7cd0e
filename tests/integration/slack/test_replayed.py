"""The same delivery again: captured and sent once more, pressed twice, delivered by both ways, after a restart."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from policy_service.channels.slack import commands, desk
from policy_service.errors import StorageUnavailableError
from policy_service.identity.slack_links import slack_link
from policy_service.storage.slack_tables import SlackDeliveryRow, SlackInvitationRow
from policy_service.storage.tables import CommentRow
from tests.fakes.slack_deliveries import Answer, BothWays, Delivery, Json, Kind, signed
from tests.integration.slack.attacking import Attacker, value_of
from tests.integration.slack.conftest import OpenOffice
from tests.integration.slack.office import APPROVALS, Office, until

pytestmark = pytest.mark.anyio


def captured(office: Office, kind: Kind, payload: Json) -> Delivery:
    """A delivery with the signature it has for its five minutes."""
    return Delivery(kind, payload, *signed(kind, payload, office.faults.secret, office.faults.clock()))


def invitation_in(answer: Answer) -> str | None:
    """The secret that an answer to `/countersign link` hands out."""
    for block in answer.json.get("blocks", []):
        for element in block.get("elements", []):
            if "invitation=" in str(element.get("url", "")):
                return parse_qs(urlsplit(element["url"]).query)["invitation"][0]
    return None


async def test_a_press_that_is_sent_again_is_acted_on_once(office: Office, attacker: Attacker) -> None:
    dana = await office.link("maya")
    view = await office.pay(5_000, "two people")
    press = captured(office, "interactive", attacker.press(dana, await office.card()))
    for _ in range(5):
        assert (await office.faults.deliveries.send(press)).status == 200
    assert await attacker.votes() == [("maya", "approve", False)]
    assert await attacker.count(SlackDeliveryRow) == 1
    assert await attacker.answers() == []
    assert await office.state(view) == "review"


async def test_a_refused_press_that_is_sent_again_is_answered_once(
    office: Office, attacker: Attacker
) -> None:
    await office.pay(500, "a")
    press = captured(office, "interactive", attacker.press("U0SAM", await office.card()))
    for _ in range(5):
        assert (await office.faults.deliveries.send(press)).status == 200
    assert len(await attacker.answers()) == 1


async def test_a_form_that_is_sent_again_asks_nothing_again(office: Office, attacker: Attacker) -> None:
    dana = await office.link("maya")
    await office.pay(500, "a")
    form = attacker.form(dana, "ask", value_of(await office.card()), "which invoice?")
    delivery = captured(office, "interactive", form)
    await asyncio.gather(*(office.faults.deliveries.send(delivery) for _ in range(4)))
    assert await attacker.count(CommentRow) == 1


async def test_a_denial_that_is_sent_again_after_the_review_was_asked_anew_denies_nothing(
    office: Office, attacker: Attacker
) -> None:
    dana = await office.link("maya")
    view = await office.pay(500, "a")
    deny = captured(office, "interactive", attacker.form(dana, "deny", value_of(await office.card()), "no"))
    assert (await office.faults.deliveries.send(deny)).status == 200
    assert await office.state(view) == "denied"
    again = await office.pay(600, "a")
    assert (await office.faults.deliveries.send(deny)).status == 200
    assert await office.state(again) == "review"


async def test_a_command_that_is_sent_again_hands_out_no_invitation(
    office: Office, attacker: Attacker
) -> None:
    delivery = captured(office, "slash_commands", attacker.command("U0DANA", "link"))
    first = invitation_in(await office.faults.deliveries.send(delivery))
    assert first
    again = await office.faults.deliveries.send(delivery)
    assert (again.status, invitation_in(again)) == (200, None)
    assert first not in again.body.decode()


async def test_a_command_that_is_sent_twice_at_once_hands_out_one_invitation(
    office: Office, attacker: Attacker
) -> None:
    """Whoever copies the command on its way is as fast as Slack: a second invitation would be theirs."""
    for _ in range(5):
        delivery = captured(office, "slash_commands", attacker.command("U0DANA", "link"))
        answers = await asyncio.gather(*(office.faults.deliveries.send(delivery) for _ in range(6)))
        assert sum(invitation_in(answer) is not None for answer in answers) == 1
    assert await attacker.count(SlackInvitationRow) == 1


async def test_a_command_without_a_name_of_its_own_is_none(office: Office, attacker: Attacker) -> None:
    """Nothing would tell it from the same command sent again."""
    answer = await attacker.say("U0DANA", "link", trigger_id="")
    assert (answer.status, invitation_in(answer)) == (400, None)


@pytest.fixture
async def unlink(office: Office, attacker: Attacker) -> Delivery:
    """The button of dana's home, pressed."""
    where = {"container": {"type": "view", "view_id": "V0HOME"}, "view": {"id": "V0HOME", "type": "home"}}
    dana = await office.link("maya")
    return captured(
        office, "interactive", attacker.press_of(dana, {"ts": ""}, {"action_id": "unlink"}, **where)
    )


async def test_a_button_of_the_home_that_is_sent_again_does_nothing_again(
    office: Office, unlink: Delivery
) -> None:
    assert (await office.faults.deliveries.send(unlink)).status == 200
    assert await _linked(office) is False
    await office.link("maya")
    assert (await office.faults.deliveries.send(unlink)).status == 200
    assert await _linked(office) is True


async def test_a_button_of_the_home_that_could_not_be_done_is_done_when_it_is_delivered_again(
    office: Office, unlink: Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(commands, "unlink", out_of_space)
        assert (await office.faults.deliveries.send(unlink)).status == 503
    assert await _linked(office) is True
    assert (await office.faults.deliveries.send(unlink)).status == 200
    assert await _linked(office) is False


async def out_of_space(*given: Any, **how: Any) -> bool:
    raise StorageUnavailableError("the disk is full")


async def _linked(office: Office) -> bool:
    team, dana = office.app.team_id, office.slack.users["dana"]
    return await office.world.service.db.read(lambda conn: slack_link(conn, team, dana) is not None)


async def test_a_double_click_is_one_vote(office: Office, attacker: Attacker) -> None:
    dana = await office.link("maya")
    view = await office.pay(5_000, "two people")
    card = await office.card()
    presses = [attacker.press(dana, card) for _ in range(4)]
    answers = await asyncio.gather(*(attacker.deliver(press) for press in presses))
    assert [answer.status for answer in answers] == [200] * 4
    assert await attacker.votes() == [("maya", "approve", False)]
    assert all("is recorded already" in one["sentence"] for one in await attacker.answers())
    assert await office.state(view) == "review"


async def test_a_press_whose_answer_was_lost_counts_once_when_it_is_pressed_again(
    office: Office, attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vote was written and what remembers the press was not: Slack heard an error."""
    dana = await office.link("maya")
    await office.pay(5_000, "two people")
    press = captured(office, "interactive", attacker.press(dana, await office.card()))

    with monkeypatch.context() as patch:
        patch.setattr(desk, "remember", out_of_space)
        assert (await office.faults.deliveries.send(press)).status == 503
    assert await attacker.votes() == [("maya", "approve", False)]
    assert (await office.faults.deliveries.send(press)).status == 200
    assert await attacker.votes() == [("maya", "approve", False)]


async def test_a_card_of_before_a_restart_is_pressed_after_it(open_office: OpenOffice) -> None:
    async with open_office() as before:
        dana = await before.link("maya")
        view = await before.pay(500, "a")
        press = captured(before, "interactive", Attacker(before).press(dana, await before.card()))
        robot = before.robot
    async with open_office(robot="robot-2") as after:
        after.robot.key, after.robot.name = robot.key, robot.name
        for _ in range(2):
            assert (await after.faults.deliveries.send(press)).status == 200
        assert await Attacker(after).votes() == [("maya", "approve", False)]
        assert await after.state(view) == "released"
        await after.shows("Approved and released")


async def test_what_comes_by_both_ways_is_acted_on_once(open_office: OpenOffice) -> None:
    async with open_office(ways=("signing", "app")) as office:
        attacker, deliveries = Attacker(office), office.faults.deliveries
        await office.faults.relay.until_open()
        dana = await office.link("maya")
        view = await office.pay(5_000, "two people")
        card = await office.card()
        deliveries.how.next("interactive", BothWays())
        await office.slack.click(APPROVALS, card["ts"], dana, "approve")

        async def voted() -> list[Any] | None:
            return await attacker.votes() or None

        assert await until(voted) == [("maya", "approve", False)]
        ask = captured(office, "interactive", attacker.form(dana, "ask", value_of(card), "which invoice?"))
        answers = await asyncio.gather(deliveries.send(ask), deliveries.send_by_socket(ask))
        assert [answer.status for answer in answers] == [200, 200]
        assert await attacker.count(CommentRow) == 1
        link = captured(office, "slash_commands", attacker.command("U0SAM", "link"))
        both = await asyncio.gather(deliveries.send(link), deliveries.send_by_socket(link))
        assert sum(invitation_in(answer) is not None for answer in both) == 1
        assert await office.state(view) == "review"
