"""Spans of the SDK, if the agent's program uses tracing; otherwise nothing, at no cost.

OpenTelemetry is used if it is installed (`countersign-sdk[otel]`) and the program has set a tracer provider, or passes
one to `use_provider`. The SDK creates no provider and no exporter: the program decides where traces go. Without a
tracer no `traceparent` is sent: an unrecorded id connects nothing, and the service has traces of its own.

A transaction is one trace from the end of its block on. A live effect has its span before that, in the program's own
trace if there is one. The journal keeps the trace of the commit; later work of another process (resume, a worker after
an approval) joins that trace, linked to that process's own span. A span holds ids, digests and states, never args,
results, reasons or the text of exceptions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider

try:
    from opentelemetry import trace
except ImportError:
    _installed = False
else:
    _installed = True

SetAttributes = Callable[..., None]

_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)


@contextmanager
def span(name: str, **facts: object) -> Iterator[SetAttributes]:
    """One span. The yielded function adds attributes: `tell(state="fired")`."""
    with _started(name, _named(facts)) as one:
        yield lambda **more: None if one is None else one.set_attributes(_named(more))


@contextmanager
def resumed_span(name: str, traceparent: str | None, **facts: object) -> Iterator[SetAttributes]:
    """Continue work of another process: a span in its trace, linked to this process's current span."""
    begun = _parse(traceparent) if enabled() else None
    options: dict[str, Any] = {}
    if begun is not None:
        options["context"] = trace.set_span_in_context(trace.NonRecordingSpan(begun))
        here = trace.get_current_span().get_span_context()
        options["links"] = [trace.Link(here)] if here.is_valid else []
    with _started(name, _named(facts), **options) as one:
        yield lambda **more: None if one is None else one.set_attributes(_named(more))


@contextmanager
def model_span(name: str, facts: Mapping[str, object]) -> Iterator[Callable[[Mapping[str, object]], None]]:
    """A call to a language model, named by OpenTelemetry's conventions for generative AI: sizes, names and reasons,
    never prompts or answers. The yielded function adds attributes.
    """
    options = {"kind": trace.SpanKind.CLIENT} if enabled() else {}
    with _started(name, _known(facts), **options) as one:
        yield lambda more: None if one is None else one.set_attributes(_known(more))


def enabled() -> bool:
    """Whether tracing is on."""
    return _tracer() is not None


def current_traceparent() -> str | None:
    """The current span as a `traceparent`; None without tracing."""
    if _tracer() is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}"


class _Chosen:
    provider: TracerProvider | None = None


@contextmanager
def use_provider(provider: TracerProvider) -> Iterator[None]:
    """Trace with this provider instead of the process's, inside the block."""
    before, _Chosen.provider = _Chosen.provider, provider
    try:
        yield
    finally:
        _Chosen.provider = before


def _tracer() -> Tracer | None:
    if not _installed:
        return None
    provider = _Chosen.provider or trace.get_tracer_provider()
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    return provider.get_tracer("countersign")


@contextmanager
def _started(name: str, attributes: dict[str, Any], **options: Any) -> Iterator[Span | None]:
    """A span as the current one; None without tracing."""
    tracer = _tracer()
    if tracer is None:
        yield None
        return
    one = tracer.start_span(name, attributes=attributes, **options)
    with trace.use_span(one, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield one
        except BaseException as error:
            one.set_attribute("error.type", type(error).__name__)
            one.set_status(trace.Status(trace.StatusCode.ERROR))
            raise


def _named(facts: dict[str, object]) -> dict[str, Any]:
    return {f"countersign.{name}": value for name, value in facts.items() if value is not None}


def _known(facts: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


def _parse(traceparent: str | None) -> SpanContext | None:
    found = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    flags = trace.TraceFlags(int(found[3], 16) & 1)
    context = trace.SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=flags)
    return context if context.is_valid else None
