"""After any failing call to Slack: one card, one reply for each row, in order, and the last state shown."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.fakes.payments import Payments, gate
from tests.fakes.slack_deliveries import Json
from tests.fakes.slack_faults import CutAfter, CutBefore, Fault, Garbled, Hang, NotOk, Status
from tests.integration.slack.office import APPROVALS, PAYMENTS, POST, UPDATE, Office, words

pytestmark = pytest.mark.anyio

LIST, PRIVATE = "conversations.list", "chat.postEphemeral"
REST_S = 120
CASES: dict[str, tuple[Fault, ...]] = {
    "one after the other": (
        Status(429, REST_S), Status(503), CutBefore(), NotOk("something_new"), NotOk("token_revoked")
    ),
    "rate limits": (Status(429), NotOk("ratelimited")), "no answer": (Hang(0.8),),
    "cut after Slack did it": (CutAfter(),),
    "no answer after Slack did it": (Hang(0.8, accepted=True),),
    "garbled after Slack did it": (Garbled(),),
}  # fmt: skip


@pytest.fixture(scope="module")
def how_it_opens() -> dict[str, Any]:
    """It waits for Slack half a second."""
    return {"app": {"timeout_s": 0.5}}


async def ask_in_two_places(office: Office, bundle: Payments) -> None:
    """About vast payments in a second channel too."""
    bundle.rules(gate("vast", "legal", "context.input.amount > 5000", channel="#payments"))
    assert await office.world.activate()


async def tell_a_story(office: Office, *faults: Fault, of: tuple[str, ...]) -> None:
    """A payment is asked about, talked about and approved; before each of the three, each method fails so."""

    async def fail(*methods: str) -> None:
        for method in {*methods} & {*of}:
            office.faults.on.next(method, *faults)

    async def all_sent() -> None:
        await office.quiet(step_s=60)
        assert office.faults.on.left() == 0, "a fault that did not happen shows nothing"

    await fail(LIST, POST)
    view = await office.pay()
    await all_sent()
    await fail(POST)
    await office.comment(view, "who asked for this?")
    await all_sent()
    await fail(POST, UPDATE)
    await office.vote(view, "approve", reason="I did")
    await all_sent()
    await require_posted_once(office)


async def require_posted_once(office: Office) -> None:
    """What the story leaves in the channel."""
    (card,) = await office.cards()
    assert "Approved and released" in card
    lines = await office.thread()
    said = [re.split("[:·]", line)[0].strip() for line in lines]
    assert said == ["Commented over the API", "Voted to approve", "Released"]
    assert (lines[0].endswith("who asked for this?"), lines[1].endswith("I did")) == (True, True)
    status = await office.slack_status()
    assert (status.waiting, status.dead, status.failures) == (0, 0, 0)


async def test_without_a_fault_each_call_is_made_once(office: Office) -> None:
    await tell_a_story(office, of=())
    methods = [call.method for call in office.faults.calls]
    asked = methods.index(LIST)
    assert set(methods[:asked]) <= {"auth.test"}, "asked again only where the answer took too long for us"
    assert methods[asked + 1 :] == [POST, POST, UPDATE, POST, POST]


@pytest.mark.parametrize("faults", CASES.values(), ids=CASES)
async def test_each_message_is_posted_once_after_failures(office: Office, faults: tuple[Fault, ...]) -> None:
    await tell_a_story(office, *faults, of=(LIST, POST, UPDATE))


async def test_what_may_have_been_posted_waits_until_it_can_be_looked_up(office: Office) -> None:
    faults = (Status(503), NotOk("is_archived"), Hang(0.8, accepted=True))
    office.faults.on.next(POST, CutAfter())
    office.faults.on.next("conversations.history", *faults)
    view = await office.pay()
    await office.quiet(step_s=60)
    office.faults.on.next(POST, CutAfter())
    office.faults.on.next("conversations.replies", *faults)
    await office.comment(view, "who asked for this?")
    await office.quiet(step_s=60)
    await office.vote(view, "approve", reason="I did")
    await office.quiet()
    assert office.faults.on.left() == 0
    await require_posted_once(office)
    assert len(office.faults.accepted(POST)) == 4


async def test_retry_after_is_obeyed_to_the_second(office: Office) -> None:
    office.faults.on.next(POST, Status(429, retry_after=REST_S))
    await office.pay()
    await office.quiet(step_s=15)
    refused, posted = office.calls(POST)
    assert posted.at - refused.at >= REST_S
    assert office.faults.calls[-1] is posted, "nothing was in doubt, so nothing was looked up"


async def test_a_channel_that_must_wait_delays_no_other(office: Office, bundle: Payments) -> None:
    """Nothing moves the clock: the second channel is written to while the first one rests."""
    await ask_in_two_places(office, bundle)
    office.faults.on.next(POST, Status(429, retry_after=3_600))
    await office.pay()
    await office.called(POST)
    await office.pay(6_000, "b", "acct-2")
    assert "acct-2" in words(await office.card(PAYMENTS))
    assert await office.cards() == []
    await office.quiet(step_s=600)
    first, second = await office.cards()
    assert ("acct-1" in first, "acct-2" in second) == (True, True)


ANSWERS: list[tuple[Fault, bool]] = [
    (Status(429), True), (Status(429, REST_S), True), (NotOk("ratelimited"), True), (NotOk("token_revoked"), True),
    (CutAfter(), True), (Garbled(), True), (Status(503), False), (CutBefore(), False),
    (NotOk("something_new"), False), (NotOk("is_archived"), False),
]  # fmt: skip


async def pressed_by_a_stranger(office: Office, card: Json) -> None:
    """A person who gets an ephemeral refusal."""
    await office.slack.click(APPROVALS, card["ts"], "U0SAM", "approve")


async def test_an_ephemeral_answer_is_repeated_only_if_certainly_unsent(office: Office) -> None:
    _, card = await office.asked()
    said = 0
    for fault, is_said in ANSWERS:
        office.faults.on.next(PRIVATE, fault)
        await pressed_by_a_stranger(office, card)
        await office.quiet(step_s=60)
        assert office.faults.on.left() == 0
        said += is_said
        assert len(await office.slack.ephemerals(APPROVALS, "U0SAM")) == said, fault
        assert (await office.slack_status()).failures == 0, "an answer that was lost is no outage"


async def test_a_late_ephemeral_answer_is_dropped_without_a_finding(office: Office) -> None:
    _, card = await office.asked()
    office.faults.on.always(PRIVATE, Status(429, retry_after=900))
    await pressed_by_a_stranger(office, card)
    await office.quiet(step_s=100)
    office.faults.on.lift()
    status = await office.slack_status()
    assert await office.slack.ephemerals(APPROVALS, "U0SAM") == []
    assert (status.waiting, status.dead) == (0, 0)
