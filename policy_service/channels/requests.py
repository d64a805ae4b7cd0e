"""Read request bodies: size limits, media type, character encoding, and one memory limit for unidentified senders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Final, TypeVar

from starlette.requests import Request

from countersign.contract import ContractError, ErrorCode, Limits
from countersign.contract.wire import WireModel, parse
from countersign.contract.wire.base import BODY_LIMITS
from policy_service.errors import InvalidRequestError, RequestError

JSON_TYPE: Final = "application/json"
_UNIDENTIFIED_BYTES: Final = 16 * 1024 * 1024  # several hundred typical bodies at the same time
Model = TypeVar("Model", bound=WireModel)


class SharedLimit:
    """Bytes held for unidentified senders, by holder, the oldest first. All connections of the process share it.

    When the total exceeds the limit, the oldest holder is dropped. An honest request takes milliseconds, so the oldest
    one is slow. Refusing the newest instead would let a few slow senders block everybody else.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._holders: dict[Hashable, tuple[int, Callable[[], None]]] = {}

    def hold(self, holder: Hashable, size: int, drop: Callable[[], None]) -> None:
        """Record that ``holder`` has ``size`` bytes now. ``drop`` releases them and may be called at once."""
        before, _ = self._holders.get(holder, (0, drop))
        self._holders[holder] = (size, drop)
        self.held_bytes += size - before
        while self.held_bytes > self.max_bytes:
            oldest, (_, drop_oldest) = next(iter(self._holders.items()))
            self.release(oldest)
            drop_oldest()

    def release(self, holder: Hashable) -> None:
        """Remove ``holder``, if it is known."""
        size, _ = self._holders.pop(holder, (0, None))
        self.held_bytes -= size


UNIDENTIFIED: Final = SharedLimit(_UNIDENTIFIED_BYTES)


async def read_body(request: Request, limit: int) -> bytes:
    """Read the raw body of an identified sender; refuse it as soon as it exceeds ``limit``.

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
    """Read the raw body of a sender that only the body can identify. All of these share one memory limit.

    Raises:
        InvalidRequestError: too_large; or rate_limited: this body was too slow while others needed the memory.
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
    """The Content-Length, which the HTTP server has validated; None for a chunked body."""
    if "transfer-encoding" in request.headers:
        return None
    return int(request.headers.get("content-length", "0"))


def media_type(content_type: str) -> str:
    """The media type of a UTF-8 body.

    Raises:
        InvalidRequestError: it names another character encoding, in which the same bytes have another meaning.
    """
    kind, *parameters = content_type.split(";")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() != "utf-8":
            raise InvalidRequestError(f"send the body in UTF-8, not as {content_type[:100]!r}")
    return kind.strip().lower()


def require_json(request: Request) -> None:
    """Refuse a body that is not declared as JSON, or is compressed: a small compressed body may expand to a huge one.

    Raises:
        InvalidRequestError: unsupported_media_type.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise InvalidRequestError(
            f"send the body uncompressed, not as {encoding[:50]!r}", code=ErrorCode.UNSUPPORTED_MEDIA_TYPE
        )
    given = request.headers.get("content-type", "")
    kind, _, parameters = given.partition(";")
    charset = parameters.strip().lower()
    if kind.strip().lower() != JSON_TYPE or charset not in {"", "charset=utf-8"}:
        raise InvalidRequestError(
            f"send {JSON_TYPE} in UTF-8, not {given!r}", code=ErrorCode.UNSUPPORTED_MEDIA_TYPE
        )


def read_model(model: type[Model], body: bytes, limits: Limits = BODY_LIMITS) -> Model:
    """Parse and validate a JSON body.

    Raises:
        RequestError: an admission code, unknown_field, or invalid_request; the sentence names every problem.
    """
    try:
        return parse(model, body, limits)
    except ContractError as error:
        raise RequestError(str(error), code=error.code) from error


def _require_within(limit: int, size: int) -> None:
    if size > limit:
        raise InvalidRequestError(f"the body is larger than {limit:,} bytes", code=ErrorCode.TOO_LARGE)
