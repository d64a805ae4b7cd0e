"""Calls to models: the budget is asked before, the call is written down after, and nothing is guessed in between."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from countersign import (
    Budget,
    BudgetExceeded,
    CallNotRecorded,
    Denied,
    MisuseError,
    NotDone,
    PriceUnknown,
    SettingsError,
    Stopped,
    UsageUnknown,
    llm_call,
    record_llm,
    transaction,
)
from tests.fakes.desk import make_desk, refund_tool
from tests.fakes.llm_answers import ANTHROPIC, OLLAMA, OPENAI_CHAT, SECRET, as_object, with_count, without
from tests.unit.sdk.llm.asking import MODEL, PRICES, Make, Vendor, ask, begin, calls, stands, states

TOKENS = Budget("tokens", "tokens", 10_000, "day")
CALLS = Budget("calls", "calls", 2, "day")
MONEY = Budget("money", "money", "0.02", "day", "USD")
NOTHING = OPENAI_CHAT | {"usage": {"prompt_tokens": 0, "completion_tokens": 0}}
DENIED = 500_001  # in cents: the fake service's policy says no
SECONDS = Budget("seconds", "seconds", 60, "day")


# --------------------------------------------------------------------------------------------------- recording


def test_a_call_is_written_down_as_its_response_tells_it(make: Make) -> None:
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
    assert stands(desk, "tokens") == (1500, 0)


def test_a_model_without_a_price_needs_no_budget_and_has_an_unknown_cost_and_no_zero(make: Make) -> None:
    desk = make()
    record = ask(desk, Vendor(OPENAI_CHAT | {"model": "unpriced"}), "unpriced")
    assert (record.cost, record.currency, calls(desk)[0]["cost"]) == (None, None, None)


def test_reasoning_is_kept_only_where_the_program_asks_for_it(make: Make) -> None:
    desk = make()
    ask(desk, Vendor(ANTHROPIC))
    assert ask(desk, Vendor(ANTHROPIC), reasoning=True).usage.reasoning == SECRET
    spending = desk.runtime.journal.spending
    assert [spending.reasoning(row["call_id"]) for row in calls(desk)] == [None, SECRET]
    assert SECRET not in str(calls(desk))


def test_a_response_that_does_not_say_leaves_its_call_reserved(make: Make) -> None:
    """Paid for and unreadable: it is not free, not zero, and not gone."""
    desk = make(TOKENS)
    vendor = Vendor(without(OLLAMA, "prompt_eval_count"))
    with pytest.raises(UsageUnknown, match="prompt_eval_count"):
        ask(desk, vendor)
    assert vendor.calls == 1
    assert [(row["state"], row["all_tokens"]) for row in calls(desk)] == [("unknown", None)]
    assert stands(desk, "tokens") == (0, 3000)


def test_a_response_that_does_not_say_may_be_recorded_with_its_tokens_unknown(make: Make) -> None:
    desk = make(TOKENS, MONEY)
    record = ask(desk, Vendor(without(OLLAMA, "prompt_eval_count")), unknown_tokens=True)
    assert (record.usage.input_tokens, record.usage.output_tokens, record.cost) == (None, 298, None)
    assert states(desk) == ["done"]
    assert stands(desk, "tokens") == (3000, 0)
    assert stands(desk, "money") == (14_000_000_000, 0), "what nobody knows is taken as what was reserved"


def test_an_answer_that_was_paid_for_is_not_lost_with_its_usage(make: Make) -> None:
    desk, vendor = make(CALLS), Vendor({"text": SECRET})
    with pytest.raises(UsageUnknown) as error:
        llm_call(MODEL, runtime=desk.runtime)(vendor.create)()
    assert error.value.response is vendor.answer
    assert SECRET not in str(error.value)
    assert stands(desk, "calls") == (0, 1)


def test_a_call_that_could_not_be_read_may_be_recorded_after_its_block(make: Make) -> None:
    desk = make(TOKENS)
    with pytest.raises(UsageUnknown), begin(desk) as call:
        call.record({"usage": None})
    call.record(OPENAI_CHAT)
    assert (stands(desk, "tokens"), states(desk)) == ((1500, 0), ["done"])


def test_a_second_record_changes_nothing(make: Make) -> None:
    desk = make(TOKENS)
    with begin(desk) as call:
        call.record(OPENAI_CHAT)
        with pytest.raises(MisuseError, match="one block is one call"):
            call.record(with_count(OPENAI_CHAT, 1, "usage", "completion_tokens"))
        with pytest.raises(UsageUnknown):
            call.record(None)
        with pytest.raises(MisuseError, match="stays as it is"):
            call.release()
    assert (stands(desk, "tokens"), states(desk)) == ((1500, 0), ["done"])


# ------------------------------------------------------------------------------------------- W21 of AgentRelay


def test_two_calls_never_share_a_result(make: Make) -> None:
    """Equal in everything, and in a rerun of one step: each is made, counted and answered by itself."""
    desk = make(Budget("calls", "calls", 4, "run"))
    first, second = Vendor(as_object(OPENAI_CHAT)), Vendor(as_object(ANTHROPIC))

    @llm_call(MODEL, max_tokens=1000, runtime=desk.runtime)
    def complete(vendor: Vendor) -> Any:
        return vendor.create()

    for _ in range(2):
        with transaction("t-1", runtime=desk.runtime):
            assert complete(first) is first.answer
            assert complete(second) is second.answer
    assert (first.calls, second.calls) == (2, 2)
    assert [row["provider"] for row in calls(desk)] == ["openai", "anthropic"] * 2
    assert len({row["call_id"] for row in calls(desk)}) == 4
    assert stands(desk, "calls", "t-1") == (4, 0)


@pytest.mark.parametrize(
    ("budget", "changes"),
    [
        (Budget("b", "tokens", 2999, "day"), {}),
        (Budget("b", "money", "0.013999", "day", "USD"), {}),
        (Budget("b", "seconds", 29, "day"), {}),
        (Budget("b", "calls", 0, "day"), {}),
        (Budget("b", "tokens", 2999, "run"), {"run": "r"}),
    ],
    ids=["tokens", "money", "seconds", "calls", "tokens of a run"],
)
def test_a_budget_is_asked_before_the_model(make: Make, budget: Budget, changes: dict[str, Any]) -> None:
    desk = make(budget)
    vendor = Vendor()
    with pytest.raises(BudgetExceeded) as exceeded:
        ask(desk, vendor, **changes)
    assert (vendor.calls, calls(desk), stands(desk, "b")) == (0, [], (0, 0))
    assert isinstance(exceeded.value, Stopped)


def test_a_recorded_call_stays_done_whatever_its_budget_says_afterwards(make: Make) -> None:
    """It took more than it said it would: that was spent, its row says done, and the next call finds no room."""
    desk = make(Budget("small", "tokens", 1000, "day"))
    record = ask(desk, Vendor(), max_tokens=10, input_tokens=10)
    assert record.over == ("small",)
    assert (states(desk), stands(desk, "small")) == (["done"], (1500, 0))
    vendor = Vendor()
    with pytest.raises(BudgetExceeded):
        ask(desk, vendor, max_tokens=0, input_tokens=0)
    assert (vendor.calls, states(desk)) == (0, ["done"])


# ------------------------------------------------------------------------------------------------------ budgets


def test_an_exceeded_budget_says_everything_about_itself(make: Make) -> None:
    desk = make(MONEY)
    desk.clock.time = datetime(2026, 11, 23, 13, 5, tzinfo=UTC).timestamp()
    ask(desk, Vendor())
    with llm_call(MODEL, max_tokens=400, input_tokens=0, runtime=desk.runtime) as held:
        with pytest.raises(BudgetExceeded) as exceeded:
            ask(desk, Vendor())
        held.release()
    error = exceeded.value
    assert (error.budget, error.measure, error.per) == ("money", "money USD", "day")
    amounts = [Decimal(one) for one in ("0.02", "0.0032784", "0.004", "0.014")]
    assert [error.limit, error.spent, error.reserved, error.asked] == amounts
    assert error.renews_at == datetime(2026, 11, 24, tzinfo=UTC)
    for said in ("'money'", "0.02", "0.0032784", "0.004", "0.014", "2026-11-24 00:00 UTC"):
        assert said in str(error)


def test_the_budget_of_a_run_is_each_runs_own_and_never_renews(make: Make) -> None:
    desk = make(Budget("run", "calls", 1, "run"))
    with transaction("t-1", runtime=desk.runtime):
        ask(desk, Vendor())
        with pytest.raises(BudgetExceeded) as exceeded:
            ask(desk, Vendor())
    assert exceeded.value.renews_at is None
    assert str(exceeded.value).endswith(
        "asks for up to 1. The budget of a run is not renewed. Tell the user that the budget is used up."
    )
    desk.clock.advance(3 * 86_400)
    with pytest.raises(BudgetExceeded):
        ask(desk, Vendor(), run="t-1")
    ask(desk, Vendor(), run="t-2")


def test_a_run_that_nobody_names_is_refused_where_a_budget_counts_runs(make: Make) -> None:
    desk, vendor = make(Budget("run", "calls", 1, "run")), Vendor()
    with pytest.raises(SettingsError, match="belongs to none"):
        ask(desk, vendor)
    assert (vendor.calls, calls(desk)) == (0, [])


def test_a_day_begins_at_midnight_utc(make: Make) -> None:
    desk = make(Budget("one", "calls", 1, "day"))
    desk.clock.time = datetime(2026, 11, 23, 23, 59, 59, tzinfo=UTC).timestamp()
    ask(desk, Vendor())
    with pytest.raises(BudgetExceeded):
        ask(desk, Vendor())
    desk.clock.advance(1)
    ask(desk, Vendor())
    with pytest.raises(BudgetExceeded):
        ask(desk, Vendor())
    assert (stands(desk, "one", "2026-11-23"), stands(desk, "one", "2026-11-24")) == ((1, 0), (1, 0))


def test_a_call_over_midnight_counts_for_the_day_it_began(make: Make) -> None:
    desk = make(TOKENS)
    desk.clock.time = datetime(2026, 11, 23, 23, 59, 59, tzinfo=UTC).timestamp()
    with begin(desk) as call:
        desk.clock.advance(60)
        call.record(OPENAI_CHAT)
    assert (stands(desk, "tokens", "2026-11-23"), stands(desk, "tokens", "2026-11-24")) == ((1500, 0), (0, 0))


def test_a_price_that_changes_at_midnight_is_that_of_the_day_the_call_began(
    make: Make, tmp_path: Path
) -> None:
    """Otherwise it could take more than was reserved for it."""
    desk = make(MONEY)
    later = PRICES.replace("2026-01-01", "2026-11-24").replace(
        "input = 1\noutput = 10", "input = 7\noutput = 70"
    )
    (tmp_path / "prices.toml").write_text(PRICES + later)
    desk.clock.time = datetime(2026, 11, 23, 23, 59, 59, tzinfo=UTC).timestamp()
    with llm_call(MODEL, max_tokens=300, input_tokens=1200, runtime=desk.runtime) as call:
        desk.clock.advance(60)
        assert call.record(OPENAI_CHAT).cost == Decimal("0.0032784")


def test_all_budgets_that_apply_must_have_room_and_others_are_not_asked(make: Make) -> None:
    mine = Budget("mine", "calls", 5, "day", models=("example-*",))
    desk = make(mine, Budget("theirs", "calls", 0, "day", models=("other-*",)), CALLS)
    ask(desk, Vendor())
    ask(desk, Vendor())
    with pytest.raises(BudgetExceeded, match="'calls'"):
        ask(desk, Vendor())
    assert (stands(desk, "mine"), stands(desk, "calls"), stands(desk, "theirs")) == ((2, 0), (2, 0), (0, 0))


def test_a_call_may_bring_a_budget_of_its_own(make: Make) -> None:
    desk = make()
    own = Budget("own", "calls", 1, "day")
    ask(desk, Vendor(), budgets=[own])
    with pytest.raises(BudgetExceeded, match="'own'"):
        ask(desk, Vendor(), budgets=[own])
    ask(desk, Vendor())


def test_a_limit_is_met_to_the_last_token_and_not_passed(make: Make) -> None:
    desk = make(Budget("exact", "tokens", 3000, "day"))
    with begin(desk) as call:
        with pytest.raises(BudgetExceeded):
            ask(desk, Vendor(), max_tokens=1, input_tokens=0)
        ask(desk, Vendor(NOTHING), max_tokens=0, input_tokens=0)
        call.record(OPENAI_CHAT)
    assert stands(desk, "exact") == (1500, 0)


def test_time_is_counted_as_it_passed(make: Make) -> None:
    desk = make(SECONDS)
    with llm_call(MODEL, timeout=45.5, runtime=desk.runtime) as call:
        assert stands(desk, "seconds") == (0, 45_500)
        desk.clock.advance(20.0001)
        call.record(OPENAI_CHAT)
    assert stands(desk, "seconds") == (20_001, 0)
    with pytest.raises(
        BudgetExceeded, match=r"allows 60, 20\.001 are spent, 0 reserved, and this call asks for up to 40"
    ):
        ask(desk, Vendor(), timeout=40)


def test_what_is_short_is_told_with_what_can_be_done_about_it(make: Make) -> None:
    desk = make(Budget("calls", "calls", 0, "day"), Budget("tokens", "tokens", 1, "day"))
    with pytest.raises(BudgetExceeded, match=r"UTC\. Wait, or tell the user that the budget is used up\.$"):
        ask(desk, Vendor())
    desk = make(Budget("tokens", "tokens", 1, "run"))
    with pytest.raises(BudgetExceeded, match=r"renewed\. Ask for less \(.*\), or tell the user that"):
        ask(desk, Vendor(), run="t-1")


LEFT_OPEN = {
    "no answer": (TOKENS, {"max_tokens": None}, "max_tokens"),
    "no prompt": (TOKENS, {"input_tokens": None}, "input_tokens"),
    "no answer, of money": (MONEY, {"max_tokens": None}, "max_tokens"),
    "neither": (
        MONEY,
        {"input_tokens": None, "max_tokens": None},
        r"at most: input_tokens \(or prompt\)=... and max_tokens=...$",
    ),
    "no time": (SECONDS, {"timeout": None}, "timeout"),
    "a negative answer": (TOKENS, {"max_tokens": -1}, "not -1"),
    "half a token": (TOKENS, {"max_tokens": 0.5}, "not 0.5"),
    "endless tokens": (TOKENS, {"max_tokens": 10**30}, "whole number up to"),
    "endless time": (SECONDS, {"timeout": float("inf")}, "not inf"),
    "no number of seconds": (SECONDS, {"timeout": float("nan")}, "not nan"),
    "a prompt of an object": (TOKENS, {"input_tokens": None, "prompt": [object()]}, "say input_tokens"),
    "a prompt and its tokens": (TOKENS, {"prompt": "hello"}, "either input_tokens or prompt"),
    "a run without a name": (CALLS, {"run": ""}, "1 to 200 characters"),
    "a model without a name": (CALLS, {"model": ""}, "1 to 200 characters"),
}


@pytest.mark.parametrize(("budget", "changes", "why"), LEFT_OPEN.values(), ids=LEFT_OPEN.keys())
def test_what_a_budget_cannot_weigh_is_not_called(
    make: Make, budget: Budget, changes: dict[str, Any], why: str
) -> None:
    desk, vendor = make(budget), Vendor()
    with pytest.raises(MisuseError, match=why):
        ask(desk, vendor, **{"model": MODEL} | changes)
    assert (vendor.calls, calls(desk)) == (0, [])


@pytest.mark.parametrize(
    ("model", "why"), [("unpriced", "has no price today"), ("euro", "in USD and the price")]
)
def test_money_is_not_spent_where_nobody_knows_the_price(make: Make, model: str, why: str) -> None:
    desk, vendor = make(MONEY), Vendor()
    with pytest.raises(PriceUnknown, match=why):
        ask(desk, vendor, model)
    assert (vendor.calls, calls(desk)) == (0, [])


def test_a_model_that_answers_for_another_is_paid_as_reserved(make: Make) -> None:
    desk = make(MONEY)
    record = ask(desk, Vendor(OPENAI_CHAT | {"model": "somebody-else"}))
    assert (record.cost, stands(desk, "money")) == (None, (14_000_000_000, 0))


def test_a_prompt_is_bounded_by_its_bytes(make: Make) -> None:
    desk = make(TOKENS)
    messages = [{"role": "user", "content": "čau"}]
    with llm_call(MODEL, max_tokens=0, prompt=messages, runtime=desk.runtime) as call:
        assert stands(desk, "tokens") == (0, len('[{"role": "user", "content": "čau"}]'.encode()) + 64)
        call.release()


# ------------------------------------------------------------------------------- what becomes of a reservation


class RateLimitedError(Exception):
    """A client's word for "we did nothing"."""


ENDS = {
    "the program knows that nothing was done": (NotDone("never sent"), {}, "released", 0),
    "an exception that means so": (RateLimitedError(), {"not_made": (RateLimitedError,)}, "released", 0),
    "the same, when nobody said so": (RateLimitedError(), {}, "unknown", 3000),
    "a lost answer": (TimeoutError(), {"not_made": (RateLimitedError,)}, "unknown", 3000),
    "Ctrl-C": (KeyboardInterrupt(), {}, "unknown", 3000),
    "the end of the program": (SystemExit(), {}, "unknown", 3000),
}


@pytest.mark.parametrize(("error", "changes", "state", "reserved"), ENDS.values(), ids=ENDS.keys())
def test_only_a_call_that_was_surely_not_made_is_free(
    make: Make, error: BaseException, changes: dict[str, Any], state: str, reserved: int
) -> None:
    desk = make(TOKENS)
    with pytest.raises(type(error)) as raised:
        ask(desk, Vendor(error=error), **changes)
    assert raised.value is error
    assert states(desk) == [state]
    assert stands(desk, "tokens") == (0, reserved)


def test_a_block_that_says_nothing_is_loud_and_stays_reserved(make: Make) -> None:
    desk = make(TOKENS)
    with pytest.raises(CallNotRecorded, match="stays reserved") as told, begin(desk) as call:
        pass
    assert f"`countersign budget settle {call.call_id} --made`" in str(told.value)
    assert (states(desk), stands(desk, "tokens")) == (["unknown"], (0, 3000))


def test_a_block_may_say_that_it_made_no_call(make: Make) -> None:
    desk = make(TOKENS)
    with begin(desk) as call:
        call.release("the answer was in a cache")
    assert [(row["state"], row["note"]) for row in calls(desk)] == [("released", "the answer was in a cache")]
    assert stands(desk, "tokens") == (0, 0)


def test_an_exception_after_the_record_leaves_it_done(make: Make) -> None:
    desk = make(TOKENS)
    with pytest.raises(RuntimeError), begin(desk) as call:
        call.record(OPENAI_CHAT)
        raise RuntimeError("of the program")
    assert (states(desk), stands(desk, "tokens")) == (["done"], (1500, 0))


def test_what_another_process_left_open_stays_reserved(make: Make) -> None:
    desk = make(Budget("two", "calls", 2, "day"))
    llm_call(MODEL, runtime=desk.runtime).__enter__()  # its process ends here
    with desk.restarted() as later:
        ask(later, Vendor())
        with pytest.raises(BudgetExceeded, match="1 are spent, 1 reserved"):
            ask(later, Vendor())


@pytest.mark.parametrize("end", ["its body raises", "a policy denies it"])
def test_calls_that_were_made_count_in_runs_that_came_to_nothing(make: Make, end: str) -> None:
    """What was paid for was paid for; what was never sent was not."""
    desk = make(TOKENS)
    refund = refund_tool(desk)
    with pytest.raises((RuntimeError, Denied)), transaction("t-1", runtime=desk.runtime):
        ask(desk, Vendor())
        with pytest.raises(NotDone):
            ask(desk, Vendor(error=NotDone("never sent")))
        refund("o-1", DENIED)
        if end == "its body raises":
            raise RuntimeError("of the body")
    assert (stands(desk, "tokens"), desk.done) == ((1500, 0), [])


def test_a_block_is_used_once(make: Make) -> None:
    desk = make(CALLS)
    once = llm_call(MODEL, runtime=desk.runtime)
    with once as call:
        call.record(OPENAI_CHAT)
    with pytest.raises(MisuseError, match="was used already"), once:
        pass
    with pytest.raises(MisuseError, match="before it was entered"):
        llm_call(MODEL, runtime=desk.runtime).__exit__(None, None, None)
    assert stands(desk, "calls") == (1, 0)


# --------------------------------------------------------------------------------------- async, threads, names


@pytest.mark.anyio
async def test_async_blocks_and_functions_are_counted_alike(make: Make) -> None:
    desk = make(CALLS)
    async with llm_call(MODEL, runtime=desk.runtime) as call:
        await asyncio.sleep(0)
        call.record(OPENAI_CHAT)

    @llm_call(MODEL, runtime=desk.runtime)
    async def complete(vendor: Vendor) -> Any:
        await asyncio.sleep(0)
        return vendor.create()

    vendor = Vendor()
    assert await complete(vendor) == OPENAI_CHAT
    with pytest.raises(BudgetExceeded):
        await complete(vendor)
    assert (vendor.calls, stands(desk, "calls")) == (1, (2, 0))


@pytest.mark.anyio
async def test_a_cancelled_call_stays_reserved(make: Make) -> None:
    desk = make(CALLS)

    async def long() -> None:
        async with llm_call(MODEL, runtime=desk.runtime):
            await asyncio.sleep(60)

    task = asyncio.create_task(long())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (stands(desk, "calls"), states(desk)) == ((0, 1), ["unknown"])


def test_threads_share_a_budget_exactly(make: Make) -> None:
    desk = make(Budget("ten", "tokens", 30_000, "day"))
    vendor = Vendor(with_count(OPENAI_CHAT, 1800, "usage", "completion_tokens"))  # as much as it reserved

    def one(_: int) -> bool:
        try:
            ask(desk, vendor)
        except BudgetExceeded:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(one, range(40)))
    assert (sum(made), vendor.calls, stands(desk, "ten")) == (10, 10, (30_000, 0))


def test_a_name_counts_one_thing_on_one_journal(make: Make) -> None:
    desk = make(CALLS)
    ask(desk, Vendor())
    other = make_desk(desk.folder, budgets=(Budget("calls", "tokens", 10_000, "day"),))
    with other.runtime, pytest.raises(MisuseError, match="another name"):
        ask(other, Vendor())
    assert stands(desk, "calls") == (1, 0)


def test_a_limit_may_change_and_counts_what_was_spent(make: Make) -> None:
    desk = make(CALLS)
    ask(desk, Vendor())
    ask(desk, Vendor())
    wider = make_desk(desk.folder, budgets=(Budget("calls", "calls", 3, "day"),))
    with wider.runtime:
        ask(wider, Vendor())
        with pytest.raises(BudgetExceeded, match="allows 3, 3 are spent"):
            ask(wider, Vendor())


def test_a_journal_of_before_budgets_is_given_their_tables(make: Make) -> None:
    desk = make(CALLS)
    refund = refund_tool(desk)
    desk.run((refund, "o-1", 100))
    desk.runtime.close()
    old = sqlite3.connect(desk.runtime.settings.journal_path)
    for table in ("llm_holds", "llm_calls", "spent", "budgets"):
        old.execute(f"DROP TABLE {table}")
    old.commit()
    old.close()
    with desk.restarted() as later:
        ask(later, Vendor())
        assert stands(later, "calls") == (1, 0)
        txn = later.run((refund, "o-1", 100))
        assert txn.replayed


# ----------------------------------------------------------------------------------------------------- afterwards


def test_what_was_called_without_asking_counts_all_the_same(make: Make) -> None:
    desk = make(Budget("little", "tokens", 1000, "day"), MONEY, SECONDS, Budget("run", "calls", 9, "run"))
    record = record_llm(OPENAI_CHAT, model=MODEL, runtime=desk.runtime)
    assert (record.over, record.uncounted) == (("little",), ("seconds", "run"))
    assert (stands(desk, "little"), stands(desk, "money")) == ((1500, 0), (3_278_400_000, 0))
    timed = record_llm(as_object(ANTHROPIC), seconds=2, run="night", runtime=desk.runtime)
    assert (timed.model, timed.uncounted, timed.seconds) == ("example-opus-20260301", (), Decimal(2))
    assert (stands(desk, "seconds"), stands(desk, "run")) == ((2000, 0), (1, 0))
    assert states(desk) == ["done", "done"]


def test_what_was_called_without_asking_says_which_budgets_could_not_count_it(make: Make) -> None:
    desk = make(TOKENS, MONEY, CALLS)
    record = record_llm({}, model=MODEL, unknown_tokens=True, runtime=desk.runtime)
    assert (record.uncounted, record.cost) == (("tokens", "money"), None)
    assert (stands(desk, "calls"), stands(desk, "tokens")) == ((1, 0), (0, 0))


@pytest.mark.parametrize("to", [dict, as_object], ids=["a dict", "an object"])
def test_the_model_of_a_response_of_no_known_shape_is_read_where_it_names_one(make: Make, to: Any) -> None:
    desk = make(CALLS)
    response = to({"model": "m", "choices": []})
    record = record_llm(response, unknown_tokens=True, runtime=desk.runtime)
    assert (record.model, record.usage.input_tokens) == ("m", None)


@pytest.mark.parametrize("response", [{}, {"model": 7}, MagicMock()], ids=["none", "a number", "a mock"])
def test_a_response_that_names_no_model_is_told_to_lack_that_alone(make: Make, response: Any) -> None:
    desk = make(CALLS)
    with pytest.raises(UsageUnknown, match="does not say by which model it was given") as unknown:
        record_llm(response, unknown_tokens=True, runtime=desk.runtime)
    assert "unknown_tokens" not in str(unknown.value), "that was said"


@pytest.mark.parametrize(
    ("response", "changes"),
    [({}, {"model": MODEL}), (None, {}), ({}, {"unknown_tokens": True})],
    ids=["no usage", "nothing", "no model"],
)
def test_what_does_not_say_is_not_recorded_unless_that_is_taken(
    make: Make, response: Any, changes: dict[str, Any]
) -> None:
    desk = make(CALLS)
    with pytest.raises(UsageUnknown):
        record_llm(response, runtime=desk.runtime, **changes)
    assert calls(desk) == []


def test_a_name_of_a_response_that_is_none_can_be_said_otherwise(make: Make) -> None:
    """The call was paid for, so it is not refused for good."""
    desk = make(CALLS)
    long = {**OPENAI_CHAT, "model": "m" * 201}
    with pytest.raises(UsageUnknown, match="say model="):
        record_llm(long, runtime=desk.runtime)
    assert record_llm(long, model=MODEL, runtime=desk.runtime).model == MODEL


@pytest.mark.parametrize(
    "wrong", [{"run": ""}, {"model": "m" * 201}, {"seconds": -1}], ids=lambda one: next(iter(one))
)
def test_what_the_program_says_wrongly_is_refused_before_the_response_is_looked_at(
    make: Make, wrong: dict[str, Any]
) -> None:
    desk = make(CALLS)
    with pytest.raises(MisuseError):
        record_llm(None, runtime=desk.runtime, **wrong)
    assert calls(desk) == []


BROKEN = {
    "a name twice": ('[[budget]]\nname="a"\nmeasure="calls"\nlimit=1\nper="day"\n' * 2).replace(
        "limit=1", "limit=2", 1
    ),
    "a float": '[[budget]]\nname="a"\nmeasure="calls"\nlimit=1.5\nper="day"\n',
    "no limit": '[[budget]]\nname="a"\nmeasure="calls"\nper="day"\n',
    "a negative limit": '[[budget]]\nname="a"\nmeasure="calls"\nlimit=-1\nper="day"\n',
    "no name": '[[budget]]\nname=""\nmeasure="calls"\nlimit=1\nper="day"\n',
    "no such measure": '[[budget]]\nname="a"\nmeasure="words"\nlimit=1\nper="day"\n',
    "no such period": '[[budget]]\nname="a"\nmeasure="calls"\nlimit=1\nper="week"\n',
    "money without a currency": '[[budget]]\nname="a"\nmeasure="money"\nlimit=1\nper="day"\n',
    "calls with a currency": '[[budget]]\nname="a"\nmeasure="calls"\nlimit=1\nper="day"\ncurrency="USD"\n',
    "more money than is counted": '[[budget]]\nname="a"\nmeasure="money"\nlimit=1000001\nper="day"\ncurrency="USD"\n',
    "no models": '[[budget]]\nname="a"\nmeasure="calls"\nlimit=1\nper="day"\nmodels=[]\n',
    "a model that is none": '[[budget]]\nname="a"\nmeasure="calls"\nlimit=1\nper="day"\nmodels=[1]\n',
    "a member nobody knows": '[[budget]]\nname="a"\nmeasure="calls"\nlimit=1\nper="day"\nlimt=2\n',
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_budgets_that_cannot_be_taken_let_no_call_through(make: Make, tmp_path: Path, text: str) -> None:
    path = tmp_path / "budgets.toml"
    path.write_text(text)
    desk, vendor = make(budgets_path=path), Vendor()
    for _ in range(2):
        with pytest.raises(SettingsError):
            ask(desk, vendor)
    assert vendor.calls == 0
    refund = refund_tool(desk)
    with transaction("t-1", runtime=desk.runtime):  # a program that calls no model does not depend on them
        refund("o-1", 100)


def test_a_float_is_no_limit() -> None:
    with pytest.raises(SettingsError, match=r"like '12\.50'"):
        Budget("a", "money", 0.1, "day", "USD")  # type: ignore[arg-type]


def test_budgets_of_a_file_and_of_code_count_together(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "budgets.toml"
    path.write_text(
        '[[budget]]\nname = "filed"\nmeasure = "calls"\nlimit = 1\nper = "day"\nmodels = ["example-*"]\n'
    )
    desk = make(CALLS, budgets_path=path)
    ask(desk, Vendor())
    with pytest.raises(BudgetExceeded, match="'filed'"):
        ask(desk, Vendor())
    assert (stands(desk, "filed"), stands(desk, "calls")) == ((1, 0), (1, 0))
