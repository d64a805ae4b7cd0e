"""Calls to models: each is recorded from its response, and nothing is guessed that the response does not say."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any
from unittest.mock import MagicMock

import pytest

from countersign import Budget, BudgetExceeded, CallNotRecorded, UsageUnknown, errors, llm_call, record_llm
from tests.fakes.desk import refund_tool
from tests.fakes.llm_answers import ANTHROPIC, OLLAMA, OPENAI_CHAT, SECRET, as_object, with_count, without
from tests.unit.sdk.llm import asking
from tests.unit.sdk.llm.asking import CALLS, MODEL, MONEY, TOKENS, Vendor, ask, begin, calls, states, usage_of

DENIED = 500_001  # in cents: the fake service's policy says no
LONG = {**OPENAI_CHAT, "model": "m" * 201}


# --------------------------------------------------------------------------------------------------- recording


def test_a_call_is_recorded_from_its_response(make: Any) -> None:
    desk = make(TOKENS)
    with begin(desk, run="night") as call:
        response = Vendor(as_object(OPENAI_CHAT)).create()
        desk.clock.advance(1.2344)
        record = call.record(response)
    assert (record.cost, record.currency) == (Decimal("0.0032784"), "USD")  # 176 + 1024 cached in, 300 out
    assert (record.seconds, record.run, record.over, record.uncounted) == (Decimal("1.235"), "night", (), ())
    (row,) = calls(desk)
    assert row["call_id"] == record.call_id
    assert (row["state"], row["provider"], row["answered_by"]) == ("done", "openai", OPENAI_CHAT["model"])
    assert (row["finish_reasons"], row["run"], row["reasoning"]) == ("stop", "night", None)
    assert (row["input_tokens"], row["output_tokens"], row["cached_tokens"]) == (1200, 300, 1024)
    assert (row["reasoning_tokens"], row["all_tokens"], row["cost"]) == (192, 1500, 3_278_400_000)
    assert usage_of(desk, "tokens") == (1500, 0)


def test_a_model_without_a_price_needs_no_budget_and_has_an_unknown_cost_and_no_zero(make: Any) -> None:
    desk = make()
    record = ask(desk, Vendor(OPENAI_CHAT | {"model": "unpriced"}), "unpriced")
    assert (record.cost, record.currency, calls(desk)[0]["cost"]) == (None, None, None)


def test_reasoning_is_kept_only_where_the_program_asks_for_it(make: Any) -> None:
    desk = make()
    ask(desk, Vendor(ANTHROPIC))
    assert ask(desk, Vendor(ANTHROPIC), reasoning=True).usage.reasoning == SECRET
    spending = desk.runtime.journal.spending
    assert [spending.reasoning(row["call_id"]) for row in calls(desk)] == [None, SECRET]
    assert SECRET not in str(calls(desk))


def test_a_response_that_does_not_say_leaves_its_call_reserved_or_is_recorded_as_unknown(make: Any) -> None:
    """Paid for and unreadable: it is not free, not zero, and not gone."""
    desk, vendor = make(TOKENS, MONEY), Vendor(without(OLLAMA, "prompt_eval_count"))
    with pytest.raises(UsageUnknown, match="prompt_eval_count"):
        ask(desk, vendor)
    assert vendor.calls == 1
    assert [(row["state"], row["all_tokens"]) for row in calls(desk)] == [("unknown", None)]
    assert usage_of(desk, "tokens") == (0, 3000)
    record = ask(desk, vendor, unknown_tokens=True, max_tokens=100, input_tokens=200)
    assert (record.usage.input_tokens, record.usage.output_tokens, record.cost) == (None, 298, None)
    assert (states(desk), usage_of(desk, "tokens")) == (["unknown", "done"], (300, 3000))
    assert usage_of(desk, "money")[0] == 1_400_000_000, "unknown usage counts as reserved"


def test_an_answer_that_was_paid_for_is_not_lost_with_its_usage(make: Any) -> None:
    desk, vendor = make(CALLS), Vendor({"text": SECRET})
    with pytest.raises(UsageUnknown) as error:
        llm_call(MODEL, runtime=desk.runtime)(vendor.create)()
    assert error.value.response is vendor.answer and SECRET not in str(error.value)
    assert usage_of(desk, "calls") == (0, 1)


def test_a_call_is_recorded_once_also_after_its_block(make: Any) -> None:
    desk = make(TOKENS)
    with pytest.raises(UsageUnknown), begin(desk) as call:
        call.record({"usage": None})
    call.record(OPENAI_CHAT)
    assert (usage_of(desk, "tokens"), states(desk)) == ((1500, 0), ["done"])
    with pytest.raises(errors.MisuseError, match="one block is one call"):
        call.record(with_count(OPENAI_CHAT, 1, "usage", "completion_tokens"))
    with pytest.raises(UsageUnknown):
        call.record(None)
    with pytest.raises(errors.MisuseError, match="stays as it is"):
        call.release()
    assert (usage_of(desk, "tokens"), states(desk)) == ((1500, 0), ["done"])


def test_two_calls_never_share_a_result(make: Any) -> None:
    """W21 of AgentRelay. Equal in everything, and in a rerun of one step: each is made, counted and answered."""
    desk = make(Budget("calls", "calls", 4, "run"))
    first, second = Vendor(as_object(OPENAI_CHAT)), Vendor(as_object(ANTHROPIC))

    @llm_call(MODEL, max_tokens=1000, runtime=desk.runtime)
    def complete(vendor: Vendor) -> Any:
        return vendor.create()

    for _ in range(2):
        with desk.step():
            assert complete(first) is first.answer
            assert complete(second) is second.answer
    assert (first.calls, second.calls) == (2, 2)
    assert [row["provider"] for row in calls(desk)] == ["openai", "anthropic"] * 2
    assert (len({row["call_id"] for row in calls(desk)}), usage_of(desk, "calls", "t-1")) == (4, (4, 0))


# ------------------------------------------------------------------------------- what becomes of a reservation


class RateLimitedError(Exception):
    """A client's word for "we did nothing"."""


SAID: dict[str, Any] = {"not_made": (RateLimitedError,)}
ENDS = {
    "the program knows that nothing was done": (errors.NotDone("never sent"), {}, "released", 0),
    "an exception that means so": (RateLimitedError(), SAID, "released", 0),
    "the same, when it is not declared": (RateLimitedError(), {}, "unknown", 3000),
    "a lost answer": (TimeoutError(), SAID, "unknown", 3000),
    "Ctrl-C": (KeyboardInterrupt(), {}, "unknown", 3000),
    "a cancelled task": (asyncio.CancelledError(), SAID, "unknown", 3000),
    "the end of the program": (SystemExit(), {}, "unknown", 3000),
}


@pytest.mark.parametrize(("error", "changes", "state", "reserved"), ENDS.values(), ids=ENDS.keys())
def test_only_a_call_not_made_is_free(make: Any, error: Any, changes: Any, state: str, reserved: int) -> None:
    desk = make(TOKENS)
    with pytest.raises(type(error)) as raised:
        ask(desk, Vendor(error=error), **changes)
    assert raised.value is error
    assert (states(desk), usage_of(desk, "tokens")) == ([state], (0, reserved))


def test_a_block_without_a_record_raises_and_stays_reserved(make: Any) -> None:
    desk = make(TOKENS)
    with pytest.raises(CallNotRecorded, match="stays reserved") as unrecorded, begin(desk) as call:
        pass
    assert f"`countersign budget settle {call.call_id} --made`" in str(unrecorded.value)
    assert (states(desk), usage_of(desk, "tokens")) == (["unknown"], (0, 3000))


def test_a_record_or_release_stays_if_the_block_raises_afterwards(make: Any) -> None:
    desk = make(TOKENS)
    with begin(desk) as call:
        call.release("the answer was in a cache")
    assert [(row["state"], row["note"]) for row in calls(desk)] == [("released", "the answer was in a cache")]
    assert usage_of(desk, "tokens") == (0, 0)
    with pytest.raises(RuntimeError), begin(desk) as call:
        call.record(OPENAI_CHAT)
        raise RuntimeError("of the program")
    assert (states(desk), usage_of(desk, "tokens")) == (["released", "done"], (1500, 0))


def test_what_another_process_left_open_stays_reserved(make: Any) -> None:
    desk = make(Budget("two", "calls", 2, "day"))
    llm_call(MODEL, runtime=desk.runtime).__enter__()  # its process ends here
    with desk.restarted() as later:
        ask(later, Vendor())
        with pytest.raises(BudgetExceeded, match="1 are spent, 1 reserved"):
            ask(later, Vendor())


@pytest.mark.parametrize("end", ["its body raises", "a policy denies it"])
def test_calls_that_were_made_count_in_runs_that_came_to_nothing(make: Any, end: str) -> None:
    """What was paid for was paid for; what was never sent was not."""
    desk = make(TOKENS)
    refund = refund_tool(desk)
    with pytest.raises((RuntimeError, errors.Denied)), desk.step():
        ask(desk, Vendor())
        with pytest.raises(errors.NotDone):
            ask(desk, Vendor(error=errors.NotDone("never sent")))
        refund("o-1", DENIED)
        if end == "its body raises":
            raise RuntimeError("of the body")
    assert (usage_of(desk, "tokens"), desk.done) == ((1500, 0), [])


def test_a_block_is_used_once(make: Any) -> None:
    desk = make(CALLS)
    once = llm_call(MODEL, runtime=desk.runtime)
    with once as call:
        call.record(OPENAI_CHAT)
    with pytest.raises(errors.MisuseError, match="was used already"), once:
        pass
    with pytest.raises(errors.MisuseError, match="before it was entered"):
        llm_call(MODEL, runtime=desk.runtime).__exit__(None, None, None)
    assert usage_of(desk, "calls") == (1, 0)


# ---------------------------------------------------------------------------------------------- async, threads


@pytest.mark.anyio
async def test_async_blocks_and_functions_are_counted_alike(make: Any) -> None:
    desk, vendor = make(CALLS), Vendor()
    async with llm_call(MODEL, runtime=desk.runtime) as call:
        await asyncio.sleep(0)
        call.record(OPENAI_CHAT)

    @llm_call(MODEL, runtime=desk.runtime)
    async def complete(vendor: Vendor) -> Any:
        await asyncio.sleep(0)
        return vendor.create()

    assert await complete(vendor) == OPENAI_CHAT
    with pytest.raises(BudgetExceeded):
        await complete(vendor)
    assert (vendor.calls, usage_of(desk, "calls")) == (1, (2, 0))


def test_threads_share_a_budget_exactly(make: Any) -> None:
    desk = make(Budget("ten", "tokens", 30_000, "day"))
    vendor = Vendor(with_count(OPENAI_CHAT, 1800, "usage", "completion_tokens"))  # as much as it reserved
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: asking.may(desk, vendor), range(40)))
    assert (sum(made), vendor.calls, usage_of(desk, "ten")) == (10, 10, (30_000, 0))


# ----------------------------------------------------------------------------------------------------- afterwards


def test_a_call_without_reservation_counts(make: Any) -> None:
    desk = make(
        Budget("little", "tokens", 1000, "day"), MONEY, asking.SECONDS, Budget("run", "calls", 9, "run")
    )
    record = record_llm(OPENAI_CHAT, model=MODEL, runtime=desk.runtime)
    assert (record.over, record.uncounted) == (("little",), ("seconds", "run"))
    assert (usage_of(desk, "little"), usage_of(desk, "money")) == ((1500, 0), (3_278_400_000, 0))
    timed = record_llm(as_object(ANTHROPIC), seconds=2, run="night", runtime=desk.runtime)
    assert (timed.model, timed.uncounted, timed.seconds) == ("example-opus-20260301", (), Decimal(2))
    assert (usage_of(desk, "seconds"), usage_of(desk, "run")) == ((2000, 0), (1, 0))
    assert states(desk) == ["done", "done"]


def test_a_call_without_reservation_lists_budgets_that_could_not_count_it(make: Any) -> None:
    desk = make(TOKENS, MONEY, CALLS)
    record = record_llm({}, model=MODEL, unknown_tokens=True, runtime=desk.runtime)
    assert (record.uncounted, record.cost) == (("tokens", "money"), None)
    assert (usage_of(desk, "calls"), usage_of(desk, "tokens")) == ((1, 0), (0, 0))


@pytest.mark.parametrize("to", [dict, as_object], ids=["a dict", "an object"])
def test_the_model_of_a_response_of_no_known_shape_is_read_where_it_names_one(make: Any, to: Any) -> None:
    response = to({"model": "m", "choices": []})
    record = record_llm(response, unknown_tokens=True, runtime=make(CALLS).runtime)
    assert (record.model, record.usage.input_tokens) == ("m", None)


UNKNOWN: dict[str, Any] = {"unknown_tokens": True}
NO_MODEL = "does not say by which model it was given"
UNSAID: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no usage": ({}, {"model": MODEL}, "usage"),
    "nothing": (None, {}, "usage"),
    "no model": ({}, UNKNOWN, NO_MODEL),
    "a number for a model": ({"model": 7}, UNKNOWN, NO_MODEL),
    "a mock": (MagicMock(), UNKNOWN, NO_MODEL),
    "a name that is none": (LONG, {}, "say model="),
}


@pytest.mark.parametrize(("response", "said", "why"), UNSAID.values(), ids=UNSAID.keys())
def test_what_does_not_say_is_not_recorded(make: Any, response: Any, said: dict[str, Any], why: str) -> None:
    desk = make(CALLS)
    with pytest.raises(UsageUnknown, match=why) as unknown:
        record_llm(response, runtime=desk.runtime, **said)
    assert not said.get("unknown_tokens") or "unknown_tokens" not in str(unknown.value), "that was said"
    assert calls(desk) == []
    assert record_llm(response, model=MODEL, unknown_tokens=True, runtime=desk.runtime).model == MODEL


@pytest.mark.parametrize("wrong", [{"run": ""}, {"model": "m" * 201}, {"seconds": -1}], ids=str)
def test_invalid_parameters_are_refused_first(make: Any, wrong: dict[str, Any]) -> None:
    desk = make(CALLS)
    with pytest.raises(errors.MisuseError):
        record_llm(None, runtime=desk.runtime, **wrong)
    assert calls(desk) == []
