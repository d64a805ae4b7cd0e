"""A tool that returns work instead of doing it: refused where it is declared, and never recorded as fired."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from countersign import (
    MemoryAdapter,
    NotDone,
    OutcomeUnknown,
    ProbeAnswer,
    RegistrationError,
    ToolRegistry,
    Unsure,
    probe,
    resume,
    tool,
    transaction,
)
from countersign.contract import EffectState
from countersign.tools.unfinished import UnfinishedError
from tests.fakes.desk import Desk, failing_tool

ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def steps(order_id: str) -> Iterator[int]:
    """Step by step."""
    ran.append(order_id)
    yield 1


async def async_steps(order_id: str) -> AsyncIterator[int]:
    """Step by step."""
    ran.append(order_id)
    yield 1


async def work(order_id: str) -> int:
    """Later."""
    ran.append(order_id)
    return 1


class Stepping:
    __name__ = "stepping"
    __annotations__ = {"order_id": "str"}

    def __call__(self, order_id: str) -> Iterator[int]:
        yield 1


class AsyncStepping(Stepping):
    async def __call__(self, order_id: str) -> AsyncIterator[int]:  # type: ignore[override]
        yield 1


class Execute:
    def execute(self, order_id: str) -> Iterator[int]:
        yield 1


class AsyncExecute:
    async def execute(self, order_id: str) -> AsyncIterator[int]:
        yield 1


class StaticExecute:
    @staticmethod
    def execute(order_id: str) -> Iterator[int]:
        yield 1


class ClassExecute:
    @classmethod
    def execute(cls, order_id: str) -> Iterator[int]:
        yield 1


class PartialExecute:
    def _steps(self, more: int, order_id: str) -> Iterator[int]:
        yield more

    execute = functools.partialmethod(_steps, 1)


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
    "a partial of an async one": partial(async_steps),
    "a partial of a partial": partial(partial(steps)),
    "a static one": staticmethod(steps),
    "a partial of a static one": partial(staticmethod(async_steps)),
    "an object": Stepping(),
    "an async object": AsyncStepping(),
    "a partial of an object": partial(Stepping()),
    "a bound method": Execute().execute,
}
CLASSES = [Execute, AsyncExecute, StaticExecute, ClassExecute, PartialExecute, Compensate, Probing]


@pytest.mark.parametrize("lane", ["staged", "live"])
@pytest.mark.parametrize("fn", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_generator_is_no_tool(fn: Any, lane: str) -> None:
    said: dict[str, Any] = {"lane": "live", "adapter": MemoryAdapter()} if lane == "live" else {}
    with pytest.raises(RegistrationError, match="generator function"):
        tool("act", registry=ToolRegistry(), **said)(fn)


@pytest.mark.parametrize("cls", CLASSES)
def test_no_method_of_a_class_tool_is_a_generator(cls: type) -> None:
    with pytest.raises(RegistrationError, match="generator function"):
        tool("act", resource=("Order", "order_id"), registry=ToolRegistry())(cls)


@pytest.mark.parametrize("fn", [steps, async_steps])
def test_a_generator_is_no_probe(fn: Callable[..., Any]) -> None:
    with pytest.raises(RegistrationError, match="generator function"):
        probe("look", registry=ToolRegistry())(fn)


def test_a_function_around_a_generator_that_reads_all_of_it_is_a_tool(desk: Desk) -> None:
    @tool("act", resource=("Order", "order_id"), registry=desk.registry)
    @functools.wraps(steps)
    def act(order_id: str) -> list[int]:
        return list(steps(order_id))

    desk.publish(act)
    with transaction("t-1", runtime=desk.runtime):
        placed = act("o-1")
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


def begun(order_id: str) -> Iterator[int]:
    found = waiting(order_id)
    next(found)
    return found


def waiting(order_id: str) -> Iterator[int]:
    yield 1
    ran.append(order_id)


def note(order_id: str) -> str:
    ran.append(order_id)
    return order_id


@contextlib.contextmanager
def managed(order_id: str) -> Iterator[int]:
    ran.append(order_id)
    yield 1


@contextlib.asynccontextmanager
async def async_managed(order_id: str) -> AsyncIterator[int]:
    ran.append(order_id)
    yield 1


WORK: dict[str, Callable[[str], Any]] = {
    "a generator": steps,
    "a generator that has begun": begun,
    "an async generator": async_steps,
    "a coroutine": work,
    "an awaitable": lambda _: Later(),
    "an async iterator": lambda _: Lines(),
    "a context manager": managed,
    "an async context manager": async_managed,
    "a future": lambda _: Future(),
    "a map": lambda one: map(note, [one]),
    "a filter": lambda one: filter(note, [one]),
    "a zip of a map": lambda one: zip(map(note, [one]), [1], strict=False),
    "an itertools object": lambda one: itertools.starmap(note, [(one,)]),
    "a list of coroutines": lambda one: [work(one), work(one)],
    "an object with a generator": lambda one: {"found": {"rows": steps(one)}},
}


@pytest.mark.parametrize("made", WORK.values(), ids=WORK)
@pytest.mark.parametrize("means", ["unknown", "not_done"])
def test_work_that_a_call_returns_is_unknown_and_not_run(
    desk: Desk, made: Callable[[str], Any], means: Any
) -> None:
    @tool("act", resource=("Order", "order_id"), failure_means=means, registry=desk.registry)
    def act(order_id: str) -> Any:
        """Act, or so it says."""
        desk.act("act", order_id)
        return made(order_id)

    desk.publish(act)
    unrun = pytest.raises(OutcomeUnknown, match="has not run to its end")
    with unrun as unknown, transaction("t-1", runtime=desk.runtime) as txn:
        placed = act("o-1")
    assert isinstance(unknown.value.__cause__, UnfinishedError)
    assert (placed.outcome, ran) == ("unknown", [])
    assert [one.state for one in desk.service.latest(txn.txn).held] == [EffectState.UNKNOWN]
    with desk.restarted() as after:
        resume(after.runtime)
    assert (len(desk.done), ran) == (1, [])


@pytest.mark.anyio
@pytest.mark.parametrize("made", [steps, work, async_managed])
async def test_so_it_is_in_an_async_transaction(desk: Desk, made: Callable[[str], Any]) -> None:
    @tool("act", resource=("Order", "order_id"), registry=desk.registry)
    def act(order_id: str) -> Any:
        """Act, or so it says."""
        return made(order_id)

    desk.publish(act)
    with pytest.raises(OutcomeUnknown, match="has not run to its end"):
        async with transaction("t-1", runtime=desk.runtime):
            placed = act("o-1")
    assert (placed.outcome, ran) == ("unknown", [])


@pytest.mark.parametrize("own_thread", [False, True])
@pytest.mark.parametrize("made", [steps, work], ids=["a generator", "a coroutine"])
@pytest.mark.anyio
async def test_so_it_is_of_an_async_tool_and_of_one_without_its_own_thread(
    desk: Desk, made: Callable[[str], Any], own_thread: bool
) -> None:
    @tool("plain", resource=("Order", "order_id"), own_thread=own_thread, registry=desk.registry)
    def plain(order_id: str) -> Any:
        """Act, or so it says."""
        return made(order_id)

    @tool("later", resource=("Order", "order_id"), registry=desk.registry)
    async def later(order_id: str) -> Any:
        """Act, or so it says."""
        return [made(order_id)]

    desk.publish(plain, later)
    for key, act in {"t-1": plain, "t-2": later}.items():
        with pytest.raises(OutcomeUnknown, match="has not run to its end"):
            async with transaction(key, runtime=desk.runtime):
                answer: Any = act("o-1")
                if isinstance(answer, Awaitable):
                    await answer
    assert ran == []


def test_no_coroutine_is_left_that_nobody_awaits(desk: Desk, recwarn: pytest.WarningsRecorder) -> None:
    @tool("act", resource=("Order", "order_id"), registry=desk.registry)
    def act(order_id: str) -> Any:
        """Act, or so it says."""
        return [work(order_id), {"and": work(order_id)}]

    desk.publish(act)
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime):
        act("o-1")
    gc.collect()
    assert not list(recwarn)


def test_an_idempotent_tool_that_returns_work_is_not_called_again(desk: Desk) -> None:
    @tool("act", resource=("Order", "order_id"), idempotent=True, registry=desk.registry)
    def act(order_id: str) -> Any:
        """Act, or so it says."""
        desk.act("act", order_id)
        return steps(order_id)

    desk.publish(act)
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime):
        act("o-1")
    assert len(desk.done) == 1


def test_a_compensation_that_returns_work_is_unknown(desk: Desk) -> None:
    class Charge:
        def execute(self, order_id: str) -> None:
            """Charge an order."""

        def compensate(self, order_id: str) -> Any:
            """Take it back."""
            return steps(order_id)

    charge: Any = tool("charge", resource=("Order", "order_id"), registry=desk.registry)(Charge)
    desk.publish(charge)
    back = desk.registry.get("charge.compensate")
    assert back is not None
    desk.service.review([back.draft_manifest()])
    notify = failing_tool(desk, NotDone("full"), acts=False)
    with pytest.raises(Exception, match="charge#1") as failed, transaction("t-1", runtime=desk.runtime):
        charge("o-1")
        notify("o-1")
    assert failed.value.outcomes["charge#1"] == "compensation_unknown"  # type: ignore[attr-defined]
    assert ran == []


def test_a_probe_that_returns_work_cannot_tell(desk: Desk, recwarn: pytest.WarningsRecorder) -> None:
    @probe("look", registry=desk.registry)
    def look(order_id: str) -> ProbeAnswer:
        return work(order_id)  # type: ignore[return-value]

    notify = failing_tool(desk, TimeoutError("slow"), probe="look")
    with pytest.raises(OutcomeUnknown, match="coroutine"), transaction("t-1", runtime=desk.runtime):
        notify("o-1")
    gc.collect()
    assert (ran, list(recwarn), Unsure()) == ([], [], Unsure())


@pytest.mark.parametrize("made", [work, lambda _: Later()], ids=["a coroutine", "an awaitable"])
def test_a_plain_live_tool_that_returns_an_awaitable_is_undone(
    desk: Desk, made: Callable[[str], Any]
) -> None:
    memory = MemoryAdapter()

    @tool("save", lane="live", adapter=memory, registry=desk.registry)
    def save(text: str) -> Any:
        """Write a note."""
        memory["note"] = text
        return made(text)

    with transaction("t-1", runtime=desk.runtime), pytest.raises(UnfinishedError):
        save("half")
    assert (memory.values_now, ran) == ({}, [])


def test_an_iterator_over_what_was_done_has_fired_and_is_not_read(desk: Desk) -> None:
    @tool("look", resource=("Order", "order_id"), registry=desk.registry)
    def look(order_id: str) -> Any:
        """Look it up."""
        return iter([1, 2])

    desk.publish(look)
    with transaction("t-1", runtime=desk.runtime):
        placed = look("o-1")
    assert (placed.outcome, list(placed.result)) == ("fired", [1, 2])
