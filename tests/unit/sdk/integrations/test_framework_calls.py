"""Single calls of a framework: how a call is named, and what a model and a program read of it."""

from __future__ import annotations

import asyncio
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from countersign import MisuseError, ReviewPending, integrations, tool
from countersign.integrations import PackageMissing, ToolAnswer
from countersign.integrations.conversation import ModelCall
from countersign.integrations.framework_calls import (
    FrameworkCalls,
    failed_answer,
    pending_answer,
    pending_payload,
)
from countersign.integrations.langgraph import _thread_id
from countersign.integrations.pydantic_ai import _conversation_id
from tests.fakes.desk import Desk, refund_tool
from tests.fakes.running import order_tool
from tests.unit.sdk.integrations.talks import HUGE, LARGE, REFUND

FRAMEWORKS: dict[str, dict[str, Any]] = {
    "langgraph_tools": {},
    "openai_agents_tools": {"key": "case-1"},
    "pydantic_ai_tools": {},
    "crewai_tools": {"key": "case-1"},
    "claude_server": {"key": "case-1"},
}


@pytest.fixture
def calls(desk: Desk) -> FrameworkCalls:
    return of(desk, refund_tool(desk))


def of(desk: Desk, *tools: Any, key: Any = "case-1", **options: Any) -> FrameworkCalls:
    return FrameworkCalls(tools, key, {"runtime": desk.runtime, **options})


def call(args: dict[str, Any], name: str = "refund", call_id: str = "c-1") -> ModelCall:
    return ModelCall(call_id, name, args)


def waits(calls: FrameworkCalls, args: dict[str, Any] = LARGE, key: str = "case-1/c-1") -> ReviewPending:
    with pytest.raises(ReviewPending) as pending:
        calls.answer_blocking(call(args), key)
    return pending.value


def test_a_call_is_named_by_its_run_and_its_id(desk: Desk, calls: FrameworkCalls) -> None:
    assert calls.key_by_id(None, "call_7") == "case-1/call_7"
    by_context = of(desk, refund_tool(desk), key=lambda context: context["thread"])
    assert by_context.key_by_id({"thread": "t-9"}, "call_7") == "t-9/call_7"


def test_a_long_name_ends_with_its_digest_and_stays_distinct(desk: Desk) -> None:
    long = of(desk, refund_tool(desk), key="k" * 120)
    named = {long.key_by_id(None, f"{'c' * 300}{end}") for end in "ab"}
    assert len(named) == 2
    assert {len(one) for one in named} == {120 + 1 + 64}


@pytest.mark.parametrize("key", ["", "k" * 121, None, 7, "unnamed-1"])
def test_a_run_without_a_valid_key_is_refused(desk: Desk, key: Any) -> None:
    with pytest.raises(MisuseError, match="key"):
        of(desk, refund_tool(desk), key=key)
    with pytest.raises(MisuseError, match="key"):
        of(desk, refund_tool(desk), key=lambda _: key).key_by_id(None, "c-1")


@pytest.mark.parametrize("call_id", [None, ""])
def test_a_call_without_an_id_is_refused(calls: FrameworkCalls, call_id: str | None) -> None:
    with pytest.raises(MisuseError, match="no id"):
        calls.key_by_id(None, call_id)


def test_calls_that_the_tool_takes_as_equal_have_one_name(calls: FrameworkCalls) -> None:
    def named(args: dict[str, Any]) -> str:
        return calls.key_by_arguments(None, "refund", args)

    first = named(REFUND)
    assert first.startswith("case-1/refund/")
    assert {named(dict(reversed(REFUND.items()))), named({**REFUND, "tags": None})} == {first}
    others = [{**REFUND, "amount_cents": 1201}, {**REFUND, "order_id": "o-5"}, {"order_id": "o-4"}, {}]
    assert len({first, *map(named, others)}) == 5
    assert calls.key_by_arguments(None, "unknown", REFUND) != first


def test_an_invalid_option_is_refused_when_the_tools_are_wrapped(desk: Desk) -> None:
    with pytest.raises(MisuseError, match="wait"):
        of(desk, refund_tool(desk), wait=-1)


def test_the_answer_is_the_result_and_a_rerun_finds_it(desk: Desk, calls: FrameworkCalls) -> None:
    first = calls.answer_blocking(call(REFUND), "case-1/c-1")
    again = asyncio.run(calls.answer(call(REFUND), "case-1/c-1"))
    assert (first.text, first.done, first.earlier) == ('{"refund_id":"r-o-4-1200"}', True, False)
    assert (again.text, again.done, again.earlier) == (first.text, True, True)
    assert len(desk.done) == 1


def test_a_refused_call_is_an_answer(desk: Desk, calls: FrameworkCalls) -> None:
    denied = calls.answer_blocking(call(HUGE), "case-1/c-1")
    unknown = calls.answer_blocking(call({}, name="nothing"), "case-1/c-2")
    invalid = calls.answer_blocking(call({"order_id": "o-4"}), "case-1/c-3")
    assert [one.done for one in (denied, unknown, invalid)] == [False] * 3
    assert "denied" in denied.text and "there is no tool" in unknown.text and "amount_cents" in invalid.text
    assert desk.done == []


def test_an_open_review_is_json_and_words(desk: Desk, calls: FrameworkCalls) -> None:
    pending = waits(calls)
    payload = json.loads(json.dumps(pending_payload(pending)))
    (review,) = payload["reviews"]
    assert (payload["state"], review["tool"], review["waiting_for"]) == ("pending", "refund", ["finance"])
    assert (review["url"], payload["key"]) == (pending.reviews[0].url, "case-1/c-1")
    answer = pending_answer("c-1", pending)
    assert not answer.done
    assert "not done yet: refund waits for finance" in answer.text and "same arguments" in answer.text
    desk.service.approve(pending.txn)
    assert calls.answer_blocking(call(LARGE), "case-1/c-1").done


def edited(desk: Desk, calls: FrameworkCalls, args: dict[str, Any], name: str = "refund") -> ToolAnswer:
    with pytest.raises(ReviewPending) as pending:
        calls.answer_blocking(call({**LARGE, **args}, name), "case-1/c-1")
    desk.service.edit(pending.value.txn, 0, {**LARGE, **args, "amount_cents": 15_000})
    desk.service.approve(pending.value.txn)
    return calls.answer_blocking(call({**LARGE, **args}, name), "case-1/c-1")


def test_the_model_reads_which_arguments_a_reviewer_changed(desk: Desk) -> None:
    calls = of(desk, refund_tool(desk), accept_edits=True)
    first = edited(desk, calls, {})
    assert first.text.startswith('done with arguments that a reviewer changed, {"amount_cents":15000}: ')
    assert first.args == {**LARGE, "amount_cents": 15_000}
    again = calls.answer_blocking(call(LARGE), "case-1/c-1")
    assert (again.text, again.args, again.earlier) == (first.text, first.args, True)
    assert desk.done == [("refund", "o-4", 15_000)]


def test_an_answer_shows_no_secret_that_a_reviewer_changed(desk: Desk) -> None:
    @order_tool(desk, name="refund", secret=["amount_cents"])
    def refund(order_id: str, amount_cents: int) -> str:
        """Give money back."""
        return "done"

    answer = edited(desk, of(desk, refund, accept_edits=True), {})
    assert "15000" not in answer.text and "amount_cents" in answer.text and "15000" not in repr(answer)


def test_an_async_tool_is_refused_without_an_event_loop(desk: Desk) -> None:
    @tool("send", resource=("Order", "order_id"), registry=desk.registry)
    async def send(order_id: str) -> str:
        """Send."""
        return "sent"

    with pytest.raises(MisuseError, match="async"):
        of(desk, send).answer_blocking(call({"order_id": "o-4"}, "send"), "case-1/c-1")
    with pytest.raises(MisuseError, match="async"):
        FrameworkCalls([send], "case-1", {"runtime": desk.runtime}, awaits=False)


def test_an_error_that_a_framework_would_hide_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "countersign"):
        answer = failed_answer(call(REFUND), MisuseError("the key is taken."))
    assert (answer.done, answer.text.startswith("the key is taken. ")) == (False, True)
    assert "the call of refund ended with MisuseError" in caplog.text


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_missing_framework_is_named_with_its_extra(name: str, refund: Any) -> None:
    with pytest.raises(PackageMissing, match=r"countersign-sdk\["):
        getattr(integrations, name)([refund], **FRAMEWORKS[name])


def test_a_run_without_a_conversation_id_is_refused() -> None:
    assert _conversation_id(SimpleNamespace(conversation_id="c-7")) == "c-7"
    with pytest.raises(MisuseError, match="conversation id"):
        _conversation_id(SimpleNamespace(conversation_id=None))


def test_a_graph_without_a_thread_id_is_refused() -> None:
    assert _thread_id(SimpleNamespace(config={"configurable": {"thread_id": 7}})) == "7"
    with pytest.raises(MisuseError, match="thread_id"):
        _thread_id(SimpleNamespace(config={}))


def test_a_missing_claude_package_is_named_for_hooks_too(refund: Any) -> None:
    with pytest.raises(PackageMissing, match="claude-agent"):
        integrations.claude_hooks({"Bash": refund}, key="case-1")
