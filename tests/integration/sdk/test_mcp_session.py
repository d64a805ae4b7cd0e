"""The tools of a real MCP server, in this process and over stdio, gated in front of the real service."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, ClientSession, ClientSessionGroup, StdioServerParameters
from mcp.client._memory import InMemoryTransport
from mcp.client.stdio import stdio_client

from countersign import (
    CountersignError,
    Denied,
    EffectFailed,
    MisuseError,
    NotStageable,
    OutcomeUnknown,
    RegistrationError,
    ReviewPending,
    Runtime,
    ToolRegistry,
    resume_async,
    tool,
    transaction,
)
from countersign.contract import call_key
from countersign.integrations import GatedSession, gate_mcp
from countersign.tools.tool import tool_of
from tests.conventions.repository import ROOT
from tests.fakes import warm
from tests.fakes.mcp_bank import REVIEWED, bank
from tests.fakes.model_vendors import vendor
from tests.fakes.talking import ASK, Talk
from tests.integration.sdk.conftest import Office

SMALL, LARGE = ({"account_id": "a-1", "amount_cents": cents} for cents in (100, 9000))
MINE = {"account_id": "a-1"}


@asynccontextmanager
async def session_with(way: str, written: Path) -> AsyncIterator[ClientSession | Client]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "sdk/python")])
    words = ["-m", "tests.fakes.mcp_bank", str(written)]
    started = StdioServerParameters(command=sys.executable, args=words, env={"PYTHONPATH": path})
    if way == "client":
        async with Client(bank(written)) as client:
            yield client
        return
    transport: Any = InMemoryTransport(bank(written)) if way == "memory" else stdio_client(started)
    async with transport as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        yield session


class Bank:
    """One test's server, gated for its agent."""

    def __init__(self, way: str, office: Office, folder: Path) -> None:
        self.way, self.office = way, office
        self.written = folder / "written"
        self.registry = ToolRegistry()
        self.runtime = Runtime(office.settings, registry=self.registry)

    def run(self, step: Callable[[GatedSession], Awaitable[Any]], **options: Any) -> Any:
        async def talk() -> Any:
            async with session_with(self.way, self.written) as session:
                try:  # inside: what leaves the block of a session is wrapped in a group
                    given: dict[str, Any] = {"only": REVIEWED, "server": "bank", **options}
                    return await step(await gate_mcp(session, runtime=self.runtime, **given)), None
                except CountersignError as error:
                    return None, error

        answer, error = asyncio.run(talk())
        if error is not None:
            raise error
        return answer

    def call(self, tool: str, args: dict[str, Any], key: str | None = None, **options: Any) -> Any:
        """One call outside a transaction."""
        more = {} if key is None else {"key": key}
        return self.run(lambda gated: gated.call_tool(tool, args, **more), **options)

    @property
    def done(self) -> list[list[Any]]:
        lines = self.written.read_text().splitlines() if self.written.exists() else []
        return [json.loads(line) for line in lines]


@pytest.fixture
def near_bank(office: Office, tmp_path: Path) -> Iterator[Bank]:
    one = Bank("memory", office, tmp_path)
    with one.runtime:
        yield one


@pytest.mark.parametrize("way", ["memory", "stdio", "client"])
def test_a_staged_call_reaches_the_server_with_its_call_key(near_bank: Bank, key: str, way: str) -> None:
    near_bank.way = way

    async def step(gated: GatedSession) -> Any:
        before = near_bank.done
        async with transaction(key, runtime=near_bank.runtime):
            sent = await gated.call_tool("transfer", SMALL)
            assert near_bank.done == before
        return sent.result

    named = call_key(agent="support", run_key=key, tool="transfer", args=SMALL, n=0)
    for _ in range(2):  # the same step from another session: found, not done again
        assert near_bank.run(step) == {"result": "t-a-1"}
        assert near_bank.done == [["transfer", "a-1", 100, named]]


def test_people_are_asked_before_the_server_hears_of_it(near_bank: Bank, key: str) -> None:
    with pytest.raises(ReviewPending, match=r"`await resume_async\(runtime\)`") as waiting:
        near_bank.call("transfer", LARGE, key)
    assert "countersign resume" not in str(waiting.value) and near_bank.done == []
    near_bank.office.approve(waiting.value)
    assert near_bank.call("transfer", LARGE, key) == {"result": "t-a-1"}
    assert len(near_bank.done) == 1


def test_what_is_parked_is_resumed_by_a_program_with_a_session(near_bank: Bank, key: str) -> None:
    with pytest.raises(ReviewPending) as waiting:
        near_bank.call("transfer", LARGE, key)
    near_bank.office.approve(waiting.value)
    with Runtime(near_bank.office.settings, registry=ToolRegistry()) as without:
        (found,) = [one for one in asyncio.run(resume_async(without)) if one.run_key == key]
    assert near_bank.done == [] and "once gate_mcp has its session: call resume_async" in found.note
    near_bank.run(lambda _: resume_async(near_bank.runtime))
    assert [one[0] for one in near_bank.done] == ["transfer"]


def test_a_server_error_is_unknown_unless_it_never_acts_first(near_bank: Bank, key: str) -> None:
    with pytest.raises(OutcomeUnknown, match="flaky"):
        near_bank.call("flaky", MINE, key)
    assert len(near_bank.done) == 1  # it had acted
    other = Bank("memory", near_bank.office, near_bank.written.parent)
    with other.runtime, pytest.raises(EffectFailed, match=r"McpToolError.*Error executing tool flaky"):
        other.call("flaky", MINE, f"{key}-2", failure_means="not_done")


UNFIT: dict[str, tuple[str, dict[str, Any], str]] = {
    "of another type": ("transfer", {"account_id": "a", "amount_cents": "99"}, "does not fit type"),
    "missing": ("transfer", {"account_id": "a"}, "amount_cents"),
    "not reviewed": ("transfer", {"account_id": "a", "amount_cents": 1, "memo": "x"}, "memo"),
    "of another shape": ("transfer", {"account_id": "a", "amount_cents": 1, "note": {"texts": 1}}, "note"),
    "of another shape within": ("anything", {"value": 1, "note": {"text": "x", "other": 1}}, "note"),
}


@pytest.mark.parametrize(("tool", "args", "says"), UNFIT.values(), ids=UNFIT)
def test_unfit_arguments_are_refused(tool: str, args: dict[str, Any], says: str, near_bank: Bank) -> None:
    with pytest.raises(NotStageable, match=says) as refused:
        near_bank.call(tool, args)
    assert "99" not in str(refused.value) and near_bank.done == []


def test_a_hostile_pattern_of_the_server_blocks_no_call(near_bank: Bank) -> None:
    with pytest.raises(NotStageable, match="does not fit pattern"):
        near_bank.call("tag", {"name": "a" * 5_000 + "!"}, only=["tag"])


def test_a_tool_that_cannot_be_reviewed_keeps_no_other_one_out(near_bank: Bank) -> None:
    async def step(gated: GatedSession) -> Any:
        assert set(gated.refused) == {"large", "read"}
        with pytest.raises(MisuseError, match=r"'large' cannot be reviewed.*maximum: 9223372036854775807"):
            await gated.call_tool("large", {"value": 1})
        return await gated.call_tool("balance", MINE)

    assert near_bank.run(step, only=None) == {"cents": 700}


@pytest.mark.parametrize(
    ("only", "says"), [(["balance", "large"], "cannot be reviewed"), (["loan"], "no tool")]
)
def test_a_named_tool_that_cannot_be_gated_is_refused(near_bank: Bank, only: list[str], says: str) -> None:
    with pytest.raises(RegistrationError, match=says):
        near_bank.call("balance", {}, only=only)


def test_free_and_recursive_arguments_wait_for_people_and_reach_the_server(near_bank: Bank, key: str) -> None:
    args = {"value": {"a": [{"b": None}]}, "note": {"text": "x", "below": [{"text": "y", "below": []}]}}
    with pytest.raises(ReviewPending) as waiting:
        near_bank.call("anything", args, key)
    near_bank.office.approve(waiting.value, by="ingrid")
    assert near_bank.call("anything", args, key) == {"result": "done"}
    assert near_bank.done[0][:3] == ["anything", args["value"], args["note"]]


def test_a_prefix_goes_before_each_name(near_bank: Bank) -> None:
    async def step(gated: GatedSession) -> Any:
        assert {tool_of(one).name for one in gated.tools} == {"bank.read", "bank.lend"}
        with pytest.raises(Denied, match="unknown_tool"):
            await gated.call_tool("read", MINE)

    near_bank.run(step, only=["read", "lend"], prefix="bank.")
    assert near_bank.done == []


@pytest.mark.parametrize("other", [None, "bank", ClientSessionGroup])
def test_what_is_no_session_is_refused_with_what_to_pass(near_bank: Bank, other: Any) -> None:
    given = other() if isinstance(other, type) else other
    with pytest.raises(MisuseError, match=r"an initialized mcp\.ClientSession or an entered mcp\.Client"):
        asyncio.run(gate_mcp(given, runtime=near_bank.runtime))


def test_an_unreviewed_tool_is_denied(near_bank: Bank) -> None:
    """Also one with an argument of a keyword's name."""
    for name, args in (("lend", MINE), ("statement", {"from": "2026-01-01"})):
        with pytest.raises(Denied, match="unknown_tool"):
            near_bank.call(name, args, only=[name])
    assert near_bank.done == []


@pytest.mark.parametrize("other", ["ours", "another bank", None])
def test_a_registered_name_is_refused(near_bank: Bank, other: str | None) -> None:
    if other == "ours":
        tool("balance", registry=near_bank.registry)(lambda account_id: None)
    else:
        near_bank.call("balance", MINE)
    mine = near_bank.registry.require("balance", "it was registered")
    with pytest.raises(RegistrationError, match="is registered already"):
        near_bank.call("balance", MINE, server="bank" if other == "ours" else other)
    assert near_bank.registry.require("balance", "it was registered") is mine


def test_a_key_belongs_to_a_call_outside_and_tools_are_known(near_bank: Bank, key: str) -> None:
    async def step(gated: GatedSession) -> None:
        with pytest.raises(MisuseError, match="no tool 'loan'; there are transfer, balance, flaky, anything"):
            await gated.call_tool("loan")
        async with transaction(key, runtime=near_bank.runtime):
            with pytest.raises(MisuseError, match="leave key= out"):
                await gated.call_tool("balance", {"account_id": "a"}, key="another")

    near_bank.run(step)


def test_a_model_calls_them_as_any_tool(near_bank: Bank, key: str) -> None:
    talk = Talk("anthropic-async")
    calls = talk.calls(("balance", MINE), ("transfer", {"account_id": "a-2", "amount_cents": 5}))

    async def step(gated: GatedSession) -> Any:
        given = {"model": "m", "max_tokens": 9, "messages": ASK, "key": key}
        given |= {"tools": gated.tools, "runtime": near_bank.runtime}
        with vendor(calls, talk.says("Done.")) as talk.vendor:
            return await talk._awaited(given, {})

    assert near_bank.run(step).text == "Done."
    assert talk.vendor.answers() == ['{"cents":700}', '{"result":"t-a-2"}']
    reported = {one["name"]: one["input_schema"] for one in talk.vendor.sent[0]["tools"]}
    schema = reported["transfer"]
    assert schema["additionalProperties"] is False and "ctx" not in schema["properties"]
    assert [one[0] for one in near_bank.done] == ["balance", "transfer"]


AGENT_PROGRAM = """
import asyncio, sys
from pathlib import Path
from countersign import Runtime, transaction

runtime = Runtime.from_env()

from mcp import ClientSession
from mcp.client._memory import InMemoryTransport
from mcp.types import Implementation
from countersign.integrations import gate_mcp
from tests.fakes.mcp_bank import REVIEWED, bank

async def main(written, key, only):
    who = Implementation(name="admin", version="1")
    async with InMemoryTransport(bank(Path(written))) as (read, write):
        async with ClientSession(read, write, client_info=who) as session:
            await session.initialize()
            gated = await gate_mcp(session, runtime=runtime, only=only or REVIEWED, server="bank")
            async with transaction(key, runtime=runtime):
                await gated.call_tool("transfer", {"account_id": "a-1", "amount_cents": 100})

asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
"""
WRONG_SETTINGS: dict[str, tuple[dict[str, str], tuple[str, ...], str]] = {
    "nothing is wrong": ({}, (), ""),
    "no address": ({"COUNTERSIGN_URL": ""}, (), "COUNTERSIGN_URL is not set"),
    "the name of another agent": ({"COUNTERSIGN_AGENT": "admin"}, (), "401 bad_proof"),
    "a tool the server does not have": ({}, ("vanished",), "has no tool 'vanished'"),
}


def agent_program(office: Office, folder: Path, *words: str, **environment: str) -> tuple[int, str]:
    """Run it as a process of its own: how it ended, and what it said."""
    known = office.environment | {"COUNTERSIGN_JOURNAL": str(folder / "program.db")}
    (folder / "agent.py").write_text(AGENT_PROGRAM)
    command = ("agent.py", str(folder / "written"), *words)
    paths = {"PYTHONPATH": warm.PATHS}
    done = warm.run(command, cwd=folder, env={**os.environ, **paths, **known, **environment})
    return done.returncode, done.stderr


@pytest.mark.parametrize(("environment", "only", "says"), WRONG_SETTINGS.values(), ids=WRONG_SETTINGS)
def test_scenario_65_a_wrong_setting_ends_the_program_with_an_error_and_the_server_hears_nothing(
    office: Office, tmp_path: Path, key: str, environment: dict[str, str], only: tuple[str, ...], says: str
) -> None:
    """A client that uses another's name, to the server or to the service, is refused."""
    code, reported = agent_program(office, tmp_path, key, *only, **environment)
    assert (code != 0) is bool(says) and says in reported, reported
    assert (tmp_path / "written").exists() is not bool(says)
