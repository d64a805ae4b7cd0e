"""What is known of a call is on the disk before anything that may take its time: a pause, a sibling, a renewal."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from countersign import DidNotHappen, NotDone, OutcomeUnknown, probe, resume, tool
from countersign.journal import LocalTxn
from countersign.waiting import SyncWaits
from tests.fakes.desk import Desk, answering_tool, effect_rows, failing_tool, refund_tool, states

SECONDS = 20.0


CUT = ConnectionError("503")
IDEMPOTENT: dict[str, Any] = {"name": "label", "idempotent": True}


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What happens in each pause between two tries, in place of waiting."""
    meanwhile: list[Callable[[], None]] = []

    async def sleep(_: SyncWaits, seconds: float) -> None:
        if meanwhile:
            meanwhile.pop(0)()

    monkeypatch.setattr(SyncWaits, "sleep", sleep)
    return meanwhile


def test_what_has_happened_is_written_before_a_sibling_is_tried_again(
    desk: Desk, paused: list[Callable[[], None]]
) -> None:
    refund, label, seen = refund_tool(desk), answering_tool(desk, CUT, CUT, "ok", **IDEMPOTENT), []
    refused = failing_tool(desk, NotDone("no"), "mail", acts=False, on_exhausted="tool")
    paused += [lambda: seen.append(states(desk))] * 2
    with desk.step() as txn, txn.parallel():
        refund("o-1", 1)
        label("o-1")
        refused("o-1")
    assert seen == [{"refund#1": "fired", "label#2": "firing", "mail#3": "failed"}] * 2
    assert states(desk) == {"refund#1": "fired", "label#2": "fired", "mail#3": "failed"}


def test_a_process_that_dies_in_the_pause_has_nothing_to_ask_people(
    desk: Desk, paused: list[Callable[[], None]]
) -> None:
    class DiedError(BaseException):
        pass

    refund, label = refund_tool(desk), answering_tool(desk, CUT, "ok", **IDEMPOTENT)

    def nothing_more(*_: Any) -> None:
        raise DiedError

    def dies() -> None:
        desk.runtime.journal.firing.write = nothing_more  # type: ignore[method-assign]
        raise DiedError

    paused.append(dies)
    with pytest.raises(DiedError), desk.step() as txn, txn.parallel():
        refund("o-1", 1)
        label("o-1")
    desk.runtime.journal.leases.close()
    with desk.restarted() as later:
        (found,) = resume(later.runtime)
    assert found.after is LocalTxn.SETTLED
    assert [one[0] for one in desk.done if one[0] == "refund"] == ["refund"]


@pytest.mark.parametrize("first", [True, False])
def test_what_has_happened_is_written_while_a_sibling_still_runs(desk: Desk, first: bool) -> None:
    refund, seen = refund_tool(desk), list[str]()

    @tool("slow", resource=("Order", "order_id"), registry=desk.registry)
    def slow(order_id: str) -> None:
        """Take its time, and look at the disk meanwhile."""
        for _ in range(int(SECONDS / 0.005)):
            if {"fired", "failed"} <= {*on_disk(desk)}:
                break
            threading.Event().wait(0.005)
        seen.extend(sorted(on_disk(desk)))

    desk.publish(slow)
    refused = failing_tool(desk, NotDone("no"), "mail", acts=False, on_exhausted="tool")
    with desk.step() as txn, txn.parallel():
        if first:
            slow("o-1")
        refund("o-1", 1)
        refused("o-1")
        if not first:
            slow("o-1")
    assert seen == ["failed", "fired", "firing"]
    assert sorted(states(desk).values()) == ["failed", "fired", "fired"]


async def test_in_asyncio_too(desk: Desk) -> None:
    seen: list[str] = []

    @tool("quick", resource=("Order", "order_id"), registry=desk.registry)
    async def quick(order_id: str) -> str:
        """Return at once."""
        return order_id

    @tool("slow", resource=("Order", "order_id"), registry=desk.registry)
    async def slow(order_id: str) -> None:
        """Take its time."""
        for _ in range(int(SECONDS / 0.005)):
            if "fired" in on_disk(desk):
                break
            await asyncio.sleep(0.005)
        seen.extend(sorted(on_disk(desk)))

    desk.publish(quick, slow)
    async with desk.step() as txn:
        with txn.parallel():
            await slow("o-1")
            await quick("o-1")
    assert seen == ["fired", "firing"]


def on_disk(desk: Desk) -> list[str]:
    """Through a connection of our own."""
    with closing(sqlite3.connect(desk.runtime.settings.journal_path)) as journal:
        return [state for (state,) in journal.execute("SELECT state FROM effects")]


def test_what_has_happened_is_written_before_more_time_is_asked_for(desk: Desk) -> None:
    """A renewal is a request, and the service may be slow to answer it."""
    seen: list[dict[str, str]] = []
    refund = refund_tool(desk)
    checked = failing_tool(desk, NotDone("no"), "check", acts=False, changes={"recheck": True})
    desk.face.faults["/v1/redemptions/"] = [lambda: seen.append(states(desk))]
    with pytest.raises(Exception, match="check did not happen"), desk.step():
        refund("o-1", 1)
        checked("o-1")
    assert seen == [{"refund#1": "fired", "check#2": "redeemed"}]


def test_a_try_that_had_ended_is_not_left_running_by_ctrl_c_in_the_pause_after_it(
    desk: Desk, paused: list[Callable[[], None]]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    probe("find_label", registry=desk.registry)(lambda: DidNotHappen(final=True))
    label = answering_tool(desk, CUT, probe="find_label", **IDEMPOTENT)
    paused.append(interrupted)
    with pytest.raises(KeyboardInterrupt), desk.step():
        label("o-1")
    assert [(row.state, row.error) for row in effect_rows(desk)] == [("unknown", "ConnectionError: 503")]
    resume(desk.runtime)
    assert (states(desk), len(desk.done)) == ({"label#1": "failed"}, 1)


@pytest.mark.usefixtures("paused")
def test_a_try_that_was_cut_by_ctrl_c_was_left_running_though_one_before_it_had_ended(desk: Desk) -> None:
    label = answering_tool(desk, CUT, KeyboardInterrupt(), **IDEMPOTENT)
    with pytest.raises(KeyboardInterrupt), desk.step():
        label("o-1")
    assert effect_rows(desk)[0].error == "left running (interrupted by KeyboardInterrupt)"


@pytest.mark.parametrize("stands", [True, False], ids=["it was written", "it was not"])
def test_a_journal_that_fails_while_a_sibling_runs_ends_no_sibling(desk: Desk, stands: bool) -> None:
    """What could not be written then is written when all have ended, where it is not there."""
    refund, ended = refund_tool(desk), threading.Event()
    write, errors = desk.runtime.journal.firing.write, [sqlite3.OperationalError("disk I/O error")]

    @tool("slow", resource=("Order", "order_id"), registry=desk.registry)
    def slow(order_id: str) -> str:
        """End after the journal has failed."""
        assert ended.wait(SECONDS)
        return order_id

    desk.publish(slow)

    def broken(*given: Any) -> None:
        if errors:
            if stands:
                write(*given)  # and the answer to COMMIT was lost
            ended.set()
            with desk.runtime.journal.database.told():
                raise errors.pop()
        write(*given)

    desk.runtime.journal.firing.write = broken  # type: ignore[method-assign]
    with desk.step() as txn, txn.parallel():
        refund("o-1", 1)
        slow("o-1")
    assert states(desk) == {"refund#1": "fired", "slow#2": "fired"}


def test_a_journal_that_stays_broken_leaves_the_group_firing(desk: Desk) -> None:
    refund = refund_tool(desk)

    def broken(*_: Any) -> None:
        with desk.runtime.journal.database.told():
            raise sqlite3.OperationalError("disk I/O error")

    desk.runtime.journal.firing.write = broken  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown), desk.step() as txn, txn.parallel():
        refund("o-1", 1)
        refund("o-2", 2)
    assert states(desk) == {"refund#1": "firing", "refund#2": "firing"}
