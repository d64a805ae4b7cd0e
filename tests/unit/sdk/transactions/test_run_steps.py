"""Steps as data are checked whole before the first of them, and go through as a whole or not at all."""

import asyncio
import inspect
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from countersign import Retry, errors, replay, run_steps, run_steps_async, run_transaction, step_of, tool
from countersign.transactions.schedule import Schedule, StepsRefused
from tests.fakes.desk import Desk, note_tool, notes_in, refund_tool
from tests.fakes.running import order_tool
from tests.unit.sdk.adapters.resources import MemoryValues
from tests.unit.sdk.transactions.test_parallel import meeting_tool


@pytest.fixture(autouse=True)
def _tools(desk: Desk, database: Any) -> None:
    note_tool(desk, database)
    refund_tool(desk)

    @tool("look", lane="live", adapter=database, registry=desk.registry)
    def look(order_id: str) -> dict[str, Any]:
        return {"order": order_id, "cents": [100, 250]}

    @order_tool(desk)
    async def mail(order_id: str) -> str:
        desk.act("mail", order_id)
        return "sent"

    @order_tool(desk, own_thread=False)
    def stamp(order_id: str) -> int:
        desk.act("stamp", order_id)
        return threading.get_ident()


TAKES = {"tool": "refund", "args": {"amount_cents": 100}, "take": {"order_id": "look:/order"}}
LOOK = {"tool": "look", "id": "look", "args": {"order_id": "o-1"}}
ADD = {"tool": "add", "args": {"amount": 1}}
MAIL = {"tool": "mail", "args": {"order_id": "o-1"}}
STAMP = {"tool": "stamp", "args": {"order_id": "o-1"}}


def note(order: str, **more: Any) -> dict[str, Any]:
    return {"tool": "note", "args": {"order_id": order, "text": "hello"}, **more}


def meet(order: str, **more: Any) -> dict[str, Any]:
    return {"tool": "meet", "args": {"order_id": order}, **more}


def refund(order: str, cents: int = 100, **more: Any) -> dict[str, Any]:
    return {"tool": "refund", "args": {"order_id": order, "amount_cents": cents}, **more}


def go(desk: Desk, steps: Any) -> dict[str, Any]:
    return run_steps(steps, key="t-1", runtime=desk.runtime)  # type: ignore[return-value]


@pytest.mark.parametrize("written", [list, json.dumps, lambda steps: json.dumps(steps).encode()])
def test_steps_run_in_order_and_answer_by_their_names(desk: Desk, notes: Path, written: Any) -> None:
    answers = go(desk, written([note("o-1"), refund("o-1", id="back"), refund("o-2")]))
    assert answers == {"1": 1, "back": {"refund_id": "r-o-1-100"}, "3": {"refund_id": "r-o-2-100"}}
    assert notes_in(notes) == [("o-1", "hello")]
    assert desk.done == [("refund", "o-1", 100), ("refund", "o-2", 100)]


def test_an_inner_list_fires_at_the_same_time(desk: Desk) -> None:
    meeting_tool(desk, 2)
    assert [*go(desk, [refund("o-1"), [meet("o-1"), meet("o-2")], refund("o-2")])] == ["1", "2", "3", "4"]
    assert [one[0] for one in desk.done] == ["refund", "meet", "meet", "refund"]


def test_a_graph_runs_each_step_after_those_it_names_and_the_rest_at_the_same_time(desk: Desk) -> None:
    meeting_tool(desk, 2)
    met = meet("o-1", id="b", after=["a"]), meet("o-2", id="c", after=["a"])
    go(desk, [refund("last", id="d", after=["b", "c"]), *met, refund("first", id="a")])
    assert [one[1] for one in desk.done[:1] + desk.done[-1:]] == ["first", "last"]


def test_the_next_level_of_a_graph_begins_once_all_of_the_one_before_has_ended(desk: Desk) -> None:
    # `c` needs only `a`, and is of the second level all the same
    steps = [refund("first", id="a"), refund("parallel", id="b"), refund("second", id="c", after=["a"])]
    assert Schedule(steps, desk.registry).groups == (("a", "b"), ("c",))


def test_in_a_graph_what_is_bound_to_one_thread_has_a_level_of_its_own(desk: Desk) -> None:
    late = refund("o-3", id="c", after=["n"])
    steps = [note("o-1", id="n"), {**STAMP, "id": "s"}, A, refund("o-2", id="b"), late]
    assert Schedule(steps, desk.registry).groups == (("n", "a", "b"), ("s",), ("c",))
    assert go(desk, steps)["s"] == threading.get_ident()
    assert [one[1] for one in desk.done[2:]] == ["o-1", "o-3"]


def test_an_equal_step_that_says_so_is_another_call_in_every_run(desk: Desk) -> None:
    again = refund("o-1", repeat=True)
    for _ in range(2):
        assert [*go(desk, [refund("o-1", id="a"), again | {"id": "b"}, [again, refund("o-2")]])] == [*"ab34"]
    assert sorted(desk.done) == [("refund", "o-1", 100)] * 3 + [("refund", "o-2", 100)]
    assert len(set(desk.keys)) == 4


def test_equal_steps_of_a_tool_whose_every_call_is_meant_need_not_say_so(desk: Desk) -> None:
    refund_tool(desk, repeat=True)
    go(desk, [refund("o-1"), refund("o-1")])
    assert len(desk.done) == 2


def test_steps_that_turn_out_equal_by_what_they_take_are_not_one_in_silence(desk: Desk, notes: Path) -> None:
    steps = [note("o-1"), LOOK, refund("o-1", id="a"), TAKES | {"id": "b"}]
    with pytest.raises(errors.NotStageable, match="step 'b' asks for the same as step 'a'"):
        go(desk, steps)
    assert (desk.done, notes_in(notes)) == ([], [])
    go(desk, [*steps[:3], TAKES | {"id": "b", "repeat": True}])
    assert len(desk.done) == 2


def test_the_maximum_of_staged_steps_runs_with_live_ones(desk: Desk) -> None:
    go(desk, [note("o-1"), *(refund(f"o-{n}") for n in range(100))])
    assert len(desk.done) == 100


def test_a_step_takes_what_a_live_one_before_it_answered(desk: Desk) -> None:
    go(desk, [LOOK, {"tool": "refund", "take": {"order_id": "look:/order", "amount_cents": "look:/cents/1"}}])
    assert desk.done == [("refund", "o-1", 250)]


def test_with_an_async_tool_the_answer_is_awaited(desk: Desk) -> None:
    steps = [LOOK, {"tool": "mail", "id": "mail", "take": {"order_id": "look:/order"}}, refund("o-2")]
    with pytest.raises(StepsRefused, match="step 'mail': 'mail' is async; write await run_steps_async"):
        go(desk, steps)
    assert asyncio.run(run_steps_async(steps, key="t-1", runtime=desk.runtime))["mail"] == "sent"
    assert desk.done == [("mail", "o-1"), ("refund", "o-2", 100)]


@pytest.mark.parametrize(("last", "asked"), [(refund("o-2", 20_000), "review"), (MAIL, "release")])
def test_steps_are_tried_before_they_run(desk: Desk, notes: Path, last: dict[str, Any], asked: str) -> None:
    step = step_of([note("o-1"), refund("o-1"), last], registry=desk.registry)
    trial = run_transaction(step, key="t-1", dry_run=True, runtime=desk.runtime)
    found = asyncio.run(trial) if inspect.iscoroutine(trial) else trial
    said = [(one.tool, one.decision) for one in found.effects]
    assert said == [("refund", "release"), (last["tool"], asked)]
    assert (desk.done, notes_in(notes), desk.runtime.journal.transactions.newest_ids(9)) == ([], [], [])


def test_a_step_of_steps_runs_and_is_replayed(desk: Desk) -> None:
    step = step_of([refund("o-1"), refund("o-2")], only=["refund"], registry=desk.registry)
    run_transaction(step, key="t-1", runtime=desk.runtime)
    assert replay("t-1", step, runtime=desk.runtime).divergences == ()
    with pytest.raises(StepsRefused, match="not among the tools"):
        step_of([refund("o-1")], only=["note"], registry=desk.registry)


def takes(source: str, **more: Any) -> dict[str, Any]:
    """A refund of the order that another step answers."""
    return {"tool": "refund", "args": {"amount_cents": 1}, "take": {"order_id": source}, **more}


NOPE = {"tool": "nope"}
BY_DEFAULT = {"tool": "refund", "args": {"order_id": "o-1", "amount_cents": 100, "tags": None}}

ALL_AT_ONCE = [note("o-1"), NOPE, {"tool": "nada"}, refund("o-1", "x")]  # type: ignore[arg-type]
CIRCLE = [note("o-1", id="a", after=["b"]), note("o-2", id="b", after=["a"])]
A, B = refund("o-1", id="a"), refund("o-1", id="b")
SHAPES = [[note("o-1"), NOPE], 5, {"tool": "nada"}, refund("o-1", typo=1)]
WRONG_ARGS = [{"tool": "refund", "args": {"order_id": 1, "z": 2, "y": 3}}]
NO_JSON = ("[{", '["\ud800"]', None, '[{"tool": "note", "tool": "refund"}]')

WRONG: list[tuple[Any, ...]] = [
    (ALL_AT_ONCE, "no tool 'nope'", "'nada'", "amount_cents"),
    (CIRCLE, "wait for each other: "),
    ([{"tool": "refund"}], "missing 'order_id', 'amount_cents'"),
    ([refund("o-1") | {"args": {"x": 1}}], "cannot be called"),
    ([LOOK, takes("look:/order", args={})], "amount_cents"),  # too few with one it takes
    ([note("o-1", when="now")], "step '1' is invalid: it knows no 'when', only tool, id, args, "),
    # equal steps: alone, in one group, by a default, where only the first says so, in the order of a graph
    ([note("o-1"), A, B], "step 'b' asks for the same as step 'a'", """write "repeat": true in step 'b'"""),
    ([note("o-1"), [refund("o-1")] * 2], "step '3' asks for the same"),
    ([refund("o-1"), BY_DEFAULT], "step '2' asks for the same"),
    ([refund("o-1", repeat=True), refund("o-1")], "step '2' asks for the same"),
    ([A | {"after": ["b"]}, B | {"repeat": True}], "step 'a' asks for the same as step 'b'"),
    ([note("o-1"), note("o-1", repeat=True)], "'note' is live and runs each time"),
    ([note("o-1"), *(refund(f"o-{n}") for n in range(101))], "101 of them are staged", "100"),
    ([note("o-1"), [STAMP, refund("o-1")]], "'stamp' is bound to one thread", "out of the inner list"),
    ([note("o-1"), {"name": "note", "arguments": {}}], "has no 'tool'", "no 'arguments'", 'write [{"tool":'),
    (
        SHAPES,
        "step '3' is invalid",
        "step '5' is invalid: it knows no 'typo'",
        "step '2': no tool",
        "step '4'",
    ),
    (WRONG_ARGS, "it takes no 'z'", "it takes no 'y'", "missing 'amount_cents'", "order_id: it should be "),
    ([LOOK, takes("look:/order", args={"amount_cents": "x"})], "step '2'", "amount_cents: "),
    ([[], []], "there are 0"),
    ([note(f"o-{n}") for n in range(1001)], "between 1 and 1000"),
    ([note("o-1", id="a"), note("o-2", id="a")], "two steps are called 'a'"),
    ([note("o-1", id="2"), note("o-2")], "two steps are called '2'"),  # a name that hides a place
    ([note("o-1", after=["x"])], "'x', which is no step"),
    ([note("o-1", id="a"), [note("o-2"), note("o-3", after=["a"])]], "keep to one of them"),
    ([A, takes("a:/refund_id")], "make two transactions"),
    ([takes("look:/order"), LOOK], "does not run before it"),
    ([[LOOK, takes("look:/order")]], "does not run before it"),
    ([LOOK, takes("look")], "a colon and a JSON pointer"),
    ([LOOK, takes("look:/")], "all that 'look' answered is 'look:'"),
    ([LOOK, refund("o-1", take={"order_id": "look:/order"})], "gives and takes order_id"),
    *((none, "they are no JSON") for none in NO_JSON),
    (json.dumps(note("o-1")), "list"),
    # what is no step
    (["refund"], "it is no object with members of tool, id, args, take, after, repeat"),
    ([{"tool": 5}], "tool: write the name of a tool, as text"),
    ([{"tool": "refund", "id": "a:b"}], "id: write up to 64 letters, digits, '.', '_' or '-'"),
    ([{"tool": "refund", "args": [1]}], "args: write an object of arguments by name"),
    ([{"tool": "refund", "take": {"a": 1}}], "take.a: write an object of texts like"),
    ([{"tool": "refund", "after": "a"}], "after: write a list of the ids of steps"),
    ([{"tool": "refund", "after": ["a", 1]}], "after.1: write a list of the ids of steps"),
    ([{"tool": "refund", "repeat": "yes"}], "repeat: write true or false"),
]


@pytest.mark.parametrize("row", WRONG)
def test_scenario_40_what_cannot_run_is_refused_before_step_one(desk: Desk, notes: Path, row: Any) -> None:
    steps, *reported = row
    with pytest.raises(StepsRefused) as refused:
        go(desk, steps)
    assert [one for one in reported if one not in str(refused.value)] == []
    assert "Input should" not in str(refused.value) and "StepSpec" not in str(refused.value)
    assert (desk.done, notes_in(notes), desk.runtime.journal.transactions.newest_ids(9)) == ([], [], [])


def test_scenario_40_in_an_event_loop_too_it_is_refused_whole_before_step_one(desk: Desk) -> None:
    for steps, *reported in WRONG[:3]:
        with pytest.raises(StepsRefused) as refused:
            asyncio.run(run_steps_async(steps, key="t-1", runtime=desk.runtime))
        assert reported[-1] in str(refused.value)
    assert (desk.done, desk.runtime.journal.transactions.newest_ids(9)) == ([], [])


def test_a_pointer_that_leads_nowhere_undoes_what_has_run(desk: Desk, notes: Path) -> None:
    with pytest.raises(errors.NotStageable, match="nowhere"):
        go(desk, [note("o-1"), LOOK, takes("look:/nowhere")])
    assert (desk.done, notes_in(notes)) == ([], [])


def test_scenario_5_an_unknown_compensation_is_found_before_a_live_step_runs(desk: Desk, notes: Path) -> None:
    @tool("charge", resource=("Order", "order_id"), compensate="void", registry=desk.registry)
    def charge(order_id: str) -> None: ...

    with pytest.raises(errors.RegistrationError, match="void"):
        go(desk, [note("o-1"), {"tool": "charge", "args": {"order_id": "o-1"}}])
    assert notes_in(notes) == []


def test_steps_that_a_model_wrote_use_only_what_it_was_offered(desk: Desk, notes: Path) -> None:
    said: dict[str, Any] = {"key": "t-1", "runtime": desk.runtime}
    refused = pytest.raises(StepsRefused, match="'note' is not among the tools it may name")
    with refused:
        run_steps([note("o-1"), refund("o-1")], only=["refund"], **said)
    with refused:
        asyncio.run(run_steps_async([note("o-1"), MAIL], only=["mail"], **said))
    assert (desk.done, notes_in(notes)) == ([], [])
    run_steps([refund("o-1")], key="t-1", only=["refund"], runtime=desk.runtime)
    assert desk.done == [("refund", "o-1", 100)]


def test_a_long_list_of_problems_is_truncated(desk: Desk) -> None:
    with pytest.raises(StepsRefused) as reported:
        run_steps([{"tool": "nope"}] * 500, key="t-1", runtime=desk.runtime)
    assert len(reported.value.problems) == 20


@pytest.mark.parametrize("steps", [[ADD, refund("o-1")], [ADD, MAIL]], ids=["plain", "async"])
def test_with_retry_all_steps_run_again_when_somebody_came_in_between(desk: Desk, steps: list[Any]) -> None:
    values, others = MemoryValues(), ["10", "20"]
    adapter = values.adapter()

    @tool("add", lane="live", adapter=adapter, registry=desk.registry)
    def add(amount: int) -> int:
        """Add to a number, which another changes in between, twice."""
        total = int(values.read(adapter, "n") or 0) + amount
        values.write(adapter, "n", str(total))
        if others:
            values.change_outside("n", others.pop(0))
        return total

    said: Any = {"key": "t-1", "isolation": Retry(3), "runtime": desk.runtime}
    answers: Any = asyncio.run(run_steps_async(steps, **said)) if MAIL in steps else run_steps(steps, **said)
    assert (answers["1"], values.outside("n"), len(desk.done)) == (21, "21", 1)
