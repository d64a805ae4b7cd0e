"""A channel that an operator gives up: what was for it is let go, and nobody who still has to be asked is forgotten."""

from __future__ import annotations

import pytest

from policy_service.errors import NotFoundError
from policy_service.storage.core import find
from policy_service.storage.slack_tables import SlackCardRow
from policy_service.workflow.slack.mending import Dropped, drop
from tests.fakes.payments import ANYBODY, Payments, gate
from tests.fakes.slack_faults import NotOk
from tests.integration.slack.conftest import APPROVALS, PAYMENTS, Office, until, words
from tests.integration.slack.test_outage import finding, tried

pytestmark = pytest.mark.anyio

POST = "chat.postMessage"


async def given_up(office: Office, place: str) -> Dropped:
    """What `slack drop` does."""
    return await office.world.service.db.write(lambda tx: drop(tx, office.app, place, "the team moved on"))


async def places(office: Office) -> list[str]:
    """Where there are cards."""
    cards = await office.world.service.db.read(lambda conn: find(conn, SlackCardRow))
    return sorted(card.place for card in cards)


async def stuck_in(office: Office, bundle: Payments, channel: str) -> None:
    """A gate asks in a channel that is archived."""
    bundle.policies(ANYBODY + gate("large", "finance", "context.input.amount > 100", channel=channel))
    assert await office.world.activate()
    office.faults.on.next(POST, *[NotOk("is_archived")] * 2)
    await office.pay(500, "a")
    await tried(office, POST)
    await until(lambda: rests(office))


async def rests(office: Office) -> bool | None:
    """Whether a place takes nothing."""
    return bool((await office.standing()).resting) or None


async def test_what_is_open_is_asked_in_the_default_channel(office: Office, bundle: Payments) -> None:
    await stuck_in(office, bundle, "#payments")
    dropped = await given_up(office, "#payments")
    assert dropped.cards == 1
    assert dropped.messages >= 1
    await office.quiet()
    assert "acct-1" in words(await office.card(APPROVALS))
    assert await office.slack.messages(PAYMENTS) == []
    assert await places(office) == ["#approvals"]
    assert await finding(office) is None


async def test_what_is_over_is_asked_nowhere(office: Office, bundle: Payments) -> None:
    await stuck_in(office, bundle, "#payments")
    maya = await office.world.person("maya")
    view = await office.pay(501, "b", "acct-2")
    await maya.vote(view, "deny", reason="no")
    await given_up(office, "#payments")
    await office.quiet()
    (only,) = await office.slack.messages(APPROVALS)
    assert "acct-1" in words(only)


async def test_the_default_channel_given_up_leaves_what_is_open_to_the_web(office: Office) -> None:
    office.faults.on.next(POST, *[NotOk("is_archived")] * 2)
    view = await office.pay(500, "a")
    await tried(office, POST)
    await until(lambda: rests(office))
    await given_up(office, "#approvals")
    await office.quiet()
    assert await places(office) == []
    assert await office.slack.messages(APPROVALS) == []
    maya = await office.world.person("maya")
    await maya.vote(view, "approve")
    assert await office.state(view) == "released"


async def test_a_review_with_another_card_is_asked_no_further(office: Office, bundle: Payments) -> None:
    bundle.rules(gate("more", "legal", "context.input.amount > 100", channel="#payments"))
    assert await office.world.activate()
    await office.pay(500, "a")
    await office.quiet()
    assert await places(office) == ["#approvals", "#payments"]
    await given_up(office, "#payments")
    await office.quiet()
    assert await places(office) == ["#approvals"]
    assert len(await office.slack.messages(APPROVALS)) == 1


async def test_a_button_of_a_channel_that_was_given_up_decides_nothing(office: Office) -> None:
    dana = await office.link("maya")
    view = await office.pay(500, "a")
    card = await office.card()
    await office.quiet()
    await given_up(office, "#approvals")
    await office.slack.click(APPROVALS, card["ts"], dana, "approve")
    assert "no message of ours" in words(await office.told(dana, "Nothing was decided"))
    assert await office.state(view) == "review"


async def test_what_was_never_asked_is_no_place(office: Office) -> None:
    with pytest.raises(NotFoundError, match="nothing was ever for '#typo'"):
        await given_up(office, "#typo")
