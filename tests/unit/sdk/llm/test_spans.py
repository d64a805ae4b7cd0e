"""A span for each call to a model, by the conventions' names, and nothing in it that was said."""

import json
from typing import Any

import pytest
from opentelemetry.trace import SpanKind

from countersign import Budget, BudgetExceeded, llm_call, record_llm, tracing
from tests.fakes.desk import Desk, make_desk
from tests.fakes.llm_answers import ANTHROPIC, OPENAI_CHAT, SECRET

MODEL = "example-opus"


@pytest.fixture
def desk(tmp_path: Any) -> Any:
    made = make_desk(tmp_path, budgets=(Budget("two", "calls", 2, "day"),))
    with made.runtime:
        yield made


def one(spans: Any) -> Any:
    (span,) = spans.get_finished_spans()
    return span


def test_a_call_is_a_span_by_the_conventions(desk: Desk, spans: Any) -> None:
    with llm_call(MODEL, prompt=SECRET, max_tokens=500, reasoning=True, runtime=desk.runtime) as call:
        record = call.record(ANTHROPIC)
    span = one(spans)
    assert (span.name, span.kind) == ("chat example-opus", SpanKind.CLIENT)
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "example-opus",
        "gen_ai.request.max_tokens": 500,
        "gen_ai.response.model": "example-opus-20260301",
        "gen_ai.response.finish_reasons": ("end_turn",),
        "gen_ai.usage.input_tokens": 2500,
        "gen_ai.usage.output_tokens": 150,
        "gen_ai.usage.cache_read.input_tokens": 2000,
        "gen_ai.usage.cache_creation.input_tokens": 400,
        "gen_ai.usage.reasoning.output_tokens": 90,
        "countersign.call_id": record.call_id,
    }
    assert record.usage.reasoning == SECRET and SECRET not in span.to_json() and "Done." not in span.to_json()


def test_a_failed_call_records_only_the_error_type(desk: Desk, spans: Any) -> None:
    with pytest.raises(ValueError), llm_call(MODEL, runtime=desk.runtime):
        raise ValueError(SECRET)
    span_json = json.loads(one(spans).to_json())
    reported = span_json["attributes"]["error.type"], span_json["status"]["status_code"]
    assert reported == ("ValueError", "ERROR")
    assert SECRET not in one(spans).to_json()


def test_a_call_that_is_refused_and_one_that_is_recorded_afterwards_are_spans(desk: Desk, spans: Any) -> None:
    refused = llm_call(MODEL, budgets=[Budget("no", "calls", 0, "day")], runtime=desk.runtime)
    with pytest.raises(BudgetExceeded), refused:
        raise AssertionError("it was let through")
    record_llm(OPENAI_CHAT, runtime=desk.runtime)
    first, second = (one.attributes or {} for one in spans.get_finished_spans())
    assert (first["error.type"], second["gen_ai.usage.input_tokens"]) == ("BudgetExceeded", 1200)


def test_a_call_is_a_child_of_what_the_program_does(desk: Desk, spans: Any) -> None:
    with tracing.span("step"), llm_call(MODEL, runtime=desk.runtime) as call:
        call.record(OPENAI_CHAT)
    child, parent = spans.get_finished_spans()
    assert child.parent is not None and parent.context is not None
    assert child.parent.span_id == parent.context.span_id
