"""Sampling of traces, when the service exports them itself.

A trace that the caller does not sample is not sampled. A rate limit bounds how many requests per second are sampled. A
span inside a sampled span is sampled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState, get_current_span
from opentelemetry.util.types import Attributes


class RateLimitedSampler(Sampler):
    """Samples at most ``per_s`` requests a second over all callers."""

    def __init__(self, per_s: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._monotonic = monotonic
        self._left, self._at = float(per_s), monotonic()

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Sample spans inside a sampled local span; of all others, those that the caller samples, up to the limit."""
        parent = get_current_span(parent_context).get_span_context()
        if parent.is_valid and not parent.is_remote:
            recorded = parent.trace_flags.sampled
        else:
            recorded = (parent.trace_flags.sampled or not parent.is_valid) and self._take()
        return SamplingResult(Decision.RECORD_AND_SAMPLE if recorded else Decision.DROP, attributes)

    def get_description(self) -> str:
        """The sampler's name."""
        return f"AtMost({self._per_s}/s)"

    def _take(self) -> bool:
        now = self._monotonic()
        self._left = min(self._per_s, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
