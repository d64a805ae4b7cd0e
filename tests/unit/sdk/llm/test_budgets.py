"""Budgets: each is asked before the model, and what it cannot weigh is not called."""

from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from countersign import Budget, BudgetExceeded, MisuseError, SettingsError, Stopped, llm_call
from countersign.journal import Journal, spending
from countersign.journal.spending import BudgetHold
from countersign.journal.verification import verify
from tests.fakes.desk import make_desk, refund_tool
from tests.fakes.llm_answers import OPENAI_CHAT
from tests.unit.sdk.journals import BOTH
from tests.unit.sdk.llm import asking
from tests.unit.sdk.llm.asking import CALLS, MODEL, MONEY, TOKENS, Vendor, ask, begin, calls, may, usage_of

LAST_SECOND = datetime(2026, 11, 23, 23, 59, 59, tzinfo=UTC).timestamp()
TODAY, TOMORROW = "2026-11-23", "2026-11-24"


TOO_SMALL: list[Any] = [
    Budget("b", "tokens", 2999, "day"),
    Budget("b", "money", "0.013999", "day", "USD"),
    Budget("b", "seconds", 29, "day"),
    Budget("b", "calls", 0, "day"),
    Budget("b", "tokens", 2999, "run"),
]


@pytest.mark.parametrize("budget", TOO_SMALL, ids=["tokens", "money", "seconds", "calls", "tokens of a run"])
def test_a_budget_is_reserved_before_the_model_is_called(make: Any, budget: Budget) -> None:
    desk, vendor = make(budget), Vendor()
    with pytest.raises(BudgetExceeded) as exceeded:
        ask(desk, vendor, run="r")
    assert (vendor.calls, calls(desk), usage_of(desk, "b")) == (0, [], (0, 0))
    assert isinstance(exceeded.value, Stopped)


@pytest.mark.parametrize("limit", ["9007.199254740992", "1000000"])
def test_a_budget_of_more_picos_than_a_double_counts_is_recorded(make: Any, limit: str) -> None:
    desk, vendor = make(Budget("large", "money", limit, "day", "USD")), Vendor()
    assert may(desk, vendor)
    assert verify(desk.runtime.settings.journal_path).findings == ()


def test_a_recorded_call_counts_even_beyond_its_budget(make: Any) -> None:
    """It took more than declared: all of it is spent, its row says done, and the next call exceeds the budget."""
    desk, vendor = make(Budget("small", "tokens", 1000, "day")), Vendor()
    assert ask(desk, vendor, max_tokens=10, input_tokens=10).over == ("small",)
    assert (asking.states(desk), usage_of(desk, "small")) == (["done"], (1500, 0))
    assert not may(desk, vendor, max_tokens=0, input_tokens=0)
    assert (vendor.calls, asking.states(desk)) == (1, ["done"])


def test_an_exceeded_budget_reports_its_numbers(make: Any) -> None:
    desk = make(MONEY)
    desk.clock.time = LAST_SECOND
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


def test_the_budget_of_a_run_is_each_runs_own_and_never_renews(make: Any) -> None:
    desk = make(Budget("run", "calls", 1, "run"))
    with desk.step():
        ask(desk, Vendor())
        with pytest.raises(BudgetExceeded, match="not renewed") as exceeded:
            ask(desk, Vendor())
    assert exceeded.value.renews_at is None
    desk.clock.advance(3 * 86_400)
    assert [may(desk, run="t-1"), may(desk, run="t-2")] == [False, True]
    before = calls(desk)
    with pytest.raises(SettingsError, match="belongs to none"):
        ask(desk, Vendor(error=AssertionError()))
    assert calls(desk) == before


def test_a_day_begins_at_midnight_utc(make: Any) -> None:
    desk = make(Budget("one", "calls", 1, "day"))
    desk.clock.time = LAST_SECOND
    assert [may(desk), may(desk)] == [True, False]
    desk.clock.advance(1)
    assert [may(desk), may(desk)] == [True, False]
    assert (usage_of(desk, "one", TODAY), usage_of(desk, "one", TOMORROW)) == ((1, 0), (1, 0))


def test_a_call_over_midnight_counts_for_the_day_it_began(make: Any, tmp_path: Any) -> None:
    """Otherwise it could take more than was reserved for it."""
    desk = make(TOKENS, MONEY)
    dearer = asking.PRICES.replace("input = 1\noutput = 10", "input = 7\noutput = 70")
    (tmp_path / "prices.toml").write_text(asking.PRICES + dearer.replace("2026-01-01", TOMORROW))
    desk.clock.time = LAST_SECOND
    with begin(desk, max_tokens=300, input_tokens=1200) as call:
        desk.clock.advance(60)
        assert call.record(OPENAI_CHAT).cost == Decimal("0.0032784")
    assert (usage_of(desk, "tokens", TODAY), usage_of(desk, "tokens", TOMORROW)) == ((1500, 0), (0, 0))


def test_every_matching_budget_must_suffice(make: Any) -> None:
    mine = Budget("mine", "calls", 5, "day", models=("example-*",))
    desk = make(mine, Budget("theirs", "calls", 0, "day", models=("other-*",)), CALLS)
    assert [may(desk), may(desk)] == [True, True]
    with pytest.raises(BudgetExceeded, match="'calls'"):
        ask(desk, Vendor())
    assert [usage_of(desk, one) for one in ("mine", "calls", "theirs")] == [(2, 0), (2, 0), (0, 0)]


def test_a_call_may_bring_a_budget_of_its_own(make: Any) -> None:
    desk, own = make(), [Budget("own", "calls", 1, "day")]
    assert [may(desk, budgets=own), may(desk, budgets=own), may(desk)] == [True, False, True]


def test_time_is_counted_as_it_passed(make: Any) -> None:
    desk = make(asking.SECONDS)
    with begin(desk, timeout=45.5) as call:
        assert usage_of(desk, "seconds") == (0, 45_500)
        desk.clock.advance(20.0001)
        call.record(OPENAI_CHAT)
    assert usage_of(desk, "seconds") == (20_001, 0)
    short = r"allows 60, 20\.001 are spent, 0 reserved, and this call asks for up to 40"
    with pytest.raises(BudgetExceeded, match=short):
        ask(desk, Vendor(), timeout=40)


NEITHER = r"may take: input_tokens \(or prompt\)=... and max_tokens=...$"
LEFT_OPEN = {
    "no answer": (TOKENS, {"max_tokens": None}, "max_tokens"),
    "no prompt": (TOKENS, {"input_tokens": None}, "input_tokens"),
    "no answer, of money": (MONEY, {"max_tokens": None}, "max_tokens"),
    "neither": (MONEY, {"input_tokens": None, "max_tokens": None}, NEITHER),
    "no time": (asking.SECONDS, {"timeout": None}, "timeout"),
    "a negative answer": (TOKENS, {"max_tokens": -1}, "not -1"),
    "half a token": (TOKENS, {"max_tokens": 0.5}, "not 0.5"),
    "endless tokens": (TOKENS, {"max_tokens": 10**30}, "whole number up to"),
    "endless time": (asking.SECONDS, {"timeout": float("inf")}, "not inf"),
    "no number of seconds": (asking.SECONDS, {"timeout": float("nan")}, "not nan"),
    "a prompt of an object": (TOKENS, {"input_tokens": None, "prompt": [object()]}, "say input_tokens"),
    "a prompt and its tokens": (TOKENS, {"prompt": "hello"}, "either input_tokens or prompt"),
    "a run without a name": (CALLS, {"run": ""}, "1 to 200 characters"),
    "a model without a name": (CALLS, {"model": ""}, "1 to 200 characters"),
    "a model without a price": (MONEY, {"model": "unpriced"}, "has no price today"),
    "a price in another currency": (MONEY, {"model": "euro"}, "in USD and the price"),
}


@pytest.mark.parametrize(("budget", "changes", "why"), LEFT_OPEN.values(), ids=LEFT_OPEN.keys())
def test_what_cannot_be_weighed(make: Any, budget: Budget, changes: dict[str, Any], why: str) -> None:
    desk, vendor = make(budget), Vendor()
    with pytest.raises(MisuseError, match=why):
        ask(desk, vendor, **{"model": MODEL} | changes)
    assert (vendor.calls, calls(desk)) == (0, [])


def test_a_model_that_answers_for_another_is_paid_as_reserved(make: Any) -> None:
    desk = make(MONEY)
    record = ask(desk, Vendor(OPENAI_CHAT | {"model": "somebody-else"}))
    assert (record.cost, usage_of(desk, "money")) == (None, (14_000_000_000, 0))


def test_a_prompt_is_bounded_by_its_bytes(make: Any) -> None:
    desk = make(TOKENS)
    messages = [{"role": "user", "content": "čau"}]
    with llm_call(MODEL, max_tokens=0, prompt=messages, runtime=desk.runtime) as call:
        assert usage_of(desk, "tokens") == (0, len('[{"role": "user", "content": "čau"}]'.encode()) + 64)
        call.release()


# --------------------------------------------------------------------------------------- names, files, journals


def test_a_name_counts_one_thing_on_one_journal_and_its_limit_may_change(make: Any) -> None:
    desk = make(CALLS)
    assert [may(desk), may(desk)] == [True, True]
    other = make_desk(desk.folder, budgets=(Budget("calls", "tokens", 10_000, "day"),))
    with other.runtime, pytest.raises(MisuseError, match="another name"):
        ask(other, Vendor())
    assert usage_of(desk, "calls") == (2, 0)
    wider = make_desk(desk.folder, budgets=(Budget("calls", "calls", 3, "day"),))
    with wider.runtime:
        ask(wider, Vendor())
        with pytest.raises(BudgetExceeded, match="allows 3, 3 are spent"):
            ask(wider, Vendor())


GOOD = {"name": '"a"', "measure": '"calls"', "limit": "1", "per": '"day"'}
TWICE: dict[str, str] = {"per": '"day"\n[[budget]]\nname = "a"\nmeasure = "calls"\nlimit = 2\nper = "day"'}
BROKEN: dict[str, dict[str, str | None]] = {
    "a name twice": {**TWICE},
    "a float": {"limit": "1.5"},
    "no limit": {"limit": None},
    "a negative limit": {"limit": "-1"},
    "no name": {"name": '""'},
    "no such measure": {"measure": '"words"'},
    "no such period": {"per": '"week"'},
    "money without a currency": {"measure": '"money"'},
    "calls with a currency": {"currency": '"USD"'},
    "more money than is counted": {"measure": '"money"', "limit": "1000001", "currency": '"USD"'},
    "no models": {"models": "[]"},
    "a model that is none": {"models": "[1]"},
    "an unknown member": {"limt": "2"},
}


def budget_file(folder: Any, **changes: str | None) -> Any:
    path = folder / "budgets.toml"
    lines = [f"{name} = {value}" for name, value in (GOOD | changes).items() if value is not None]
    path.write_text("\n".join(["[[budget]]", *lines]))
    return path


@pytest.mark.parametrize("changes", BROKEN.values(), ids=BROKEN.keys())
def test_broken_budgets_let_no_call_by(make: Any, tmp_path: Any, changes: dict[str, str | None]) -> None:
    desk, vendor = make(budgets_path=budget_file(tmp_path, **changes)), Vendor()
    for _ in range(2):
        with pytest.raises(SettingsError):
            ask(desk, vendor)
    assert vendor.calls == 0
    desk.run((refund_tool(desk), "o-1", 100))  # a program that calls no model does not depend on them


def test_budgets_of_a_file_and_of_code_count_together(make: Any, tmp_path: Any) -> None:
    desk = make(CALLS, budgets_path=budget_file(tmp_path, models='["example-*"]'))
    ask(desk, Vendor())
    with pytest.raises(BudgetExceeded, match="'a'"):
        ask(desk, Vendor())
    assert (usage_of(desk, "a"), usage_of(desk, "calls")) == ((1, 0), (1, 0))


@pytest.mark.parametrize("engine", BOTH)
def test_two_cannot_take_the_same(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """W13 again, with the moment between looking and taking held open: of a cap of 100, one of two 90s goes through."""
    cap, look = BudgetHold("cap", "tokens", "day", "", 100, "2026-11-23", 90), spending.shortage
    others: list[Any] = []

    def reserve(name: str) -> object:
        with closing(Journal(place)) as journal:
            return journal.spending.reserve(name, None, MODEL, [cap])

    def look_and_wait(*given: Any) -> Any:
        found = look(*given)
        if not others:
            others.append(pool.submit(reserve, "second"))
            wait(others, 0.5)  # in vain, as looking and taking are one unit
        return found

    monkeypatch.setattr(spending, "shortage", look_and_wait)
    with ThreadPoolExecutor(1) as pool:
        assert (reserve("first"), others[0].result()) == (None, spending.Shortage(cap, 0, 90))
    with closing(Journal(place)) as journal:
        assert [row["call_id"] for row in journal.spending.calls(9)] == ["first"]
