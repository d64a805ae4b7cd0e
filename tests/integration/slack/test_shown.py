"""What the home, a card and its thread tell besides the effect, and whoever is asked nothing: why."""

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
        told = "" if view is None else words(view["blocks"])
        return told if text in told else None

    return await until(drawn)


async def pressed_at_home(office: Office, user: str, action: str, value: str = "on") -> None:
    """A press on a button of the home is delivered."""
    assert (await office.deliver(office.press_at_home(user, action, value))).status == 200


async def test_a_home_says_who_one_is_or_why_one_decides_nothing(office: Office) -> None:
    dana = await office.link("maya")
    await office.slack.open_home(dana)
    await at_home(office, dana, "Maya")
    await office.slack.open_home("U0GRACE")
    assert "/countersign link" not in await at_home(office, "U0GRACE", "guests decide nothing through Slack")
    await pressed_at_home(office, "U0SAM", "direct")
    await at_home(office, "U0SAM", "This Slack account is nobody's yet")
    with office.known_as(dana, GUEST):
        await pressed_at_home(office, dana, "direct")
        await at_home(office, dana, "guests decide nothing through Slack")


@pytest.mark.parametrize("way", ["the command", "the home"])
async def test_whoever_has_not_signed_in_for_long_may_unlink_all_the_same(office: Office, way: str) -> None:
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


async def test_whoever_asks_how_direct_messages_stand_is_told_and_nothing_changes(office: Office) -> None:
    dana = await office.link("maya")

    async def said(text: str, user: str = dana) -> str:
        answer: Answer = await office.say(user, text)
        return words(answer.json["blocks"])

    assert await said("direct") == "You are asked in channels only; /countersign direct on changes that."
    assert await said("direct on") == "You are asked in direct messages too."
    for _ in range(2):
        assert "in direct messages too; /countersign direct off changes that" in await said("direct")
    assert "write /countersign direct on" in (await said("direct perhaps")).lower()
    assert (await said("unlink", "U0SAM")).startswith("This Slack account is nobody's yet")


async def test_other_arguments_that_somebody_proposed_take_the_buttons_away(office: Office) -> None:
    dana = await office.link("maya")
    view, before = await office.asked()
    await (await office.person("tomas")).proposed(view, {"account": "acct-1", "amount": 50})
    card = await office.shows("Other arguments are proposed for it.")
    assert "Deny…" not in words(card["blocks"])
    await office.forged(dana, card, value=value_of(before))
    await office.told(dana, "Other arguments are proposed for it.")
    assert await office.votes() == []
    assert await office.state(view) == "review"


async def test_a_card_tells_what_people_denied_before(office: Office) -> None:
    first, _ = await office.asked()
    await office.vote(first, "deny", reason="the account is closed")
    await office.pay(501, "b", quiet=True)
    card = words((await office.card())["blocks"])
    assert ("the account is closed" in card, "Maya" in card) == (True, True)


async def test_whoever_wants_no_direct_messages_any_more_is_told_nothing_more_in_one(office: Office) -> None:
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


async def test_a_press_on_what_is_no_longer_so_has_the_card_drawn_anew(office: Office) -> None:
    dana = await office.link("maya")
    _, card = await office.asked(quiet=True)
    updates = len(office.faults.accepted(UPDATE))
    stale = value_of(card)[:-1] + ("0" if value_of(card)[-1] != "0" else "1")
    await office.change(SlackCardRow, {"place": "#approvals"}, {"drawn": None})
    await office.forged(dana, card, value=stale)
    await office.told(dana, "it is drawn anew in a moment")
    await office.quiet()
    assert len(office.faults.accepted(UPDATE)) == updates + 1
    assert await office.votes() == []
