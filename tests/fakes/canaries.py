"""Secrets that sing: values planted wherever a secret may stand, and ears at every place where none may be heard.

What is heard: every line of every logger at every level, as the service prints it and as a program that embeds it might
(message and trace in full); stdout and stderr; every span; the metrics; and every answer over HTTP that is a page, a
refusal, or for people. An agent's own answers are its own: what it sent, and the tokens it asked for.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field

import httpx2
import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from policy_service import logs, metrics, tracing
from tests.fakes.world import URL, World

# Where a secret is meant to be heard: (name of the canary, where).
ALLOWED = {
    ("sign-in link", "page /sign-in/dev"): "the form that spends it",
    ("form token", "page"): "every form of the signed-in person carries it",
}


@dataclass
class Heard:
    """One thing that was said, and where."""

    where: str
    text: str


class _Listening(logging.Handler):
    """What any handler would have printed, in full."""

    def __init__(self, heard: list[Heard]) -> None:
        super().__init__(logging.DEBUG)
        self._heard = heard
        self._as_we_do = logs._JsonLines()

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "httpx2" and URL in record.getMessage():
            return  # the browser of the test, noting where it went
        self._heard.append(Heard(f"log {record.name}", self.format(record)))
        self._heard.append(Heard(f"our log of {record.name}", self._as_we_do.format(record)))


@dataclass
class Ears:
    """Everything that was heard, and the canaries that sing."""

    capsys: pytest.CaptureFixture[str]
    canaries: dict[str, str] = field(default_factory=dict)
    heard: list[Heard] = field(default_factory=list)
    log: io.StringIO = field(default_factory=io.StringIO)
    spans: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Listen: the service's logs are set up as for a program that has configured nothing."""
        before, root = structlog.get_config(), logging.getLogger()
        handler, level = _Listening(self.heard), root.level
        structlog.reset_defaults()
        with redirect_stderr(self.log):  # the stream is taken when the logs are set up
            logs.set_up_logs()
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            root.removeHandler(handler)
            root.setLevel(level)
            structlog.configure(**before)

    @contextmanager
    def at(self, world: World) -> Iterator[None]:
        """Listen to a running service."""
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        end = tracing.start(provider)
        world.http.event_hooks = {"response": [self._hear]}
        try:
            yield
        finally:
            end()
            world.http.event_hooks = {}

    def plant(self, name: str, value: str) -> str:
        """One more canary."""
        assert len(value) >= 12, "too short: it could occur by chance"
        self.canaries[name] = value
        return value

    def singing(self) -> list[str]:
        """Every canary that is heard where it may not be."""
        captured = self.capsys.readouterr()
        outputs = {"the service's log": self.log.getvalue(), "stdout": captured.out, "stderr": captured.err}
        outputs["metrics"] = metrics.render_metrics().decode()
        spans = [Heard(f"span {one.name}", one.to_json()) for one in self.spans.get_finished_spans()]
        everything = [*self.heard, *(Heard(*one) for one in outputs.items()), *spans]
        assert len(everything) > 5, "hardly anything was heard; the ears are closed"
        heard = [
            (one, name) for one in everything for name in self.canaries if self.canaries[name] in one.text
        ]
        found = [(one, name, self.canaries[name]) for one, name in heard]
        found = [(one, name, value) for one, name, value in found if not _allowed(name, one.where)]
        return [f"{name} in {one.where}: ...{_around(one.text, value)}..." for one, name, value in found]

    async def _hear(self, response: httpx2.Response) -> None:
        request = response.request
        of_an_agent = "agent-proof" in request.headers or "authorization" in request.headers
        if "text/event-stream" in response.headers.get("content-type", ""):
            return
        await response.aread()
        page = "text/html" in response.headers.get("content-type", "")
        where = f"{'page' if page else 'answer'} {request.url.path}"
        kept = {"set-cookie", "agent-nonce"}  # the way a session and a nonce are handed over
        headers = "\n".join(f"{n}: {v}" for n, v in response.headers.items() if n not in kept)
        if page or response.is_error or not of_an_agent:
            self.heard.append(Heard(where, f"{headers}\n{response.text}"))


def _allowed(name: str, where: str) -> bool:
    return any(name == canary and where.startswith(place) for canary, place in ALLOWED)


def _around(text: str, value: str) -> str:
    at = text.index(value)
    return text[max(0, at - 80) : at + len(value) + 40]
