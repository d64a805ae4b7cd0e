"""Live tools that are asked about before they run, in front of the real service, and what it keeps of the answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from countersign import (
    Asks,
    Denied,
    ReviewRequired,
    Runtime,
    ServiceRefused,
    Settings,
    SQLiteAdapter,
    ToolRegistry,
    replay,
    tool,
    transaction,
)
from countersign.contract import names
from countersign.tools.tool import tool_of
from examples.local_service import LocalService, free_port
from examples.person import Person
from tests.fakes.desk import notes_database, notes_in
from tests.fakes.local_service import WarmService
from tests.integration.sdk.conftest import ROLE, bundle_of, until

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


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalService, Settings]]:
    """The service, and what its one agent knows."""
    folder = tmp_path_factory.mktemp("asking")
    draft = tool_of(live_note(folder / "none.db", ToolRegistry(), ask="live")).draft_manifest()
    bundle = bundle_of(folder / "bundle", POLICY, [draft])
    with WarmService(folder / "service", bundle, port=free_port()) as service:
        yield service, service.enroll("support", ROLE)


@pytest.fixture
def service(served: tuple[LocalService, Settings]) -> LocalService:
    return served[0]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return notes_database(tmp_path)


@pytest.fixture
def runtime(served: tuple[LocalService, Settings], tmp_path: Path) -> Iterator[Runtime]:
    settings = replace(served[1], journal_path=tmp_path / "journal.db", retry_base_seconds=0.01)
    with Runtime(settings, registry=ToolRegistry()) as one:
        yield one


@pytest.fixture
def note(notes: Path, runtime: Runtime) -> Note:
    """Its code says nothing of asking: the reviewed manifest does."""
    return live_note(notes, runtime.registry)


def lines_about(service: LocalService, key: str, least: int = 0) -> list[dict[str, Any]]:
    """What somebody who investigates finds of a run key in the log, once at least so many lines have got there."""
    txn, found = names.txn_id(agent="support", run_key=key), list[dict[str, Any]]()
    with Person(service.url) as maya:
        maya.sign_in(service.sign_in_link("maya"))

        def told() -> bool:
            lines = maya._get(f"{service.url}/audit/export.jsonl?about={txn}").text.splitlines()
            found[:] = [json.loads(line)["record"] for line in lines if line]
            return len(found) >= least

        until(told)
    return [one["body"] | {"kind": one["kind"], "actor": one["actor"]} for one in found]


def test_each_answer_is_kept_to_and_stands_in_the_log_by_digests(
    service: LocalService, runtime: Runtime, notes: Path, note: Note, key: str
) -> None:
    with transaction(key, runtime=runtime) as txn:
        note("o-1", "hello")
        with pytest.raises(Denied) as denied, transaction():
            note("o-2", "Ada called")
        with pytest.raises(ReviewRequired) as refused, transaction():
            note("o-3", "a long story")
    assert (notes_in(notes), txn.state) == ([("o-1", "hello")], "settled")
    (reason,) = denied.value.reasons
    assert (reason.policy, reason.code) == ("no-names", "forbidden_by_policy")
    assert "Write the customer's number." in reason.text
    assert refused.value.asks == (Asks(("finance",), 1),)
    told = {one["outcome"]: one for one in lines_about(service, key, 3)}
    assert {(one["kind"], one["actor"]) for one in told.values()} == {("live_decided", "agent:support")}
    assert told["release"]["args_digest"] == names.args_digest(args={"order_id": "o-1", "text": "hello"})
    assert (told["deny"]["policies"], told["review"]["gates"]) == (["no-names"], ["long-notes-need-finance"])
    assert "Ada" not in json.dumps(told), "the log holds digests, not what an agent wrote"


def test_a_tool_that_is_stopped_runs_nowhere(
    service: LocalService, runtime: Runtime, notes: Path, note: Note, key: str
) -> None:
    service.command("freeze", "tool", "note", "--reason", "it loops")
    try:
        with pytest.raises(ServiceRefused) as refused, transaction(key, runtime=runtime):
            note("o-1", "hello")
    finally:
        service.command("unfreeze", "tool", "note")
    assert (refused.value.problem_code, notes_in(notes), lines_about(service, key)) == ("frozen", [], [])


def test_a_dry_run_asks_without_a_trace_and_a_replay_does_not_ask(
    service: LocalService, runtime: Runtime, note: Note, key: str
) -> None:
    with transaction(key, dry_run=True, runtime=runtime) as trial:
        note("o-1", "hello")
    assert [one.tool for one in trial.result.live] == ["note"]
    with pytest.raises(Denied), transaction(key, dry_run=True, runtime=runtime):
        note("o-1", "Ada called")
    assert lines_about(service, key) == []
    with transaction(key, runtime=runtime):
        note("o-1", "hello")
    assert replay(key, lambda _: note("o-1", "hello"), runtime=runtime).status == "same"
    assert len(lines_about(service, key, 1)) == 1
