"""What a reader sees printed: the line that left the block, the words, and what the tool itself raised."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import countersign
from countersign import (
    AlreadyRedeemed,
    CountersignError,
    Denied,
    EffectFailed,
    IndependentFailures,
    LiveCommitFailed,
    MisuseError,
    NotDone,
    OutcomeUnknown,
    ReviewPending,
    ServiceUnavailable,
    SQLiteAdapter,
    Transaction,
    run_transaction,
    tool,
)
from countersign.commit.commit import Commit
from countersign.commit.raised import told_cause
from countersign.contract import Verdict
from countersign.journal.sqlite import SQLiteDatabase
from countersign.threads import Threaded, ToolTimeoutError
from countersign.waiting import run
from tests.fakes.desk import Desk, failing_tool, note_tool, notes_database, refund_tool

OURS = str(Path(countersign.__file__).parent)


Prepared = Callable[[Desk, pytest.MonkeyPatch], Callable[[], object]]


def frames(error: BaseException) -> list[traceback.FrameSummary]:
    """As they are printed of this one, without what it came from."""
    return list(traceback.extract_tb(error.__traceback__))


def ours(error: BaseException) -> list[str]:
    return [frame.name for frame in frames(error) if frame.filename.startswith(OURS)]


def left_by(desk: Desk, call: Callable[[], object], how: str, **said: Any) -> BaseException:
    """What leaving a block with this call in it raises."""

    def block() -> None:
        with desk.step(**said):
            call()

    async def async_block() -> None:
        async with desk.step(**said):
            call()

    with pytest.raises((CountersignError, IndependentFailures, AssertionError, OSError)) as left:
        block() if how == "with" else asyncio.run(async_block())
    return left.value


def require_short(error: BaseException, how: str) -> None:
    name, leave = ("block", "__exit__") if how == "with" else ("async_block", "__aexit__")
    assert [frame.name for frame in frames(error)][-2:] == [name, leave]
    assert ours(error) == [leave]


def refused(desk: Desk, _: pytest.MonkeyPatch) -> Callable[[], object]:
    refund = refund_tool(desk)
    return lambda: refund("o-4", 900_000)


def for_people(desk: Desk, _: pytest.MonkeyPatch) -> Callable[[], object]:
    refund = refund_tool(desk)
    return lambda: refund("o-4", 20_000)


def failing(kind: type[Exception], text: str) -> Prepared:
    def prepared(desk: Desk, _: pytest.MonkeyPatch) -> Callable[[], object]:
        notify = failing_tool(desk, kind(text))
        return lambda: notify("o-4")

    return prepared


not_done = failing(NotDone, "no such address")
in_doubt = failing(OSError, "the line broke")
out_of_time = failing(TimeoutError, "no answer")


def away(desk: Desk, _: pytest.MonkeyPatch) -> Callable[[], object]:
    refund = refund_tool(desk)
    desk.face.faults["/v1/"] = ["lost_request"] * 50
    return lambda: refund("o-4", 100)


def spent(desk: Desk, _: pytest.MonkeyPatch) -> Callable[[], object]:
    refund = refund_tool(desk)
    with desk.step():
        refund("o-4", 100)
    return lambda: refund("o-5", 100)


def disk_full(desk: Desk, _: pytest.MonkeyPatch) -> Callable[[], object]:
    refund, database = refund_tool(desk), desk.runtime.journal.database
    assert isinstance(database, SQLiteDatabase)
    desk.before_fire = lambda _: database._connected().execute("PRAGMA query_only=ON") and None
    return lambda: refund("o-4", 100)


def live_lost(desk: Desk, broken: pytest.MonkeyPatch) -> Callable[[], object]:
    note = note_tool(desk, SQLiteAdapter(notes_database(desk.folder)))
    refund = refund_tool(desk)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    broken.setattr("countersign.adapters.sqlite.SQLiteSession.commit", full)
    return lambda: (note("o-1", "text"), refund("o-4", 100))


ANSWERS: dict[str, tuple[Prepared, type[BaseException]]] = {
    "a no": (refused, Denied),
    "a question": (for_people, ReviewPending),
    "a key that is spent": (spent, AlreadyRedeemed),
    "a tool that did nothing": (not_done, EffectFailed),
    "a tool of which nobody knows": (in_doubt, OutcomeUnknown),
    "a tool that gave up waiting": (out_of_time, OutcomeUnknown),
    "a service that is away": (away, ServiceUnavailable),
    "a journal that takes nothing more": (disk_full, OutcomeUnknown),
    "live work that was not kept": (live_lost, LiveCommitFailed),
}
HOW = pytest.mark.parametrize("how", ["with", "async with"])


@HOW
@pytest.mark.parametrize(("prepared", "kind"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_shows_the_line_that_left_the_block(
    prepared: Prepared, kind: type[BaseException], how: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        error = left_by(desk, prepared(desk, broken), how)
    assert type(error) is kind
    require_short(error, how)


@HOW
@pytest.mark.parametrize(("prepared", "below"), [(away, 0), (disk_full, 1)])
def test_what_an_answer_came_from_is_as_short_down_to_what_is_none(
    prepared: Prepared, below: int, how: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = left_by(desk, prepared(desk, monkeypatch), how).__cause__
    for _ in range(below):
        assert isinstance(cause, CountersignError) and ours(cause) == []
        cause = cause.__cause__
    assert cause is not None and not isinstance(cause, CountersignError)
    assert len(ours(cause)) > 0


@HOW
@pytest.mark.parametrize("prepared", [not_done, in_doubt, out_of_time])
def test_its_cause_is_what_the_tool_raised_from_where_it_raised_it(
    prepared: Prepared, how: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = left_by(desk, prepared(desk, monkeypatch), how)
    assert error.__cause__ is not None
    assert [frame.name for frame in frames(error.__cause__)] == ["answer"]


@HOW
def test_what_the_tool_called_of_ours_stays(how: str, desk: Desk) -> None:
    """Its line is in between, so where it came by it is seen."""

    @tool("look", resource=("Order", "order_id"), registry=desk.registry)
    def look(order_id: str) -> None:
        """Use a transaction that was never entered."""
        desk.step("t-2").repeat()

    desk.publish(look)
    cause = left_by(desk, lambda: look("o-4"), how).__cause__
    assert type(cause) is MisuseError
    assert [frame.name for frame in frames(cause)] == ["look", "repeat", "_entered"]


def test_a_wait_that_we_gave_up_has_no_line_of_ours_and_a_bug_of_ours_keeps_them() -> None:
    call: Any = SimpleNamespace(has_secrets=False)
    ready = threading.Event()
    with pytest.raises(ToolTimeoutError) as gave_up:
        Threaded(ready.wait, {}).result(0)
    ready.set()
    with pytest.raises(AttributeError) as bug:
        run(None)  # type: ignore[arg-type]
    for raised, left in ((gave_up, []), (bug, ["run"])):
        inside = raised.value.with_traceback(raised.tb.tb_next)
        assert [frame.name for frame in frames(told_cause(call, inside))] == left


@HOW
def test_each_of_a_group_is_as_short(how: str, desk: Desk) -> None:
    notify, refund = failing_tool(desk, OSError("the line broke")), refund_tool(desk)
    error = left_by(desk, lambda: (notify("o-4"), refund("o-4", 900_000)), how, independent=True)
    assert isinstance(error, IndependentFailures)
    require_short(error, how)
    assert [(type(one), ours(one)) for one in error.exceptions] == [(OutcomeUnknown, []), (Denied, [])]


@HOW
@pytest.mark.parametrize("bug", [AssertionError("only what was entered"), OSError(5, "input/output error")])
def test_what_is_no_answer_keeps_every_frame(
    bug: Exception, how: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    refund = refund_tool(desk)

    async def broken(_: Commit) -> None:
        raise bug

    monkeypatch.setattr(Commit, "run", broken)
    error = left_by(desk, lambda: refund("o-4", 100), how)
    assert error is bug
    assert len(ours(error)) > 3 and frames(error)[-1].name == "broken"
    monkeypatch.undo()
    desk.runtime.close()


@HOW
def test_what_the_block_raised_is_left_as_it_is(how: str, desk: Desk) -> None:
    refund = refund_tool(desk)

    def call() -> None:
        refund("o-4")

    error = left_by(desk, call, how)
    assert isinstance(error, MisuseError)
    assert [frame.name for frame in frames(error) if not frame.filename.startswith(OURS)][-1] == "call"
    assert frames(error)[-1].filename.startswith(OURS)


@pytest.mark.parametrize("how", ["def", "async def"])
@pytest.mark.parametrize("denied", [False, True])
def test_one_of_a_step_or_its_commit_shows_who_ran_it_and_the_line_of_the_step(
    how: str, denied: bool, desk: Desk
) -> None:
    refund = refund_tool(desk)
    desk.service.policy = lambda *_: Verdict.DENY

    def step(_: Transaction) -> None:
        refund("o-1", 5)
        if not denied:
            raise MisuseError("no such order")

    async def async_step(_: Transaction) -> None:
        refund("o-1", 5)
        if not denied:
            raise MisuseError("no such order")

    with pytest.raises(Denied if denied else MisuseError) as left:
        if how == "def":
            run_transaction(step, key="t-1", runtime=desk.runtime)
        else:
            asyncio.run(run_transaction(async_step, key="t-1", runtime=desk.runtime))
    assert len(ours(left.value)) == 1
    assert denied or frames(left.value)[-1].name == ("step" if how == "def" else "async_step")
