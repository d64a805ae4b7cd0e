"""Delivering one webhook: signed, to exactly the place that was looked at, and judged by the status alone.

2xx is taken; 410 means that nobody is there any more; anything else, a redirect too, has failed. The answer's body is
not read, so neither its size nor its pace matters. What is said of a failure quotes neither address nor answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx2

from countersign.contract import canonicalize
from policy_service.http_clients import Resolve, UnreachableError, answered, resolve
from policy_service.remote_hosts import Webhook
from policy_service.tokens.keys import WebhookKey, sign_webhook
from policy_service.workflow.told.webhooks import Answer

_GONE: Final = 410
_BUSY: Final = frozenset({429, 503})  # what may say when to come back (RFC 9110 section 10.2.3)


async def deliver(
    webhook: Webhook,
    keys: Sequence[WebhookKey],
    named: str,
    event: Mapping[str, Any],
    now: datetime,
    resolve: Resolve = resolve,
) -> Answer:
    """Send one event; what came of it."""
    body = canonicalize(dict(event))
    headers = {"Content-Type": "application/json", "User-Agent": "countersign"}
    headers |= sign_webhook(keys, named, int(now.timestamp()), body)
    try:
        async with (
            asyncio.timeout(webhook.timeout_s),
            answered("POST", webhook.url, webhook, headers=headers, body=body, resolve=resolve) as response,
        ):
            return _judged(response, now)
    except TimeoutError:
        return Answer(error=f"no answer within {webhook.timeout_s:g} s")
    except UnreachableError as error:
        return Answer(error=str(error))
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        return Answer(error=type(error).__name__)


def _judged(response: httpx2.Response, now: datetime) -> Answer:
    status = response.status_code
    if 200 <= status < 300:
        return Answer(status)
    rest = _asked_for(response.headers.get("retry-after"), now) if status in _BUSY else None
    return Answer(status, f"it answered {status}", gone=status == _GONE, rest=rest)


def _asked_for(told: str | None, now: datetime) -> timedelta | None:
    """Seconds or a date; None where it is neither."""
    if told is None:
        return None
    if told.isascii() and told.isdigit():
        return timedelta(seconds=int(told[:9]))
    try:
        until = parsedate_to_datetime(told)
    except ValueError:
        return None
    return (until if until.tzinfo else until.replace(tzinfo=UTC)) - now
