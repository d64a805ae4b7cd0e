"""The same delivery again: captured and sent once more, pressed twice, delivered by both ways, after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from policy_service.channels.slack import commands, desk
from policy_service.errors import StorageUnavailableError
from policy_service.identity.slack_links import slack_link
from policy_service.storage.slack_tables import SlackDeliveryRow, SlackInvitationRow
from policy_service.storage.tables import CommentRow
from policy_service.workflow.due.sweep import forget_what_is_over
from policy_service.workflow.slack.forgetting import DELIVERIES_KEPT
from tests.counterparts.slack import SlackServer
from tests.fakes.payments import Payments
from tests.fakes.slack_deliveries import Answer, BothWays, Delivery, Json, Kind, Twice, signed
from tests.fakes.slack_faults import SlackFaults
from tests.integration.slack.attacking import Attacker, value_of
from tests.integration.slack.office import APPROVALS, Office, opened, until
from tests.unit.storage.databases import BOTH

pytestmark = pytest.mark.anyio


@pytest.fixture
def attacker(office: Office) -> Attacker:
    return Attacker(office)


def captured(office: Office, kind: Kind, payload: Json) -> Delivery:
    """A delivery with the signature it has for its five minutes."""
    return Delivery(kind, payload, *signed(kind, payload, office.faults.secret))


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


@pytest.mark.parametrize("engine", BOTH)
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


@pytest.mark.parametrize("engine", BOTH)
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


async def test_a_button_of_the_home_that_is_sent_again_does_nothing_again(
    office: Office, attacker: Attacker
) -> None:
    dana = await office.link("maya")
    view = {"id": "V0HOME", "type": "home"}
    unlink = attacker.press_of(
        dana,
        {"ts": ""},
        {"action_id": "unlink"},
        container={"type": "view", "view_id": "V0HOME"},
        view=view,
    )
    delivery = captured(office, "interactive", unlink)
    assert (await office.faults.deliveries.send(delivery)).status == 200
    assert await _linked(office, dana) is False
    await office.link("maya")
    assert (await office.faults.deliveries.send(delivery)).status == 200
    assert await _linked(office, dana) is True


async def test_a_button_of_the_home_that_could_not_be_done_is_done_when_it_is_delivered_again(
    office: Office, attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    dana = await office.link("maya")
    view = {"id": "V0HOME", "type": "home"}
    more = {"container": {"type": "view", "view_id": "V0HOME"}, "view": view}
    delivery = captured(
        office, "interactive", attacker.press_of(dana, {"ts": ""}, {"action_id": "unlink"}, **more)
    )

    async def unavailable(*given: Any, **how: Any) -> bool:
        raise StorageUnavailableError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(commands, "unlink", unavailable)
        assert (await office.faults.deliveries.send(delivery)).status == 503
    assert await _linked(office, dana) is True
    assert (await office.faults.deliveries.send(delivery)).status == 200
    assert await _linked(office, dana) is False


async def _linked(office: Office, user_id: str) -> bool:
    team = office.app.team_id
    return await office.world.service.db.read(lambda conn: slack_link(conn, team, user_id) is not None)


@pytest.mark.parametrize("engine", BOTH)
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

    async def lost(*_: Any) -> None:
        raise StorageUnavailableError("the disk was full for a moment")

    with monkeypatch.context() as patch:
        patch.setattr(desk, "remember", lost)
        assert (await office.faults.deliveries.send(press)).status == 503
    assert await attacker.votes() == [("maya", "approve", False)]
    assert (await office.faults.deliveries.send(press)).status == 200
    assert await attacker.votes() == [("maya", "approve", False)]


async def test_a_card_of_before_a_restart_is_pressed_after_it(
    tmp_path: Path,
    slack_and_faults: tuple[SlackServer, SlackFaults],
    bundle: Payments,
    database: dict[str, str],
) -> None:
    slack, faults = slack_and_faults
    async with opened(tmp_path, slack, faults, bundle.path, **database) as before:
        dana = await before.link("maya")
        view = await before.pay(500, "a")
        card = await before.card()
        press = captured(before, "interactive", Attacker(before).press(dana, card))
        robot = before.robot
    async with opened(tmp_path, slack, faults, bundle.path, **database, robot="robot-2") as after:
        after.robot.key, after.robot.name = robot.key, robot.name
        attacker = Attacker(after)
        for _ in range(2):
            assert (await faults.deliveries.send(press)).status == 200
        assert await attacker.votes() == [("maya", "approve", False)]
        assert await after.state(view) == "released"
        await after.shows("Approved and released")


@pytest.mark.parametrize("manner", [BothWays(), Twice(), Twice(together=True)], ids=repr)
async def test_what_comes_by_both_ways_is_acted_on_once(
    tmp_path: Path,
    slack_and_faults: tuple[SlackServer, SlackFaults],
    bundle: Payments,
    database: dict[str, str],
    manner: Any,
) -> None:
    slack, faults = slack_and_faults
    async with opened(tmp_path, slack, faults, bundle.path, ways=("signing", "app"), **database) as office:
        await faults.relay.until_open()
        dana = await office.link("maya")
        view = await office.pay(5_000, "two people")
        card = await office.card()
        faults.deliveries.how.next("interactive", manner)
        await slack.click(APPROVALS, card["ts"], dana, "approve")
        attacker = Attacker(office)

        async def voted() -> list[Any] | None:
            return await attacker.votes() or None

        assert await until(voted) == [("maya", "approve", False)]
        ask = captured(office, "interactive", attacker.form(dana, "ask", value_of(card), "which invoice?"))
        answers = await asyncio.gather(faults.deliveries.send(ask), faults.deliveries.send_by_socket(ask))
        assert [answer.status for answer in answers] == [200, 200]
        assert await attacker.count(CommentRow) == 1
        link = captured(office, "slash_commands", attacker.command("U0SAM", "link"))
        both = await asyncio.gather(faults.deliveries.send(link), faults.deliveries.send_by_socket(link))
        assert sum(invitation_in(answer) is not None for answer in both) == 1
        assert await office.state(view) == "review"


async def test_what_was_acted_on_is_forgotten_long_after_it_could_come_again(
    office: Office, attacker: Attacker
) -> None:
    await office.pay(500, "a")
    press = captured(office, "interactive", attacker.press("U0SAM", await office.card()))
    assert (await office.faults.deliveries.send(press)).status == 200
    office.world.clock.pass_(hours=1)
    await forget_what_is_over(office.world.service.ctx)
    assert await attacker.count(SlackDeliveryRow) == 1
    office.world.clock.pass_(days=DELIVERIES_KEPT.days)
    await forget_what_is_over(office.world.service.ctx)
    assert await attacker.count(SlackDeliveryRow) == 0
