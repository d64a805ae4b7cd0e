"""Rehearsals from a terminal: `countersign plan`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from countersign.cli import app
from countersign.contract import Verdict
from countersign.contract.codes import DenyCode
from countersign.contract.wire import Reason
from countersign.tool import default_registry
from tests.fakes.desk import Desk
from tests.fakes.service_http import serving

MODULE = '''"""An agent that closes tickets."""

from countersign import MemoryAdapter, tool

memory = MemoryAdapter(name="notebook")


@tool("rehearsed_refund", resource=("Order", "order_id"), secret=["card"])
def refund(order_id: str, amount_cents: int, card: str) -> str:
    """Give money back."""
    raise AssertionError("fired")


@tool("rehearsed_note", lane="live", adapter=memory)
def note(text: str) -> None:
    """Write a note."""
    memory["note"] = text


def small(txn):
    print("a step may print")
    note("hello")
    refund("o-1", 100, "4111 1111")


async def large(txn):
    refund("o-1", 100, "4111 1111")
    refund("o-2", 6_000, "4111 1111")


def huge(txn):
    refund("o-2", 6_000, "4111 1111")
    refund("o-3", 600_000, "4111 1111")


def no_step():
    """Takes no transaction."""


nothing = 7
'''


def policy(_: str, args: dict[str, Any]) -> Verdict | tuple[Verdict, Reason]:
    if args["amount_cents"] > 500_000:
        return Verdict.DENY, Reason(code=DenyCode.FORBIDDEN_BY_POLICY, text="too much")
    return Verdict.REVIEW if args["amount_cents"] > 5_000 else Verdict.RELEASE


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    """The file of an agent, and a registry of its tools alone."""
    before = dict(default_registry._tools)
    default_registry._tools.clear()
    path = tmp_path / "rehearsed_agent.py"
    path.write_text(MODULE)
    yield path
    sys.modules.pop("rehearsed_agent", None)
    sys.path[:] = [entry for entry in sys.path if entry != str(tmp_path)]
    default_registry._tools.clear()
    default_registry._tools.update(before)


@pytest.fixture
def served(desk: Desk, agent: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """The desk's service over a socket, with the agent's tools reviewed."""
    with serving(desk.face) as url:
        desk.service.iss, desk.service.policy = url, policy
        desk.service._now = __import__("time").time
        monkeypatch.setenv("COUNTERSIGN_URL", url)
        monkeypatch.setenv("COUNTERSIGN_AGENT", desk.runtime.settings.agent)
        monkeypatch.setenv("COUNTERSIGN_KEY", str(desk.runtime.settings.key_path))
        monkeypatch.setenv("COUNTERSIGN_JOURNAL", str(desk.runtime.settings.journal_path))
        run("plan", f"{agent}:small")  # imports it
        found = default_registry.get("rehearsed_refund")
        assert found is not None
        desk.service.review([found.draft_manifest()])
        yield desk


def run(*args: str) -> Result:
    return CliRunner().invoke(app, list(args), catch_exceptions=False, env={"COLUMNS": "250"})


def test_a_plan_that_would_go_through_ends_with_zero_and_leaves_nothing(served: Desk, agent: Path) -> None:
    shown, told = run("plan", f"{agent}:small"), run("plan", f"{agent}:small", "--json")
    assert (shown.exit_code, told.exit_code) == (0, 0)
    plan = json.loads(told.stdout)
    assert (plan["format"], plan["clean"], plan["key"]) == ("countersign/plan/v1", True, "plan")
    (effect,) = plan["effects"]
    assert effect["args"] == {"order_id": "o-1", "amount_cents": 100, "card": "(secret)"}
    assert plan["changes"] == [
        {
            "adapter": "notebook",
            "changes": [{"key": "note", "what": "new", "before": None, "after": "hello"}],
        }
    ]
    for word in ("rehearsed_refund", "release", "notebook: note new", "nothing fired"):
        assert word in shown.stdout
    assert "4111" not in shown.output + told.output
    assert not served.runtime.settings.journal_path.exists()
    assert "a step may print" in told.stderr


@pytest.mark.parametrize(
    ("step", "status", "decisions"),
    [("large", 3, ["release", "review"]), ("huge", 1, ["review", "deny"])],
)
def test_the_exit_status_says_who_is_in_the_way(
    served: Desk, agent: Path, step: str, status: int, decisions: list[str]
) -> None:
    told = run("plan", f"{agent}:{step}", "--json", "--key", "case-1")
    assert told.exit_code == status
    plan = json.loads(told.stdout)
    assert (plan["key"], [one["decision"] for one in plan["effects"]]) == ("case-1", decisions)
    shown = run("plan", f"{agent}:{step}")
    assert (shown.exit_code, "asks finance" in shown.stdout) == (status, True)


def test_a_service_that_cannot_say_ends_with_four(served: Desk, agent: Path) -> None:
    served.face.faults["/v1/evaluations"] = [503] * 9
    told = run("plan", f"{agent}:large", "--json")
    assert told.exit_code == 4
    assert {one["decision"] for one in json.loads(told.stdout)["effects"]} == {"unknown"}


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("{agent}", "names no step; write MODULE:FUNCTION"),
        ("{agent}:", "names no step"),
        (":small", "names no step"),
        ("{agent}:2", "names no step"),
        ("{agent}:absent", "has no 'absent'"),
        ("{agent}:nothing", "is no step: a step is a function that takes the transaction"),
        ("{agent}:no_step", "write `def no_step(txn):`"),
        ("no_such_agent:step", "no module 'no_such_agent'"),
        ("{folder}/gone.py:step", "no file"),
        ("{folder}/broken.py:step", "broken.py:2: ZeroDivisionError"),
    ],
)
def test_what_is_no_step_is_refused_with_what_to_write(agent: Path, target: str, said: str) -> None:
    (agent.parent / "broken.py").write_text("\n_ = 1 / 0\n")
    result = run("plan", target.format(agent=agent, folder=agent.parent))
    assert result.exit_code == 1
    assert said in result.stderr
    assert result.stderr.startswith("misuse: ")
