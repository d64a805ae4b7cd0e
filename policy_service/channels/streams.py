"""Event streams that are open: how many one caller may hold.

A stream is cheap while nothing happens and never ends by itself, so without a bound one caller could hold all the
service has sockets for. Rule: a place is given back when the answer is over, however it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from countersign.contract import ErrorCode
from policy_service.errors import InvalidRequestError

MAX_STREAMS_PER_CALLER = 64  # tabs of a person, processes of an agent

EVENT_STREAM = "text/event-stream"


class EventStreams:
    """The open streams of a channel, counted by caller."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def answer(
        self, who: str, body: AsyncIterator[bytes], headers: Mapping[str, str], media: str = EVENT_STREAM
    ) -> StreamingResponse:
        """An answer that streams, and takes one of the caller's places until it is over.

        Raises:
            InvalidRequestError: rate_limited, the caller holds as many as one may.
        """
        if self._open[who] >= MAX_STREAMS_PER_CALLER:
            raise InvalidRequestError(
                f"you hold {MAX_STREAMS_PER_CALLER} open event streams; close one before you open another",
                code=ErrorCode.RATE_LIMITED,
            )
        return _CountedStream(self._open, who, body, headers, media)


class _CountedStream(StreamingResponse):
    def __init__(
        self,
        open_streams: Counter[str],
        who: str,
        body: AsyncIterator[bytes],
        headers: Mapping[str, str],
        media: str,
    ) -> None:
        super().__init__(body, headers=headers, media_type=media)
        self._open, self._who = open_streams, who
        self._open[who] += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._open[self._who] -= 1
            if not self._open[self._who]:
                del self._open[self._who]
