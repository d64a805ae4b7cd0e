"""Read the body of a request: within a limit, and as the media type and character encoding it is."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from countersign.contract import ErrorCode
from policy_service.channels.shared_limit import UNIDENTIFIED
from policy_service.errors import InvalidRequestError


async def read_body(request: Request, limit: int) -> bytes:
    """The raw body of an identified sender, refused as soon as it is larger than ``limit``.

    Raises:
        InvalidRequestError: too_large.
    """
    _require_within(limit, declared_length(request) or 0)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        _require_within(limit, len(body))
    return bytes(body)


async def read_unidentified_body(request: Request, limit: int) -> bytes:
    """The raw body of a sender whom only the body can identify: all of these share one limit.

    Raises:
        InvalidRequestError: too_large; or rate_limited, this body took too long while others needed the memory.
    """
    limit = min(limit, UNIDENTIFIED.max_bytes)
    _require_within(limit, declared_length(request) or 0)
    body = bytearray()
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as reading:
            try:
                async for chunk in request.stream():
                    body += chunk
                    _require_within(limit, len(body))
                    UNIDENTIFIED.hold(reading, len(body), lambda: reading.reschedule(loop.time()))
            finally:
                UNIDENTIFIED.release(reading)
    except TimeoutError:
        raise InvalidRequestError(
            "too many requests are unfinished and this is the oldest: send it again",
            code=ErrorCode.RATE_LIMITED,
        ) from None
    return bytes(body)


def declared_length(request: Request) -> int | None:
    """How long the body is by the head, which the server underneath has checked; None where the end is marked in it."""
    if "transfer-encoding" in request.headers:
        return None
    return int(request.headers.get("content-length", "0"))


def media_type(content_type: str) -> str:
    """The media type of a body in UTF-8.

    Raises:
        InvalidRequestError: it names another character encoding, in which the same bytes would mean something else.
    """
    kind, *parameters = content_type.split(";")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() != "utf-8":
            raise InvalidRequestError(f"send the body in UTF-8, not as {content_type[:100]!r}")
    return kind.strip().lower()


def _require_within(limit: int, size: int) -> None:
    if size > limit:
        raise InvalidRequestError(f"the body is larger than {limit:,} bytes", code=ErrorCode.TOO_LARGE)
