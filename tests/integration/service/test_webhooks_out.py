"""Outgoing webhooks: signed, and one id for one event however often it is sent."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from policy_service import metrics
from policy_service.audit.log import highest_index
from policy_service.storage.core import table, update_rows
from policy_service.storage.system_tables import LeaseRow, OutboxRow, WebhookRow
from policy_service.tokens.keys import make_webhook_key
from policy_service.workflow import webhooks
from tests.fakes.log_check import faults_of_log
from tests.fakes.patience import until
from tests.fakes.payments import Payments
from tests.fakes.receivers import Got, Receiver, verify
from tests.fakes.world import URL, Clock, World, running
from tests.integration.service.effects import pay
from tests.integration.service.engines import each_engine

__all__ = ["each_engine"]


@dataclass
class Post:
    """A service with receivers: each a webhook of its name, signed with the secret in `secrets`."""

    folder: Path
    bundle: Path
    database: dict[str, str]
    clock: Clock = field(default_factory=Clock)
    secrets: dict[str, str] = field(default_factory=dict)

    def hook(self, name: str, receiver: Receiver, **more: Any) -> dict[str, Any]:
        file = self.folder / f"{name}.secret"
        if not file.exists():
            key = make_webhook_key(file, own=name.startswith("own"))
            self.secrets[name] = key.public or file.read_text().strip()
        usual = {"name": name, "url": receiver.url, "secret_files": [file], "addresses": ["127.0.0.0/8"]}
        return {**usual, "timeout_s": 2, **more}

    @asynccontextmanager
    async def open(self, *hooks: dict[str, Any], data: str = "data") -> AsyncIterator[World]:
        more: dict[str, Any] = {**self.database, "webhooks": hooks}
        async with running(self.folder / data, self.bundle, clock=self.clock, **more) as world:
            for hook in hooks:
                await status_becomes(world, lambda _: True, hook["name"])
            yield world
            assert await world.service.db.read(faults_of_log) == []


@pytest.fixture
def post(tmp_path: Path, folder: Payments, database: dict[str, str]) -> Post:
    return Post(tmp_path, folder.path, database)


async def received(receiver: Receiver, kind: str, times: int = 1) -> list[Got]:
    """The requests about events of a kind, as soon as there are so many."""
    await until(lambda: len([got for got in receiver.got if got.event["type"] == kind]) >= times)
    return [got for got in receiver.got if got.event["type"] == kind]


async def asked(world: World, run_key: str = "run-1") -> dict[str, Any]:
    """A payment that people are asked about."""
    robot = await world.agent(f"robot-{run_key}")
    view: dict[str, Any] = (await robot.submit(await pay(world, 500), run_key=run_key)).json()
    assert view["state"] == "review", view
    return view


async def status_becomes(
    world: World, so: Callable[[webhooks.ReceiverStatus], bool], name: str = "billing"
) -> None:
    """Wait until the receiver has such a status."""

    async def found() -> webhooks.ReceiverStatus | None:
        return await world.service.db.read(lambda conn: webhooks.receiver_status(conn, name))

    async with asyncio.timeout(10):
        while (one := await found()) is None or not so(one):  # noqa: ASYNC110  it is in a database
            await asyncio.sleep(0.02)


async def all_sent(world: World) -> None:
    """Wait until all that is in the log so far is sent."""
    upto = await world.service.db.read(highest_index)
    await status_becomes(world, lambda one: one.upto >= upto and one.waiting == 0)


async def failing(world: World, failures: int) -> None:
    await status_becomes(world, lambda one: one.failures == failures and (failures > 0 or one.waiting == 0))


def warnings(world: World) -> list[str]:
    """What /readyz says of the webhooks."""
    return [one.wrong for one in world.service.health.findings() if one.check == "webhooks"]


async def test_events_are_signed_ordered_and_sent_once(post: Post, receiver: Receiver) -> None:
    """Signed with both secrets, while one is changed for the other."""
    old, own = post.hook("billing", receiver), post.hook("own-key", receiver)
    both = old | {"secret_files": [*own["secret_files"], *old["secret_files"]]}
    async with post.open(both) as world:
        view = await asked(world)
        (got,) = await received(receiver, "review_opened")
        maya = await world.person("maya")
        assert (await maya.vote(view, reason="canary-reason fits the order")).status_code == 200
        await received(receiver, "transaction_ready")
        await world.operator("stop", {"tool": "pay", "reason": "canary-words"})
        (stopped,) = await received(receiver, "stop_began")
        assert stopped.event["data"]["what"] == "tool:pay"
        await all_sent(world)
    for secret in post.secrets.values():
        verify(secret, got.headers, got.raw, now=world.clock().timestamp())
    effect, data = view["effects"][0], got.event["data"]
    review = effect["review"]["review_id"]
    assert data | {
        "iss": URL, "txn": view["txn"], "effect_id": effect["effect_id"], "rev": 1, "review_id": review,
        "state": "open", "links": {"review": f"{URL}/reviews/{review}"},
    } == data  # fmt: skip
    assert got.event.keys() == {"type", "timestamp", "data"}
    events = sorted((got.event for got in receiver.got), key=lambda event: int(event["data"]["index"]))
    kinds = [event["type"] for event in events]
    assert kinds.index("review_opened") < kinds.index("vote_recorded") < kinds.index("review_settled")
    assert not {"signed_in", "decision_made"} & set(kinds)
    assert len({got.id for got in receiver.got}) == len(receiver.got)
    everything = b"".join(got.raw for got in receiver.got)
    for word in (b"canary-words", b"canary-reason", b"maya", b"Maya", b"amount"):
        assert word not in everything


async def test_a_failure_is_retried_under_its_id(post: Post, receiver: Receiver) -> None:
    """As soon as the receiver wishes."""
    receiver.plan = [500, (429, {"Retry-After": "600"}), 204]
    hook = post.hook("billing", receiver, url=f"{receiver.url}/canary-path", kinds=["review_opened"])
    async with post.open(hook) as world:
        await asked(world)
        await failing(world, 1)
        (one,) = await world.operator("webhooks-list", {})
        assert (one["host"], one["standing"]["waiting"]) == (f"127.0.0.1:{receiver.port}", 1)
        assert one["standing"]["last_error"] == "it answered 500"
        assert "canary" not in json.dumps(one)
        post.clock.pass_(seconds=30)
        await failing(world, 2)
        post.clock.pass_(seconds=500)
        await asyncio.sleep(1.3)  # a look of the loop, and some
        assert len(receiver.got) == 2
        post.clock.pass_(seconds=101)
        first, second, _ = await received(receiver, "review_opened", 3)
        await failing(world, 0)
    assert (first.id, first.raw) == (second.id, second.raw)
    assert int(second.headers["webhook-timestamp"]) >= int(first.headers["webhook-timestamp"]) + 29
    for got in (first, second):
        verify(post.secrets["billing"], got.headers, got.raw, now=int(got.headers["webhook-timestamp"]))


async def test_events_of_a_downtime_are_sent(post: Post, receiver: Receiver) -> None:
    async with post.open() as world:
        await asked(world, "before")
        await world.service.sequencer.number()
    async with post.open(post.hook("billing", receiver)):
        pass
    async with post.open() as world:  # the same database, without the webhook
        view = await asked(world, "meanwhile")
    async with post.open(post.hook("billing", receiver)):
        (got,) = await received(receiver, "review_opened")
    assert got.event["data"]["txn"] == view["txn"]
    assert {got.event["data"]["txn"] for got in receiver.got if "txn" in got.event["data"]} == {view["txn"]}


async def test_a_slow_receiver_delays_no_other_and_each_has_its_kinds(post: Post, receiver: Receiver) -> None:
    receiver.plan = ["silent"]
    with Receiver() as quick:
        slow = post.hook("slow", receiver, timeout_s=20, kinds=["review_opened"])
        async with post.open(slow, post.hook("quick", quick, kinds=["decision"])) as world:
            for n in range(3):
                await asked(world, f"run-{n}")
            await received(quick, "decision_made", 3)
            await received(receiver, "review_opened")
        assert {got.event["type"] for got in receiver.got} == {"review_opened"}
        assert {got.event["type"] for got in quick.got} == {"decision_made"}


async def test_a_failing_receiver_gets_one_message_at_a_time(post: Post, receiver: Receiver) -> None:
    receiver.plan = [500]
    async with post.open(post.hook("billing", receiver)) as world:
        await asked(world)
        await status_becomes(world, lambda one: one.not_before is not None)
        await asyncio.sleep(0.2)
        seen = len(receiver.got)
        post.clock.pass_(seconds=70)
        await until(lambda: len(receiver.got) > seen)
        await asyncio.sleep(1.3)
        assert len(receiver.got) == seen + 1


async def test_an_event_is_dead_after_three_days(post: Post, receiver: Receiver) -> None:
    """An operator has it sent again."""
    receiver.plan = [500]
    async with post.open(post.hook("billing", receiver, kinds=["review_opened"])) as world:
        await asked(world)
        await failing(world, 1)
        post.clock.pass_(hours=71)
        await status_becomes(world, lambda one: (one.failures, one.dead) == (2, 0))
        post.clock.pass_(hours=5)
        await status_becomes(world, lambda one: one.dead == 1)
        given_up = {"webhook": "billing", "messages": 1}
        assert ("webhook_given_up", given_up) in await world.audited("webhook_given_up")
        await world.service.webhooks.look(world.service.ctx)
        assert warnings(world) == ["1 events for billing were given up"]
        assert b'countersign_webhook_events_given_up{webhook="billing"} 1.0' in metrics.render_metrics()
        receiver.plan, seen = [204], len(receiver.got)
        assert await world.operator("webhooks-retry", {"webhook": "billing"}) == given_up
        await until(lambda: len(receiver.got) > seen)
        assert len({got.id for got in receiver.got}) == 1
        await failing(world, 0)
        await world.service.webhooks.look(world.service.ctx)
        assert warnings(world) == []


async def test_a_gone_receiver_is_disabled(post: Post, receiver: Receiver) -> None:
    receiver.plan = [410]
    async with post.open(post.hook("billing", receiver, kinds=["review_opened"])) as world:
        await asked(world, "one")
        await status_becomes(world, lambda one: one.disabled_at is not None)
        assert await world.audited("webhook_disabled") == [("webhook_disabled", {"webhook": "billing"})]
        post.clock.pass_(hours=1)
        await asked(world, "two")
        await asyncio.sleep(1.3)
        assert len(receiver.got) == 1
        await world.service.webhooks.look(world.service.ctx)
        (wrong,) = warnings(world)
        assert "410" in wrong and "disabled" in wrong
        receiver.plan = [204]
        await world.operator("webhooks-retry", {"webhook": "billing"})
        events = await received(receiver, "review_opened", 3)
        assert len({got.id for got in events}) == 2, "nothing was lost, and the first came under its own id"


async def test_a_death_after_sending(post: Post, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    # The result of the first request is never recorded here, so a busy machine may not fail it.
    hook = post.hook("billing", receiver, kinds=["review_opened"], timeout_s=20)
    with monkeypatch.context() as patch:

        async def dies(*_: object) -> int:
            await asyncio.sleep(3600)  # the process never comes to it
            return 0

        patch.setattr("policy_service.jobs.delivery.record_result", dies)
        async with post.open(hook) as world:
            await asked(world)
            await received(receiver, "review_opened")
    async with post.open(hook):
        await asyncio.sleep(1.2)
        assert len(receiver.got) == 1, "it is claimed, so no other process sends it"
        post.clock.pass_(seconds=61)
        first, second = await received(receiver, "review_opened", 2)
    assert (first.id, first.raw) == (second.id, second.raw)


async def test_a_failing_round_is_reported(
    post: Post, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with post.open(post.hook("billing", receiver)) as world:
        with monkeypatch.context() as patch:
            patch.setattr("policy_service.jobs.delivery.enqueue_events", None)  # so every call of it fails
            await until(lambda: warnings(world))
        await asked(world)
        await received(receiver, "review_opened")
        await until(lambda: not warnings(world))


async def test_each_event_is_enqueued_once(post: Post, receiver: Receiver) -> None:
    receiver.hold = threading.Event()
    async with post.open(post.hook("billing", receiver, timeout_s=20, kinds=["review_opened"])) as world:
        service, webhook = world.service, world.settings.webhooks[0]
        await asked(world, "one")
        await received(receiver, "review_opened")
        await asked(world, "two")
        await service.sequencer.number()
        await asyncio.gather(*(webhooks.enqueue_events(service.ctx, webhook) for _ in range(4)))
        assert await webhooks.claim_messages(service.ctx, "billing", "another process") == []
        await service.db.write(lambda tx: update_rows(tx.conn, WebhookRow, {"name": "billing"}, {"upto": 0}))
        await asyncio.gather(*(webhooks.enqueue_events(service.ctx, webhook) for _ in range(4)))
        about = table(OutboxRow).c
        ids = await service.db.read(lambda conn: list(conn.scalars(select(about.outbox_id))))
        assert len(ids) == len(set(ids))
        opened = select(about.outbox_id).where(about.lane == "webhook billing", about.kind == "review_opened")
        assert len(await service.db.read(lambda conn: list(conn.scalars(opened)))) == 2
        receiver.hold.set()
        await received(receiver, "review_opened", 2)


# -- replicas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["postgresql"])
async def test_two_replicas_send_each_event_once(post: Post, receiver: Receiver) -> None:
    hook = post.hook("billing", receiver)
    async with post.open(hook) as one, post.open(hook, data="data-2") as two:
        for n in range(6):
            await asked((one, two)[n % 2], f"run-{n}")
        await all_sent(one)
        leases = await one.service.db.read(lambda conn: conn.execute(select(*table(LeaseRow).columns)).all())
    assert len([got for got in receiver.got if got.event["type"] == "review_opened"]) == 6
    assert len({got.id for got in receiver.got}) == len(receiver.got)
    assert [row.fence for row in leases if row.name == "webhook billing"] == [1], "one led all the time"
