"""Slack is away, or lets the app in no more: decisions go on, `/readyz` says so, and the backlog is told once."""

from __future__ import annotations

import asyncio
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from tests.fakes.payments import Payments, gate
from tests.fakes.slack_faults import CutBefore, Fault, NotOk, Page, Status
from tests.integration.slack.office import APPROVALS, PAYMENTS, Office, until, words

pytestmark = pytest.mark.anyio

POST = "chat.postMessage"


async def finding(office: Office) -> dict[str, Any] | None:
    """What /readyz says of Slack, as of now."""
    await office.world.service.slack.look()  # type: ignore[union-attr]
    told = (await office.world.http.get("/readyz")).json()
    return next((one for one in told["findings"] if one["check"] == "slack"), None)


async def tried(office: Office, method: str, times: int = 1) -> None:
    """Let time pass until it was called so often, and the log was followed to its end."""

    async def called() -> bool | None:
        office.world.clock.pass_(seconds=5)
        called = [call for call in office.faults.calls if call.method == method]
        return (len(called) >= times and await office.followed()) or None

    await until(called)


@pytest.mark.parametrize(
    "away",
    [
        Page(),
        NotOk("token_revoked"),
        *(
            pytest.param(one, marks=pytest.mark.long)
            for one in (CutBefore(), Status(503), NotOk("account_inactive"), NotOk("internal_error"))
        ),
    ],
    ids=str,
)
async def test_hours_without_slack_lose_nothing_and_say_each_thing_once(
    own_office: Office, away: Fault
) -> None:
    office = own_office
    maya = await office.world.person("maya")
    office.faults.on.always("*", away)
    began = office.world.clock()
    views = [await office.pay(500 + n, f"run-{n}", f"acct-{n}") for n in range(3)]
    await tried(office, "conversations.list", 4)
    assert (await maya.vote(views[0], "approve", reason="fine")).status_code == 200
    assert (await maya.vote(views[1], "deny", reason="not this one")).status_code == 200
    told = await finding(office)
    assert told is not None
    assert "Slack takes no message" in told["wrong"]
    assert began <= datetime.fromisoformat(told["since"]) <= office.world.clock()
    assert [await office.state(view) for view in views] == ["released", "denied", "review"]

    office.world.clock.pass_(hours=25)
    await office.world.sweep()
    assert await office.state(views[2]) == "expired"
    assert await office.slack.messages(APPROVALS) == []

    # what is written while a card is drawn is told in its thread as well: whatever was begun before this ends first
    office.world.clock.pass_(minutes=1)
    await asyncio.sleep(0.5)
    office.faults.on.lift()
    await office.quiet(step_s=20)
    cards = [words(card) for card in await office.slack.messages(APPROVALS)]
    assert len(cards) == len(office.faults.accepted(POST)) == 3, "no thread tells what a card shows at once"
    for n, (card, ended) in enumerate(zip(cards, ("Approved", "Denied", "Expired"), strict=True)):
        assert f"acct-{n}" in card
        assert ended in card
    assert await finding(office) is None


async def test_what_happens_after_the_backlog_is_said_in_its_thread(office: Office) -> None:
    maya = await office.world.person("maya")
    office.faults.on.always("*", CutBefore())
    view = await office.pay(500, "a")
    await office.comment(maya, view, "before")
    await tried(office, "conversations.list")
    office.faults.on.lift()
    await office.quiet(step_s=20)
    await office.comment(maya, view, "after")
    await office.quiet()
    assert [line.rpartition(" ")[2] for line in await office.thread()] == ["before", "after"]


async def test_more_than_a_few_wait_in_one_digest_which_follows_them(own_office: Office) -> None:
    """Ten that wait have cards of their own (`digest_above`); the others share one message."""
    office = own_office
    maya = await office.world.person("maya")
    office.faults.on.always("*", CutBefore())
    views = [await office.pay(500 + n, f"run-{n}", f"acct-{n}") for n in range(14)]
    await tried(office, "conversations.list")
    office.faults.on.lift()
    await office.quiet(step_s=20)
    messages = await office.slack.messages(APPROVALS)
    assert len(messages) == 11
    at = [call.at for call in office.faults.accepted(POST)]
    assert min(later - earlier for earlier, later in pairwise(at)) >= 1.0
    digest = words(messages[-1])
    assert all(f"acct-{n}" in digest for n in range(10, 14))
    assert "acct-9" not in digest

    await maya.vote(views[10], "deny", reason="no")
    await office.quiet()
    assert "Denied" in words((await office.slack.messages(APPROVALS))[-1])
    assert await office.thread() == [], "a digest is no place for every word about each"

    for view in views[11:]:
        await maya.vote(view, "deny", reason="no")
    await office.quiet()
    messages = await office.slack.messages(APPROVALS)
    assert "Nobody is asked about these any more" in words(messages[-1])
    assert len(messages) == 11


async def test_a_reminder_is_said_in_the_thread_of_a_digest(own_office: Office, own_bundle: Payments) -> None:
    office = own_office
    own_bundle.rules(gate("slow", "finance", "context.input.amount > 100", remind="1h"))
    await office.world.activate()
    office.faults.on.always("*", CutBefore())
    for n in range(12):
        await office.pay(500 + n, f"run-{n}", f"acct-{n}")
    await tried(office, "conversations.list")
    office.faults.on.lift()
    await office.quiet(step_s=20)
    office.world.clock.pass_(minutes=70)
    await office.world.sweep()
    await office.quiet(step_s=20)
    said = await office.thread()
    assert len(said) == 2
    assert all("emind" in line for line in said)


@pytest.mark.long
async def test_a_flood_is_neither_faster_than_the_pace_nor_a_message_each(office: Office) -> None:
    for n in range(60):
        await office.pay(500 + n, f"run-{n}", f"acct-{n}")
    await office.quiet(step_s=0.5, patience_s=60)
    messages = await office.slack.messages(APPROVALS)
    assert len(messages) <= 20, "ten or so have a card of their own, and a digest holds the others"
    at = [call.at for call in office.faults.calls if call.method in (POST, "chat.update")]
    assert min(later - earlier for earlier, later in pairwise(at)) >= 1.0
    shown = " ".join(map(words, messages))
    assert "acct-0" in shown


async def test_an_app_that_was_removed_is_said_at_once_and_well_again_when_slack_says_so(
    office: Office,
) -> None:
    await office.pay(500, "a")
    await office.quiet()
    for gone, more in (
        ("app_uninstalled", {}),
        ("tokens_revoked", {"tokens": {"bot": ["U0COUNTERSIGN"]}}),
    ):
        event = {
            "type": "event_callback", "token": "t", "team_id": office.slack.team_id,
            "api_app_id": office.slack.app_id, "event_id": f"Ev{gone}", "event_time": 1, "event": {"type": gone} | more,
        }  # fmt: skip
        office.faults.on.always("auth.test", NotOk("token_revoked"))
        answer = await office.faults.deliveries.forge("events_api", event, at=office.faults.clock())
        assert answer.status == 200
        told = await finding(office)
        assert told is not None
        assert gone in told["wrong"]
        office.faults.on.lift()
        office.world.clock.pass_(minutes=2)
        assert await finding(office) is None, "nothing waits, so it asked Slack itself"


@pytest.mark.parametrize(
    "error",
    [
        "is_archived",
        *(pytest.param(one, marks=pytest.mark.long) for one in ("not_in_channel", "channel_not_found")),
    ],
)
async def test_a_channel_that_is_shut_rests_alone(office: Office, bundle: Payments, error: str) -> None:
    bundle.rules(gate("vast", "legal", "context.input.amount > 5000", channel="#payments"))
    await office.world.activate()
    await office.pay(500, "a")
    await office.quiet()
    office.faults.on.next(POST, *[NotOk(error)] * 3)
    await office.pay(501, "b", "acct-2")
    await tried(office, POST, 3)
    told = await finding(office)
    assert told is not None
    assert f"#approvals ({error})" in told["wrong"]
    left = office.faults.on.left()
    office.faults.on.lift()
    assert left >= 1
    await office.quiet(step_s=60)
    assert len(await office.slack.messages(APPROVALS)) == 2
    assert await finding(office) is None
    await office.pay(6_000, "c", "acct-3")
    await office.quiet()
    assert "acct-3" in words(await office.card(PAYMENTS))


async def test_a_channel_that_was_renamed_is_the_same_channel(office: Office) -> None:
    await office.pay(500, "a")
    await office.quiet()
    office.faults.on.always("conversations.list", NotOk("fatal_error"))
    await office.pay(501, "b", "acct-2")
    await office.quiet()
    assert len(await office.slack.messages(APPROVALS)) == 2, "it is known by its id and not looked for again"
