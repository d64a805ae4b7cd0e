"""What the spans of a transaction say of its effects, and where they are."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from opentelemetry import trace

from countersign import CountersignError, MemoryAdapter, NotDone, tool, tracing
from tests.fakes.desk import Desk, answering_tool
from tests.fakes.running import refusing_tool, run, run_async
from tests.unit.sdk.commit.test_time import LONG, paused_process

SECRET = "hunter2 is in this sentence"


def named(spans: Any, name: str) -> list[Any]:
    return [one for one in spans.get_finished_spans() if one.name == name]


def idempotent_tool(desk: Desk, *answers: Any) -> Any:
    return answering_tool(desk, *answers, idempotent=True)


def states(spans: Any) -> list[object]:
    return [one.attributes.get("countersign.state") for one in named(spans, "countersign fire")]


CUT = OSError("the line broke")
ENDS: dict[str, tuple[Any, list[str]]] = {
    "one that returned has fired": (lambda desk: answering_tool(desk, "ok"), ["fired"]),
    "one that knows that it did nothing has failed": (refusing_tool, ["failed"]),
    "one that raised anything else is unknown": (lambda desk: answering_tool(desk, CUT), ["unknown"]),
    "each try of one that is idempotent": (lambda desk: idempotent_tool(desk, CUT), ["unknown"] * 3),
    "an earlier try may have acted": (
        lambda desk: idempotent_tool(desk, CUT, NotDone("no")),
        ["unknown"] * 2,
    ),
}


@pytest.mark.parametrize(("made", "expected"), ENDS.values(), ids=ENDS)
def test_the_span_of_a_fire_says_what_is_known(desk: Desk, spans: Any, made: Any, expected: Any) -> None:
    with suppress(CountersignError), desk.step():
        made(desk)("o-4")
    assert states(spans) == expected


def test_a_call_that_was_not_made_says_nothing_of_the_effect(desk: Desk, spans: Any, refund: Any) -> None:
    desk.service.fire_seconds = 30
    with paused_process(desk, LONG), desk.step():
        refund("o-4", 100)
    assert states(spans) == [None, "fired"]


@pytest.mark.parametrize("how", ["def", "async def"])
def test_a_live_effect_has_a_span_and_its_own_are_inside(desk: Desk, spans: Any, how: str) -> None:
    adapter = MemoryAdapter()

    def put(key: str, value: str) -> None:
        with tracing.span("the tool's own"):
            adapter[key] = value
            if value == SECRET:
                raise ValueError(SECRET)

    async def put_later(key: str, value: str) -> None:
        await asyncio.sleep(0)
        put(key, value)

    declared = tool("put", lane="live", adapter=adapter, registry=desk.registry)
    live: Any = declared(put if how == "def" else put_later)
    with tracing.span("the agent thinks"):
        for value in ("v", SECRET):
            with suppress(ValueError):
                call, key = (live, "k", value), value[:7]
                run(desk, call, key=key) if how == "def" else asyncio.run(run_async(desk, call, key=key))
    ((outer,), (good, bad)) = named(spans, "the agent thinks"), named(spans, "countersign live")
    assert {one.parent.span_id for one in (good, bad)} == {outer.context.span_id}
    owns = [one.parent.span_id for one in named(spans, "the tool's own")]
    assert owns == [good.context.span_id, bad.context.span_id]
    assert {*good.attributes} == {f"countersign.{name}" for name in ("txn", "effect_id", "tool")}
    assert (good.attributes["countersign.tool"], bad.attributes["error.type"]) == ("put", "ValueError")
    assert SECRET not in bad.to_json() and not trace.get_current_span().get_span_context().is_valid
