"""A call of an async tool that is made and never awaited asks for nothing, and its block does not pretend it did."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

from countersign import MisuseError, SQLiteAdapter, run_transaction, tool, transaction
from countersign.tools.tool import tool_of
from tests.fakes.desk import Desk, asked_of_policy, note_tool, notes_database, notes_in
from tests.fakes.running import order_tool

NEVER = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # Python says so as well
TOLD = r"mail was called in transaction 't-1' and not awaited.*[Ww]rite `await mail\(\.\.\.\)`"


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


async def dropped(mail: Any) -> None:
    mail("o-1")


async def kept(mail: Any) -> None:
    keep.append(mail("o-1"))


async def one_of_two(mail: Any) -> None:
    await mail("o-2")
    mail("o-1")


@NEVER
@pytest.mark.parametrize("forget", [dropped, kept, one_of_two])
def test_the_block_says_so_and_its_key_stays_free(desk: Desk, mail: Any, forget: Any) -> None:
    with pytest.raises(MisuseError, match=TOLD):
        in_block(desk, lambda _: forget(mail))
    keep.clear()
    assert (desk.done, asked_of_policy(desk)) == ([], [])
    assert in_block(desk, lambda _: mail("o-1")).state == "settled"
    assert desk.done == [("mail", "o-1")]


@pytest.mark.anyio
async def test_a_task_that_had_not_begun_is_one_nobody_waited_for(desk: Desk, mail: Any) -> None:
    with pytest.raises(MisuseError, match=TOLD):
        async with desk.step() as txn:
            with txn.parallel():
                keep.append(asyncio.ensure_future(mail("o-1")))
    keep.pop().cancel()
    assert desk.done == []


@NEVER
def test_in_a_plain_block_too_and_what_was_done_live_beside_it_is_undone(
    desk: Desk, tmp_path: Path, mail: Any
) -> None:
    path = notes_database(tmp_path)
    note = note_tool(desk, SQLiteAdapter(path))

    async def step(_: object) -> None:
        note("o-1", "hello")
        mail("o-1")

    with pytest.raises(MisuseError, match=TOLD):
        asyncio.run(run_transaction(step, key="t-1", runtime=desk.runtime))
    with pytest.raises(MisuseError, match=TOLD + r", in `async with"), desk.step():
        note("o-1", "hello")
        mail("o-1")
    assert (notes_in(path), desk.done) == ([], [])


@NEVER
def test_a_live_one_is_told_as_well_and_each_tool_once(desk: Desk, tmp_path: Path, mail: Any) -> None:
    @tool("jot", lane="live", adapter=SQLiteAdapter(notes_database(tmp_path)), registry=desk.registry)
    async def jot(text: str) -> None: ...

    with pytest.raises(MisuseError, match=r"^jot, mail was called"), desk.step():
        jot("a")
        jot("b")
        mail("o-1")


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
def test_an_exception_that_leaves_the_block_is_told_and_not_the_call(desk: Desk, mail: Any) -> None:
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
