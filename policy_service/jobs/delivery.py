"""Delivery jobs: the outbox of the service's own log, and webhooks.

Without Slack or webhooks the service's log is the only receiver: it shows an operator the open reviews and their
addresses. Messages carry ids; their content is read when they are sent.

Each webhook receiver has its own loop, so a slow one delays no other. A loop enqueues events from the audit log, sends
what is due and records the result. It ends only with the service: an error is logged and the next round retries. A
monitor reports the status of all receivers.
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
"""The page of the object a message names."""


async def send_outbox(ctx: Context) -> DrainResult:
    """Deliver the due messages."""
    settings = ctx.settings
    retry = RetryPolicy(
        max_attempts=settings.outbox_max_attempts,
        backoff_s=settings.outbox_backoff_s,
        max_backoff_s=settings.outbox_max_backoff_s,
    )

    async def send(message: Message) -> None:
        named = next((name for name in _PAGES if name in message.payload), None)
        url = None if named is None else f"{settings.public_url}/{_PAGES[named]}/{message.payload[named]}"
        log.info(message.kind, url=url, **{k: v for k, v in message.payload.items() if k != named})

    return await drain(ctx.db, send, retry=retry)


_POLL_S: Final = 1.0  # failed deliveries become due by time; new events come from the feed


class WebhookSender:
    """Delivers events to the webhook receivers of one service."""

    def __init__(self, settings: Settings, health: Health, resolve: Resolve = resolve) -> None:
        """Read the receivers' secrets.

        Raises:
            StartError: a secret is missing, or readable by others.
        """
        self._settings = settings
        self._health = health
        self._keys: Mapping[str, tuple[WebhookKey, ...]] = {
            webhook.name: read_webhook_keys(webhook.name, webhook.secret_files)
            for webhook in settings.webhooks
        }
        self.resolve = resolve

    async def run(self, ctx: Context, holder: str) -> None:
        """Run until cancelled. ``holder`` names this process: one process at a time sends to a receiver."""
        if self._settings.webhooks:
            loops = [self._deliver_to(ctx, webhook, holder) for webhook in self._settings.webhooks]
            await asyncio.gather(self._watch(ctx), *loops)

    async def round(self, ctx: Context, webhook: Webhook, holder: str) -> bool:
        """Enqueue new events and send what is due. Returns whether there was anything to do."""
        followed = await enqueue_events(ctx, webhook)
        messages = await claim_messages(ctx, webhook.name, holder)
        await asyncio.gather(*(self._send(ctx, webhook, message) for message in messages))
        return followed or bool(messages)

    async def look(self, ctx: Context) -> None:
        """Report the status of each receiver."""
        for webhook in self._settings.webhooks:
            name = webhook.name
            found = await ctx.db.read(lambda conn, name=name: receiver_status(conn, name))  # type: ignore[misc]
            if found is not None:
                self._show(ctx, name, found)

    async def _deliver_to(self, ctx: Context, webhook: Webhook, holder: str) -> None:
        while not ctx.feed.closing:
            index = ctx.feed.index
            try:
                busy = await self.round(ctx, webhook, holder)
                self._health.good("webhooks", f"the loop of {webhook.name}")
            except Exception:
                # This receiver depends on this loop, so it ends only with the service.
                busy = False
                self._health.bad(
                    "webhooks", f"{webhook.name} cannot be reached", f"the loop of {webhook.name}"
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
                log.exception("webhook_look_failed")  # the health monitor reports the cause
            await asyncio.sleep(self._settings.watch_s)

    def _show(self, ctx: Context, name: str, found: ReceiverStatus) -> None:
        now = ctx.clock()
        age = 0.0 if found.oldest is None else max(0.0, (now - found.oldest).total_seconds())
        metrics.WEBHOOK_WAITING.labels(name).set(found.waiting)
        metrics.WEBHOOK_DEAD.labels(name).set(found.dead)
        metrics.WEBHOOK_OLDEST.labels(name).set(age)
        fault, since = None, found.oldest
        if found.disabled_at is not None:
            fault, since = f"{name} answered 410 Gone and is disabled", found.disabled_at
        elif found.dead:
            fault, since = f"{found.dead} events for {name} were given up", None
        elif age > self._settings.outbox_late_s:
            fault = f"{found.waiting} events wait for {name}"
        self._health.say("webhooks", fault, name, since)
