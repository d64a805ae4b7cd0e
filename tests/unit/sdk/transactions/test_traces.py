"""What a reader sees printed: the line that left the block, the words, and what the tool itself raised."""

import asyncio
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import countersign
from countersign import errors, run_transaction
from countersign.commit.commit import Commit
from countersign.commit.tool_errors import public_cause
from countersign.concurrency import ThreadedCall, ToolTimeoutError, run_sync
from countersign.contract import Verdict
from tests.fakes.desk import Desk, failing_tool, refund_tool
from tests.fakes.running import order_tool

OURS = str(Path(countersign.__file__).parent)
Prepared = Callable[[Desk, pytest.MonkeyPatch], Callable[[], object]]


@pytest.fixture(params=["with", "async with"])
def how(request: pytest.FixtureRequest) -> str:
    """Which block is left."""
    return str(request.param)


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

    with pytest.raises((errors.CountersignError, ExceptionGroup, AssertionError, OSError)) as left:
        block() if how == "with" else asyncio.run(async_block())
    return left.value


def require_short(error: BaseException, how: str) -> None:
    name, leave = ("block", "__exit__") if how == "with" else ("async_block", "__aexit__")
    assert ([frame.name for frame in frames(error)][-2:], ours(error)) == ([name, leave], [leave])


def refunding(amount: int) -> Prepared:
    def prepared(desk: Desk, _: object) -> Callable[[], object]:
        refund = refund_tool(desk)
        return lambda: refund("o-4", amount)

    return prepared


def failing(kind: type[Exception]) -> Prepared:
    def prepared(desk: Desk, _: object) -> Callable[[], object]:
        notify = failing_tool(desk, kind("it went wrong"))
        return lambda: notify("o-4")

    return prepared


not_done, in_doubt = failing(errors.NotDone), failing(OSError)


def away(desk: Desk, patch: pytest.MonkeyPatch) -> Callable[[], object]:
    desk.face.faults["/v1/"] = ["lost_request"] * 50
    return refunding(100)(desk, patch)


def disk_full(desk: Desk, patch: pytest.MonkeyPatch) -> Callable[[], object]:
    database: Any = desk.runtime.journal.database
    desk.before_fire = lambda _: database._connected().execute("PRAGMA query_only=ON") and None
    return refunding(100)(desk, patch)


ANSWERS: dict[str, tuple[Prepared, type[BaseException]]] = {
    "a no": (refunding(900_000), errors.Denied),
    "a tool that did nothing": (not_done, errors.EffectFailed),
    "a tool without a known outcome": (in_doubt, errors.OutcomeUnknown),
    "a service that is away": (away, errors.ServiceUnavailable),
    "a journal that takes nothing more": (disk_full, errors.OutcomeUnknown),
}


@pytest.mark.parametrize(("prepared", "kind"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_shows_one_line(prepared: Any, kind: Any, how: str, desk: Desk, monkeypatch: Any) -> None:
    with monkeypatch.context() as broken:
        error = left_by(desk, prepared(desk, broken), how)
    assert type(error) is kind
    require_short(error, how)
    cause: Any = error.__cause__
    if prepared in (not_done, in_doubt):
        assert [frame.name for frame in frames(cause)] == ["answer"]
    if prepared is disk_full:
        assert isinstance(cause, errors.CountersignError) and ours(cause) == []
        cause = cause.__cause__
    if prepared in (away, disk_full):
        assert not isinstance(cause, errors.CountersignError) and len(ours(cause)) > 0


def test_what_the_tool_called_of_ours_stays(how: str, desk: Desk) -> None:
    """Its line is in between, so where it came by it is seen."""

    @order_tool(desk)
    def look(order_id: str) -> None:
        desk.step("t-2").repeat()  # of a transaction that was never entered

    cause: Any = left_by(desk, lambda: look("o-4"), how).__cause__
    assert type(cause) is errors.MisuseError
    assert [frame.name for frame in frames(cause)] == ["look", "repeat", "_entered"]


def test_a_wait_that_we_gave_up_has_no_line_of_ours_and_a_bug_of_ours_keeps_them() -> None:
    call: Any = SimpleNamespace(has_secrets=False)
    ready = threading.Event()
    with pytest.raises(ToolTimeoutError) as gave_up:
        ThreadedCall(ready.wait, {}).result(0)
    ready.set()
    with pytest.raises(AttributeError) as bug:
        run_sync(None)  # type: ignore[arg-type]
    for raised, left in ((gave_up, []), (bug, ["run_sync"])):
        inside = raised.value.with_traceback(raised.tb.tb_next)
        assert [frame.name for frame in frames(public_cause(call, inside))] == left


def test_each_of_a_group_is_as_short(how: str, desk: Desk) -> None:
    notify, refund = failing_tool(desk, OSError("the line broke")), refund_tool(desk)
    error = left_by(desk, lambda: (notify("o-4"), refund("o-4", 900_000)), how, independent=True)
    assert isinstance(error, errors.IndependentFailures)
    require_short(error, how)
    kinds = [errors.OutcomeUnknown, errors.Denied]
    assert [(type(one), ours(one)) for one in error.exceptions] == [(kind, []) for kind in kinds]


@pytest.mark.parametrize("bug", [AssertionError("only what was entered"), OSError(5, "input/output error")])
def test_a_bug_keeps_every_frame(bug: Exception, how: str, desk: Desk, monkeypatch: Any, refund: Any) -> None:

    async def broken(_: Commit) -> None:
        raise bug

    with monkeypatch.context() as patch:
        patch.setattr(Commit, "run", broken)
        error = left_by(desk, lambda: refund("o-4", 100), how)
    assert error is bug
    assert len(ours(error)) > 3 and frames(error)[-1].name == "broken"


def test_what_the_block_raised_is_left_as_it_is(how: str, desk: Desk) -> None:
    refund: Any = refund_tool(desk)

    def call() -> None:
        refund("o-4")

    error = left_by(desk, call, how)
    assert isinstance(error, errors.MisuseError)
    assert [frame.name for frame in frames(error) if not frame.filename.startswith(OURS)][-1] == "call"
    assert frames(error)[-1].filename.startswith(OURS)


@pytest.mark.parametrize("denied", [False, True])
def test_an_error_of_a_step_shows_its_line(how: str, denied: bool, desk: Desk, refund: Any) -> None:
    desk.service.policy = lambda *_: Verdict.DENY

    def step(_: object) -> None:
        refund("o-1", 5)
        if not denied:
            raise errors.MisuseError("no such order")

    async def async_step(_: object) -> None:
        step(_)

    with pytest.raises(errors.Denied if denied else errors.MisuseError) as left:
        if how == "with":
            run_transaction(step, key="t-1", runtime=desk.runtime)
        else:
            asyncio.run(run_transaction(async_step, key="t-1", runtime=desk.runtime))
    assert len(ours(left.value)) == 1
    assert denied or frames(left.value)[-1].name == "step"
