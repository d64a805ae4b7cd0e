"""Others who work on the same resources: who is stopped, and who runs again."""

import asyncio
import contextvars
import re
from contextlib import nullcontext
from typing import Any

import pytest

from countersign import Abort, Retry, Serialize, Transaction, errors, run_transaction, tool
from tests.fakes.desk import Desk, listed, refund_tool
from tests.unit.sdk.adapters.resources import FilesBelow, MemoryValues
from tests.unit.sdk.journals import BOTH

ON_BOTH = pytest.mark.parametrize("engine", BOTH)


@pytest.fixture(params=["files", "memory"])
def resource(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    return FilesBelow(tmp_path) if request.param == "files" else MemoryValues()


class Tools:
    """Live tools on one resource."""

    def __init__(self, desk: Desk, resource: Any) -> None:
        adapter = self.adapter = resource.adapter()

        @tool("add", lane="live", adapter=adapter, registry=desk.registry)
        def add(key: str, amount: int) -> int:
            total = int(resource.read(adapter, key) or 0) + amount
            resource.write(adapter, key, str(total))
            return total

        @tool("leave", lane="live", adapter=adapter, registry=desk.registry)
        def leave(name: str, other: str) -> None:
            if resource.read(adapter, other) == "on call":
                resource.write(adapter, name, "off")

        self.add, self.leave = add, leave


class Agent:
    """One of several transactions that are open at the same time, in a context of its own."""

    def __init__(self, desk: Desk, key: str, **said: Any) -> None:
        self._context = contextvars.copy_context()
        self._txn = self.do(lambda: desk.step(key, **said))
        self.do(self._txn.__enter__)

    def do(self, fn: Any, *given: Any) -> Any:
        return self._context.run(fn, *given)

    def leave(self) -> None:
        self.do(self._txn.__exit__, None, None, None)


def lists(desk: Desk) -> list[tuple[int, str]]:
    """Every live effect in the journal: of which list, and how it ended."""
    return listed(desk, "staging, state")


# ------------------------------------------------------------------------------------------ Abort, always


def test_scenario_45_of_two_that_add_to_one_number_one_commits(desk: Desk, resource: Any) -> None:
    tools = Tools(desk, resource)
    resource.change_outside("n", "5")
    first, second = Agent(desk, "first"), Agent(desk, "second", isolation=Abort())
    assert (first.do(tools.add, "n", 1), second.do(tools.add, "n", 10)) == (6, 15)
    second.leave()
    with pytest.raises(errors.IsolationConflict) as moved:
        first.leave()
    assert resource.outside("n") == "15"
    reported = moved.value
    assert (reported.adapter, reported.key, reported.read) == (tools.adapter.name, "n", True)
    assert reported.expected and reported.now and reported.expected != reported.now
    assert reported.expected[:12] in str(reported) and reported.now[:12] in str(reported)
    assert sorted(lists(desk)) == [(1, "kept"), (1, "undone")]


@pytest.mark.parametrize("moved", ["n", "other"])
def test_scenario_46_what_another_writes_is_a_conflict(desk: Desk, resource: Any, moved: str) -> None:
    tools = Tools(desk, resource)
    conflict = pytest.raises(errors.IsolationConflict, match="'n' of") if moved == "n" else nullcontext()
    with conflict, desk.step():
        assert [tools.add("n", 1), tools.add("n", 1), tools.add("m", 1)] == [1, 2, 1]
        resource.change_outside(moved, "7")  # the other one was not read here
    assert (resource.outside("n"), resource.outside(moved)) == ("7" if moved == "n" else "2", "7")


# -------------------------------------------------------------------------------------------------- Retry


def spoilt(desk: Desk, resource: Any, spoils: int, isolation: Any) -> tuple[list[int], Any]:
    """A step that adds one, of which so many runs are spoilt by somebody else: what each saw, and how it ended."""
    tools, ran = Tools(desk, resource), list[int]()

    def step(txn: Transaction) -> int:
        ran.append(tools.add("n", 1))
        if len(ran) <= spoils:
            resource.change_outside("n", str(10 * len(ran)))
        return ran[-1]

    try:
        return ran, run_transaction(step, key="t-1", isolation=isolation, runtime=desk.runtime)
    except errors.IsolationConflict as moved:
        return ran, moved


@ON_BOTH
def test_scenario_47_a_spoilt_run_is_repeated_and_recorded(desk: Desk, resource: Any) -> None:
    ran, answer = spoilt(desk, resource, 3, Retry(4))
    assert (ran, answer, resource.outside("n")) == ([1, 11, 21, 31], 31, "31")
    assert lists(desk) == [(1, "undone"), (2, "undone"), (3, "undone"), (4, "kept")]


@pytest.mark.parametrize(("isolation", "runs"), [(Retry(), 3), (Retry(2), 2), (Abort(), 1)])
def test_scenario_47_runs_are_counted(desk: Desk, resource: Any, isolation: Any, runs: int) -> None:
    ran, moved = spoilt(desk, resource, 9, isolation)
    assert (len(ran), moved.attempts, resource.outside("n")) == (runs, runs, str(10 * runs))
    assert (f"Each of {runs} runs" in str(moved)) is (runs > 1)
    assert lists(desk) == [(n, "undone") for n in range(1, runs + 1)]


def test_a_run_in_another_world_may_stage_another_list(desk: Desk) -> None:
    """Calls of runs that met a conflict were never submitted; each refund follows from what was read."""
    resource = MemoryValues()
    tools, refund, ran = Tools(desk, resource), refund_tool(desk), list[int]()

    async def step(txn: Transaction) -> None:
        ran.append(tools.add("n", 1))
        refund("o-1", ran[-1])
        if len(ran) < 4:
            resource.change_outside("n", str(10 * len(ran)))

    asyncio.run(run_transaction(step, key="t-1", isolation=Retry(4), runtime=desk.runtime))
    assert desk.done == [("refund", "o-1", 31)]


# ------------------------------------------------------------------------------------------------ refusals


REFUSED: Any = {
    "a block cannot run itself again": (
        lambda desk: desk.step("t", isolation=Retry(5)), "run_transaction(step, key=..., isolation=Retry(attempts=5))"),
    "a word is not a policy": (lambda desk: desk.step("t", isolation="serialize"), "write isolation=Abort()"),
    "a class is not a policy": (
        lambda desk: run_transaction(len, key="t", isolation=Retry, runtime=desk.runtime),  # type: ignore[call-overload]
        "is not a policy"),
    "independent effects are not live": (
        lambda desk: desk.step("t", independent=True, isolation=Serialize()), "nothing to serialize"),
    "one attempt is no repeat": (lambda _: Retry(1), "Retry(attempts=1) must be 2 to 100"),
    "too many attempts": (lambda _: Retry(101), "must be 2 to 100"),
    "yes is no number": (lambda _: Retry(True), "must be 2 to 100"),
    "time does not run back": (lambda _: Serialize(-1), "must be zero seconds or more"),
    "no number is no time": (lambda _: Serialize(float("nan")), "must be zero seconds or more"),
    "a name is no adapter": (lambda _: Serialize(adapters="files"), "is no list of live adapters"),  # type: ignore[arg-type]
    "names are no adapters": (lambda _: Serialize(adapters=["files"]), "'files' is no live adapter"),  # type: ignore[list-item]
}  # fmt: skip


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_kept_is_refused(desk: Desk, make: Any, said: str) -> None:
    assert (Retry(2).attempts, Retry(100).attempts, Serialize(0).timeout_seconds) == (2, 100, 0)
    with pytest.raises(errors.MisuseError, match=re.escape(said)):
        make(desk)
