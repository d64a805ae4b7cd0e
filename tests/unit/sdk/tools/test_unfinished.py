"""A tool that returns work instead of doing it: refused where it is declared, and never recorded as fired."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import itertools
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from countersign import MemoryAdapter, ProbeAnswer, ToolRegistry, errors, probe, resume, tool, transaction
from countersign.contract import EffectState
from countersign.tools.results import UnfinishedError
from tests.fakes.desk import Desk, failing_tool
from tests.fakes.running import fails, order_tool, refusing_tool, run, run_async

NOT_RUN = "has not run to its end"
ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def steps(order_id: str) -> Iterator[int]:
    ran.append(order_id)
    yield 1


async def async_steps(order_id: str) -> AsyncIterator[int]:
    ran.append(order_id)
    yield 1


async def work(order_id: str) -> int:
    ran.append(order_id)
    return 1


class Stepping:
    __name__ = "stepping"
    __annotations__ = {"order_id": "str"}

    def __call__(self, order_id: str) -> Iterator[int]:
        yield 1


class Execute:
    def execute(self, order_id: str) -> Iterator[int]:
        yield 1


class Compensate:
    def execute(self, order_id: str) -> None: ...
    def compensate(self, order_id: str) -> Iterator[int]:
        yield 1


class Probing:
    def execute(self, order_id: str) -> None: ...
    def probe(self, order_id: str) -> Iterator[int]:
        yield 1


def partial(fn: Callable[..., Any]) -> Any:
    return functools.update_wrapper(functools.partial(fn), fn)


FUNCTIONS: dict[str, Any] = {
    "a generator": steps,
    "an async generator": async_steps,
    "a partial of one": partial(steps),
    "a partial of a static one": partial(staticmethod(async_steps)),
    "an object": Stepping(),
    "a bound method": Execute().execute,
}
CLASSES = [Execute, Compensate, Probing]
STAGED, LIVE = {"resource": ("Order", "order_id")}, {"lane": "live", "adapter": MemoryAdapter()}


@pytest.mark.parametrize("fn", [*FUNCTIONS.values(), *CLASSES], ids=[*FUNCTIONS, *map(str, CLASSES)])
def test_a_generator_is_no_tool(fn: Any) -> None:
    for said in (STAGED, LIVE) if fn not in CLASSES else (STAGED,):
        with pytest.raises(errors.RegistrationError, match="generator function"):
            tool("act", registry=ToolRegistry(), **said)(fn)  # type: ignore[call-overload]


@pytest.mark.parametrize("fn", [steps, async_steps])
def test_a_generator_is_no_probe(fn: Callable[..., Any]) -> None:
    with pytest.raises(errors.RegistrationError, match="generator function"):
        probe("look", registry=ToolRegistry())(fn)


def test_a_function_around_a_generator_that_reads_all_of_it_is_a_tool(desk: Desk) -> None:
    @functools.wraps(steps)
    def act(order_id: str) -> list[int]:
        return list(steps(order_id))

    (placed,) = run(desk, (order_tool(desk)(act), "o-1")).placed
    assert (placed.outcome, placed.result, ran) == ("fired", [1], ["o-1"])


class Later:
    def __await__(self) -> Generator[Any, None, int]:
        ran.append("later")
        yield
        return 1


class Lines:
    def __aiter__(self) -> Lines:
        return self

    async def __anext__(self) -> int:
        ran.append("lines")
        return 1


def note(order_id: str) -> str:
    ran.append(order_id)
    return order_id


managed, async_managed = contextlib.contextmanager(steps), contextlib.asynccontextmanager(async_steps)

WORK: dict[str, Callable[[str], Any]] = {
    "a generator": steps,
    "an async generator": async_steps,
    "a coroutine": work,
    "an awaitable": lambda _: Later(),
    "an async iterator": lambda _: Lines(),
    "a context manager": managed,
    "an async context manager": async_managed,
    "a future": lambda _: Future(),
    "a map": lambda one: map(note, [one]),
    "a zip of a map": lambda one: zip(map(note, [one]), [1], strict=False),
    "an itertools object": lambda one: itertools.starmap(note, [(one,)]),
    "a list of coroutines": lambda one: [work(one), {"and": work(one)}],
    "an object with a generator": lambda one: {"found": {"rows": steps(one)}},
}


def returning(desk: Desk, made: Callable[[str], Any], name: str = "act", **options: Any) -> tuple[Any, str]:
    """A call that acts and returns this."""

    @order_tool(desk, name, **options)
    def act(order_id: str) -> Any:
        desk.act(name, order_id)
        return made(order_id)

    return act, "o-1"


@pytest.mark.parametrize("made", WORK.values(), ids=WORK)
def test_work_that_a_call_returns_is_unknown_and_not_run(desk: Desk, made: Any, recwarn: Any) -> None:
    unknown = fails(desk, errors.OutcomeUnknown, returning(desk, made), match=NOT_RUN)
    assert isinstance(unknown.error.__cause__, UnfinishedError)
    assert unknown.placed[0].outcome == "unknown"
    assert [one.state for one in desk.service.latest(unknown.txn.txn).held] == [EffectState.UNKNOWN]
    with desk.restarted() as after:
        resume(after.runtime)
    assert (len(desk.done), ran) == (1, [])
    if made is WORK["a list of coroutines"]:
        gc.collect()
        assert not list(recwarn), "no coroutine is left unawaited"


OPTIONS: Any = [{"failure_means": "not_done"}, {"idempotent": True}, {"own_thread": False}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("made", [steps, work, async_managed], ids=["generator", "coroutine", "manager"])
def test_unfinished_work_is_unknown_with_any_option(desk: Desk, made: Any, options: dict[str, Any]) -> None:
    fails(desk, errors.OutcomeUnknown, returning(desk, made, **options), match=NOT_RUN)
    assert (len(desk.done), ran) == (1, [])


@pytest.mark.parametrize("own_thread", [False, True])
@pytest.mark.parametrize("made", [steps, work, async_managed], ids=["generator", "coroutine", "manager"])
def test_unfinished_work_is_unknown_in_an_async_transaction(desk: Desk, made: Any, own_thread: bool) -> None:
    @order_tool(desk)
    async def later(order_id: str) -> Any:
        return [made(order_id)]

    plain = returning(desk, made, "plain", own_thread=own_thread)
    for key, call in {"t-1": plain, "t-2": (later, "o-1")}.items():
        with pytest.raises(errors.OutcomeUnknown, match=NOT_RUN):
            asyncio.run(run_async(desk, call, key=key))
    assert ran == []


def test_a_compensation_that_returns_work_is_unknown(desk: Desk) -> None:
    @tool("charge", resource=("Order", "order_id"), registry=desk.registry)
    class Charge:
        def execute(self, order_id: str) -> None: ...
        def compensate(self, order_id: str) -> Any:
            return steps(order_id)

    desk.service.review([one.draft_manifest() for one in desk.registry])
    calls = (Charge, "o-1"), (refusing_tool(desk), "o-1")
    failed = fails(desk, errors.EffectFailed, *calls, match="charge#1")
    assert failed.error.outcomes["charge#1"] == "compensation_unknown"
    assert ran == []


def test_a_probe_that_returns_unfinished_work_is_unsure(desk: Desk, recwarn: pytest.WarningsRecorder) -> None:
    @probe("look", registry=desk.registry)
    def look(order_id: str) -> ProbeAnswer:
        return work(order_id)  # type: ignore[return-value]

    notify = failing_tool(desk, TimeoutError("slow"), probe="look")
    fails(desk, errors.OutcomeUnknown, (notify, "o-1"), match="coroutine")
    gc.collect()
    assert (ran, list(recwarn)) == ([], [])


@pytest.mark.parametrize("made", [work, lambda _: Later()], ids=["a coroutine", "an awaitable"])
def test_a_plain_live_tool_that_returns_an_awaitable_is_undone(desk: Desk, made: Any) -> None:
    memory = MemoryAdapter()

    @tool("save", lane="live", adapter=memory, registry=desk.registry)
    def save(text: str) -> Any:
        memory["note"] = text
        return made(text)

    with transaction("t-1", runtime=desk.runtime), pytest.raises(UnfinishedError):
        save("half")
    assert (memory.values_now, ran) == ({}, [])


def test_an_iterator_over_what_was_done_has_fired_and_is_not_read(desk: Desk) -> None:
    (placed,) = run(desk, returning(desk, lambda _: iter([1, 2]))).placed
    assert (placed.outcome, list(placed.result)) == ("fired", [1, 2])
