"""What a card and its thread tell besides the effect: a proposal, an earlier denial, what an outage held back."""

from __future__ import annotations

import pytest

from policy_service.storage.slack_tables import SlackCardRow
from policy_service.workflow.slack.linking import set_direct
from tests.integration.slack.attacking import value_of
from tests.integration.slack.office import UPDATE, Office, until, words

pytestmark = pytest.mark.anyio


async def test_other_arguments_that_somebody_proposed_take_the_buttons_away(office: Office) -> None:
    dana = await office.link("maya")
    view, before = await office.asked()
    tomas = await office.world.person("tomas")
    await tomas.proposed(view, {"account": "acct-1", "amount": 50})
    card = await office.shows("Other arguments are proposed for it.")
    assert "Deny…" not in words(card["blocks"])
    await office.forged(dana, card, value=value_of(before))
    await office.told(dana, "Other arguments are proposed for it.")
    assert await office.votes() == []
    assert await office.state(view) == "review"


async def test_a_card_tells_what_people_denied_before(office: Office) -> None:
    maya = await office.world.person("maya")
    first, _ = await office.asked()
    assert (await maya.vote(first, "deny", reason="the account is closed")).status_code == 200
    await office.pay(501, "b")
    await office.quiet()
    card = words((await office.card())["blocks"])
    assert ("the account is closed" in card, "Maya" in card) == (True, True)


async def test_whoever_wants_no_direct_messages_any_more_is_told_nothing_more_in_one(office: Office) -> None:
    dana, tomas = await office.link("maya"), await office.world.person("tomas")
    ctx, team = office.world.service.ctx, office.app.team_id
    await set_direct(ctx, team, dana, wanted=True)
    view = await office.pay()
    before = words(await until(lambda: office.slack.direct(dana)))
    await set_direct(ctx, team, dana, wanted=False)
    assert (await tomas.vote(view, "deny", reason="a secret reason")).status_code == 200
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
