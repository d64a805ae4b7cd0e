"""`policy-service dev my_agent.py` as a new user sits before it: an empty folder, one script, one terminal."""

from __future__ import annotations

import json
import re
import signal
import socket
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from examples.person import Person
from policy_service.channels.admin.dev.folder import prepare_folder
from policy_service.errors import StartError
from policy_service.tokens.keys import read_keys
from tests.conventions.documents import all_blocks
from tests.fakes import warm
from tests.fakes.sitting import PATHS, Sitting, is_gone

AGENT = '''
import os, subprocess, sys
from countersign import ReviewPending, tool, transaction


@tool("look_up", resource=("Payment", "payment_id"), groups=["read"])
def look_up(payment_id: str) -> str:
    """See a payment."""
    return "paid 1240"


@tool("refund", resource=("Payment", "payment_id"))
def refund(payment_id: str, amount_cents: int) -> str:
    """Give money back."""
    print("REFUNDING", payment_id)
    return f"refunded {amount_cents}"


if __name__ == "__main__":
    print("arguments", sys.argv[1:])
    with transaction(key="case-1-look"):
        seen = look_up("pay_7")
    print("seen:", seen.result)
    with transaction(key="case-1"):
        done = refund("pay_7", 1240)
    print("done:", done.result)
'''
MCP_AGENT = '''import asyncio

from mcp import Client
from mcp.server.mcpserver import MCPServer

from countersign import ReviewPending
from countersign.integrations import gate_mcp

server = MCPServer("shop")


@server.tool()
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


async def main() -> None:
    async with Client(server) as client:
        gated = await gate_mcp(client, server="shop")
        try:
            print("done:", (await gated.call_tool("pay", {"amount": 5}, key="case-1"))["result"])
        except ReviewPending as pending:  # inside: the block of a client wraps it in a group
            raise SystemExit(str(pending)) from None


if __name__ == "__main__":
    asyncio.run(main())
'''
# In either order: one follows from the audit log, the other from the script's exit.
ASKED = r"(?s)(?=.*ended with exit status 1)(?=.*refund waits for developers; decide here: (\S+)\n)"
SIGN_IN = r"sign in as \S+: (\S+)"
LATE = AGENT.replace(
    '    print("arg',
    '    @tool("nuke", resource=("Site", "site"))\n    def nuke(site: str) -> None:\n        print("NUKED", site)\n'
    '    with transaction(key="boom"):\n        nuke("mars")\n    print("arg',
)
HELPER = "import helper\nprint('helper says', helper.WORD)\n"


def sits(folder: Path, script: str, *arguments: str, **more: Any) -> Sitting:
    """The developer with this script."""
    (folder / "my_agent.py").write_text(script)
    return Sitting(folder, *arguments, **more)


def test_from_an_empty_folder_to_an_approved_refund(tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text(AGENT)
    stranger = {"COUNTERSIGN_DATABASE_URL": "postgresql://nowhere/x", "COUNTERSIGN_TOKEN_FILE": "/nowhere"}
    with Sitting(tmp_path, "--fast", "case-1", **stranger) as sitting:
        url = sitting.waits_for(r"listens on (http://127\.0\.0\.1:\d+)")[1]
        link = sitting.waits_for(SIGN_IN)[1]
        for said in (r"look_up\.json \(a read\)", r"refund\.json \(a write\)"):
            sitting.waits_for(rf"drafted policies/tools/{said}")
        sitting.waits_for(r"(?s)arguments \['--fast', 'case-1'\].*seen: paid 1240")
        review = sitting.waits_for(ASKED)[1]
        assert "REFUNDING" not in sitting.said
        sitting.approves(link, review)
        for said in ("case-1: approved; running my_agent.py again", "REFUNDING pay_7", "done: refunded 1240"):
            sitting.waits_for(said)
        sitting.waits_for(r"my_agent\.py ended; ")
        sitting.types("l")
        assert sitting.waits_for(SIGN_IN)[1] != link
        sitting.types("r")
        sitting.waits_for("done: refunded 1240")
        sitting.waits_for(r"my_agent\.py ended; ")
        sitting.process.send_signal(signal.SIGINT)
        assert sitting.end() == 0
    assert sitting.said.count("REFUNDING") == 1
    assert sitting.said.count("dev | case-1: refund fired\n") == 1
    assert sitting.said.count("dev | case-1-look: look_up fired\n") == 1
    assert "Traceback" not in sitting.said
    asked = "countersign.errors.ReviewPending: not done yet: refund waits for developers"
    assert sitting.said.count(asked) == 1
    output = dict(re.findall(r"dev \|     (COUNTERSIGN_\w+)=(\S+)", sitting.said))
    assert output["COUNTERSIGN_URL"] == url and output["COUNTERSIGN_ALLOW_DEV"] == "1"
    published = read_keys(tmp_path / ".countersign/keys").published
    assert output["COUNTERSIGN_ISSUER_KEYS"] == ",".join(key.kid for key in published)
    assert "COUNTERSIGN_KEY" in (tmp_path / ".countersign/env").read_text()
    assert (tmp_path / ".countersign/.gitignore").read_text() == "*\n"
    assert (tmp_path / ".countersign").stat().st_mode & 0o077 == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))


@pytest.mark.long  # each of these starts a service, a person and a script
def test_a_new_session_lists_open_reviews(tmp_path: Path) -> None:
    with sits(tmp_path, AGENT) as sitting:
        before = sitting.waits_for(r"refund waits for developers; decide here: (\S+)")[1]
        sitting.waits_for(r"ended with exit status 1")
    with Sitting(tmp_path) as sitting:
        review = sitting.waits_for(r"refund waits for developers; decide here: (\S+)")[1]
        assert review.rpartition("/")[2] == before.rpartition("/")[2]
        sitting.waits_for(r"ended with exit status 1")
    assert sitting.said.count("decide here") == 1


@pytest.mark.long  # each of these starts a service, a person and a script
def test_the_readme_program_is_approved_here(tmp_path: Path) -> None:
    program = "\n".join(block.text for block in all_blocks("python") if block.document == "README.md")
    with sits(tmp_path, program) as sitting:
        link = sitting.waits_for(SIGN_IN)[1]
        review = sitting.waits_for(ASKED)[1]
        sitting.approves(link, review)
        sitting.waits_for(r"ticket-4711: approved; running my_agent\.py again")
        result, fired, end = "refunded 1240 USD to cus_1001", "ticket-4711: refund fired", "ended; "
        sitting.waits_for(f"(?s)(?=.*{result})(?=.*{fired})(?=.*{end})")
    with closing(sqlite3.connect(tmp_path / ".countersign/countersign.db")) as books:
        assert books.execute("SELECT tool, state FROM effects").fetchall() == [("refund", "fired")]


def test_saved_policies_are_reloaded_or_refused(tmp_path: Path) -> None:
    with sits(tmp_path, AGENT) as sitting:
        sitting.waits_for(r"exit status 1")
        starter = (tmp_path / "policies/starter.cedar").read_text()
        misspelt = starter + '\n@aproval("developers")\nforbid (principal, action, resource);\n'
        sitting.saves(misspelt, "policies/starter.cedar")
        sitting.waits_for("policies refused; the last valid ones stay active")
        sitting.waits_for(r"policies/starter\.cedar:\d+: .*@id\(")
        sitting.saves(starter.replace("@approval", "// @approval"), "policies/starter.cedar")
        # In either order: the end of the review follows from the audit log.
        reloaded = r"policies reloaded at digest [0-9a-f]{12}: policies/"
        over = r"case-1: ended, nothing fired \(refund denied: [^\n]*Every other one is a write\.\)"
        # The script runs again by itself.
        denial = r"countersign\.errors\.Denied: ([^\n]*)\n"
        denied = sitting.waits_for(f"(?s)(?=.*{reloaded})(?=.*{over})(?=.*again\n.*{denial})")[1]
        assert "writes-need-a-person" in denied and "starter.cedar:" in denied
        sitting.waits_for(r"exit status 1")
        sitting.types("q")
        assert sitting.end() == 0
    assert (tmp_path / "policies/starter.cedar").read_text() == starter.replace("@approval", "// @approval")


BROKEN = {
    "a syntax error": (
        AGENT + "x = (\n",
        r"dev \| 'my_agent\.py' cannot be imported: my_agent\.py:\d+: SyntaxError: '\(' was never closed: x = \(",
    ),
    "a script that ends while it is imported": (
        "import sys; sys.exit(3)\n",
        r"exit status 3.*put what it do",
    ),
    "no tool": ("print('hello')\n", r"defines no tools; write @tool"),
}


def test_an_agent_with_tools_of_an_mcp_server_alone_runs(tmp_path: Path) -> None:
    with sits(tmp_path, MCP_AGENT) as sitting:
        link = sitting.waits_for(SIGN_IN)[1]
        sitting.waits_for(r"UNKNOWN TOOL 'pay': policies/tools/ has no manifest")
        sitting.waits_for(r"for an MCP server: --mcp FILE")
        review = sitting.waits_for(r"pay waits for \S+; decide here: (\S+)\n")[1]
        sitting.waits_for(r"my_agent\.py ended with exit status 1; ")
        sitting.approves(link, review)
        sitting.waits_for(r"case-1: approved; running my_agent\.py again")
        sitting.waits_for("done: paid 5")
    assert '"UNKNOWN_TOOL_IN_DEV"' in (tmp_path / ".countersign/service.log").read_text()


SLOW = '''
import time
from countersign import tool, transaction


@tool("refund", resource=("Payment", "payment_id"), groups=["read"])
def refund(payment_id: str) -> str:
    """Give money back."""
    print("REFUNDING", payment_id)
    time.sleep(4)
    return "refunded"


if __name__ == "__main__":
    with transaction(KEY):
        done = refund("pay_7")
    print("done:", done.result)
'''


@pytest.mark.parametrize(("key", "again"), [
    ("key='case-1'", r"running my_agent\.py again\n(?s:.*)done: refunded"),
    ("", r"not run again: another run would repeat everything; write transaction\(key="),
])  # fmt: skip
def test_a_save_of_policies_waits_for_the_run_that_is_firing(tmp_path: Path, key: str, again: str) -> None:
    with sits(tmp_path, SLOW.replace("KEY", key)) as sitting:
        sitting.waits_for("REFUNDING pay_7")
        starter = (tmp_path / "policies/starter.cedar").read_text()
        sitting.saves(f"{starter}\n// changed\n", "policies/starter.cedar")
        sitting.waits_for("policies reloaded at digest")
        assert "done:" not in sitting.said
        sitting.waits_for(r"done: refunded(?s:.*)my_agent\.py ended; ")
        sitting.waits_for(again)
    assert sitting.said.count("REFUNDING") == 1


@pytest.mark.long  # four scripts, one after the other
def test_a_broken_script_is_reported_and_the_next_save_awaited(tmp_path: Path) -> None:
    with sits(tmp_path, next(iter(BROKEN.values()))[0]) as sitting:
        for text, output in BROKEN.values():
            sitting.saves(text)
            sitting.waits_for(r"my_agent\.py was not run:")
            sitting.waits_for(output)
            sitting.waits_for("fix it and save")
        sitting.saves(AGENT.replace('    print("arg', '    raise ValueError("oh")\n    print("arg'))
        sitting.waits_for("ValueError: oh")
        sitting.waits_for("ended with exit status 1")
        (tmp_path / "helper.py").write_text("WORD = 'one'\n")
        sitting.saves(HELPER + AGENT)
        sitting.waits_for("helper says one")
        sitting.waits_for("exit status 1")
        sitting.saves("WORD = 'two'\n", "helper.py")
        sitting.waits_for("helper says two")
        (tmp_path / "my_agent.py").unlink()
        sitting.waits_for(r"my_agent\.py was deleted; save it again")


@pytest.mark.long
def test_an_inactive_manifest_is_reported_with_its_cause(tmp_path: Path) -> None:
    only_looks = AGENT.partition('@tool("refund"')[0] + 'if __name__ == "__main__":\n    print("looked")\n'
    with sits(tmp_path, only_looks) as sitting:
        sitting.waits_for("looked")
        sitting.saves('{"tool": "bad"}', "policies/tools/bad.json")
        sitting.waits_for("policies refused; the last valid ones stay active")
        sitting.saves(AGENT)
        sitting.waits_for(
            r"'refund' has a manifest that is not active: policies/ was refused as a whole, so no policy"
            r" evaluated this call\.\n(?:.*\n)*?dev \| Fix that first: policies/tools/bad\.json: .*\n"
            r"dev \| Then deny this review and run the program again, with another run key"
        )
        sitting.waits_for("refund waits for unseen; decide here: ")
    assert "UNKNOWN TOOL" not in sitting.said


@pytest.mark.long
def test_a_review_older_than_the_manifest_is_no_unknown_tool(tmp_path: Path) -> None:
    """It wants who answers for unknown tools and who answers for this one: one person alone cannot be both."""
    with sits(tmp_path, LATE) as sitting:
        sitting.waits_for(r"nuke waits for unseen; decide here: (\S+)")
    args = {"type": "object", "additionalProperties": False, "required": ["site"]}
    args |= {"properties": {"site": {"type": "string"}}}
    manifest = {"tool": "nuke", "title": "Nuke", "sentence": "Nuke {site}", "args": args}
    manifest |= {"resource": {"type": "Site", "id": "/site"}}
    (tmp_path / "policies/tools/nuke.json").write_text(json.dumps(manifest))
    with Sitting(tmp_path) as sitting:
        sitting.waits_for(
            "nuke was asked before it had a manifest; deny that question and run the program again"
            "|nuke denied: this effect was staged for the manifest"  # the service was faster, and has denied it
        )
    assert "UNKNOWN TOOL 'nuke'" not in sitting.said


@pytest.mark.long
def test_an_approved_step_without_a_key_is_resumed(tmp_path: Path) -> None:
    with sits(tmp_path, AGENT.replace('key="case-1")', ")")) as sitting:
        link = sitting.waits_for(SIGN_IN)[1]
        review = sitting.waits_for(r"decide here: (\S+)")[1]
        sitting.waits_for("exit status 1")
        assert 'running the block again asks people again: write transaction(key="' in sitting.said
        sitting.approves(link, review)
        sitting.waits_for(r"has no key, so another run would need another approval; write transaction\(key=")
        sitting.waits_for(r"countersign resume --tools my_agent\.py")
        sitting.waits_for("REFUNDING pay_7")
        sitting.waits_for("-> settled")
    assert sitting.said.count("decide here") == 1


def test_a_tool_that_raised_is_reported_with_its_task(tmp_path: Path) -> None:
    with sits(tmp_path, AGENT.replace('return "paid 1240"', 'raise ValueError("timed out")')) as sitting:
        url = sitting.waits_for(r"listens on (http://127\.0\.0\.1:\d+)")[1]
        link = sitting.waits_for(SIGN_IN)[1]
        asked = "we do not know whether this fired"
        said = rf"(?s)(?=.*exit status 1)(?=.*dev \| look_up: {asked}; settle it here: (\S+)\n)"
        task = sitting.waits_for(said)[1]
        assert task.startswith(f"{url}/tasks/task_")
        with Person(url) as me:
            me.sign_in(link)
            me.settle(task, "fired", "the log of the payments has it", result='"paid 1240"')
        settled, fired = r"look: settled; running my_agent\.py again", r"dev \| case-1-look: look_up fired\n"
        sitting.waits_for(f"(?s)(?=.*{settled})(?=.*{fired})")
    assert "a person settles it first, in the service's queue" in sitting.said


@pytest.mark.long
def test_the_example_of_the_empty_queue_runs(tmp_path: Path) -> None:
    with sits(tmp_path, AGENT.partition('    with transaction(key="case-1"):')[0]) as sitting:
        url = sitting.waits_for(r"listens on (http://127\.0\.0\.1:\d+)")[1]
        link = sitting.waits_for(SIGN_IN)[1]
        sitting.waits_for(r"my_agent\.py ended; ")
        with Person(url) as me:
            me.sign_in(link)
            program, gate, _ = me.lesson()  # the third is for those without the SDK
        sitting.saves(program)
        sitting.waits_for(r"refund waits for developers; decide here: (\S+)")
        starter = (tmp_path / "policies/starter.cedar").read_text()
        sitting.saves(starter.partition('@id("writes-need')[0] + gate, "policies/starter.cedar")
        sitting.waits_for(r"policies reloaded at digest [0-9a-f]{12}: policies/")
        sitting.types("r")
        sitting.waits_for(r"refund waits for developers")


LINGERING = AGENT.replace(
    '    print("arg',
    "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    '    print("pids", os.getpid(), child.pid, flush=True)\n'
    '    import time\n    time.sleep(600)\n    print("arg',
)


@pytest.mark.parametrize("how", [pytest.param(signal.SIGHUP, marks=pytest.mark.long), signal.SIGKILL])
def test_no_child_is_left_behind_however_the_terminal_ends(tmp_path: Path, how: signal.Signals) -> None:
    with sits(tmp_path, LINGERING) as sitting:
        pids = sitting.waits_for(r"pids (\d+) (\d+)")
        sitting.process.send_signal(how)
        assert sitting.end() == (-9 if how is signal.SIGKILL else 0)
    assert is_gone(int(pids[1])) and is_gone(int(pids[2]))


@pytest.mark.long
def test_a_used_port_is_reported_and_a_second_session_refused(tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text(AGENT)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Sitting(tmp_path, port=port) as sitting:
            sitting.waits_for(rf"port {port} is in use, so another one was chosen")
            sitting.waits_for("seen: paid 1240")
            with Sitting(tmp_path) as second:
                second.waits_for(
                    r"policy-service: this folder is in use by pid \d+ \(.*\); end that process first"
                    r" \(dev: press q and Enter\), or put my_agent\.py into another folder\n"
                )
                assert second.end() == 1
            assert "Traceback" not in second.said


def test_a_file_that_hides_a_module_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "decimal.py").write_text(AGENT)
    with pytest.raises(StartError, match=r"'decimal\.py' would shadow .* 'decimal'.*such as my_agent\.py"):
        prepare_folder(tmp_path / "decimal.py", None)


@pytest.mark.parametrize("named", ["no_such.py", "folder", "my_agent"])
def test_a_path_that_is_not_a_script_is_refused_and_nothing_created(tmp_path: Path, named: str) -> None:
    (tmp_path / "folder").mkdir()
    done = warm.run(["-m", "policy_service.cli", "dev", named], cwd=tmp_path, env={"PYTHONPATH": PATHS})
    assert (done.returncode, done.stdout) == (1, "")
    assert f"'{named}' is not a Python file; write `policy-service dev my_agent.py`" in done.stderr
    assert not (tmp_path / ".countersign").exists()
