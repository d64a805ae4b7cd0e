"""An OpenTelemetry collector on loopback: takes OTLP over HTTP as the real one does, and keeps what it was sent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from tests.fakes.http_server import Loopback, Quiet

_PATIENCE_S = 20.0


@dataclass(frozen=True)
class Received:
    """One span."""

    service: str
    name: str
    trace: str
    span: str
    parent: str
    links: tuple[tuple[str, str], ...]
    facts: dict[str, str]  # its attributes that are texts


class _Handler(Quiet):
    def respond(self) -> None:
        self.at._take(self.body())
        self.answer(200)


@dataclass
class Collector(Loopback):
    """Listens while it is open; its `url` is what OTEL_EXPORTER_OTLP_ENDPOINT is set to."""

    spans: list[Received] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(_Handler)

    @property
    def environment(self) -> dict[str, str]:
        """What a process is given that is to send here, soon after each span."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def wait_for(self, wanted: Callable[[list[Received]], bool]) -> list[Received]:
        """Everything, as soon as what was sent satisfies."""
        until = time.monotonic() + _PATIENCE_S
        while not wanted(self.spans):
            assert time.monotonic() < until, sorted({(one.service, one.name) for one in self.spans})
            time.sleep(0.02)
        return list(self.spans)

    def _take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            named = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans.extend(_received(named.get("service.name", ""), span) for span in scope.spans)


def provider(endpoint: str, service: str) -> TracerProvider:
    """A provider of this process that sends each span as it ends."""
    made = TracerProvider(resource=Resource.create({"service.name": service}))
    made.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces")))
    return made


def _received(service: str, span: Any) -> Received:
    ids = (one.hex() for one in (span.trace_id, span.span_id, span.parent_span_id))
    links = tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links)
    facts = {one.key: one.value.string_value for one in span.attributes}
    return Received(service, span.name, *ids, links, facts)
