"""What the spans of a transaction say of its effects, and where they stand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from countersign import CountersignError, MemoryAdapter, NotDone, tool, tracing
from tests.fakes.desk import Desk, answering_tool
from tests.fakes.running import refusing_tool, run, run_async
from tests.unit.sdk.commit.test_time import LONG, Machine, paused_process, running

SECRET = "hunter2 is in this sentence"


class Traced:
    """A program with tracing, and its spans."""

    def __init__(self) -> None:
        self._exporter, self.provider = InMemorySpanExporter(), TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def of(self, name: str) -> list[ReadableSpan]:
        return [one for one in self._exporter.get_finished_spans() if one.name == name]

    def facts_of(self, name: str) -> list[dict[str, Any]]:
        return [
            {key.removeprefix("countersign."): value for key, value in (one.attributes or {}).items()}
            for one in self.of(name)
        ]


@pytest.fixture
def traced() -> Iterator[Traced]:
    made = Traced()
    with tracing.use_provider(made.provider):
        yield made
    made.provider.shutdown()


def states(traced: Traced) -> list[object]:
    return [facts.get("state") for facts in traced.facts_of("countersign fire")]


Made = Callable[[Desk], Any]
CUT = OSError("the line broke")
ENDS: dict[str, tuple[Made, list[str]]] = {
    "one that returned has fired": (lambda desk: answering_tool(desk, "ok"), ["fired"]),
    "one that knows that it did nothing has failed": (refusing_tool, ["failed"]),
    "one that raised anything else is unknown": (lambda desk: answering_tool(desk, CUT), ["unknown"]),
    "each try of one that is idempotent has a span": (
        lambda desk: answering_tool(desk, CUT, idempotent=True),
        ["unknown"] * 3,
    ),
    "what an earlier try may have done is not reported as failed": (
        lambda desk: answering_tool(desk, CUT, NotDone("no"), idempotent=True),
        ["unknown"] * 2,
    ),
}


@pytest.mark.parametrize(("made", "expected"), ENDS.values(), ids=ENDS)
def test_the_span_of_a_fire_says_what_is_known(desk: Desk, traced: Traced, made: Made, expected: Any) -> None:
    with suppress(CountersignError), desk.step():
        made(desk)("o-4")
    assert states(traced) == expected


def test_a_call_that_was_not_made_says_nothing_of_the_effect(desk: Desk, traced: Traced, refund: Any) -> None:
    with running(desk, Machine(desk.clock)) as here, paused_process(desk, LONG), here.step():
        refund("o-4", 100)
    assert states(traced) == [None, "fired"]


@pytest.mark.parametrize("how", ["def", "async def"])
def test_a_live_effect_has_a_span_and_its_own_are_inside(desk: Desk, traced: Traced, how: str) -> None:
    adapter, tracer = MemoryAdapter(), traced.provider.get_tracer("agent")

    def put(key: str, value: str) -> None:
        with tracer.start_as_current_span("the tool's own"):
            adapter[key] = value
            if value == SECRET:
                raise ValueError(SECRET)

    async def put_later(key: str, value: str) -> None:
        await asyncio.sleep(0)
        put(key, value)

    declared = tool("put", lane="live", adapter=adapter, registry=desk.registry)
    live: Any = declared(put if how == "def" else put_later)
    with tracer.start_as_current_span("the agent thinks") as outer:
        for value in ("v", SECRET):
            with suppress(ValueError):
                if how == "def":
                    run(desk, (live, "k", value), key=value[:7])
                else:
                    asyncio.run(run_async(desk, (live, "k", value), key=value[:7]))
    good, bad = traced.of("countersign live")
    assert {one.parent.span_id for one in (good, bad) if one.parent} == {outer.get_span_context().span_id}
    owns = [one.parent.span_id for one in traced.of("the tool's own") if one.parent]
    assert owns == [one.context.span_id for one in (good, bad) if one.context]
    facts, failed = traced.facts_of("countersign live")
    assert (facts["tool"], facts.keys()) == ("put", {"txn", "effect_id", "tool"})
    assert (failed["error.type"], SECRET in bad.to_json()) == ("ValueError", False)
    assert not trace.get_current_span().get_span_context().is_valid
