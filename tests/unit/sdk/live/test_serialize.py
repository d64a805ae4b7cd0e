"""Others who work on the same resources: who waits, within a process and between processes."""

import asyncio
import multiprocessing
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from countersign import FilesAdapter, MemoryAdapter, Serialize, errors, tool, transaction
from countersign.journal import Lease, ResourceLock
from countersign.manifests.drafts import manifest_json
from countersign.runtime import Runtime
from countersign.tools.registry import ToolRegistry
from countersign.tools.tool import tool_of
from examples.local_service import free_port
from tests.fakes.desk import Desk, refund_tool
from tests.unit.sdk.live.test_isolation import ON_BOTH, Agent

SPAWN = multiprocessing.get_context("spawn")
_PATIENCE_S = 30.0


# ------------------------------------------------------------------------------------------ between processes


def adding(registry: ToolRegistry, folder: Path, manifest: Path | None = None) -> Any:
    """A live tool on the numbers that lie below this folder."""
    files = FilesAdapter(folder, name="files")
    reviewed: dict[str, Any] = {"manifest": manifest, "resource": ("Key", "key")} if manifest else {}

    @tool("add", lane="live", adapter=files, registry=registry, **reviewed)
    def add(key: str, amount: int) -> int:
        total = int(files.read(key)) + amount if files.exists(key) else amount
        files.write(key, str(total).encode())
        return total

    if manifest:
        manifest.write_bytes(manifest_json(tool_of(add).draft_manifest()))
    return add


def work_too(settings: Any, folder: Path, pipe: Any) -> None:
    """Another process, waiting in the middle of a transaction for the signal to leave it."""
    registry = ToolRegistry()
    add = adding(registry, folder, folder.parent / "add.json")
    with (
        Runtime(settings, registry=registry) as runtime,
        transaction("theirs", isolation=Serialize(), runtime=runtime),
    ):
        pipe.send(add("n", 10))
        pipe.recv()


@contextmanager
def another_process(desk: Desk, folder: Path) -> Any:
    """A process with the same journal and folder, and the pipe for its commands and answers."""
    folder.mkdir()
    ours, theirs = SPAWN.Pipe()
    # Really without an answer: a developer's own service may.
    settings = replace(desk.runtime.settings, url=f"http://127.0.0.1:{free_port()}")
    child = SPAWN.Process(target=work_too, args=(settings, folder, theirs))
    child.start()
    try:
        yield child, ours
    finally:
        child.kill()
        child.join(_PATIENCE_S)
        ours.close()
        theirs.close()


def reported(pipe: Any) -> Any:
    assert pipe.poll(_PATIENCE_S), "the other process does not answer"
    return pipe.recv()


@ON_BOTH
@pytest.mark.parametrize("end", ["it is killed", pytest.param("it commits", marks=pytest.mark.long)])
def test_scenario_48_serialize_waits_for_another_process(desk: Desk, tmp_path: Path, end: str) -> None:
    add = adding(desk.registry, tmp_path / "root")
    with another_process(desk, tmp_path / "root") as (child, other):
        assert reported(other) == 10
        with pytest.raises(errors.ResourceBusy) as busy, desk.step("ours", isolation=Serialize(0.1)):
            raise AssertionError("it was let in")
        assert (busy.value.resource, busy.value.run_key) == ("files", "theirs")
        assert f"/{child.pid}/" in busy.value.holder and busy.value.waited == pytest.approx(0.1)
        assert "'files' is claimed by transaction 'theirs'" in str(busy.value)
        if end == "it is killed":
            child.kill()
            child.join(_PATIENCE_S)
        else:
            threading.Timer(0.1, other.send, ["leave"]).start()
        patience = Serialize(0.0) if end == "it is killed" else Serialize()
        with desk.step("ours", isolation=patience):  # the same key: it was left free
            assert add("n", 1) == (1 if end == "it is killed" else 11)  # what it committed, and no `Moved`


# ---------------------------------------------------------------------------------------------- Serialize


def memories(desk: Desk, *names: str) -> list[Any]:
    """An adapter of each of these names, with a live tool on it."""

    def memory(adapter: MemoryAdapter) -> Any:
        @tool(f"put_{adapter.name}", lane="live", adapter=adapter, registry=desk.registry)
        def put(key: str) -> None:
            adapter[key] = "x"

        return adapter, put

    return [memory(MemoryAdapter(name=name)) for name in names]


@ON_BOTH
def test_all_resources_are_locked_or_none_so_no_deadlock_occurs(desk: Desk) -> None:
    (x, _), (y, put_y) = memories(desk, "x", "y")
    first = Agent(desk, "first", isolation=Serialize(adapters=[x]))
    with pytest.raises(errors.ResourceBusy, match="'x' is claimed by transaction 'first'"):
        Agent(desk, "second", isolation=Serialize(0.0))  # both: those of all registered tools
    third = Agent(desk, "third", isolation=Serialize(0.0, adapters=[y]))  # the second one keeps nothing
    third.do(put_y, "k")
    third.leave()
    first.leave()
    Agent(desk, "second", isolation=Serialize(0.0)).leave()


@ON_BOTH
def test_of_two_that_saw_a_resource_free_one_takes_it(desk: Desk) -> None:
    """Reading takes no lock: the second transaction is refused as a whole, and one without its lease locks nothing."""
    journal, leases = desk.runtime.journal, []
    for txn in ("a", "b"):
        journal.transactions.open(txn=txn, agent="support", run_key=f"key-{txn}", independent=False)
        lease = journal.leases.acquire(txn)
        leases.append(lease)
    first, second = leases
    assert journal.resource_locks.first_held({"x", "y", "z"}) is None
    assert journal.resource_locks.take(first, {"x", "y"}) is None
    assert journal.resource_locks.take(first, {"x", "y"}) is None  # its own lock blocks no one
    assert journal.resource_locks.take(second, {"y", "z"}) == ResourceLock("y", "key-a", first.holder)
    assert journal.resource_locks.first_held({"z"}) is None
    journal.resource_locks.drop(second)
    assert journal.resource_locks.first_held({"x"}) == ResourceLock("x", "key-a", first.holder)
    journal.leases.release(first)
    assert journal.resource_locks.take(second, {"y", "z"}) is None
    again = journal.leases.acquire("a")  # another run of the first: what the one before had is not its own
    assert isinstance(again, Lease) and journal.resource_locks.first_held({"x"}) is None
    with pytest.raises(errors.LeaseLost):
        journal.resource_locks.take(first, {"x"})
    assert journal.resource_locks.take(again, {"y"}) == ResourceLock("y", "key-b", second.holder)


@ON_BOTH
@pytest.mark.parametrize("end", ["commits", "raises"])
def test_a_claim_ends_with_its_transaction(desk: Desk, end: str) -> None:
    ((_x, put),) = memories(desk, "x")
    for n in range(2):
        agent = Agent(desk, f"t-{n}", isolation=Serialize(0.0))
        agent.do(put, "k")
        if end == "commits":
            agent.leave()
        else:
            agent.do(agent._txn.__exit__, ValueError, ValueError("the body"), None)
        assert desk.runtime.journal.resource_locks.first_held({"x"}) is None


def test_no_lock_is_held_while_people_decide_or_staged_tools_run(desk: Desk) -> None:
    """With live effects the claim is held until they are committed; without any it is given up before the question."""
    ((_x, put),) = memories(desk, "x")
    refund, claims, seen = refund_tool(desk), desk.runtime.journal.resource_locks, []
    desk.before_fire = lambda _: seen.append(claims.first_held({"x"}))
    with desk.step("staged", isolation=Serialize(0.0)):
        assert claims.first_held({"x"}) is not None
        refund("o-1", 100)
    desk.run((put, "k"), (refund, "o-2", 100), key="live", isolation=Serialize(0.0))
    assert [None if one is None else one.run_key for one in seen] == [None, "live"]


def test_a_task_that_waits_lets_the_event_loop_go_on_and_may_stop_waiting(desk: Desk) -> None:
    ((x, put),) = memories(desk, "x")
    order: list[str] = []

    async def first(inside: asyncio.Event, go: asyncio.Event) -> None:
        async with desk.step("first", isolation=Serialize()):
            inside.set()
            await go.wait()
            order.append("first")

    async def second(text: str) -> None:
        async with desk.step("second", isolation=Serialize()):
            put(text)
            order.append("second")

    async def all_three() -> None:
        inside, go = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(first(inside, go))
            await inside.wait()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(second("cancelled"), 0.05)
            group.create_task(second("k"))  # the key was left free
            await asyncio.sleep(0.05)
            go.set()

    asyncio.run(all_three())
    assert order == ["first", "second"] and sorted(x.snapshot()) == ["k"]


@ON_BOTH
def test_a_journal_from_before_there_were_claims_is_given_their_table(desk: Desk) -> None:
    memories(desk, "x")
    with desk.runtime.journal.database.unit(durable=True) as unit:
        unit.execute("DROP TABLE claims")
    desk.runtime.journal.database.close()
    Agent(desk, "t-1", isolation=Serialize(0.0)).leave()


def test_a_dry_run_keeps_no_lock_and_waits_for_none(desk: Desk) -> None:
    ((x, put),) = memories(desk, "x")
    holder = Agent(desk, "first", isolation=Serialize())
    desk.run((put, "k"), key="t-1", dry_run=True, isolation=Serialize(0.0))
    assert x.snapshot() == {}
    holder.leave()


def test_an_adapter_that_was_not_claimed_is_refused(desk: Desk) -> None:
    (x, put_x), (_, put_y) = memories(desk, "x", "y")
    refused = pytest.raises(errors.NotStageable, match=r"'y' was not locked .* Serialize\(adapters=")
    with refused, desk.step("t-1", isolation=Serialize(adapters=[x])):
        put_x("k")
        put_y("k")
    assert x.snapshot() == {}
