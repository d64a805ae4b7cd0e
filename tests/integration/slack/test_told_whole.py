"""What a card and its thread tell besides the effect: a proposal, an earlier denial, what an outage held back."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from policy_service.storage.core import table
from policy_service.storage.slack_tables import SlackCardRow
from policy_service.storage.unit import Tx
from policy_service.workflow.slack.linking import set_direct
from tests.integration.slack.attacking import Attacker, value_of
from tests.integration.slack.office import APPROVALS, Office, until, words

pytestmark = pytest.mark.anyio

APPROVE = {"type": "button", "action_id": "approve"}


async def test_other_arguments_that_somebody_proposed_take_the_buttons_away(office: Office) -> None:
    dana = await office.link("maya")
    view = await office.pay(500, "a")
    before = await office.shows("Approve")
    tomas = await office.world.person("tomas")
    await tomas.proposed(view, {"account": "acct-1", "amount": 50})
    card = await office.shows("Other arguments are proposed for it.")
    assert "Deny…" not in words(card["blocks"])

    attacker = Attacker(office)
    await attacker.deliver(attacker.press_of(dana, card, APPROVE | {"value": value_of(before)}))
    await office.told(dana, "Other arguments are proposed for it.")
    assert await attacker.votes() == []
    assert await office.state(view) == "review"


async def test_a_card_tells_what_people_denied_before(office: Office) -> None:
    maya = await office.world.person("maya")
    first = await office.pay(500, "a")
    await office.card()
    answer = await maya.vote(first, "deny", reason="the account is closed")
    assert answer.status_code == 200, answer.text
    await office.pay(501, "b")
    await office.card(nth=-2)
    card = await office.shows("the account is closed")
    assert "Maya" in words(card["blocks"])


async def test_whoever_wants_no_direct_messages_any_more_is_told_nothing_more_in_one(office: Office) -> None:
    dana = await office.link("maya")
    ctx, team = office.world.service.ctx, office.app.team_id
    await set_direct(ctx, team, dana, wanted=True)
    view = await office.pay(500, "a")

    async def asked() -> bool | None:
        return bool(await office.slack.direct(dana)) or None

    await until(asked)
    await set_direct(ctx, team, dana, wanted=False)
    before = words(await office.slack.direct(dana))
    tomas = await office.world.person("tomas")
    assert (await tomas.vote(view, "deny", reason="a secret reason")).status_code == 200
    await office.quiet()
    await office.shows("a secret reason", APPROVALS)
    assert words(await office.slack.direct(dana)) == before


async def test_a_press_on_what_is_no_longer_so_has_the_card_drawn_anew(office: Office) -> None:
    dana = await office.link("maya")
    await office.pay(500, "a")
    card = await office.card()
    await office.quiet()
    updates = len(office.faults.accepted("chat.update"))
    attacker = Attacker(office)
    stale = value_of(card)[:-1] + ("0" if value_of(card)[-1] != "0" else "1")
    await office.world.service.db.write(_forget_what_it_says)
    await attacker.deliver(attacker.press_of(dana, card, APPROVE | {"value": stale}))
    await office.told(dana, "it is drawn anew in a moment")
    await office.quiet()
    assert len(office.faults.accepted("chat.update")) == updates + 1
    assert await attacker.votes() == []


def _forget_what_it_says(tx: Tx) -> None:
    tx.conn.execute(update(table(SlackCardRow)).values(drawn=None))
