"""The app's home, cards and threads, and the reasons shown to people who may not decide."""

from __future__ import annotations

import pytest

from policy_service.storage.slack_tables import SlackCardRow
from policy_service.workflow.slack.account_links import set_direct
from tests.fakes.slack_deliveries import Answer
from tests.fakes.slack_truth import GUEST
from tests.integration.slack.attacking import value_of
from tests.integration.slack.office import UPDATE, Office, until, words

pytestmark = pytest.mark.anyio


async def at_home(office: Office, user: str, text: str) -> str:
    """What somebody's home shows, once it says this."""

    async def drawn() -> str | None:
        view = await office.slack.home(user)
        output = "" if view is None else words(view["blocks"])
        return output if text in output else None

    return await until(drawn)


async def pressed_at_home(office: Office, user: str, action: str, value: str = "on") -> None:
    """A press on a button of the home is delivered."""
    assert (await office.deliver(office.press_at_home(user, action, value))).status == 200


async def test_the_home_names_the_person_or_the_reason(office: Office) -> None:
    dana = await office.link("maya")
    await office.slack.open_home(dana)
    await at_home(office, dana, "Maya")
    await office.slack.open_home("U0GRACE")
    assert "/countersign link" not in await at_home(office, "U0GRACE", "guests cannot decide through Slack")
    await pressed_at_home(office, "U0SAM", "direct")
    await at_home(office, "U0SAM", "This Slack account is not linked yet")
    with office.known_as(dana, GUEST):
        await pressed_at_home(office, dana, "direct")
        await at_home(office, dana, "guests cannot decide through Slack")


@pytest.mark.parametrize("way", ["the command", "the home"])
async def test_a_person_with_an_old_sign_in_may_unlink(office: Office, way: str) -> None:
    dana = await office.link("maya")
    office.world.clock.pass_(days=office.app.signed_in_within_days)
    await office.slack.open_home(dana)
    await at_home(office, dana, "Unlink")
    if way == "the home":
        await pressed_at_home(office, dana, "direct")
        await at_home(office, dana, "You have not signed in")
        await pressed_at_home(office, dana, "unlink", "unlink")
    else:
        assert "have not signed in" in (await office.say(dana, "direct on")).body.decode()
        assert (await office.say(dana, "unlink")).status == 200
    assert await office.linked(dana) is False


async def test_direct_without_argument_shows_the_setting_and_changes_nothing(office: Office) -> None:
    dana = await office.link("maya")

    async def said(text: str, user: str = dana) -> str:
        answer: Answer = await office.say(user, text)
        return words(answer.json["blocks"])

    assert await said("direct") == "You are asked in channels only; /countersign direct on changes that."
    assert await said("direct on") == "You are asked in direct messages too."
    for _ in range(2):
        assert "in direct messages too; /countersign direct off changes that" in await said("direct")
    assert "write /countersign direct on" in (await said("direct perhaps")).lower()
    assert (await said("unlink", "U0SAM")).startswith("This Slack account is not linked yet")


async def test_other_arguments_that_somebody_proposed_take_the_buttons_away(office: Office) -> None:
    dana = await office.link("maya")
    view, before = await office.asked()
    await (await office.person("tomas")).proposed(view, {"account": "acct-1", "amount": 50})
    card = await office.shows("Other arguments are proposed for it.")
    assert "Deny…" not in words(card["blocks"])
    await office.forged(dana, card, value=value_of(before))
    await office.private_message(dana, "Other arguments are proposed for it.")
    assert await office.votes() == []
    assert await office.state(view) == "review"


async def test_a_card_shows_recent_denials(office: Office) -> None:
    first, _ = await office.asked()
    await office.vote(first, "deny", reason="the account is closed")
    await office.pay(501, "b", quiet=True)
    card = words((await office.card())["blocks"])
    assert ("the account is closed" in card, "Maya" in card) == (True, True)


async def test_disabling_direct_messages_stops_them(office: Office) -> None:
    dana = await office.link("maya")
    ctx, team = office.world.service.ctx, office.app.team_id
    await set_direct(ctx, team, dana, wanted=True)
    view = await office.pay()
    before = words(await until(lambda: office.slack.direct(dana)))
    await set_direct(ctx, team, dana, wanted=False)
    await office.vote(view, "deny", reason="a secret reason", by="tomas")
    await office.quiet()
    await office.shows("a secret reason")
    assert words(await office.slack.direct(dana)) == before


async def test_a_press_on_an_outdated_card_updates_it(office: Office) -> None:
    dana = await office.link("maya")
    _, card = await office.asked(quiet=True)
    updates = len(office.faults.accepted(UPDATE))
    stale = value_of(card)[:-1] + ("0" if value_of(card)[-1] != "0" else "1")
    await office.change(SlackCardRow, {"place": "#approvals"}, {"drawn": None})
    await office.forged(dana, card, value=stale)
    await office.private_message(dana, "it is updated in a moment")
    await office.quiet()
    assert len(office.faults.accepted(UPDATE)) == updates + 1
    assert await office.votes() == []
