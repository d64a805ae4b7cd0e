"""The terminal: finish what is parked, draft manifests, read the journal."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from countersign import ReviewPending, Runtime, Settings, default_runtime, use_runtime
from countersign.cli.app import app
from countersign.cli.terminal import print_json
from countersign.contract import load_manifest
from countersign.journal.export import escape_unprintable
from countersign.tools.registry import default_registry
from tests.fakes.desk import Desk, changed, make_runtime

MODULE = '''"""Tools of a support agent."""
from pathlib import Path
from countersign import tool
DONE = Path(__file__).with_name("done.txt")
@tool("cli_refund", resource=("Order", "order_id"), secret=["card"])
def cli_refund(order_id: str, amount_cents: int, card: str) -> str:
    """Give money back."""
    with DONE.open("a") as file:
        file.write(f"{order_id} {amount_cents}\\n")
    return f"r-{order_id}"
@tool("cli_send", resource=("Order", "order_id"))
async def cli_send(order_id: str, amount_cents: int) -> None: ...
'''
EACH_VERB = pytest.mark.parametrize("verb", [("resume",), ("worker", "--once")], ids=" ".join)


@pytest.fixture
def module(tmp_path, own_registry: None) -> Path:
    path = tmp_path / "cli_tools.py"
    path.write_text(MODULE)
    return path


def run(*args: str) -> Result:
    return CliRunner().invoke(app, list(args), catch_exceptions=False, env={"COLUMNS": "200"})


def park(module: Path, desk: Desk) -> str:
    """The transaction of an agent process that stages a large refund, and ends."""
    namespace = {"__name__": "cli_tools", "__file__": str(module)}
    exec(compile(module.read_text(), str(module), "exec"), namespace)
    for name in ("cli_refund", "cli_send"):
        desk.service.review([default_registry.require(name, "it is reviewed").draft_manifest()])
    with Runtime(Settings.from_env()) as runtime:
        call = (namespace["cli_refund"], "o-1", 90_000, "4111 1111")
        return str(replace(desk, runtime=runtime).run(call, key="ticket 1", raises=ReviewPending).txn)


def paid(module: Path) -> str:
    """What the refund wrote, if it fired."""
    path = module.parent / "done.txt"
    return path.read_text() if path.exists() else ""


def test_resume_fires_what_was_approved_since(operated: Desk, module: Path) -> None:
    pending, command = park(module, operated), ("resume", "--tools", str(module))
    waiting = run(*command)
    assert (waiting.exit_code, "ticket 1: review -> review" in waiting.output) == (0, True)
    operated.service.approve(pending)
    (fired,) = json.loads(run(*command, "--json").output)
    assert (fired["run_key"], fired["after"], paid(module)) == ("ticket 1", "settled", "o-1 90000\n")
    assert "nothing is left" in run(*command).output


@EACH_VERB
def test_tools_of_several_programs_are_each_named(operated: Desk, module: Path, verb) -> None:
    """They share an agent and its journal, as the scripts of one folder do."""
    operated.service.approve(park(module, operated))
    default_registry._tools.clear()
    other = module.parent / "other_tools.py"
    other.write_text(MODULE.replace("cli_", "other_"))
    alone = run(*verb, "--tools", str(other))
    assert alone.exit_code == 3 and "no tool 'cli_refund' is registered" in alone.output
    assert "name it in one more --tools MODULE" in alone.output
    both = run(*verb, "--tools", str(other), "--tools", str(module))
    assert both.exit_code == 0 and "ticket 1: review -> settled" in both.output
    assert paid(module) == "o-1 90000\n"


@EACH_VERB
def test_waiting_ends_with_0_and_being_kept_with_3(operated: Desk, module: Path, verb) -> None:
    module.write_text(MODULE.replace('return f"r-{order_id}"', 'raise ConnectionError("no answer")'))
    pending, command = park(module, operated), (*verb, "--tools", str(module))
    assert run(*command).exit_code == 0
    operated.service.approve(pending)
    for _ in range(2):
        ended = run(*command)
        assert (ended.exit_code, "-> unsettled" in ended.stdout) == (3, True)
    assert '"kept_up": true' in run(*command, "--json").stdout


def test_resume_follows_until_people_have_answered(operated: Desk, module: Path) -> None:
    pending = park(module, operated)
    steps = [lambda: None, lambda: None, lambda: operated.service.approve(pending), *[lambda: None] * 17]
    operated.face.faults[f"/v1/transactions/{pending}"] = steps
    result = run("resume", "--tools", str(module), "--follow", "0.1")
    assert (result.exit_code, "settled" in result.output, paid(module)) == (0, True, "o-1 90000\n")


def test_a_tool_that_changed_since_it_was_staged_is_not_fired(operated: Desk, module: Path) -> None:
    operated.service.approve(park(module, operated))
    (module.parent / "tools").mkdir()
    new = json.dumps(changed(operated.service.manifests["cli_refund"], title="New").to_json())
    (module.parent / "tools" / "cli_refund.json").write_text(new)
    result = run("resume", "--tools", str(module))
    assert ("has changed since it was staged" in result.output, paid(module)) == (True, "")


def test_the_journal_shows_no_secret_and_no_control_character(operated: Desk, module: Path) -> None:
    pending = park(module, operated)
    assert pending in run("journal", "show", pending[:10]).output
    listed, shown = run("journal", "list"), run("journal", "show", "ticket 1")
    assert (listed.exit_code, shown.exit_code, "4111" in listed.output + shown.output) == (0, 0, False)
    args = '{"amount_cents":90000,"card":"(secret)","order_id":"o-1"}'
    assert f"  args: {args}" in shown.output.splitlines()  # whole, however narrow the terminal
    (document,) = json.loads(run("journal", "show", "ticket 1", "--json").output)
    assert document["effects"][0]["args"] == args
    assert json.loads(run("journal", "list", "--json").output)[0]["state"] == "parked"
    assert escape_unprintable("a\x1b[2Jb\u202ec") == "a\\x1b[2Jb\\u202ec"


def export(module: Path, *args: str) -> Result:
    return run("tools", "export", "--tools", str(module), *args)


def test_export_writes_drafts_next_to_the_module_and_keeps_existing_ones(module: Path) -> None:
    first, path = export(module), module.parent / "drafts" / "cli_refund.json"
    assert (first.exit_code, str(path) in first.output) == (0, True)
    assert "review" in first.output and "tools/" in first.output
    assert load_manifest(path.read_bytes()).secret == ("/card",)
    path.write_text("{}")
    assert ("kept" in export(module).output, path.read_text()) == (True, "{}")
    export(module, "--force")
    assert load_manifest(path.read_bytes()).tool == "cli_refund"
    output = export(module, "--out", str(module.parent / "out"), "--json")
    assert {one["tool"] for one in json.loads(output.output)} >= {"cli_refund", "cli_send"}
    assert (module.parent / "out" / "cli_send.json").is_file()


def listed(module: Path, *names: str) -> list:
    """These facts of each tool."""
    output = json.loads(run("tools", "list", "--tools", str(module), "--json").output)
    return [tuple(one[name] for name in names) for one in output["tools"]]


def test_undefined_compensations_and_probes_are_reported(module: Path) -> None:
    gaps = 'resource=("Order", "order_id"), compensate="cli_void", probe="cli_find", secret'
    module.write_text(MODULE.replace('resource=("Order", "order_id"), secret', gaps))
    says = ["its compensation 'cli_void' is defined nowhere here; add @tool('cli_void')"]
    says.append("its probe 'cli_find' is defined nowhere here; add @probe('cli_find')")
    assert listed(module, "tool", "missing") == [("cli_refund", says), ("cli_send", [])]
    assert "; ".join(says)[:30] in run("tools", "list", "--tools", str(module)).output
    exported = export(module)
    assert (exported.exit_code, exported.stderr.splitlines()) == (0, [f"cli_refund: {one}" for one in says])
    probe = '\n\n@probe("cli_find")\ndef cli_find(order_id: str) -> None: ...\n'
    text = module.read_text().replace("cli_void", "cli_send").replace("import tool", "import probe, tool")
    module.write_text(text + probe)
    assert listed(module, "missing") == [([],), ([],)]


def test_tries_without_idempotent_are_reported_before_review(module: Path) -> None:
    module.write_text(MODULE.replace("secret=", "tries=3, secret=", 1))
    assert export(module).stderr.startswith("cli_refund: it says tries=3, which only an idempotent tool may")
    module.write_text(MODULE.replace("secret=", "tries=3, idempotent=True, secret=", 1))
    assert export(module).stderr == ""


def test_an_export_names_every_tool_that_makes_no_sound_manifest_and_writes_none(module: Path) -> None:
    tools = "@tool('cli_nowhere')\ndef cli_nowhere(order_id: str) -> None: ...\n"
    tools += "@tool('cli_wide', resource=('Order', 'order_id'))\ndef cli_wide(order_id: list) -> None: ...\n"
    module.write_text(f"{MODULE}\n\n{tools}")
    exported = export(module)
    assert exported.exit_code == 1 and not (module.parent / "drafts").exists()
    assert "'cli_nowhere' does not say what it acts on" in exported.stderr
    assert "'cli_wide': /order_id/items may hold anything" in exported.stderr


def test_a_tool_is_a_read_or_a_write_in_either_lane(module: Path) -> None:
    live = '@tool("cli_order", lane="live", adapter=MemoryAdapter(), groups=["read"], resource=("Order", "order_id"))'
    read = f"{live}\ndef cli_order(order_id: str) -> None: ...\n"
    module.write_text(MODULE.replace("import tool", "import MemoryAdapter, tool") + read)
    writes = [("cli_refund", "staged", "write"), ("cli_send", "staged", "write")]
    assert listed(module, "tool", "lane", "kind") == [("cli_order", "live", "read"), *writes]


def test_an_unreviewed_draft_does_not_describe_the_tool(operated: Desk, module: Path) -> None:
    operated.service.approve(park(module, operated))
    export(module)
    draft = module.parent / "drafts" / "cli_refund.json"
    loosened = changed(load_manifest(draft.read_bytes()), title="Loosened", secret=[])
    draft.write_text(json.dumps(loosened.to_json()))
    assert "settled" in run("resume", "--tools", str(module)).output


@pytest.mark.parametrize("force", [(), ("--force",)], ids=["plain", "forced"])
@pytest.mark.parametrize("name", ["tools", "policies/tools", "link"])
def test_export_keeps_off_reviewed_manifests(module: Path, name: str, force: tuple[str, ...]) -> None:
    reviewed = module.parent / ("policies/tools" if name == "policies/tools" else "tools")
    reviewed.mkdir(parents=True)
    (reviewed / "cli_refund.json").write_text("reviewed")
    (module.parent / "link").symlink_to(reviewed)
    result = export(module, "--out", str(module.parent / name), *force)
    assert (result.exit_code, "reviewed" in result.stderr) == (1, True)
    assert [(one.name, one.read_text()) for one in reviewed.iterdir()] == [("cli_refund.json", "reviewed")]


def test_export_never_replaces_the_manifest_a_tool_declares(tmp_path, module: Path) -> None:
    declared = tmp_path / "drafts" / "cli_refund.json"
    module.write_text(MODULE.replace('["card"])', f'["card"], manifest=Path({str(declared)!r}))'))
    declared.parent.mkdir()
    declared.write_text("reviewed")
    result = export(module, "--force")
    assert (result.exit_code, declared.read_text()) == (1, "reviewed")
    assert "reviewed manifest" in result.stderr


ERRORS = [
    (("tools", "export", "--tools", "no_such_module_here"), "no module"),
    (("tools", "export", "--tools", "no_such_file.py"), "no file"),
    (("journal", "list", "--journal", "no-such.db"), "no journal"),
    (("resume", "--tools", "no_such_module_here"), "no module"),
    (("tools", "export", "--tools", "empty.py"), "defines no tools"),
]


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize(("args", "says"), ERRORS)
def test_errors_are_one_sentence(args, says: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.py").touch()
    result = run(*args)
    assert (result.exit_code, says in result.stderr, "Traceback" in result.output) == (1, True, False)


COMMANDS = ["tools export", "tools list", "resume", "worker --once", "journal close t-1 --by a --why x"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_failed_import_is_reported_with_its_line(command: str, operated: Desk, monkeypatch) -> None:
    (operated.folder / "broken_module_of_ours.py").write_text("import os\nimport nothing_like_this\n")
    monkeypatch.chdir(operated.folder)
    result = run(*command.split(), "--tools", "broken_module_of_ours")
    assert (result.exit_code, result.stdout) == (1, "")
    output = result.stderr.replace("\n", "")
    assert "'broken_module_of_ours' cannot be imported: " in output
    assert "broken_module_of_ours.py:2: ModuleNotFoundError: No module named 'nothing_like_this'" in output


def test_the_environment_makes_the_default_runtime(operated: Desk, module: Path) -> None:
    runtime = default_runtime()
    assert default_runtime() is runtime
    with make_runtime(operated.runtime.settings, operated.face, operated.registry, operated.clock) as other:
        with use_runtime(other):
            assert default_runtime() is other
        assert default_runtime() is runtime
    runtime.close()


def test_what_an_agent_wrote_moves_no_cursor_in_json_either(capsys) -> None:
    document = {"note": "a\x1b[2J\x9b2J\u202e\x7f", "amount": 2**53 - 1}
    print_json(document)
    printed = capsys.readouterr().out
    assert printed.isascii() and not set(printed) - set("\n") & {chr(code) for code in (*range(32), 127)}
    assert json.loads(printed) == document
