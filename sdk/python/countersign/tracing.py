"""Spans of the SDK, where the agent's program traces anything; otherwise nothing, at no cost.

OpenTelemetry is used if it is installed (`countersign-sdk[otel]`) and the program has set a tracer provider, or names
one for us with `using`. The SDK
makes no provider and no exporter of its own: where an agent's traces go is its program's business. Without a tracer no
`traceparent` is sent either: an id that nobody records joins nothing, and the service has traces of its own.

Everything that becomes of a transaction from where its block is left is one trace; a live effect has its span before
that, in the program's own trace if it has one around the block. The journal keeps where its commit was traced; what
another process does later (resume, a worker after an approval) goes on in that trace, linked to whatever it was doing
itself. A span holds ids, digests and states. Args, results, reasons and the text of exceptions are in none.
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
    """One piece of work. What is answered adds facts to it: `tell(state="fired")`."""
    tracer = _tracer()
    if tracer is None:
        yield _ignore_attributes
        return
    with _current(tracer.start_span(name, attributes=_named(facts))) as tell:
        yield tell


@contextmanager
def resumed_span(name: str, traceparent: str | None, **facts: object) -> Iterator[SetAttributes]:
    """Work on something that was begun elsewhere: in its trace, linked to what this process is doing."""
    tracer = _tracer()
    if tracer is None:
        yield _ignore_attributes
        return
    begun, here = _parse(traceparent), trace.get_current_span().get_span_context()
    context = None if begun is None else trace.set_span_in_context(trace.NonRecordingSpan(begun))
    links = [trace.Link(here)] if begun is not None and here.is_valid else []
    with _current(tracer.start_span(name, context=context, links=links, attributes=_named(facts))) as tell:
        yield tell


@contextmanager
def model_span(name: str, facts: Mapping[str, object]) -> Iterator[Callable[[Mapping[str, object]], None]]:
    """A call to a language model, named as OpenTelemetry's conventions for generative AI name it: sizes, names and
    reasons, never what was said. What is answered adds facts to it.
    """
    tracer = _tracer()
    if tracer is None:
        yield _no_span
        return
    one = tracer.start_span(name, kind=trace.SpanKind.CLIENT, attributes=_known(facts))
    with _current(one):
        yield lambda more: one.set_attributes(_known(more))


def enabled() -> bool:
    """Whether anything is traced."""
    return _tracer() is not None


def current_traceparent() -> str | None:
    """Where the current span stands, as a `traceparent`; None where nothing is traced."""
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
    """Trace with this provider instead of the process's, for the block."""
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
def _current(one: Span) -> Iterator[SetAttributes]:
    def tell(**facts: object) -> None:
        one.set_attributes(_named(facts))

    with trace.use_span(one, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield tell
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


def _ignore_attributes(**_: object) -> None:
    """Nothing is traced."""


def _no_span(_: Mapping[str, object]) -> None:
    """Nothing is traced."""
