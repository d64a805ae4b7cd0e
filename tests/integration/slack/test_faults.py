"""Whatever fails on the way to Slack: one card, one reply for each line, in order, and the last state shown."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.fakes.payments import Payments, gate
from tests.fakes.slack_faults import (
    CutAfter,
    CutBefore,
    Fault,
    Garbled,
    Hang,
    NotOk,
    Status,
)
from tests.integration.slack.office import APPROVALS, PAYMENTS, Office, until, words

pytestmark = pytest.mark.anyio

POST, UPDATE = "chat.postMessage", "chat.update"
REST_S = 120

UNSEEN: dict[str, Fault] = {
    "429 with Retry-After": Status(429, retry_after=REST_S),
    "429 without Retry-After": Status(429),
    "500": Status(500),
    "503": Status(503),
    "no answer": Hang(0.8),
    "cut before Slack saw it": CutBefore(),
    "ok false ratelimited": NotOk("ratelimited"),
    "ok false internal_error": NotOk("internal_error"),
    "ok false something new": NotOk("something_new"),
    "ok false token_revoked": NotOk("token_revoked"),
    "ok false is_archived": NotOk("is_archived"),
    "ok false not_in_channel": NotOk("not_in_channel"),
    "ok false channel_not_found": NotOk("channel_not_found"),
}
DONE: dict[str, Fault] = {
    "cut after Slack did it": CutAfter(),
    "no answer after Slack did it": Hang(0.8, accepted=True),
    "garbled after Slack did it": Garbled(),
}
FAULTS = UNSEEN | DONE
SHORT = ("429 with Retry-After", "503", "ok false something new", "ok false token_revoked", *DONE)
SHORT_LOOK_UP = ("503", "ok false is_archived", "no answer after Slack did it")


def rest_long(short: tuple[str, ...]) -> list[Any]:
    """All the faults, and those that are not named here in the long suite."""
    return [name if name in short else pytest.param(name, marks=pytest.mark.long) for name in FAULTS]


@pytest.fixture(scope="module")
def how_it_opens() -> dict[str, Any]:
    """It waits for Slack half a second."""
    return {"app": {"timeout_s": 0.5}}


async def ask_in_two_places(office: Office, bundle: Payments) -> None:
    """About vast payments in a second channel too."""
    bundle.rules(gate("vast", "legal", "context.input.amount > 5000", channel="#payments"))
    assert await office.world.activate()


async def tell_a_story(office: Office, *faults: Fault, of: tuple[str, ...]) -> dict[str, Any]:
    """A payment is asked about, talked about and approved; before each of the three, each method fails so."""
    maya = await office.world.person("maya")

    async def told() -> None:
        await office.quiet(step_s=20)
        assert office.faults.on.left() == 0, "a fault that did not happen shows nothing"

    for method in {"conversations.list", POST} & set(of):
        office.faults.on.next(method, *faults)
    view = await office.pay(500, "a")
    await told()
    if POST in of:
        office.faults.on.next(POST, *faults)
    await office.comment(maya, view, "who asked for this?")
    await told()
    for method in {POST, UPDATE} & set(of):
        office.faults.on.next(method, *faults)
    await maya.vote(view, "approve", reason="I did")
    await told()
    return view


async def require_told_once(office: Office) -> None:
    """What the story leaves in the channel."""
    (card,) = await office.slack.messages(APPROVALS)
    assert "Approved and released" in words(card)
    lines = await office.thread()
    assert [re.split("[:·]", line)[0].strip() for line in lines] == [
        "Commented over the API",
        "Voted to approve",
        "Released",
    ]
    assert lines[0].endswith("who asked for this?")
    assert lines[1].endswith("I did")
    standing = await office.standing()
    assert (standing.waiting, standing.dead, standing.failures) == (0, 0, 0)


async def test_without_a_fault_each_thing_is_called_for_once(office: Office) -> None:
    await tell_a_story(office, of=())
    await require_told_once(office)
    methods = [call.method for call in office.faults.calls]
    asked = methods.index("conversations.list")
    assert set(methods[:asked]) <= {"auth.test"}, "asked again only where the answer took too long for us"
    assert methods[asked + 1 :] == [POST, POST, UPDATE, POST, POST]


@pytest.mark.parametrize("fault", rest_long(SHORT))
async def test_each_call_fails_once_and_everything_is_told_once(office: Office, fault: str) -> None:
    of = ("conversations.list", POST, UPDATE)
    await tell_a_story(office, FAULTS[fault], of=of)
    await require_told_once(office)


@pytest.mark.long
@pytest.mark.parametrize("fault", UNSEEN)
async def test_each_call_fails_three_times_in_a_row(office: Office, fault: str) -> None:
    """The third with an answer that is lost: what Slack did then is found before anything is posted again."""
    await tell_a_story(office, UNSEEN[fault], UNSEEN[fault], CutAfter(), of=(POST, UPDATE))
    await require_told_once(office)


@pytest.mark.parametrize("fault", rest_long(SHORT_LOOK_UP))
async def test_what_may_have_been_posted_waits_until_it_can_be_looked_up(office: Office, fault: str) -> None:
    maya = await office.world.person("maya")
    office.faults.on.next(POST, CutAfter())
    office.faults.on.next("conversations.history", FAULTS[fault], FAULTS[fault])
    view = await office.pay(500, "a")
    await office.quiet(step_s=20)
    office.faults.on.next(POST, CutAfter())
    office.faults.on.next("conversations.replies", FAULTS[fault], FAULTS[fault])
    await office.comment(maya, view, "who asked for this?")
    await office.quiet(step_s=20)
    await maya.vote(view, "approve", reason="I did")
    await office.quiet()
    assert office.faults.on.left() == 0
    await require_told_once(office)
    assert len(office.faults.accepted(POST)) == 4


async def test_retry_after_is_obeyed_to_the_second(office: Office) -> None:
    office.faults.on.next(POST, Status(429, retry_after=REST_S))
    await office.pay(500, "a")
    await office.quiet(step_s=7)
    refused, posted = (call for call in office.faults.calls if call.method == POST)
    assert posted.at - refused.at >= REST_S
    assert office.faults.calls[-1] is posted, "nothing was in doubt, so nothing was looked up"


async def test_a_channel_that_must_wait_delays_no_other(office: Office, bundle: Payments) -> None:
    """Nothing moves the clock: the second channel is written to while the first one rests."""
    await ask_in_two_places(office, bundle)
    office.faults.on.next(POST, Status(429, retry_after=3_600))
    await office.pay(500, "a")

    async def refused() -> bool | None:
        return bool([call for call in office.faults.calls if call.method == POST]) or None

    await until(refused)
    await office.pay(6_000, "b", "acct-2")
    assert "acct-2" in words(await office.card(PAYMENTS))
    assert await office.slack.messages(APPROVALS) == []
    await office.quiet(step_s=600)
    first, second = await office.slack.messages(APPROVALS)
    assert "acct-1" in words(first)
    assert "acct-2" in words(second)


async def test_a_place_slack_takes_its_time_for_holds_up_no_other(office: Office, bundle: Payments) -> None:
    await ask_in_two_places(office, bundle)
    office.faults.on.next(POST, Hang(0.4, accepted=True))
    await office.pay(6_000, "a")
    await office.quiet()
    for channel in (APPROVALS, PAYMENTS):
        assert len(await office.slack.messages(channel)) == 1


CERTAINLY_UNSAID = (Status(429), Status(429, REST_S), NotOk("ratelimited"), NotOk("token_revoked"))


async def test_an_answer_to_one_person_that_was_not_said_is_said_and_none_is_said_twice(
    office: Office,
) -> None:
    """It is said again where Slack certainly did not say it; where nobody knows, it is not."""
    await office.pay(500, "a")
    card = await office.card()
    sam, said = office.slack.users["sam"], 0
    for name, fault in FAULTS.items():
        office.faults.on.next("chat.postEphemeral", fault)
        await office.slack.click(APPROVALS, card["ts"], sam, "approve")
        await office.quiet(step_s=20)
        assert office.faults.on.left() == 0
        said += name in DONE or fault in CERTAINLY_UNSAID
        assert len(await office.slack.ephemerals(APPROVALS, sam)) == said, name
        assert (await office.standing()).failures == 0, "an answer that was lost is no outage"


async def test_an_answer_that_could_not_be_said_in_time_is_forgotten_and_is_no_trouble(
    office: Office,
) -> None:
    await office.pay(500, "a")
    card = await office.card()
    office.faults.on.always("chat.postEphemeral", Status(429, retry_after=900))
    sam = office.slack.users["sam"]
    await office.slack.click(APPROVALS, card["ts"], sam, "approve")
    await office.quiet(step_s=100)
    office.faults.on.lift()
    standing = await office.standing()
    assert await office.slack.ephemerals(APPROVALS, sam) == []
    assert (standing.waiting, standing.dead) == (0, 0)
