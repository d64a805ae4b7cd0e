"""Others who work on the same resources: who is stopped, who runs again, who waits."""

from __future__ import annotations

import asyncio
import contextvars
import multiprocessing
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from countersign import (
    Abort,
    FilesAdapter,
    MemoryAdapter,
    Retry,
    Runtime,
    Serialize,
    Settings,
    ToolRegistry,
    Transaction,
    errors,
    run_transaction,
    tool,
    transaction,
)
from countersign.adapters.contract import Resource
from countersign.journal import Claim, Lease
from countersign.manifests.drafting import manifest_json
from countersign.tools.tool import tool_of
from tests.fakes.desk import Desk, refund_tool
from tests.fakes.operated import free_port
from tests.unit.sdk.adapters.resources import FilesBelow, MemoryValues
from tests.unit.sdk.journals import BOTH

SPAWN = multiprocessing.get_context("spawn")
ON_BOTH = pytest.mark.parametrize("engine", BOTH)
_PATIENCE_S = 30.0


@pytest.fixture(params=["files", "memory"])
def resource(request: pytest.FixtureRequest, tmp_path: Path) -> Resource:
    return FilesBelow(tmp_path) if request.param == "files" else MemoryValues()


class Tools:
    """Live tools on one resource."""

    def __init__(self, desk: Desk, resource: Resource) -> None:
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

    def do(self, fn: Callable[..., Any], *given: Any) -> Any:
        return self._context.run(fn, *given)

    def leave(self) -> None:
        self.do(self._txn.__exit__, None, None, None)


def lists(desk: Desk) -> list[tuple[int, str]]:
    """Every live effect in the journal: of which list, and how it ended."""
    rows = desk.runtime.journal.database.rows(
        "SELECT staging, state FROM effects WHERE lane = 'live' ORDER BY staging, seq"
    )
    return [(row["staging"], row["state"]) for row in rows]


# ------------------------------------------------------------------------------------------ Abort, always


def test_scenario_45_of_two_that_add_to_one_number_one_commits(desk: Desk, resource: Resource) -> None:
    tools = Tools(desk, resource)
    resource.change_outside("n", "5")
    first, second = Agent(desk, "first"), Agent(desk, "second", isolation=Abort())
    assert (first.do(tools.add, "n", 1), second.do(tools.add, "n", 10)) == (6, 15)
    second.leave()
    with pytest.raises(errors.Moved) as moved:
        first.leave()
    assert resource.outside("n") == "15"
    told = moved.value
    assert (told.adapter, told.key, told.read) == (tools.adapter.name, "n", True)
    assert told.expected is not None and told.now is not None and told.expected != told.now
    assert f"was read at version {told.expected[:12]}" in str(told)
    assert f"it is now at version {told.now[:12]}" in str(told)
    assert sorted(lists(desk)) == [(1, "kept"), (1, "undone")]


@pytest.mark.parametrize("moved", ["n", "other"])
def test_scenario_46_what_i_read_and_then_write_is_no_conflict_and_what_another_writes_is(
    desk: Desk, resource: Resource, moved: str
) -> None:
    tools = Tools(desk, resource)
    with pytest.raises(errors.Moved, match="'n' of") if moved == "n" else nullcontext(), desk.step():
        assert [tools.add("n", 1), tools.add("n", 1), tools.add("m", 1)] == [1, 2, 1]
        resource.change_outside(moved, "7")  # nobody here has looked at the other one
    assert (resource.outside("n"), resource.outside(moved)) == ("7" if moved == "n" else "2", "7")


# ------------------------------------------------------------------------------------------ between processes


def adding(registry: ToolRegistry, folder: Path, manifest: Path | None = None) -> Callable[[str, int], int]:
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


def work_too(settings: Settings, folder: Path, pipe: Connection, isolation: Any) -> None:
    """Another process: in the middle of one transaction it waits until it is told to leave it."""
    registry = ToolRegistry()
    add = adding(registry, folder, folder.parent / "add.json")
    with Runtime(settings, registry=registry) as runtime:
        try:
            with transaction("theirs", isolation=isolation, runtime=runtime):
                pipe.send(add("n", 10))
                pipe.recv()
        except errors.Moved as moved:
            pipe.send(f"moved: {moved.key}")
        else:
            pipe.send("committed")


@contextmanager
def another_process(desk: Desk, folder: Path, isolation: Any) -> Iterator[tuple[Any, Connection]]:
    """A process with the same journal and the same folder; and the pipe on which it is told, and tells."""
    folder.mkdir()
    ours, theirs = SPAWN.Pipe()
    # Where really nobody answers: a developer's own service may.
    settings = replace(desk.runtime.settings, url=f"http://127.0.0.1:{free_port()}")
    child = SPAWN.Process(target=work_too, args=(settings, folder, theirs, isolation))
    child.start()
    try:
        yield child, ours
    finally:
        child.kill()
        child.join(_PATIENCE_S)
        ours.close()
        theirs.close()


def told(pipe: Connection) -> Any:
    assert pipe.poll(_PATIENCE_S), "the other process does not answer"
    return pipe.recv()


@ON_BOTH
@pytest.mark.long
@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_scenario_45_of_two_processes_that_add_one_commits(desk: Desk, tmp_path: Path, first: str) -> None:
    add = adding(desk.registry, tmp_path / "root")
    with another_process(desk, tmp_path / "root", Abort()) as (_, other):
        ours = Agent(desk, "ours")
        assert (ours.do(add, "n", 1), told(other)) == (1, 10)
        if first == "ours":
            ours.leave()
        other.send("leave")
        assert told(other) == ("moved: n" if first == "ours" else "committed")
        if first == "theirs":
            with pytest.raises(errors.Moved, match="'n' of"):
                ours.leave()
    assert (tmp_path / "root" / "n").read_text() == {"ours": "1", "theirs": "10"}[first]
    assert sorted(lists(desk)) == [(1, "kept"), (1, "undone")]


@ON_BOTH
@pytest.mark.parametrize("end", ["it is killed", pytest.param("it commits", marks=pytest.mark.long)])
def test_scenario_48_serialize_waits_for_another_process(desk: Desk, tmp_path: Path, end: str) -> None:
    add = adding(desk.registry, tmp_path / "root")
    with another_process(desk, tmp_path / "root", Serialize()) as (child, other):
        assert told(other) == 10
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


# -------------------------------------------------------------------------------------------------- Retry


def spoilt(desk: Desk, resource: Resource, spoils: int, isolation: Any) -> tuple[list[int], Any]:
    """A step that adds one, of which so many runs are spoilt by somebody else: what each saw, and how it ended."""
    tools, ran = Tools(desk, resource), list[int]()

    def step(txn: Transaction) -> int:
        ran.append(tools.add("n", 1))
        if len(ran) <= spoils:
            resource.change_outside("n", str(10 * len(ran)))
        return ran[-1]

    try:
        return ran, run_transaction(step, key="t-1", isolation=isolation, runtime=desk.runtime)
    except errors.Moved as moved:
        return ran, moved


@ON_BOTH
def test_scenario_47_a_spoilt_run_is_repeated_and_all_are_in_the_journal(
    desk: Desk, resource: Resource
) -> None:
    ran, answer = spoilt(desk, resource, 3, Retry(4))
    assert (ran, answer, resource.outside("n")) == ([1, 11, 21, 31], 31, "31")
    assert lists(desk) == [(1, "undone"), (2, "undone"), (3, "undone"), (4, "kept")]


@pytest.mark.parametrize(("isolation", "runs"), [(Retry(), 3), (Retry(2), 2), (Abort(), 1)])
def test_scenario_47_after_the_last_run_it_is_told_how_many_there_were(
    desk: Desk, resource: Resource, isolation: Retry | Abort, runs: int
) -> None:
    ran, moved = spoilt(desk, resource, 9, isolation)
    assert (len(ran), moved.attempts, resource.outside("n")) == (runs, runs, str(10 * runs))
    assert (f"in each of {runs} runs" in str(moved)) is (runs > 1)
    assert lists(desk) == [(n, "undone") for n in range(1, runs + 1)]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_run_in_another_world_may_stage_another_list(desk: Desk, is_async: bool) -> None:
    """Nobody was asked about what the spoilt runs staged; each refund follows from what was read."""
    resource = MemoryValues()
    tools, refund, ran = Tools(desk, resource), refund_tool(desk), list[int]()

    def step(txn: Transaction) -> None:
        ran.append(tools.add("n", 1))
        refund("o-1", ran[-1])
        if len(ran) < 4:
            resource.change_outside("n", str(10 * len(ran)))

    async def later(txn: Transaction) -> None:
        step(txn)

    retry: dict[str, Any] = {"key": "t-1", "isolation": Retry(4), "runtime": desk.runtime}
    if is_async:
        asyncio.run(run_transaction(later, **retry))
    else:
        run_transaction(step, **retry)
    assert desk.done == [("refund", "o-1", 31)]


# ---------------------------------------------------------------------------------------------- Serialize


def memories(desk: Desk, *names: str) -> list[Any]:
    """An adapter of each of these names, with a live tool on it."""

    def memory(adapter: MemoryAdapter) -> tuple[MemoryAdapter, Callable[[str], None]]:
        @tool(f"put_{adapter.name}", lane="live", adapter=adapter, registry=desk.registry)
        def put(key: str) -> None:
            adapter[key] = "x"

        return adapter, put

    return [memory(MemoryAdapter(name=name)) for name in names]


@ON_BOTH
def test_all_resources_are_taken_or_none_so_nobody_waits_in_a_circle(desk: Desk) -> None:
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
    """Looking is no taking: whoever comes second is refused as a whole, and one who lost his lease takes nothing."""
    journal, leases = desk.runtime.journal, []
    for txn in ("a", "b"):
        journal.transactions.open(txn=txn, agent="support", run_key=f"key-{txn}", independent=False)
        lease = journal.leases.acquire(txn)
        assert isinstance(lease, Lease)
        leases.append(lease)
    first, second = leases
    assert journal.claims.standing({"x", "y", "z"}) is None
    assert journal.claims.take(first, {"x", "y"}) is None
    assert journal.claims.take(first, {"x", "y"}) is None  # his own is in nobody's way
    assert journal.claims.take(second, {"y", "z"}) == Claim("y", "key-a", first.holder)
    assert journal.claims.standing({"z"}) is None
    journal.claims.drop(second)
    assert journal.claims.standing({"x"}) == Claim("x", "key-a", first.holder)
    journal.leases.release(first)
    assert journal.claims.take(second, {"y", "z"}) is None
    again = journal.leases.acquire("a")  # another run of the first: what the one before had is not its own
    assert isinstance(again, Lease) and journal.claims.standing({"x"}) is None
    with pytest.raises(errors.LeaseLost):
        journal.claims.take(first, {"x"})
    assert journal.claims.take(again, {"y"}) == Claim("y", "key-b", second.holder)


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
        assert desk.runtime.journal.claims.standing({"x"}) is None


def test_nobody_is_kept_waiting_while_only_people_or_staged_tools_are_at_work(desk: Desk) -> None:
    """With live effects the claim is held until they are committed; without any it is given up before the question."""
    ((_x, put),) = memories(desk, "x")
    refund, claims, seen = refund_tool(desk), desk.runtime.journal.claims, []
    desk.before_fire = lambda _: seen.append(claims.standing({"x"}))
    with desk.step("staged", isolation=Serialize(0.0)):
        assert claims.standing({"x"}) is not None
        refund("o-1", 100)
    with desk.step("live", isolation=Serialize(0.0)):
        put("k")
        refund("o-2", 100)
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
            task = asyncio.create_task(second("cancelled"))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
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


def test_a_dry_run_keeps_nothing_and_waits_for_nobody(desk: Desk) -> None:
    ((x, put),) = memories(desk, "x")
    holder = Agent(desk, "first", isolation=Serialize())
    with desk.step("t-1", dry_run=True, isolation=Serialize(0.0)):
        put("k")
    assert x.snapshot() == {}
    holder.leave()


# ------------------------------------------------------------------------------------------------ refusals


def test_an_adapter_that_was_not_claimed_is_refused(desk: Desk) -> None:
    (x, put_x), (_, put_y) = memories(desk, "x", "y")
    refused = pytest.raises(
        errors.NotStageable, match=r"'y' was not claimed .* Serialize\(adapters=\[\.\.\.\]\)"
    )
    with refused, desk.step("t-1", isolation=Serialize(adapters=[x])):
        put_x("k")
        put_y("k")
    assert x.snapshot() == {}


REFUSED: dict[str, tuple[Callable[[Desk], object], str]] = {
    "a block cannot run itself again": (
        lambda desk: desk.step("t", isolation=Retry(5)), "run_transaction(step, key=..., isolation=Retry(attempts=5))"),
    "a word is no policy": (lambda desk: desk.step("t", isolation="serialize"), "write isolation=Abort()"),
    "a class is no policy": (
        lambda desk: run_transaction(len, key="t", isolation=Retry, runtime=desk.runtime),  # type: ignore[call-overload]
        "is no policy"),
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
def test_what_cannot_be_kept_is_refused(desk: Desk, make: Callable[[Desk], object], said: str) -> None:
    assert (Retry(2).attempts, Retry(100).attempts, Serialize(0).timeout_seconds) == (2, 100, 0)
    with pytest.raises(errors.MisuseError, match=re.escape(said)):
        make(desk)


def test_an_inner_block_has_no_policy_of_its_own(desk: Desk) -> None:
    inner = transaction(isolation=Serialize(), runtime=desk.runtime)
    with pytest.raises(errors.MisuseError, match="one step is one transaction"), desk.step(), inner:
        raise AssertionError("it was let in")
