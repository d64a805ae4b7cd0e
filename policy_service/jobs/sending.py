"""Sending what waits in the outbox.

Without Slack or webhooks the one listener is the service's own log, where an operator sees that somebody is being
asked and where to answer. Messages carry ids; what is said is read at the moment of sending.
"""

from __future__ import annotations

import structlog

from policy_service.queries.context import Context
from policy_service.storage.outbox import Drained, Message, Retry, drain

log = structlog.get_logger(__name__)


_PAGES = {"review_id": "reviews", "task_id": "tasks"}
"""Where people look at what a message names."""


async def send_outbox(ctx: Context) -> Drained:
    """Deliver what is due."""
    settings = ctx.settings
    retry = Retry(
        max_attempts=settings.outbox_max_attempts,
        backoff_s=settings.outbox_backoff_s,
        max_backoff_s=settings.outbox_max_backoff_s,
    )

    async def tell(message: Message) -> None:
        named = next((name for name in _PAGES if name in message.payload), None)
        url = None if named is None else f"{settings.public_url}/{_PAGES[named]}/{message.payload[named]}"
        log.info(message.kind, url=url, **{k: v for k, v in message.payload.items() if k != named})

    return await drain(ctx.db, tell, retry=retry)
