"""Live tools that are asked about before they run, in front of the real service, and what it keeps of the answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from countersign import (
    Asks,
    Denied,
    ReviewRequired,
    Runtime,
    ServiceRefused,
    ServiceUnavailable,
    Settings,
    SQLiteAdapter,
    ToolRegistry,
    replay,
    tool,
    transaction,
)
from countersign.contract import names
from countersign.manifests.drafting import manifest_json
from countersign.tools.tool import tool_of
from examples.local_service import LocalService, free_port
from examples.person import Person
from tests.fakes.desk import notes_database, notes_in
from tests.house.repository import ROOT
from tests.integration.sdk.conftest import ROLE

POLICY = """
@id("desk-may-act")
permit (principal in Role::"support-agent", action, resource);

@id("long-notes-need-finance") @approval("finance")
forbid (principal, action == Action::"note", resource)
when { context.input.text like "*long*" };

@id("no-names") @doc("Names do not belong in notes. Write the customer's number.")
forbid (principal, action == Action::"note", resource)
when { context.input.text like "*Ada*" };
"""

Note = Callable[[str, str], None]


def live_note(notes: Path, registry: ToolRegistry, **draft: Any) -> Note:
    database = SQLiteAdapter(notes, name="notes")

    @tool("note", lane="live", adapter=database, resource=("Order", "order_id"), registry=registry, **draft)
    def note(order_id: str, text: str) -> None:
        """Write a note."""
        database.connection.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (order_id, text))

    return note


class Served(LocalService):
    """The service, and what its one agent knows."""

    settings: Settings


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("asking")
    bundle = folder / "bundle"
    (bundle / "tools").mkdir(parents=True)
    (bundle / "desk.cedar").write_text(POLICY)
    (bundle / "groups.toml").write_bytes((ROOT / "policies" / "groups.toml").read_bytes())
    draft = tool_of(live_note(folder / "none.db", ToolRegistry(), ask="live")).draft_manifest()
    (bundle / "tools" / "note.json").write_bytes(manifest_json(draft))
    with Served(folder / "service", bundle, port=free_port()) as service:
        service.settings = service.enroll("support", ROLE)
        yield service


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return notes_database(tmp_path)


@pytest.fixture
def agent(served: Served, tmp_path: Path) -> Iterator[Callable[..., Runtime]]:
    """Runtimes of the agent, each a process of its own as far as anybody can tell."""
    settings = replace(served.settings, journal_path=tmp_path / "journal.db", retry_base_seconds=0.01)
    made: list[Runtime] = []

    def start(registry: ToolRegistry, **options: Any) -> Runtime:
        made.append(Runtime(settings, registry=registry, **options))
        return made[-1]

    yield start
    for one in made:
        one.close()


SECONDS = 20.0  # that a test waits for what has to come, never for time to pass


def lines_about(served: Served, key: str, least: int = 0) -> list[dict[str, Any]]:
    """What somebody who investigates finds of a run key in the log, once at least so many lines have got there."""
    txn, until = names.txn_id(agent="support", run_key=key), time.monotonic() + SECONDS
    with Person(served.url) as maya:
        maya.sign_in(served.sign_in_link("maya"))
        while True:
            told = maya._get(f"{served.url}/audit/export.jsonl?about={txn}").text
            found = [json.loads(line)["record"] for line in told.splitlines() if line]
            if len(found) >= least or time.monotonic() > until:
                break
            time.sleep(0.05)
    return [one["body"] | {"kind": one["kind"], "actor": one["actor"]} for one in found]


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def test_what_the_policy_lets_go_runs_and_the_log_says_that_it_was_asked(
    served: Served, agent: Any, notes: Path, key: str
) -> None:
    registry = ToolRegistry()
    note = live_note(notes, registry)  # its code says nothing of asking: the reviewed manifest does
    with transaction(key, runtime=agent(registry)) as txn:
        note("o-1", "hello")
    assert (notes_in(notes), txn.state) == ([("o-1", "hello")], "settled")
    (line,) = lines_about(served, key, 1)
    assert (line["kind"], line["actor"], line["outcome"]) == ("live_decided", "agent:support", "release")
    assert line["args_digest"] == names.args_digest(args={"order_id": "o-1", "text": "hello"})


def test_a_denial_stops_it_with_the_policys_words_and_is_found_later(
    served: Served, agent: Any, notes: Path, key: str
) -> None:
    registry = ToolRegistry()
    note = live_note(notes, registry)
    with pytest.raises(Denied) as denied, transaction(key, runtime=agent(registry)):
        note("o-1", "hello")
        note("o-2", "Ada called")
    (reason,) = denied.value.reasons
    assert (reason.policy, reason.code) == ("no-names", "forbidden_by_policy")
    assert "Write the customer's number." in reason.text
    assert notes_in(notes) == []
    told = lines_about(served, key, 2)
    assert sorted((one["outcome"], tuple(one["policies"])) for one in told)[0] == ("deny", ("no-names",))
    assert "Ada" not in json.dumps(told), "the log holds digests, not what an agent wrote"


def test_what_people_would_decide_is_refused_and_opens_no_review(
    served: Served, agent: Any, notes: Path, key: str
) -> None:
    registry = ToolRegistry()
    note = live_note(notes, registry)
    with pytest.raises(ReviewRequired) as refused, transaction(key, wait=30, runtime=agent(registry)):
        note("o-1", "a long story")
    assert refused.value.asks == (Asks(("finance",), 1),)
    assert notes_in(notes) == []
    (line,) = lines_about(served, key, 1)
    assert (line["kind"], line["outcome"], line["gates"]) == (
        "live_decided",
        "review",
        ["long-notes-need-finance"],
    )


def test_async_in_threads_and_nested(served: Served, agent: Any, notes: Path, key: str) -> None:
    registry = ToolRegistry()
    database = SQLiteAdapter(notes, name="notes")

    @tool("note", lane="live", adapter=database, resource=("Order", "order_id"), registry=registry)
    async def note(order_id: str, text: str) -> None:
        """Write a note."""
        database.connection.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (order_id, text))

    async def step() -> None:
        async with transaction(key, runtime=agent(registry)) as txn:
            with txn.parallel():
                async with asyncio.TaskGroup() as group:
                    for number in range(3):
                        group.create_task(note(f"o-{number}", "hello"))
            with pytest.raises(Denied):
                async with transaction():
                    await note("o-8", "hello")
                    await note("o-9", "Ada called")

    asyncio.run(step())
    assert [order for order, _ in notes_in(notes)] == ["o-0", "o-1", "o-2"]
    assert sorted(one["outcome"] for one in lines_about(served, key, 5)) == ["deny", *["release"] * 4]


@pytest.mark.parametrize(("text", "runs"), [("hello", True), ("Ada called", False)])
def test_a_plain_tool_in_an_async_block_is_asked_about_on_its_own_thread(
    agent: Any, notes: Path, key: str, text: str, runs: bool
) -> None:
    registry = ToolRegistry()
    note = live_note(notes, registry)

    async def step() -> bool:
        async with transaction(key, runtime=agent(registry)) as txn:
            try:
                note("o-1", text)
                with txn.parallel():
                    await asyncio.to_thread(note, "o-2", text)
            except Denied:
                return False
            return True

    assert asyncio.run(step()) is runs
    assert [order for order, _ in notes_in(notes)] == (["o-1", "o-2"] if runs else [])


def test_a_service_that_is_away_lets_nothing_run(agent: Any, notes: Path, key: str) -> None:
    def away(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("nobody there")

    registry = ToolRegistry()
    note = live_note(notes, registry)
    cut_off = agent(registry, transport=httpx2.MockTransport(away))
    with pytest.raises(ServiceUnavailable), transaction(key, runtime=cut_off):
        note("o-1", "hello")
    with pytest.raises(ServiceUnavailable), transaction(key, dry_run=True, runtime=cut_off):
        note("o-1", "hello")
    assert notes_in(notes) == []


def test_a_tool_that_is_stopped_runs_nowhere(served: Served, agent: Any, notes: Path, key: str) -> None:
    registry = ToolRegistry()
    note = live_note(notes, registry)
    served.command("freeze", "tool", "note", "--reason", "it loops")
    try:
        with pytest.raises(ServiceRefused) as refused, transaction(key, runtime=agent(registry)):
            note("o-1", "hello")
    finally:
        served.command("unfreeze", "tool", "note")
    assert (refused.value.problem_code, notes_in(notes), lines_about(served, key)) == ("frozen", [], [])


def test_a_dry_run_asks_without_a_trace_and_a_replay_does_not_ask(
    served: Served, agent: Any, notes: Path, key: str
) -> None:
    registry = ToolRegistry()
    note = live_note(notes, registry)
    runtime = agent(registry)
    with transaction(key, dry_run=True, runtime=runtime) as trial:
        note("o-1", "hello")
    assert [one.tool for one in trial.result.live] == ["note"]
    with pytest.raises(Denied), transaction(key, dry_run=True, runtime=runtime):
        note("o-1", "Ada called")
    assert lines_about(served, key) == []
    with transaction(key, runtime=runtime):
        note("o-1", "hello")
    assert replay(key, lambda _: note("o-1", "hello"), runtime=runtime).status == "same"
    assert len(lines_about(served, key, 1)) == 1
