"""What is known of a call is on the disk before anything that may take its time: a pause, a sibling, a renewal."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from countersign import (
    DidNotHappen,
    NotDone,
    OutcomeUnknown,
    Placeholder,
    ProbeAnswer,
    probe,
    resume,
    tool,
    transaction,
)
from countersign.journal import LocalTxn
from countersign.waiting import SyncWaits
from tests.fakes.desk import Desk, charge_tools, failing_tool, refund_tool
from tests.unit.sdk.commit.test_failure_path import states

SECONDS = 20.0


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What happens in each pause between two tries, in place of waiting."""
    meanwhile: list[Callable[[], None]] = []

    async def sleep(_: SyncWaits, seconds: float) -> None:
        if meanwhile:
            meanwhile.pop(0)()

    monkeypatch.setattr(SyncWaits, "sleep", sleep)
    return meanwhile


def flaky_tool(desk: Desk, fails: int = 1, **options: Any) -> Callable[[str], Placeholder[str]]:
    """An idempotent tool whose first calls are cut."""
    left = [ConnectionError("503")] * fails

    @tool("label", resource=("Order", "order_id"), idempotent=True, registry=desk.registry, **options)
    def label(order_id: str) -> str:
        """Set a label."""
        desk.act("label", order_id)
        if left:
            raise left.pop()
        return order_id

    desk.publish(label)
    return label


def raises(error: BaseException) -> Callable[[], None]:
    def raising() -> None:
        raise error

    return raising


def test_what_has_happened_is_written_before_a_sibling_is_tried_again(
    desk: Desk, paused: list[Callable[[], None]]
) -> None:
    refund, label, seen = refund_tool(desk), flaky_tool(desk, fails=2), []
    refused = failing_tool(desk, NotDone("no"), "mail", acts=False, on_exhausted="tool")
    paused += [lambda: seen.append(states(desk, "t-1"))] * 2
    with transaction("t-1", runtime=desk.runtime) as txn, txn.parallel():
        refund("o-1", 1)
        label("o-1")
        refused("o-1")
    assert seen == [{"refund#1": "fired", "label#2": "firing", "mail#3": "failed"}] * 2
    assert states(desk, "t-1") == {"refund#1": "fired", "label#2": "fired", "mail#3": "failed"}


def test_a_process_that_dies_in_the_pause_has_nothing_to_ask_people(
    desk: Desk, paused: list[Callable[[], None]]
) -> None:
    class DiedError(BaseException):
        pass

    refund, label = refund_tool(desk), flaky_tool(desk)

    def nothing_more(*_: Any) -> None:
        raise DiedError

    def dies() -> None:
        desk.runtime.journal.firing.write = nothing_more  # type: ignore[method-assign]
        raise DiedError

    paused.append(dies)
    with pytest.raises(DiedError), transaction("t-1", runtime=desk.runtime) as txn, txn.parallel():
        refund("o-1", 1)
        label("o-1")
    desk.runtime.journal.leases.close()
    with desk.restarted() as later:
        (found,) = resume(later.runtime)
    assert found.after is LocalTxn.SETTLED
    assert [one[0] for one in desk.done if one[0] == "refund"] == ["refund"]


@pytest.mark.parametrize("first", [True, False])
def test_what_has_happened_is_written_while_a_sibling_still_runs(desk: Desk, first: bool) -> None:
    refund, seen, go_on = refund_tool(desk), [], threading.Event()

    @tool("slow", resource=("Order", "order_id"), registry=desk.registry)
    def slow(order_id: str) -> None:
        """Take its time, and look at the disk meanwhile."""
        until = threading.Event()
        for _ in range(int(SECONDS / 0.005)):
            if "fired" in on_disk(desk) and "failed" in on_disk(desk):
                break
            until.wait(0.005)
        seen.extend(sorted(on_disk(desk)))

    desk.publish(slow)
    refused = failing_tool(desk, NotDone("no"), "mail", acts=False, on_exhausted="tool")
    with transaction("t-1", runtime=desk.runtime) as txn, txn.parallel():
        if first:
            slow("o-1")
        refund("o-1", 1)
        refused("o-1")
        if not first:
            slow("o-1")
    assert seen == ["failed", "fired", "firing"]
    assert sorted(states(desk, "t-1").values()) == ["failed", "fired", "fired"]
    go_on.set()


def test_in_asyncio_too(desk: Desk) -> None:
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

    async def body() -> None:
        async with transaction("t-1", runtime=desk.runtime) as txn:
            with txn.parallel():
                await slow("o-1")
                await quick("o-1")

    asyncio.run(body())
    assert seen == ["fired", "firing"]


def on_disk(desk: Desk) -> list[str]:
    """Through a connection of our own."""
    with closing(sqlite3.connect(desk.runtime.settings.journal_path)) as journal:
        return [state for (state,) in journal.execute("SELECT state FROM effects")]


def test_a_group_that_ends_together_costs_no_commit_more(desk: Desk) -> None:
    charge, together = charge_tools(desk), threading.Barrier(2, timeout=SECONDS)
    desk.before_fire = lambda _: together.wait() and None
    with transaction("alone", runtime=desk.runtime):
        pass
    written: list[int] = []
    write = desk.runtime.journal.firing.write

    def counted(*given: Any) -> None:
        written.append(len(given[2]))
        write(*given)

    desk.runtime.journal.firing.write = counted  # type: ignore[method-assign]
    with transaction("t-1", runtime=desk.runtime) as txn, txn.parallel():
        charge("o-1", 1)
        charge("o-2", 2)
    assert sum(written) == 2 and len(written) <= 2


def test_what_has_happened_is_written_before_more_time_is_asked_for(desk: Desk) -> None:
    """A renewal is a request, and the service may be slow to answer it."""
    seen: list[dict[str, str]] = []
    refund = refund_tool(desk)
    checked = failing_tool(desk, NotDone("no"), "check", acts=False, changes={"recheck": True})
    desk.face.faults["/v1/redemptions/"] = [lambda: seen.append(states(desk, "t-1"))]
    with pytest.raises(Exception, match="check did not happen"), transaction("t-1", runtime=desk.runtime):
        refund("o-1", 1)
        checked("o-1")
    assert seen == [{"refund#1": "fired", "check#2": "redeemed"}]


def test_a_try_that_had_ended_is_not_left_running_by_ctrl_c_in_the_pause_after_it(
    desk: Desk, paused: list[Callable[[], None]]
) -> None:
    @probe("find_label", registry=desk.registry)
    def find_label() -> ProbeAnswer:
        """It is not there, and never will be."""
        return DidNotHappen(final=True)

    label = flaky_tool(desk, fails=3, probe="find_label")
    paused.append(raises(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt), transaction("t-1", runtime=desk.runtime) as txn:
        label("o-1")
    (row,) = desk.runtime.journal.transactions.effects(desk.runtime.journal.transactions.require(txn.txn))
    assert (row.state, row.error) == ("unknown", "ConnectionError: 503")
    resume(desk.runtime)
    assert states(desk, "t-1") == {"label#1": "failed"}
    assert len(desk.done) == 1


def test_a_try_that_was_cut_by_ctrl_c_was_left_running_though_one_before_it_had_ended(
    desk: Desk, paused: list[Callable[[], None]]
) -> None:
    errors: list[BaseException] = [ConnectionError("503"), KeyboardInterrupt()]

    @tool("label", resource=("Order", "order_id"), idempotent=True, registry=desk.registry)
    def label(order_id: str) -> None:
        """Fail, then be interrupted."""
        raise errors.pop(0)

    desk.publish(label)
    with pytest.raises(KeyboardInterrupt), transaction("t-1", runtime=desk.runtime) as txn:
        label("o-1")
    (row,) = desk.runtime.journal.transactions.effects(desk.runtime.journal.transactions.require(txn.txn))
    assert row.error == "left running (interrupted by KeyboardInterrupt)"


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
    with transaction("t-1", runtime=desk.runtime) as txn, txn.parallel():
        refund("o-1", 1)
        slow("o-1")
    assert states(desk, "t-1") == {"refund#1": "fired", "slow#2": "fired"}


def test_a_journal_that_stays_broken_leaves_the_group_firing(desk: Desk) -> None:
    refund, slow = refund_tool(desk), charge_tools(desk)

    def broken(*_: Any) -> None:
        with desk.runtime.journal.database.told():
            raise sqlite3.OperationalError("disk I/O error")

    desk.runtime.journal.firing.write = broken  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown), transaction("t-1", runtime=desk.runtime) as txn, txn.parallel():
        refund("o-1", 1)
        slow("o-1", 2)
    assert states(desk, "t-1") == {"refund#1": "firing", "charge#2": "firing"}
