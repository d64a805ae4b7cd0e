"""Sending what waits in the outbox.

Without Slack or webhooks the one listener is the service's own log, where an operator sees that somebody is being
asked and where to answer. Messages carry ids; what is said is read at the moment of sending.
"""

from __future__ import annotations

import structlog

from policy_service.storage.outbox import Drained, Message, Retry, drain
from policy_service.workflow.context import Context

log = structlog.get_logger(__name__)


async def send_outbox(ctx: Context) -> Drained:
    """Deliver what is due."""
    settings = ctx.settings
    retry = Retry(
        max_attempts=settings.outbox_max_attempts,
        backoff_s=settings.outbox_backoff_s,
        max_backoff_s=settings.outbox_max_backoff_s,
    )

    async def tell(message: Message) -> None:
        review_id = message.payload.get("review_id")
        url = None if review_id is None else f"{settings.public_url}/reviews/{review_id}"
        log.info(message.kind, url=url, **{k: v for k, v in message.payload.items() if k != "review_id"})

    return await drain(ctx.db, tell, retry=retry)
