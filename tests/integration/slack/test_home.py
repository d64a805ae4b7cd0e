"""The home over HTTP: drawn after Slack was told that it was opened, and for whoever is asked nothing it says why."""

from __future__ import annotations

import threading

import pytest

from policy_service.channels.slack import client, desk
from policy_service.identity.slack_links import slack_link
from policy_service.workflow.reading.reviews import ReviewPage
from tests.fakes.payments import ANYBODY, Payments, gate
from tests.fakes.slack_deliveries import Json
from tests.fakes.slack_truth import GUEST
from tests.integration.slack.attacking import Attacker
from tests.integration.slack.office import Office, until, words

pytestmark = pytest.mark.anyio


async def at_home(office: Office, user: str, text: str) -> str:
    """What somebody's home shows, once it says this."""

    async def drawn() -> str | None:
        view = await office.slack.home(user)
        told = "" if view is None else words(view["blocks"])
        return told if text in told else None

    return await until(drawn)


def pressed_at_home(attacker: Attacker, user: str, action: str, value: str = "on") -> Json:
    """A press on a button of the home."""
    button = {"action_id": action, "value": value}
    where = {"type": "view", "view_id": "V0HOME"}
    return attacker.press_of(user, {"ts": ""}, button, container=where, view={"id": "V0HOME", "type": "home"})


async def linked(office: Office, user: str) -> bool:
    team = office.app.team_id
    return await office.world.service.db.read(lambda conn: slack_link(conn, team, user) is not None)


async def test_a_home_that_is_opened_is_drawn(office: Office) -> None:
    await office.link("maya")
    await office.slack.open_home("U0DANA")
    await at_home(office, "U0DANA", "Maya")


async def test_a_guest_is_told_at_home_that_guests_decide_nothing(office: Office) -> None:
    await office.slack.open_home("U0GRACE")
    told = await at_home(office, "U0GRACE", "guests decide nothing through Slack")
    assert "/countersign link" not in told


async def test_a_button_of_the_home_that_is_refused_says_why_there(office: Office) -> None:
    attacker = Attacker(office)
    assert (await attacker.deliver(pressed_at_home(attacker, "U0SAM", "direct"))).status == 200
    await at_home(office, "U0SAM", "This Slack account is nobody's yet")


async def test_a_button_of_the_home_that_a_guest_presses_says_why_there(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ACCOUNT_KEPT_S", 0.0)
    attacker, dana = Attacker(office), await office.link("maya")
    office.faults.truth.people[dana] = GUEST
    try:
        assert (await attacker.deliver(pressed_at_home(attacker, dana, "direct"))).status == 200
        await at_home(office, dana, "guests decide nothing through Slack")
    finally:
        del office.faults.truth.people[dana]


@pytest.mark.parametrize("way", ["the command", "the home"])
async def test_whoever_has_not_signed_in_for_long_may_unlink_all_the_same(office: Office, way: str) -> None:
    attacker, dana = Attacker(office), await office.link("maya")
    office.world.clock.pass_(days=office.app.signed_in_within_days)
    now = office.world.clock().timestamp()
    await office.slack.open_home(dana)
    await at_home(office, dana, "Unlink")
    if way == "the home":
        answer = await attacker.deliver(pressed_at_home(attacker, dana, "direct"), at=now)
        assert "have not signed in" in await at_home(office, dana, "You have not signed in")
        answer = await attacker.deliver(pressed_at_home(attacker, dana, "unlink", "unlink"), at=now)
    else:
        refused = await attacker.deliver(attacker.command(dana, "direct on"), "slash_commands", at=now)
        assert "have not signed in" in refused.body.decode()
        answer = await attacker.deliver(attacker.command(dana, "unlink"), "slash_commands", at=now)
    assert answer.status == 200
    assert await linked(office, dana) is False


async def test_whoever_asks_how_direct_messages_stand_is_told_and_nothing_changes(office: Office) -> None:
    attacker, dana = Attacker(office), await office.link("maya")

    async def said(text: str) -> str:
        return words((await attacker.say(dana, text)).json["blocks"])

    assert await said("direct") == "You are asked in channels only; /countersign direct on changes that."
    assert await said("direct on") == "You are asked in direct messages too."
    assert (
        await said("direct") == "You are asked in direct messages too; /countersign direct off changes that."
    )
    assert (
        await said("direct") == "You are asked in direct messages too; /countersign direct off changes that."
    )
    assert "write /countersign direct on" in (await said("direct perhaps")).lower()


async def test_whoever_is_linked_to_nobody_has_nothing_to_unlink(office: Office) -> None:
    answer = await Attacker(office).say("U0SAM", "unlink")
    assert words(answer.json["blocks"]).startswith("This Slack account is nobody's yet")


async def test_what_a_message_shows_is_measured_beside_the_loop_before_a_form_opens(
    office: Office, bundle: Payments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long one takes its time, and a press of somebody else waits three seconds at most."""
    measured: list[bool] = []

    def withheld(page: ReviewPage) -> str | None:
        measured.append(threading.current_thread() is threading.main_thread())
        return None

    bundle.policies(ANYBODY + gate("why", "finance", reason=""))
    assert await office.world.activate()
    monkeypatch.setattr(desk, "buttons_withheld", withheld)
    attacker, dana = Attacker(office), await office.link("maya")
    await office.pay(500, "a")
    assert (await attacker.deliver(attacker.press(dana, await office.card()))).status == 200
    assert measured == [False]
