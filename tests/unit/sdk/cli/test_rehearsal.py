"""Rehearsals from a terminal: `countersign plan` and `countersign journal replay`; and what recovers a journal."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from countersign import ReviewPending, Runtime, run_transaction
from countersign.cli.app import app
from countersign.cli.dry_run import load_step
from countersign.contract import Verdict
from countersign.contract.codes import DenyCode
from countersign.contract.wire import Reason
from countersign.tools.tool import default_registry
from tests.fakes.desk import Desk

MODULE = '''"""An agent that closes tickets."""
from pathlib import Path
from countersign import MemoryAdapter, tool
memory = MemoryAdapter(name="notebook")
@tool("rehearsed_refund", resource=("Order", "order_id"), secret=["card"])
def refund(order_id: str, amount_cents: int, card: str) -> str:
    raise AssertionError("fired")
@tool("rehearsed_note", lane="live", adapter=memory)
def note(text: str) -> None:
    memory["note"] = text
@tool("rehearsed_watched", lane="live", adapter=memory, resource=("Note", "const:n"), ask="live")
def watched(text: str) -> None:
    memory["watched"] = text
@tool("rehearsed_pay", resource=("Order", "order_id"))
def pay(order_id: str, amount_cents: int) -> str:
    with Path(__file__).with_name("paid.txt").open("a") as file:
        file.write(f"{order_id} {amount_cents}\\n")
    return f"n-{order_id}"
@tool("rehearsed_measure", lane="live", adapter=memory)
def measure() -> int:
    return 100
def watches(txn):
    watched("hello")
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
def pays(txn):
    pay("o-1", 100)
def pays_more(txn):
    print("a step may print")
    pay("o-1", 200)
def notes_a_length(txn):
    pay("o-1", measure())
def measures_twice(txn):
    pay("o-1", measure())
    measure()
def no_step(): ...
nothing = 7
'''


def policy(_: str, args: dict) -> Verdict | tuple[Verdict, Reason]:
    if args["amount_cents"] > 500_000:
        return Verdict.DENY, Reason(code=DenyCode.FORBIDDEN_BY_POLICY, text="too much")
    return Verdict.REVIEW if args["amount_cents"] > 5_000 else Verdict.RELEASE


@pytest.fixture
def agent(tmp_path, own_registry: None) -> Path:
    path = tmp_path / "rehearsed_agent.py"
    path.write_text(MODULE)
    return path


@pytest.fixture
def served(operated: Desk, agent: Path) -> Desk:
    """The service with the agent's tools reviewed."""
    operated.service.policy = policy
    run("plan", f"{agent}:small")  # imports it
    for one in ("rehearsed_refund", "rehearsed_pay"):
        operated.service.review([default_registry.require(one, "it is published").draft_manifest()])
    return operated


def run(*args: str) -> Result:
    return CliRunner().invoke(app, list(args), catch_exceptions=False, env={"COLUMNS": "250"})


def plan(agent: Path, step: str, *args: str) -> Result:
    return run("plan", f"{agent}:{step}", *args)


def test_a_plan_that_would_go_through_ends_with_zero_and_leaves_nothing(served: Desk, agent: Path) -> None:
    shown, as_json = plan(agent, "small"), plan(agent, "small", "--json")
    assert (shown.exit_code, as_json.exit_code) == (0, 0)
    found = json.loads(as_json.stdout)
    assert (found["format"], found["clean"], found["key"]) == ("countersign/plan/v1", True, "plan")
    (effect,) = found["effects"]
    assert effect["args"] == {"order_id": "o-1", "amount_cents": 100, "card": "(secret)"}
    made = {"key": "note", "what": "new", "before": None, "after": "hello"}
    assert found["changes"] == [{"adapter": "notebook", "changes": [made]}]
    for word in ("rehearsed_refund", "release", "notebook: note new", "nothing fired"):
        assert word in shown.stdout
    assert "4111" not in shown.output + as_json.output and "a step may print" in as_json.stderr
    assert not served.runtime.settings.journal_path.exists()


EXITS = [("large", 3, ["release", "review"]), ("huge", 1, ["review", "deny"])]


@pytest.mark.parametrize(("step", "status", "decisions"), EXITS)
@pytest.mark.usefixtures("served")
def test_the_exit_status_gives_the_reason(agent: Path, step: str, status: int, decisions: list[str]) -> None:
    as_json, shown = plan(agent, step, "--json", "--key", "case-1"), plan(agent, step)
    found = json.loads(as_json.stdout)
    assert (found["key"], [one["decision"] for one in found["effects"]]) == ("case-1", decisions)
    assert (as_json.exit_code, shown.exit_code, "asks finance" in shown.stdout) == (status, status, True)


def test_a_service_that_cannot_say_ends_with_four(served: Desk, agent: Path) -> None:
    served.face.faults["/v1/evaluations"] = [503] * 9
    as_json = plan(agent, "large", "--json")
    decisions = {one["decision"] for one in json.loads(as_json.stdout)["effects"]}
    assert (as_json.exit_code, decisions) == (4, {"unknown"})


REFUSED_LIVE = [
    (Verdict.RELEASE, 0, ""),
    (Verdict.DENY, 1, "denied: "),
    (Verdict.REVIEW, 3, "review_required: "),
    (None, 4, "service_unavailable: "),
]


@pytest.mark.parametrize(("verdict", "status", "says"), REFUSED_LIVE)
def test_live_calls_exit_as_staged_ones(served: Desk, agent: Path, verdict, status: int, says: str) -> None:
    load_step(f"{agent}:watches")
    watched = default_registry.require("rehearsed_watched", "it is published")
    served.service.review([watched.draft_manifest()])
    served.face.faults["/v1/evaluations"] = [503] * 9 if verdict is None else []
    served.service.policy = lambda *_: verdict
    result = plan(agent, "watches")
    assert (result.exit_code, result.stderr[: len(says)]) == (status, says)


NO_STEPS = [
    ("{agent}", "names no step; write MODULE:FUNCTION"),
    ("{agent}:", "names no step"),
    (":small", "names no step"),
    ("{agent}:2", "names no step"),
    ("{agent}:absent", "has no 'absent'"),
    ("{agent}:nothing", "takes the function itself and calls it, this is"),
    ("{agent}:no_step", "write `def no_step(txn):`"),
    ("no_such_agent:step", "no module 'no_such_agent'"),
    ("{folder}/gone.py:step", "no file"),
    ("{folder}/broken.py:step", "broken.py:2: ZeroDivisionError"),
]


@pytest.mark.parametrize(("target", "said"), NO_STEPS)
def test_what_is_no_step_is_refused_with_what_to_write(agent: Path, target: str, said: str) -> None:
    (agent.parent / "broken.py").write_text("\n_ = 1 / 0\n")
    result = run("plan", target.format(agent=agent, folder=agent.parent))
    assert (result.exit_code, result.stderr[:8], said in result.stderr) == (2, "misuse: ", True)


def test_an_exception_in_a_step_is_one_line_and_no_denial(served: Desk, agent: Path) -> None:
    raising = agent.with_name("raising.py")
    raising.write_text("def step(txn):\n    vault = 'tok_SECRET'\n    raise ValueError('no vault')\n")
    result = plan(raising, "step")
    assert (result.exit_code, result.stdout, "tok_SECRET" in result.stderr) == (2, "", False)
    assert "the step raised ValueError: no vault" in result.stderr and "raising.py:3" in result.stderr


def record(agent: Path, step: str, key: str = "case-1") -> None:
    """Run a step of the agent in earnest."""
    with Runtime.from_env() as runtime:
        run_transaction(load_step(f"{agent}:{step}"), key=key, runtime=runtime)


def replayed(agent: Path, step: str, *args: str) -> Result:
    return run("journal", "replay", "case-1", "--step", f"{agent}:{step}", *args)


def test_a_replay_ends_with_zero_where_the_step_does_what_was_recorded(served: Desk, agent: Path) -> None:
    record(agent, "pays")
    out = agent.parent / "export.json"
    assert run("journal", "export", "--out", str(out)).exit_code == 0
    journal = ("--journal", str(served.runtime.settings.journal_path))
    for more in ((), ("--mode", "reconstruct"), journal, ("--from", str(out))):
        shown, as_json = replayed(agent, "pays", *more), replayed(agent, "pays", *more, "--json")
        assert (shown.exit_code, as_json.exit_code, "same; nothing fired" in shown.stdout) == (0, 0, True)
        found = json.loads(as_json.stdout)
        assert (found["format"], found["status"]) == ("countersign/replay/v1", "same")
        (one,) = found["outcomes"]
        assert (one["tool"], one["outcome"], one["result"]) == ("rehearsed_pay", "fired", '"n-o-1"')
    out.write_text(out.read_text().replace("n-o-1", "n-o-2"))
    refused = replayed(agent, "pays", "--from", str(out))
    assert (refused.exit_code, refused.stdout) == (1, "") and "digest differs" in refused.stderr
    assert (agent.parent / "paid.txt").read_text() == "o-1 100\n"


def test_a_replay_that_differs_exits_1_with_the_location(served: Desk, agent: Path) -> None:
    record(agent, "pays")
    shown, as_json = replayed(agent, "pays_more"), replayed(agent, "pays_more", "--json")
    said = "staged call 1 of rehearsed_pay: amount_cents was 100 and is 200"
    assert [one["text"] for one in json.loads(as_json.stdout)["divergences"]] == [said]
    assert (shown.exit_code, as_json.exit_code, f"differs: {said}" in shown.stdout) == (1, 1, True)


NO_REPLAYS = [
    ("case-1 --step {agent}:measures_twice --mode reconstruct", "not_recorded: what rehearsed"),
    ("case-1 --step {agent}:pays --mode guess", "misuse: there is no mode 'guess'"),
    ("case-9 --step {agent}:pays", "misuse: the journal has no transaction 'case-9'"),
    ("case-1 --step {agent}", "misuse: "),
    ("case-1 --step {agent}:pays --from {agent}", "is no export of a journal"),
]


@pytest.mark.parametrize(("words", "said"), NO_REPLAYS)
def test_a_replay_that_cannot_be_is_refused(served: Desk, agent: Path, words: str, said: str) -> None:
    record(agent, "notes_a_length")
    result = run("journal", "replay", *words.format(agent=agent).split())
    assert (result.exit_code, said in result.stderr) == (1, True), result.output


@pytest.mark.parametrize("verb", [("journal", "recover"), ("journal", "resume"), ("resume",), ("recover",)])
def test_recover_and_resume_are_one_verb(served: Desk, agent: Path, verb: tuple[str, ...]) -> None:
    served.service.policy = lambda *_: Verdict.REVIEW
    with pytest.raises(ReviewPending) as pending:
        record(agent, "pays")
    served.service.approve(pending.value.txn)
    found = json.loads(run(*verb, "--tools", str(agent), "--json").stdout)
    assert [(one["run_key"], one["after"]) for one in found] == [("case-1", "settled")]
