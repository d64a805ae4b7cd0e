"""Limit how many event streams one caller may hold open.

A stream costs little while nothing happens, but never ends by itself. Without a limit one caller could use up the
sockets of the service.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from countersign.contract import ErrorCode
from policy_service.errors import InvalidRequestError

MAX_STREAMS_PER_CALLER = 64  # browser tabs of a person, processes of an agent

EVENT_STREAM = "text/event-stream"


class EventStreams:
    """The open streams of a channel, counted by caller."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def answer(
        self, who: str, body: AsyncIterator[bytes], headers: Mapping[str, str], media: str = EVENT_STREAM
    ) -> StreamingResponse:
        """A streaming response that counts against the caller's limit until it ends.

        Raises:
            InvalidRequestError: rate_limited, the caller has reached the limit.
        """
        if self._open[who] >= MAX_STREAMS_PER_CALLER:
            raise InvalidRequestError(
                f"you hold {MAX_STREAMS_PER_CALLER} open event streams; close one before you open another",
                code=ErrorCode.RATE_LIMITED,
            )
        response = _CountedStream(body, headers=headers, media_type=media)
        response.count(self._open, who)
        return response


class _CountedStream(StreamingResponse):
    def count(self, open_streams: Counter[str], who: str) -> None:
        self._open, self._who = open_streams, who
        self._open[who] += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._open[self._who] -= 1
            if not self._open[self._who]:
                del self._open[self._who]
