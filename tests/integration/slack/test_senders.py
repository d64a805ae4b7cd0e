"""Two processes that could send: one does, and the other takes over what the first left in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from policy_service.channels.slack import workers
from policy_service.channels.slack.send_queue import SendResult, SendStatus
from policy_service.channels.slack.workers import SlackService
from policy_service.storage import advisory_locks
from tests.fakes.payments import Payments
from tests.integration.slack.office import PAYMENTS, POST, Office, until
from tests.integration.slack.test_faults import ask_in_two_places

pytestmark = pytest.mark.anyio

CLAIM_S = 90


class DiedError(Exception):
    """The process is gone at this point: nothing of it runs any more."""


@pytest.fixture(scope="module")
def how_it_opens() -> dict[str, Any]:
    """A sender whose own worker does not run."""
    return {"met": False}


@pytest.fixture(scope="module", autouse=True)
def _own_loop_rests() -> Iterator[None]:
    """A test sends by hand, as this process or that."""

    async def rest(self: SlackService, holder: str) -> None:
        del self, holder
        await asyncio.Event().wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SlackService, "run", rest)
        yield


@dataclass
class Process:
    """One of those that send."""

    office: Office
    name: str
    channel: SlackService

    async def work(self, rounds: int = 4) -> None:
        """So many rounds, each to the end of what it began, with time for the pace between them."""
        await self.office.world.service.sequencer.number()
        for _ in range(rounds):
            await self.channel.round(self.name)
            if self.channel._sending:
                await asyncio.wait(self.channel._sending.values())
            self.office.world.clock.pass_(seconds=2)

    async def dies(self, patch: pytest.MonkeyPatch, where: Any, name: str) -> None:
        """Work, and die where the process comes to this step."""

        async def died(*args: Any) -> None:
            del args
            raise DiedError

        with patch.context() as patched:
            patched.setattr(where, name, died)
            with pytest.raises(DiedError):
                await self.work()


Two = tuple[Process, Process]


@pytest.fixture
async def two(office: Office) -> AsyncIterator[Two]:
    """Two processes over one database; the first one sends."""
    service = office.world.service
    channels = [SlackService(service.settings, office.app, service.ctx, service.health) for _ in range(2)]
    first, second = (Process(office, *one) for one in zip(("first", "second"), channels, strict=True))
    await first.work(1)
    yield first, second
    for one in (first, second):
        await one.channel._end(one.name)


def posts(office: Office) -> int:
    """How often anything was posted."""
    return len(office.faults.accepted(POST))


async def posted_once(office: Office) -> None:
    """There is one card, it was posted once, and nothing waits."""
    assert [posts(office), len(await office.cards()), (await office.slack_status()).waiting] == [1, 1, 0]


async def test_while_one_sends_the_other_does_not_until_it_stops_in_order(office: Office, two: Two) -> None:
    first, second = two
    await office.pay()
    await first.work(2)
    assert posts(office) == 1
    await office.pay(501, "b", "acct-2")
    await second.work()
    assert posts(office) == 1
    await first.work()
    assert posts(office) == 2
    await first.channel._end("first")
    await office.pay(502, "c", "acct-3")
    await second.work(3)
    assert posts(office) == 3


async def test_an_old_token_is_no_outage(office: Office, two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica whose secret file is old would otherwise have everybody rest."""
    first, second = two
    await office.pay()
    await first.work()
    asked: list[bool] = []

    async def revoked() -> SendResult:
        asked.append(True)
        return SendResult(SendStatus.APP, "token_revoked")

    monkeypatch.setattr(second.channel._slack, "check_auth", revoked)
    await second.work(6)
    assert 1 <= len(asked) <= 4, "it asks on its own, later and later"
    status = await office.slack_status()
    assert (status.failures, status.not_before) == (0, None)
    await office.pay(501, "b", "acct-2")
    await first.work()
    assert posts(office) == 2


async def test_stopping_lets_a_call_arrive(office: Office, two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its place would be silent until the claim is over, at every restart."""
    first, second = two
    await office.pay()
    call = first.channel._slack.call

    async def slowly(method: str, **more: Any) -> Any:
        await asyncio.sleep(0.2)
        return await call(method, **more)

    monkeypatch.setattr(first.channel._slack, "call", slowly)
    await office.world.service.sequencer.number()
    await first.channel.round("first")
    assert first.channel._sending
    await first.channel._end("first")
    assert posts(office) == 1
    await second.work()
    await posted_once(office)


@pytest.mark.parametrize("step", ["send_message", "record_result"])
async def test_who_dies_has_posted_once(
    office: Office, two: Two, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Before posting, or after posting and before writing it down; the lease of the one who died still holds."""
    first, second = two
    await office.pay()
    await first.dies(monkeypatch, workers if step == "record_result" else first.channel._sender, step)
    before = posts(office)
    assert before == (1 if step == "record_result" else 0)
    await second.work()
    assert posts(office) == before
    office.world.clock.pass_(seconds=CLAIM_S)
    await second.work()
    await posted_once(office)


async def test_an_unrecorded_post_is_found_again_and_delays_no_other_place(
    office: Office, bundle: Payments, two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database refuses one note; the same process goes on."""
    await ask_in_two_places(office, bundle)
    first, _ = two
    await office.pay(6_000)
    kept, failed = workers.record_result, []

    async def once(ctx: Any, app: Any, place: str, *rest: Any) -> None:
        if place == "#approvals" and not failed:
            failed.append(place)
            raise OSError("the disk is full")
        await kept(ctx, app, place, *rest)

    monkeypatch.setattr(workers, "record_result", once)
    with pytest.raises(OSError, match="full"):
        await first.work()
    await first.work()
    assert len(await office.cards(PAYMENTS)) == 1
    office.world.clock.pass_(seconds=CLAIM_S)
    await first.work()
    assert len(await office.cards()) == 1
    assert posts(office) == 2
    assert (await office.slack_status()).waiting == 0


async def test_two_replicas_project_the_log_without_duplicates(office: Office, two: Two) -> None:
    first, second = two
    for n in range(3):
        await office.pay(500 + n, f"run-{n}", f"acct-{n}")
        await office.world.service.sequencer.number()
        await asyncio.gather(first.channel.round("first"), second.channel.round("second"))
        office.world.clock.pass_(seconds=2)

    async def all_sent() -> bool:
        await first.work(1)
        await second.work(1)
        return await office.followed() and (await office.slack_status()).waiting == 0

    await until(all_sent)
    cards = await office.cards()
    assert [f"acct-{n}" in card for n, card in enumerate(cards)] == [True] * 3
    assert posts(office) == 3


async def test_a_standby_checks_the_lease_once_a_round(
    office: Office, bundle: Payments, two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many places wait."""
    await ask_in_two_places(office, bundle)
    first, second = two
    await office.pay()
    await first.work(2)
    await office.pay(6_000, "b", "acct-2")
    await second.work(1)
    asked, kept = [], advisory_locks.acquire_lease

    def counted(*args: Any) -> int | None:
        asked.append(args)
        return kept(*args)

    monkeypatch.setattr(advisory_locks, "acquire_lease", counted)
    await second.channel.round("second")
    assert len(asked) == 1
    assert posts(office) == 1


async def test_an_expired_claim_records_nothing(
    office: Office, two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one posts and is frozen; the second one has the message when it comes back, and says it failed."""
    first, second = two
    await office.pay()
    frozen: list[tuple[Any, ...]] = []
    kept = workers.record_result

    async def freeze(*args: Any) -> None:
        frozen.append(args)

    with monkeypatch.context() as patch:
        patch.setattr(workers, "record_result", freeze)
        await first.work(2)
        office.world.clock.pass_(seconds=CLAIM_S)
        await second.work(1)
    (ctx, app, place, message, outcome), (*_, again, seen) = frozen
    await kept(ctx, app, place, message, replace(outcome, status=SendStatus.PLACE, error="is_archived"))
    assert (await office.slack_status()).resting == ()
    await kept(ctx, app, place, again, seen)
    await second.work()
    await posted_once(office)
