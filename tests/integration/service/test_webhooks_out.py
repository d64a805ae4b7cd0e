"""Outgoing webhooks of the real service: signed, one id for one event however often it is sent, and nobody waits."""

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
from policy_service.storage.system_tables import AuditRow, LeaseRow, OutboxRow, WebhookRow
from policy_service.tokens.keys import make_webhook_key
from policy_service.workflow import webhooks
from tests.fakes.log_check import faults_of_log
from tests.fakes.payments import Payments
from tests.fakes.receivers import Got, Receiver, verify
from tests.fakes.world import URL, Clock, World, running
from tests.integration.service.effects import pay
from tests.integration.service.engines import SQLITE_IN_SHORT
from tests.integration.service.patience import until

pytestmark = pytest.mark.anyio


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
        told = {"name": name, "url": receiver.url, "secret_files": [file], "addresses": ["127.0.0.0/8"]}
        return {**told, "timeout_s": 2, **more}

    @asynccontextmanager
    async def open(self, *hooks: dict[str, Any], data: str = "data") -> AsyncIterator[World]:
        more: dict[str, Any] = {**self.database, "webhooks": hooks}
        async with running(self.folder / data, self.bundle, clock=self.clock, **more) as world:
            for hook in hooks:
                await stands(world, lambda _: True, hook["name"])
            yield world
            assert await world.service.db.read(faults_of_log) == []


@pytest.fixture(params=SQLITE_IN_SHORT)
def engine(request: pytest.FixtureRequest) -> str:
    """Both, unless a test is about one of them."""
    found: str = request.param
    return found


@pytest.fixture
def post(tmp_path: Path, folder: Payments, database: dict[str, str]) -> Post:
    return Post(tmp_path, folder.path, database)


async def told(receiver: Receiver, kind: str, times: int = 1) -> list[Got]:
    """The requests about events of a kind, as soon as there are so many."""
    await until(lambda: len([got for got in receiver.got if got.event["type"] == kind]) >= times)
    return [got for got in receiver.got if got.event["type"] == kind]


async def asked(world: World, run_key: str = "run-1") -> dict[str, Any]:
    """A payment that people are asked about."""
    robot = await world.agent(f"robot-{run_key}")
    view: dict[str, Any] = (await robot.submit(await pay(world, 500), run_key=run_key)).json()
    assert view["state"] == "review", view
    return view


async def stands(world: World, so: Callable[[webhooks.ReceiverStatus], bool], name: str = "billing") -> None:
    """Wait until the receiver is met, and stands so."""

    async def found() -> webhooks.ReceiverStatus | None:
        return await world.service.db.read(lambda conn: webhooks.receiver_status(conn, name))

    async with asyncio.timeout(10):
        while (one := await found()) is None or not so(one):  # noqa: ASYNC110  it is in a database
            await asyncio.sleep(0.02)


async def told_all(world: World) -> None:
    """Wait until all that is in the log so far is told."""
    upto = await world.service.db.read(highest_index)
    await stands(world, lambda one: one.upto >= upto and one.waiting == 0)


async def failing(world: World, failures: int) -> None:
    await stands(world, lambda one: one.failures == failures and (failures > 0 or one.waiting == 0))


def trouble(world: World) -> list[str]:
    """What is wrong with the webhooks, for whoever asks whether the service is ready."""
    return [one.wrong for one in world.service.health.findings() if one.check == "webhooks"]


async def lines(world: World, kind: str) -> list[dict[str, Any]]:
    query = select(table(AuditRow).c.body).where(table(AuditRow).c.kind == kind)
    rows = await world.service.db.read(lambda conn: list(conn.scalars(query)))
    return [json.loads(row) for row in rows]


async def test_the_whole_thread_is_told_once_signed_by_ids_and_in_an_order(
    post: Post, receiver: Receiver
) -> None:
    """Signed with both secrets, while one is changed for the other."""
    old, own = post.hook("billing", receiver), post.hook("own-key", receiver)
    both = old | {"secret_files": [*own["secret_files"], *old["secret_files"]]}
    async with post.open(both) as world:
        view = await asked(world)
        (got,) = await told(receiver, "review_opened")
        maya = await world.person("maya")
        assert (await maya.vote(view, reason="canary-reason fits the order")).status_code == 200
        await told(receiver, "transaction_ready")
        await world.operator("stop", {"tool": "pay", "reason": "canary-words"})
        (stopped,) = await told(receiver, "stop_began")
        assert stopped.event["data"]["what"] == "tool:pay"
        await told_all(world)
    for secret in post.secrets.values():
        verify(secret, got.headers, got.raw, now=world.clock().timestamp())
    effect, data = view["effects"][0], got.event["data"]
    review = effect["review"]["review_id"]
    assert {key: data[key] for key in ("iss", "txn", "effect_id", "rev", "review_id", "state")} == {
        "iss": URL, "txn": view["txn"], "effect_id": effect["effect_id"], "rev": 1, "review_id": review,
        "state": "open",
    }  # fmt: skip
    assert data["links"] == {"review": f"{URL}/reviews/{review}"}
    assert got.event.keys() == {"type", "timestamp", "data"}
    events = sorted((got.event for got in receiver.got), key=lambda event: int(event["data"]["index"]))
    kinds = [event["type"] for event in events]
    assert kinds.index("review_opened") < kinds.index("vote_recorded") < kinds.index("review_settled")
    assert not {"signed_in", "decision_made"} & set(kinds)
    assert len({got.id for got in receiver.got}) == len(receiver.got)
    everything = b"".join(got.raw for got in receiver.got)
    for word in (b"canary-words", b"canary-reason", b"maya", b"Maya", b"amount"):
        assert word not in everything


async def test_a_failure_is_tried_again_under_the_same_id_with_a_fresh_time(
    post: Post, receiver: Receiver
) -> None:
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
        first, second, _ = await told(receiver, "review_opened", 3)
        await failing(world, 0)
    assert (first.id, first.raw) == (second.id, second.raw)
    assert int(second.headers["webhook-timestamp"]) >= int(first.headers["webhook-timestamp"]) + 29
    for got in (first, second):
        verify(post.secrets["billing"], got.headers, got.raw, now=int(got.headers["webhook-timestamp"]))


async def test_what_happened_while_nobody_told_is_told_and_what_was_before_is_not(
    post: Post, receiver: Receiver
) -> None:
    async with post.open() as world:
        await asked(world, "before")
        await world.service.sequencer.number()
    async with post.open(post.hook("billing", receiver)):
        pass
    async with post.open() as world:  # the same database, without the webhook
        view = await asked(world, "meanwhile")
    async with post.open(post.hook("billing", receiver)):
        (got,) = await told(receiver, "review_opened")
    assert got.event["data"]["txn"] == view["txn"]
    assert {got.event["data"]["txn"] for got in receiver.got if "txn" in got.event["data"]} == {view["txn"]}


async def test_one_that_fails_is_asked_with_one_message_at_a_time(post: Post, receiver: Receiver) -> None:
    receiver.plan = [500]
    async with post.open(post.hook("billing", receiver)) as world:
        await asked(world)
        await stands(world, lambda one: one.not_before is not None)
        await asyncio.sleep(0.2)
        seen = len(receiver.got)
        post.clock.pass_(seconds=70)
        await until(lambda: len(receiver.got) > seen)
        await asyncio.sleep(1.3)
        assert len(receiver.got) == seen + 1


async def test_a_slow_receiver_delays_no_other_and_each_has_its_kinds(post: Post, receiver: Receiver) -> None:
    receiver.plan = ["silent"]
    with Receiver() as quick:
        slow = post.hook("slow", receiver, timeout_s=20, kinds=["review_opened"])
        async with post.open(slow, post.hook("quick", quick, kinds=["decision"])) as world:
            for n in range(3):
                await asked(world, f"run-{n}")
            await told(quick, "decision_made", 3)
            await told(receiver, "review_opened")
        assert {got.event["type"] for got in receiver.got} == {"review_opened"}
        assert {got.event["type"] for got in quick.got} == {"decision_made"}


async def test_after_three_days_an_event_is_given_up_and_an_operator_has_it_tried_again(
    post: Post, receiver: Receiver
) -> None:
    receiver.plan = [500]
    async with post.open(post.hook("billing", receiver, kinds=["review_opened"])) as world:
        await asked(world)
        await failing(world, 1)
        post.clock.pass_(hours=71)
        await failing(world, 2)
        await stands(world, lambda one: one.dead == 0)
        post.clock.pass_(hours=5)
        await stands(world, lambda one: one.dead == 1)
        given_up = {"webhook": "billing", "messages": 1}
        assert given_up in await lines(world, "webhook_given_up")
        await world.service.webhooks.look(world.service.ctx)
        assert trouble(world) == ["1 events for billing were given up"]
        assert b'countersign_webhook_events_given_up{webhook="billing"} 1.0' in metrics.render_metrics()
        receiver.plan, seen = [204], len(receiver.got)
        assert await world.operator("webhooks-retry", {"webhook": "billing"}) == given_up
        await until(lambda: len(receiver.got) > seen)
        assert len({got.id for got in receiver.got}) == 1
        await failing(world, 0)
        await world.service.webhooks.look(world.service.ctx)
        assert trouble(world) == []


async def test_one_that_is_gone_is_told_nothing_until_an_operator_says_so(
    post: Post, receiver: Receiver
) -> None:
    receiver.plan = [410]
    async with post.open(post.hook("billing", receiver, kinds=["review_opened"])) as world:
        await asked(world, "one")
        await stands(world, lambda one: one.disabled_at is not None)
        assert await lines(world, "webhook_disabled") == [{"webhook": "billing"}]
        post.clock.pass_(hours=1)
        await asked(world, "two")
        await asyncio.sleep(1.3)
        assert len(receiver.got) == 1
        await world.service.webhooks.look(world.service.ctx)
        (wrong,) = trouble(world)
        assert "410" in wrong and "disabled" in wrong
        receiver.plan = [204]
        await world.operator("webhooks-retry", {"webhook": "billing"})
        events = await told(receiver, "review_opened", 3)
        assert len({got.id for got in events}) == 2, "nothing was lost, and the first came under its own id"


async def test_a_service_that_dies_between_sending_and_noting_sends_again_under_the_same_id(
    post: Post, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whatever comes of the first request is never noted here, so a busy machine may not fail it.
    hook = post.hook("billing", receiver, kinds=["review_opened"], timeout_s=20)
    with monkeypatch.context() as patch:

        async def dies(*_: object) -> int:
            await asyncio.sleep(3600)  # the process never comes to it
            return 0

        patch.setattr("policy_service.jobs.delivery.record_result", dies)
        async with post.open(hook) as world:
            await asked(world)
            await told(receiver, "review_opened")
    async with post.open(hook):
        await asyncio.sleep(1.2)
        assert len(receiver.got) == 1, "it is claimed: nobody else sends it at the same time"
        post.clock.pass_(seconds=61)
        first, second = await told(receiver, "review_opened", 2)
    assert (first.id, first.raw) == (second.id, second.raw)


async def test_a_round_that_fails_is_said_and_the_next_one_goes_on(
    post: Post, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with post.open(post.hook("billing", receiver)) as world:
        with monkeypatch.context() as patch:
            patch.setattr("policy_service.jobs.delivery.enqueue_events", None)  # whatever calls it fails
            await until(lambda: trouble(world))
        await asked(world)
        await told(receiver, "review_opened")
        await until(lambda: not trouble(world))


async def test_following_twice_writes_each_event_once_and_one_process_sends(
    post: Post, receiver: Receiver
) -> None:
    receiver.hold = threading.Event()
    async with post.open(post.hook("billing", receiver, timeout_s=20, kinds=["review_opened"])) as world:
        service, webhook = world.service, world.settings.webhooks[0]
        await asked(world, "one")
        await told(receiver, "review_opened")
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
        await told(receiver, "review_opened", 2)


# -- replicas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["postgresql"])
async def test_two_replicas_send_each_event_once(post: Post, receiver: Receiver) -> None:
    hook = post.hook("billing", receiver)
    async with post.open(hook) as one, post.open(hook, data="data-2") as two:
        for n in range(6):
            await asked((one, two)[n % 2], f"run-{n}")
        await told_all(one)
        leases = await one.service.db.read(lambda conn: conn.execute(select(*table(LeaseRow).columns)).all())
    assert len([got for got in receiver.got if got.event["type"] == "review_opened"]) == 6
    assert len({got.id for got in receiver.got}) == len(receiver.got)
    assert [row.fence for row in leases if row.name == "webhook billing"] == [1], "one led all the time"
