"""Calls that come too late: one that is never awaited asks for nothing, and its block does not pretend it did; a task
that outlives its block is refused.
"""

import asyncio
import contextvars
import inspect
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from countersign import MemoryAdapter, SQLiteAdapter, errors, run_transaction, tool, transaction
from countersign.tools.tool import tool_of
from tests.fakes.desk import Desk, asked_of_policy, notes_in
from tests.fakes.running import order_tool

pytestmark = pytest.mark.anyio
NEVER = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # Python says so as well
NOT_AWAITED = r"mail was called in transaction 't-1' and not awaited.*[Ww]rite `await mail\(\.\.\.\)`"


@pytest.fixture
def mail(desk: Desk) -> Any:
    @order_tool(desk)
    async def mail(order_id: str) -> str:
        """Tell the customer."""
        desk.act("mail", order_id)
        return "sent"

    return mail


def in_block(desk: Desk, body: Any) -> Any:
    """Await this in a block."""

    async def main() -> Any:
        async with desk.step() as txn:
            await body(txn)
        return txn

    return asyncio.run(main())


keep: list[Any] = []


@NEVER
@pytest.mark.parametrize("forget", [lambda call: None, keep.append])
def test_the_block_says_so_and_its_key_stays_free(desk: Desk, mail: Any, forget: Any) -> None:
    async def body(_: object) -> None:
        await mail("o-2")
        forget(mail("o-1"))

    with pytest.raises(errors.MisuseError, match=NOT_AWAITED):
        in_block(desk, body)
    keep.clear()
    assert (desk.done, asked_of_policy(desk)) == ([], [])
    assert in_block(desk, lambda _: mail("o-1")).state == "settled"
    assert desk.done == [("mail", "o-1")]


async def test_a_task_that_had_not_begun_counts_as_not_awaited(desk: Desk, mail: Any) -> None:
    with pytest.raises(errors.MisuseError, match=NOT_AWAITED):
        async with desk.step() as txn:
            with txn.parallel():
                keep.append(asyncio.ensure_future(mail("o-1")))
    keep.pop().cancel()
    assert desk.done == []


@NEVER
def test_in_a_plain_block_too_and_live_work_is_undone(desk: Desk, notes: Any, note: Any, mail: Any) -> None:
    @tool("jot", lane="live", adapter=SQLiteAdapter(notes), registry=desk.registry)
    async def jot(text: str) -> None: ...

    with pytest.raises(errors.MisuseError, match=NOT_AWAITED + r", in `async with"), desk.step():
        note("o-1", "hello")
        mail("o-1")
    with pytest.raises(errors.MisuseError, match=r"^jot, mail was called"), desk.step():
        for call, text in ((jot, "a"), (jot, "b"), (mail, "o-1")):
            call(text)  # each tool is named once
    assert (notes_in(notes), desk.done) == ([], [])


# ------------------------------------------------------------------------------------ what is no oversight


def test_what_was_given_up_on_purpose_is_not_missed(desk: Desk, mail: Any) -> None:
    outside = mail("o-4")  # counts where it is awaited

    async def body(txn: Any) -> None:
        mail("o-1").close()
        with txn.parallel():
            task = asyncio.ensure_future(mail("o-2"))
            task.cancel()  # before it began
            await asyncio.gather(task, return_exceptions=True)
        await mail("o-3")
        await outside

    in_block(desk, body)
    assert desk.done == [("mail", "o-3"), ("mail", "o-4")]


@NEVER
def test_what_a_block_that_was_taken_back_did_not_await_is_gone_with_it(desk: Desk, mail: Any) -> None:
    async def body(_: object) -> None:
        waiting = mail("o-1")
        with pytest.raises(LookupError):
            async with transaction(runtime=desk.runtime):
                mail("o-2")
                raise LookupError
        await waiting

    in_block(desk, body)
    assert desk.done == [("mail", "o-1")]


@NEVER
def test_an_exception_of_the_block_takes_precedence_over_the_call(desk: Desk, mail: Any) -> None:
    with pytest.raises(LookupError), desk.step():
        mail("o-1")
        raise LookupError
    assert desk.done == []


def test_the_tool_is_still_the_async_function_that_it_was(desk: Desk, mail: Any) -> None:
    call = mail("o-1")
    assert inspect.iscoroutinefunction(mail) and asyncio.iscoroutinefunction(mail)
    assert inspect.iscoroutine(call)
    assert (call.__name__, mail.__name__, mail.__doc__) == ("mail", "mail", "Tell the customer.")
    assert [*inspect.signature(mail).parameters] == ["order_id"]
    assert tool_of(mail).is_async
    call.close()


# ----------------------------------------------------------------- a task or thread that outlives its block

SECONDS = 20.0  # that a test waits for what has to come, never for time to pass
REFUSED = r"(?s)begun .*`with txn\.parallel\(\):`"


async def later(go: asyncio.Event, call: Any) -> None:
    await go.wait()
    answer = call()
    if asyncio.iscoroutine(answer):
        await answer


BEGUN = {  # in a nested block that raises, in a parallel block
    "a block taken back": (True, True),
    "a block that ended": (False, True),
    "a nested one": (True, False),
}


@pytest.mark.parametrize("lane", ["staged", "live"])
@pytest.mark.parametrize(("nested", "parallel"), BEGUN.values(), ids=BEGUN)
async def test_a_straggler_does_not_land_in_the_next(
    desk: Desk, refund: Any, nested: bool, parallel: bool, lane: str
) -> None:
    memory = MemoryAdapter({"n": 0})

    @tool("add", lane="live", adapter=memory, registry=desk.registry)
    async def add(amount: int) -> None:
        memory["n"] = memory["n"] + amount

    async with desk.step() as txn:
        go = asyncio.Event()
        call = (lambda: refund("late", 999)) if lane == "staged" else (lambda: add(999))
        with suppress(LookupError):
            async with transaction(runtime=desk.runtime) if nested else nullcontext():
                with txn.parallel() if parallel else nullcontext():
                    task = asyncio.create_task(later(go, call))
                    if nested:
                        raise LookupError
        with txn.parallel():
            go.set()
            with pytest.raises(errors.OutsideTransaction, match=REFUSED):
                await task
            await asyncio.gather(*(asyncio.to_thread(refund, f"o-{n}", 100) for n in range(2)), add(1))
    assert (sorted(one[1] for one in desk.done), memory.snapshot()["n"]) == (["o-0", "o-1"], 1)


def test_the_block_itself_calls_after_a_straggler_as_before(desk: Desk, refund: Any) -> None:
    """Calls on the opening task keep the program's order, in any context."""
    with desk.step() as txn:
        with txn.parallel():
            kept = contextvars.copy_context()
            refund("o-1", 100)
        kept.run(refund, "o-2", 100)
    assert sorted(desk.done) == [("refund", "o-1", 100), ("refund", "o-2", 100)]


# ------------------------------------------------------------------------------ after the whole transaction


@pytest.mark.parametrize("dry", [False, True])
async def test_a_task_begun_inside_opens_its_own_afterwards(desk: Desk, refund: Any, dry: bool) -> None:
    async def step(_: object) -> None:
        refund("later", 100)

    async def own() -> None:
        options: Any = {"dry_run": True} if dry else {}
        await run_transaction(step, key="t-2", runtime=desk.runtime, **options)

    go = asyncio.Event()
    async with desk.step():
        task = asyncio.create_task(later(go, own))
        if not dry:
            with pytest.raises(errors.MisuseError, match="close the outer one first"):
                await asyncio.create_task(own())
        refund("o-1", 100)
    go.set()
    await task
    assert desk.done == [("refund", "o-1", 100), ("refund", "later", 100)][: 1 if dry else 2]
