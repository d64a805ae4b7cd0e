"""Which budgets count a call to a model, as which run: those of the transaction around it, or of the firing tool."""

from contextlib import contextmanager
from typing import Any

import pytest

from countersign import Budget, BudgetExceeded, Happened, llm_call, probe, record_llm, replay, use_runtime
from countersign.errors import EffectFailed, JournalSealed
from tests.fakes.desk import Desk, answering_tool, make_desk, refund_tool
from tests.fakes.llm_answers import ANTHROPIC, OPENAI_CHAT, SECRET
from tests.fakes.running import order_tool, refusing_tool
from tests.unit.sdk.journals import document
from tests.unit.sdk.llm.asking import MODEL, Make, calls, usage_of

DAY = Budget("a-day", "calls", 10, "day")
RUN = Budget("a-run", "calls", 1, "run")


@contextmanager
def another(folder: Any) -> Any:
    """A desk with a journal and budgets of its own."""
    folder.mkdir()
    desk = make_desk(folder)
    with desk.runtime:
        yield desk


def ask_here(answer: Any = OPENAI_CHAT) -> None:
    """A call that names neither a runtime nor a run."""
    with llm_call(MODEL) as call:
        call.record(answer)


def runs(desk: Desk) -> list[str | None]:
    return [row["run"] for row in calls(desk)]


# ------------------------------------------------------------------------------------------------ the block around it


def test_budgets_are_those_of_the_transaction_or_of_the_runtime_named(make: Make, tmp_path: Any) -> None:
    desk = make(RUN, DAY)
    with another(tmp_path / "other") as other, use_runtime(other.runtime):
        with desk.step():
            ask_here()
            with pytest.raises(BudgetExceeded, match="a-run"):
                ask_here()
            record_llm(OPENAI_CHAT, model=MODEL)
            assert (runs(desk), usage_of(desk, "a-day"), calls(other)) == (["t-1", "t-1"], (2, 0), [])
            with llm_call(MODEL, runtime=other.runtime) as call:
                call.record(OPENAI_CHAT)
        assert (len(calls(desk)), runs(other)) == (2, ["t-1"])


# ------------------------------------------------------------------------------------------------- the tool that fires


def test_a_tool_that_asks_a_model_does_it_in_the_run_of_its_transaction(make: Make) -> None:
    desk = make(RUN)

    @order_tool(desk)
    def think(order_id: str) -> str:
        ask_here()
        return "thought"

    with desk.step():
        done = think("o-1")
    assert (done.result, runs(desk), usage_of(desk, "a-run", "t-1")) == ("thought", ["t-1"], (1, 0))


def test_probes_and_compensations_belong_to_the_run_too(make: Make) -> None:
    desk = make(Budget("a-run", "calls", 5, "run"))
    probe("recall", registry=desk.registry)(lambda order_id: ask_here() or Happened(None))

    @order_tool(desk)
    def forget(order_id: str) -> None:
        ask_here()
        desk.act("forget", order_id)

    undone: Any = {"compensate": "forget", "compensation_map": {"order_id": "args:/order_id"}}
    keep = answering_tool(desk, ConnectionResetError("lost"), name="keep", probe="recall", **undone)
    desk.run((keep, "o-1"), (refusing_tool(desk), "o-2"), raises=EffectFailed)
    assert (runs(desk), desk.done[-1]) == (["t-1", "t-1"], ("forget", "o-1"))


# ----------------------------------------------------------------------------------------------------------- rehearsals


def step(desk: Desk) -> Any:
    refund = refund_tool(desk)

    def body(txn: Any) -> Any:
        ask_here()
        return refund("o-1", 100)

    return body


def test_a_dry_run_counts_for_the_day_and_not_for_the_run(make: Make) -> None:
    """The calls are made and paid for; what the key may take is for the run that is to come."""
    desk = make(RUN, DAY)
    body = step(desk)
    for _ in range(2):
        desk.run((body, None), dry_run=True)
    desk.run((ask_here,), dry_run=True)
    assert (usage_of(desk, "a-run", "t-1"), usage_of(desk, "a-day")) == ((0, 0), (3, 0))
    desk.run((body, None))
    for _ in range(2):
        assert replay("t-1", body, runtime=desk.runtime).status == "same"
    assert (usage_of(desk, "a-run", "t-1"), usage_of(desk, "a-day")) == ((1, 0), (6, 0))
    named = [run for run in runs(desk) if run != "t-1"]
    assert len({*named}) == 5 and all(run is not None and run.startswith("t-1 (rehearsal ") for run in named)


def test_each_dry_run_has_the_budget_of_one_run(make: Make) -> None:
    desk = make(RUN)
    with desk.step("t" * 200, dry_run=True):
        ask_here()
        with pytest.raises(BudgetExceeded, match="a-run"):
            ask_here()


def test_a_document_is_replayed_without_an_environment(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = make(RUN)
    body = step(desk)
    desk.run((body, None))
    monkeypatch.delenv("COUNTERSIGN_AGENT", raising=False)
    monkeypatch.setattr(
        "countersign.process_runtime._default", None
    )  # what a test before this one may have left
    again = replay("t-1", body, export=document(desk.runtime.journal, "t-1"))
    assert ([one for one in again.divergences if one.kind == "raised"], runs(desk)) == ([], ["t-1"])


# ------------------------------------------------------------------------------------------------- reasoning, unsealed


def test_a_call_is_counted_where_its_reasoning_cannot_be_kept(make: Make, tmp_path: Any) -> None:
    """A journal that was sealed under a key that is gone; of one that machines share the key is not made in passing."""
    desk = make(DAY)
    record_llm(ANTHROPIC, model=MODEL, reasoning=True, runtime=desk.runtime)
    (key,) = tmp_path.glob("*.key")
    with llm_call(MODEL, reasoning=True, runtime=desk.runtime) as call:
        key.rename(tmp_path / "kept")
        with desk.restarted() as later:
            with pytest.raises(JournalSealed):
                record_llm(ANTHROPIC, model=MODEL, reasoning=True, runtime=later.runtime)
            assert usage_of(later, "a-day") == (2, 1)
        (tmp_path / "kept").rename(key)
        call.record(ANTHROPIC)
    assert usage_of(desk, "a-day") == (3, 0)
    kept = [desk.runtime.journal.spending.reasoning(row["call_id"]) for row in calls(desk)]
    assert kept == [SECRET, SECRET, None]
