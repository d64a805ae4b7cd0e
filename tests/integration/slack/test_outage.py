"""Slack is away, or lets the app in no more: decisions go on, `/readyz` says so, and the backlog is posted once."""

from __future__ import annotations

import asyncio
from datetime import datetime
from itertools import pairwise

import pytest

from tests.fakes.payments import Payments, gate
from tests.fakes.slack_faults import CutBefore, NotOk
from tests.integration.slack.office import PAYMENTS, POST, Office, words

pytestmark = pytest.mark.anyio

LIST = "conversations.list"
SHUT = ["is_archived", "not_in_channel", pytest.param("channel_not_found", marks=pytest.mark.long)]


async def test_hours_without_slack_lose_nothing(own_office: Office) -> None:
    office = own_office
    office.faults.on.always("*", NotOk("token_revoked"))
    began = office.world.clock()
    views = [await office.pay(500 + n, f"run-{n}", f"acct-{n}") for n in range(3)]
    await office.tried(LIST, 4)
    await office.vote(views[0], "approve", reason="fine")
    await office.vote(views[1], "deny", reason="not this one")
    output = await office.finding()
    assert "Slack accepts no messages" in output
    assert began <= datetime.fromisoformat(output.rpartition(" ")[2]) <= office.world.clock()
    assert [await office.state(view) for view in views] == ["released", "denied", "review"]

    office.world.clock.pass_(hours=25)
    await office.world.sweep()
    assert await office.state(views[2]) == "expired"
    assert await office.cards() == []

    # a row written while a card is rendered is also posted in its thread, so let pending work finish first
    office.world.clock.pass_(minutes=1)
    await asyncio.sleep(0.5)
    office.faults.on.lift()
    await office.quiet(step_s=20)
    cards = await office.cards()
    assert len(cards) == len(office.faults.accepted(POST)) == 3, "no thread repeats what a new card shows"
    for n, (card, ended) in enumerate(zip(cards, ("Approved", "Denied", "Expired"), strict=True)):
        assert (f"acct-{n}" in card, ended in card) == (True, True)
    assert await office.finding() == ""


async def test_events_after_the_backlog_are_posted_in_the_thread(office: Office) -> None:
    office.faults.on.always("*", CutBefore())
    view = await office.pay()
    await office.comment(view, "before")
    await office.tried(LIST)
    office.faults.on.lift()
    await office.quiet(step_s=20)
    await office.comment(view, "after")
    await office.quiet()
    assert [line.rpartition(" ")[2] for line in await office.thread()] == ["before", "after"]


@pytest.mark.usefixtures("at_its_pace")
async def test_more_than_ten_share_a_digest(own_office: Office, own_bundle: Payments) -> None:
    """Ten that wait have cards of their own (`digest_above`); the others share one message."""
    office = own_office
    own_bundle.rules(gate("slow", "finance", "context.input.amount > 100", remind="1h"))
    await office.world.activate()
    views = await office.backlog(13)
    *cards, digest = await office.cards()
    assert len(cards) == 10
    at = [call.at for call in office.faults.accepted(POST)]
    assert min(later - earlier for earlier, later in pairwise(at)) >= 1.0
    assert [f"acct-{n}" in digest for n in (9, 10, 11, 12)] == [False, True, True, True]

    await office.vote(views[10], "deny")
    await office.quiet()
    assert "Denied" in (await office.cards())[-1]
    assert await office.thread() == [], "a digest is no place for every word about each"

    office.world.clock.pass_(minutes=70)
    await office.world.sweep()
    await office.quiet(step_s=20)
    assert ["emind" in line for line in await office.thread()] == [True, True]

    for view in views[11:]:
        await office.vote(view, "deny")
    await office.quiet()
    messages = await office.cards()
    assert "None of these is open any more" in messages[-1]
    assert len(messages) == 11


async def test_a_removed_app_is_reported_at_once_until_auth_test_succeeds(office: Office) -> None:
    await office.pay(quiet=True)
    for gone in ("app_uninstalled", "tokens_revoked"):
        office.faults.on.always("auth.test", NotOk("token_revoked"))
        assert (await office.deliver(office.event(gone), "events_api")).status == 200
        assert gone in await office.finding()
        office.faults.on.lift()
        office.world.clock.pass_(minutes=2)
        assert await office.finding() == "", "nothing waits, so it asked Slack itself"


@pytest.mark.parametrize("error", SHUT)
async def test_an_archived_channel_is_paused_alone(office: Office, bundle: Payments, error: str) -> None:
    bundle.rules(gate("vast", "legal", "context.input.amount > 5000", channel="#payments"))
    await office.world.activate()
    await office.pay(quiet=True)
    office.faults.on.next(POST, *[NotOk(error)] * 3)
    await office.pay(501, "b", "acct-2")
    await office.tried(POST, 3)
    assert f"#approvals ({error})" in await office.finding()
    assert office.faults.on.left() >= 1
    office.faults.on.lift()
    await office.quiet(step_s=60)
    assert len(await office.cards()) == 2
    assert await office.finding() == ""
    await office.pay(6_000, "c", "acct-3", quiet=True)
    assert "acct-3" in words(await office.card(PAYMENTS))


async def test_a_channel_is_known_by_its_id_and_not_looked_for_again(office: Office) -> None:
    await office.pay(quiet=True)
    office.faults.on.always(LIST, NotOk("fatal_error"))
    await office.pay(501, "b", "acct-2", quiet=True)
    assert len(await office.cards()) == 2
