"""Delivery jobs: the outbox, and the webhooks.

Sending what waits in the outbox.

Without Slack or webhooks the one listener is the service's own log, where an operator sees that somebody is being
asked and where to answer. Messages carry ids; what is said is read at the moment of sending.

Telling the receivers of webhooks: one loop for each, so that a slow one delays nobody.

A loop follows the log, sends what is due and writes down what came of it. It ends only with the service: what goes
wrong is said aloud and the next round tries again. Beside them goes a look at how all of them are doing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog

from policy_service import metrics
from policy_service.health import Health
from policy_service.http_clients import Resolve, resolve
from policy_service.queries.context import Context
from policy_service.remote_hosts import Webhook
from policy_service.settings import Settings
from policy_service.storage.outbox import DrainResult, Message, RetryPolicy, drain
from policy_service.tokens.keys import WebhookKey, read_webhook_keys
from policy_service.workflow.webhooks import (
    DeliveryResult,
    ReceiverStatus,
    claim_messages,
    deliver,
    enqueue_events,
    receiver_status,
    record_result,
)

log = structlog.get_logger(__name__)


_PAGES = {"review_id": "reviews", "task_id": "tasks"}
"""Where people look at what a message names."""


async def send_outbox(ctx: Context) -> DrainResult:
    """Deliver what is due."""
    settings = ctx.settings
    retry = RetryPolicy(
        max_attempts=settings.outbox_max_attempts,
        backoff_s=settings.outbox_backoff_s,
        max_backoff_s=settings.outbox_max_backoff_s,
    )

    async def tell(message: Message) -> None:
        named = next((name for name in _PAGES if name in message.payload), None)
        url = None if named is None else f"{settings.public_url}/{_PAGES[named]}/{message.payload[named]}"
        log.info(message.kind, url=url, **{k: v for k, v in message.payload.items() if k != named})

    return await drain(ctx.db, tell, retry=retry)


_POLL_S: Final = 1.0  # what failed is due again by the clock; news are told by the feed


class WebhookSender:
    """The receivers of one service, with what they are signed to."""

    def __init__(self, settings: Settings, health: Health, resolve: Resolve = resolve) -> None:
        """Read their secrets.

        Raises:
            StartError: one of them is missing, or readable by others.
        """
        self._settings = settings
        self._health = health
        self._keys: Mapping[str, tuple[WebhookKey, ...]] = {
            webhook.name: read_webhook_keys(webhook.name, webhook.secret_files)
            for webhook in settings.webhooks
        }
        self.resolve = resolve

    async def run(self, ctx: Context, holder: str) -> None:
        """Tell until cancelled. ``holder`` names this process: one at a time sends to a receiver."""
        if self._settings.webhooks:
            loops = [self._tell(ctx, webhook, holder) for webhook in self._settings.webhooks]
            await asyncio.gather(self._watch(ctx), *loops)

    async def round(self, ctx: Context, webhook: Webhook, holder: str) -> bool:
        """Follow the log and send what is due; whether there was anything to do."""
        followed = await enqueue_events(ctx, webhook)
        messages = await claim_messages(ctx, webhook.name, holder)
        await asyncio.gather(*(self._send(ctx, webhook, message) for message in messages))
        return followed or bool(messages)

    async def look(self, ctx: Context) -> None:
        """Say of each receiver how it is doing."""
        for webhook in self._settings.webhooks:
            name = webhook.name
            found = await ctx.db.read(lambda conn, name=name: receiver_status(conn, name))  # type: ignore[misc]
            if found is not None:
                self._show(ctx, name, found)

    async def _tell(self, ctx: Context, webhook: Webhook, holder: str) -> None:
        while not ctx.feed.closing:
            index = ctx.feed.index
            try:
                busy = await self.round(ctx, webhook, holder)
                self._health.good("webhooks", f"the loop of {webhook.name}")
            except Exception:
                # Nobody else tells this receiver, so this loop ends only with the service.
                busy = False
                self._health.bad(
                    "webhooks", f"{webhook.name} cannot be told anything", f"the loop of {webhook.name}"
                )
                log.exception("webhook_round_failed", webhook=webhook.name)
                await asyncio.sleep(_POLL_S)
            if not busy:
                await ctx.feed.wait_after(index, _POLL_S)

    async def _send(self, ctx: Context, webhook: Webhook, message: Message) -> None:
        keys = self._keys[webhook.name]
        answer = await deliver(webhook, keys, message.outbox_id, message.payload, ctx.clock(), self.resolve)
        dead = await record_result(ctx, webhook.name, message, answer)
        self._count(webhook.name, message, answer, dead)

    def _count(self, name: str, message: Message, answer: DeliveryResult, dead: int) -> None:
        metrics.WEBHOOK_DELIVERIES.labels(name, "sent" if answer.error is None else "failed").inc()
        if answer.error is not None:
            log.warning(
                "webhook_failed",
                webhook=name,
                webhook_id=message.outbox_id,
                attempt=message.attempt,
                error=answer.error,
            )
        if answer.gone:
            log.error("webhook_disabled", webhook=name)
        if dead:
            metrics.WEBHOOK_DELIVERIES.labels(name, "given_up").inc(dead)
            log.error("webhook_given_up", webhook=name, messages=dead)

    async def _watch(self, ctx: Context) -> None:
        while not ctx.feed.closing:
            try:
                await self.look(ctx)
            except Exception:
                log.exception("webhook_look_failed")  # the watch of the database says why
            await asyncio.sleep(self._settings.watch_s)

    def _show(self, ctx: Context, name: str, found: ReceiverStatus) -> None:
        now = ctx.clock()
        age = 0.0 if found.oldest is None else max(0.0, (now - found.oldest).total_seconds())
        metrics.WEBHOOK_WAITING.labels(name).set(found.waiting)
        metrics.WEBHOOK_DEAD.labels(name).set(found.dead)
        metrics.WEBHOOK_OLDEST.labels(name).set(age)
        wrong, since = None, found.oldest
        if found.disabled_at is not None:
            wrong, since = f"{name} answered that it is gone, and is told nothing any more", found.disabled_at
        elif found.dead:
            wrong, since = f"{found.dead} events for {name} were given up", None
        elif age > self._settings.outbox_late_s:
            wrong = f"{found.waiting} events wait for {name}"
        self._health.say("webhooks", wrong, name, since)
