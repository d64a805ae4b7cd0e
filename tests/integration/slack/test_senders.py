"""Two processes that could send: one does, and the other takes over what the first left in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from policy_service.channels.slack import loops
from policy_service.channels.slack.loops import SlackChannel
from policy_service.storage import leases
from policy_service.workflow.slack.sending import Came, Outcome
from tests.fakes.payments import Payments
from tests.integration.slack.office import APPROVALS, PAYMENTS, Office, until, words
from tests.integration.slack.test_faults import ask_in_two_places

pytestmark = pytest.mark.anyio

POST = "chat.postMessage"
LEASE_S, CLAIM_S = 60, 90


class DiedError(Exception):
    """The process is gone at this point: nothing of it runs any more."""


@pytest.fixture(scope="module")
def how_it_opens() -> dict[str, Any]:
    """It has met nobody: its own loop rests."""
    return {"met": False}


@pytest.fixture(scope="module", autouse=True)
def _own_loop_rests() -> Iterator[None]:
    """A test sends by hand, as this process or that."""

    async def rest(self: SlackChannel, holder: str) -> None:
        del self, holder
        await asyncio.Event().wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SlackChannel, "run", rest)
        yield


@pytest.fixture
async def two(office: Office) -> AsyncIterator[tuple[SlackChannel, SlackChannel]]:
    """Two processes over one database."""
    service = office.world.service
    both = [SlackChannel(service.settings, office.app, service.ctx, service.health) for _ in range(2)]
    yield both[0], both[1]
    for channel, holder in zip(both, ("first", "second"), strict=True):
        await channel._end(holder)


async def work(office: Office, channel: SlackChannel, holder: str, *, rounds: int = 6) -> None:
    """So many rounds, each to the end of what it began, with time for the pace between them."""
    await office.world.service.sequencer.number()
    for _ in range(rounds):
        await channel.round(holder)
        if channel._sending:
            await asyncio.wait(channel._sending.values())
        office.world.clock.pass_(seconds=2)


def posts(office: Office) -> int:
    """How often anything was posted."""
    return len(office.faults.accepted(POST))


async def dying(monkeypatch: pytest.MonkeyPatch, name: str, act: Any) -> None:
    """Have the next process that comes to this step die there."""

    async def died(*args: Any) -> None:
        del args
        raise DiedError

    with monkeypatch.context() as patch:
        patch.setattr(loops, name, died)
        with pytest.raises(DiedError):
            await act


async def test_while_one_sends_the_other_does_not(
    office: Office, two: tuple[SlackChannel, SlackChannel]
) -> None:
    first, second = two
    await work(office, first, "first", rounds=1)
    await office.pay(500, "a")
    await work(office, first, "first", rounds=2)
    assert posts(office) == 1
    await office.pay(501, "b", "acct-2")
    await work(office, second, "second")
    assert posts(office) == 1
    await work(office, first, "first")
    assert posts(office) == 2


async def test_whoever_has_another_token_says_nothing_of_slack_while_the_other_sends(
    office: Office, two: tuple[SlackChannel, SlackChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica whose secret file is old would otherwise have everybody rest."""
    first, second = two
    await work(office, first, "first", rounds=1)
    await office.pay(500, "a")
    await work(office, first, "first")
    asked: list[bool] = []

    async def revoked() -> Outcome:
        asked.append(True)
        return Outcome(Came.APP, "token_revoked")

    monkeypatch.setattr(second._slack, "how_is_it", revoked)
    await work(office, second, "second")
    assert 1 <= len(asked) <= 4, "it asks on its own, later and later"
    standing = await office.standing()
    assert (standing.failures, standing.not_before) == (0, None)
    await office.pay(501, "b", "acct-2")
    await work(office, first, "first")
    assert posts(office) == 2


async def test_who_stops_in_order_leaves_at_once_to_the_other(
    office: Office, two: tuple[SlackChannel, SlackChannel]
) -> None:
    first, second = two
    await work(office, first, "first", rounds=1)
    await office.pay(500, "a")
    await work(office, first, "first", rounds=2)
    await first._end("first")
    await office.pay(501, "b", "acct-2")
    await work(office, second, "second", rounds=3)
    assert posts(office) == 2


async def test_who_stops_in_order_lets_what_is_on_its_way_arrive(
    office: Office, two: tuple[SlackChannel, SlackChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its place would be silent until the claim is over, at every restart."""
    first, second = two
    await work(office, first, "first", rounds=1)
    await office.pay(500, "a")
    call = first._slack.call

    async def slowly(method: str, **more: Any) -> Any:
        await asyncio.sleep(0.2)
        return await call(method, **more)

    monkeypatch.setattr(first._slack, "call", slowly)
    await office.world.service.sequencer.number()
    await first.round("first")
    assert first._sending
    await first._end("first")
    assert posts(office) == 1
    await work(office, second, "second")
    assert (await office.standing()).waiting == 0
    assert posts(office) == 1


async def test_who_dies_after_posting_and_before_writing_it_down_has_posted_once(
    office: Office, two: tuple[SlackChannel, SlackChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    await work(office, first, "first", rounds=1)
    await office.pay(500, "a")
    await dying(monkeypatch, "note", work(office, first, "first"))
    assert posts(office) == 1
    await work(office, second, "second")
    assert posts(office) == 1, "the lease of the one who died still holds"
    office.world.clock.pass_(seconds=CLAIM_S)
    await work(office, second, "second")
    (card,) = await office.slack.messages(APPROVALS)
    assert "acct-1" in words(card)
    assert posts(office) == 1
    assert (await office.standing()).waiting == 0


async def test_who_dies_before_posting_leaves_it_to_be_posted(
    office: Office, two: tuple[SlackChannel, SlackChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    await work(office, first, "first", rounds=1)
    await office.pay(500, "a")

    async def died(*args: Any) -> None:
        del args
        raise DiedError

    with monkeypatch.context() as patch:
        patch.setattr(first._courier, "carry", died)
        with pytest.raises(DiedError):
            await work(office, first, "first")
    assert posts(office) == 0
    office.world.clock.pass_(seconds=CLAIM_S)
    await work(office, second, "second")
    assert posts(office) == 1
    assert len(await office.slack.messages(APPROVALS)) == 1


async def test_what_could_not_be_written_down_is_found_again_and_holds_up_no_other_place(
    office: Office, bundle: Payments, two: tuple[SlackChannel, SlackChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database refuses one note; the same process goes on."""
    await ask_in_two_places(office, bundle)
    first, _ = two
    await work(office, first, "first", rounds=1)
    await office.pay(6_000, "a")
    kept, failed = loops.note, []

    async def once(ctx: Any, app: Any, place: str, *rest: Any) -> None:
        if place == "#approvals" and not failed:
            failed.append(place)
            raise OSError("the disk is full")
        await kept(ctx, app, place, *rest)

    monkeypatch.setattr(loops, "note", once)
    with pytest.raises(OSError, match="full"):
        await work(office, first, "first")
    await work(office, first, "first")
    assert len(await office.slack.messages(PAYMENTS)) == 1
    office.world.clock.pass_(seconds=CLAIM_S)
    await work(office, first, "first")
    assert len(await office.slack.messages(APPROVALS)) == 1
    assert posts(office) == 2
    assert (await office.standing()).waiting == 0


async def test_both_follow_the_log_and_each_thing_is_owed_once(
    office: Office, two: tuple[SlackChannel, SlackChannel]
) -> None:
    first, second = two
    await work(office, first, "first", rounds=1)
    for n in range(5):
        await office.pay(500 + n, f"run-{n}", f"acct-{n}")
        await office.world.service.sequencer.number()
        await asyncio.gather(first.round("first"), second.round("second"))
        office.world.clock.pass_(seconds=2)

    async def told() -> bool | None:
        await work(office, first, "first", rounds=1)
        await work(office, second, "second", rounds=1)
        return (await office.followed() and (await office.standing()).waiting == 0) or None

    await until(told)
    cards = [words(card) for card in await office.slack.messages(APPROVALS)]
    assert len(cards) == posts(office) == 5
    assert all(f"acct-{n}" in card for n, card in enumerate(cards))


async def test_who_does_not_send_asks_for_the_lease_once_a_round(
    office: Office, bundle: Payments, two: tuple[SlackChannel, SlackChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many places wait."""
    await ask_in_two_places(office, bundle)
    first, second = two
    await work(office, first, "first", rounds=1)
    await office.pay(500, "a")
    await work(office, first, "first", rounds=2)
    await office.pay(6_000, "b", "acct-2")
    await work(office, second, "second", rounds=1)
    asked, kept = [], leases.acquire

    def counted(*args: Any) -> int | None:
        asked.append(args)
        return kept(*args)

    monkeypatch.setattr(leases, "acquire", counted)
    await second.round("second")
    assert len(asked) == 1
    assert posts(office) == 1


async def test_who_was_away_for_longer_than_the_claim_says_nothing_of_what_another_one_does(
    office: Office, two: tuple[SlackChannel, SlackChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one posts and is frozen; the second one has the message when it comes back, and says it failed."""
    first, second = two
    await work(office, first, "first", rounds=1)
    await office.pay(500, "a")
    frozen: list[tuple[Any, ...]] = []
    kept = loops.note

    async def freeze(*args: Any) -> None:
        frozen.append(args)

    with monkeypatch.context() as patch:
        patch.setattr(loops, "note", freeze)
        await work(office, first, "first", rounds=2)
        office.world.clock.pass_(seconds=CLAIM_S)
        await work(office, second, "second", rounds=1)
    (ctx, app, place, message, outcome), (*_, again, seen) = frozen
    failed = replace(outcome, came=Came.PLACE, error="is_archived")
    await kept(ctx, app, place, message, failed)
    assert (await office.standing()).resting == ()
    await kept(ctx, app, place, again, seen)
    await work(office, second, "second")
    assert posts(office) == 1
    assert (await office.standing()).waiting == 0
