"""OpenTelemetry spans of the service.

Off unless an exporter is configured (the standard ``OTEL_EXPORTER_OTLP_ENDPOINT``) or the embedding program has set a
tracer provider. Span attributes are an allowlist: ids, states, codes, digests and commits. They never hold arguments,
results, reasons, names of people, tokens or queries.

Of a caller's ``traceparent`` only its two ids and the sampled flag are used. An invalid one is ignored and never fails
a request. ``tracestate`` and baggage are not read. All requests together are sampled at most ``_AT_MOST_PER_S`` times a
second.

FastAPI's own telemetry stays off: it puts query strings into spans (the code of a sign-in, the token of a link), and
the text of exceptions into its logs.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)

from policy_service.errors import StartError
from policy_service.http_clients import DIRECT, Route, span_exporter

_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)
_AT_MOST_PER_S: Final = 100
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_INSTALL: Final = (
    "the environment names an OpenTelemetry endpoint, but no exporter is installed: install "
    "countersign-service[otel], or set OTEL_TRACES_EXPORTER=none"
)
_NO_SPAN: Final = nullcontext(None)


class _Tracing:
    """The tracer of the process; None while tracing is off."""

    tracer: trace.Tracer | None = None


def start(provider: trace.TracerProvider | None = None, route: Route = DIRECT) -> Callable[[], None]:
    """Start tracing if it is configured. Returns a function that stops it and flushes pending spans.

    ``provider`` overrides the environment.

    Raises:
        StartError: the environment names an endpoint and no exporter is installed.
    """
    stop: Callable[[], None] = lambda: None  # noqa: E731  replaced below where something is to be stopped
    if provider is None and _is_configured(trace.get_tracer_provider()):
        provider = trace.get_tracer_provider()
    if provider is None and _export_wanted(os.environ):
        provider, stop = _exporting_provider(route)
    _Tracing.tracer = None if provider is None else provider.get_tracer("countersign")

    def end() -> None:
        _Tracing.tracer = None
        stop()

    return end


def enabled() -> bool:
    """Whether tracing is on."""
    return _Tracing.tracer is not None


def request_span(method: str, traceparent: str | None) -> AbstractContextManager[Span | None]:
    """The span of one request, in the caller's trace if it names one."""
    tracer = _Tracing.tracer
    if tracer is None:
        return _NO_SPAN
    remote = parse_traceparent(traceparent)
    context = None if remote is None else trace.set_span_in_context(NonRecordingSpan(remote))
    return _current(tracer.start_span(method, context=context, kind=SpanKind.SERVER))


@contextmanager
def _current(span: Span) -> Iterator[Span]:
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        yield span


def finish_request_span(span: Span | None, method: str, route: str, status: int, error: str | None) -> None:
    """Set the span's name and attributes once the response is known."""
    if span is None:
        return
    span.update_name(f"{method} {route}")
    span.set_attributes(
        {"http.request.method": method, "http.route": route, "http.response.status_code": status}
    )
    if error is not None:
        span.set_attribute("error.type", error)
    if status >= 500:
        span.set_status(Status(StatusCode.ERROR))


def record_span(name: str, facts: Mapping[str, Any], seconds: float, linked: Sequence[SpanContext]) -> None:
    """Record something that has happened as a span that ends now, with links to the traces that caused it."""
    tracer = _Tracing.tracer
    if tracer is None:
        return
    now = time.time_ns()
    here = trace.get_current_span().get_span_context()
    links = [Link(one) for one in linked if one.span_id != here.span_id]
    span = tracer.start_span(name, links=links, start_time=now - int(seconds * 1e9), attributes=dict(facts))
    span.end(now)


def parse_traceparent(traceparent: str | None) -> SpanContext | None:
    """The span context of a ``traceparent``; None unless it is exactly one of version 00."""
    found = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    context = SpanContext(
        int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=TraceFlags(int(found[3], 16) & 1)
    )
    return context if context.is_valid else None


def current_traceparent() -> str | None:
    """The current span as a ``traceparent``; None while tracing is off."""
    if _Tracing.tracer is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}"


def _is_configured(provider: trace.TracerProvider) -> bool:
    """Whether the embedding program has set a provider; otherwise it is the library's placeholder."""
    return not isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider))


def _export_wanted(environment: Mapping[str, str]) -> bool:
    """Whether OpenTelemetry's standard variables configure an export; the service has no settings of its own for it."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "otlp").lower() == "none":
        return False
    return any(environment.get(name) for name in _ENDPOINTS)


def _exporting_provider(route: Route) -> tuple[trace.TracerProvider, Callable[[], None]]:
    """A provider of our own, never the process-wide one: other libraries must not record what we leave out."""
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = span_exporter(route)
    except ImportError as error:
        raise StartError(_INSTALL) from error
    from policy_service.sampling import RateLimitedSampler

    # OTEL_SERVICE_NAME and the attributes of the environment take precedence
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "countersign"}
    provider = TracerProvider(resource=Resource.create(named), sampler=RateLimitedSampler(_AT_MOST_PER_S))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider, provider.shutdown
