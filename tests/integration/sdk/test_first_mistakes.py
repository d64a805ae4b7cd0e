"""The likeliest first mistakes, made as a new user makes them: each answer names the thing and what to write.

docs/how-to/first-mistakes.md lists the same, and one that is no error (`QUIET`); the last test compares.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from examples.local_service import free_port
from tests.fakes import warm
from tests.fakes.desk import agent_environment
from tests.fakes.local_service import WarmService
from tests.fakes.sitting import PATHS

PAGE = Path(__file__).parents[3] / "docs/how-to/first-mistakes.md"
POLICIES = """
@id("all") permit (principal, action, resource);
@id("mail") @approval("developers") forbid (principal, action == Action::"send_mail", resource);
"""
GROUPS = '[people.me]\nid = "urn:countersign:dev|me"\nname = "Me"\n[groups.developers]\nmembers = ["me"]\n'
TOOLS = """\
from countersign import ReviewPending, tool, transaction


@tool("refund", resource=("Payment", "payment_id"))
def refund(payment_id: str, amount_cents: int) -> str:
    return "refunded"


@tool("send_mail", resource=("Mailbox", "to"))
def send_mail(to: str, body: str) -> str:
    return "sent"


"""


class Mistake(NamedTuple):
    """A script, what the answer must say, and the words of the page's row."""

    script: str
    says: str  # a pattern: the thing by its name, then what to write instead
    wrote: str
    instead: str
    command: tuple[str, ...] = ("my_agent.py",)


CLI = ("-m", "countersign.cli")
MINE = ("--tools", "my_agent.py")
RESUME, EXPORT = (*CLI, "resume", *MINE), (*CLI, "tools", "export", *MINE)
REFUND, PAIR = 'refund("pay_7", 1240)', ', resource=("Payment", "payment_id")'
BLOCK = f'with transaction(key="b"):\n    {REFUND}\n'
ASYNC = TOOLS.replace("def send_mail", "async def send_mail")
NOT_AWAITED = """async def main():
    async with transaction(key='s'):
        send_mail("ada@example.com", "hello")
asyncio.run(main())
"""
FIRST = {
    "outside": Mistake(
        TOOLS + REFUND,
        r"refund was called outside a transaction.*call it inside `with transaction\(\.\.\.\)`",
        REFUND, 'with transaction(key="case-81"):',
    ),
    "placeholder": Mistake(
        TOOLS + 'with transaction(key="b"):\n    done = refund("pay_7", 1240)\nprint("it said " + done)\n',
        r"refund has fired, and this is still its placeholder; write \.result",
        '"it said " + done', "done.result",
    ),
    "money": Mistake(
        TOOLS + BLOCK.replace("1240", "12.50"),
        r"'refund'.*amount_cents: .*fractional part \(money is whole minor units: write 1250 for 12\.50\)",
        'refund("pay_7", 12.50)', 'refund("pay_7", 1250)',
    ),
    "resource": Mistake(
        TOOLS.replace(PAIR, ""),
        r'\'refund\' does not say what it acts on; write @tool\("refund", resource=\("Payment", "payment_id"\)\)',
        '@tool("refund")', f'@tool("refund"{PAIR})', EXPORT,
    ),
    "annotation": Mistake(
        TOOLS.replace("payment_id: str, amount_cents: int", "payment_id, amount_cents"),
        r"'refund' does not declare what 'payment_id', 'amount_cents' may hold"
        r".*annotate a type.* `payment_id: str` \(money .* `amount_cents: int`\)",
        "def refund(payment_id, amount_cents):", "def refund(payment_id: str, amount_cents: int) -> str:", EXPORT,
    ),
    "main guard": Mistake(
        TOOLS + BLOCK,
        r"my_agent\.py:14 begins a transaction while 'my_agent\.py' is.*write `if __name__ == \"__main__\":`",
        'with transaction(key="case-81"): at the left margin', 'if __name__ == "__main__":', RESUME,
    ),
    "no key": Mistake(
        TOOLS + 'with transaction():\n    send_mail("ada@example.com", "hello")\n',
        r"send_mail waits for developers.*running the block again asks people again: write transaction\(key=",
        "with transaction():", 'with transaction(key="case-81"):',
    ),
    "same key": Mistake(
        TOOLS + 'for order in ("o-1", "o-2"):\n    with transaction(key="h"):\n        refund(order, 1240)\n',
        r"transaction 'h' was already redeemed.*another list of calls.*use another key.*key=f\"refund-\{order_id\}\"",
        'for order in orders: with transaction(key="refund"):', 'with transaction(key=f"refund-{order}"):',
    ),
    "exception": Mistake(
        TOOLS.replace('return "refunded"', 'return {}["bank"]') + BLOCK.replace('"b"', '"i"'),
        r"not known whether refund#1 happened \(KeyError: 'bank'\).*`raise NotDone\(\.\.\.\)`",
        "raise ValueError(...) in a tool", "raise NotDone(...)",
    ),
    "not awaited": Mistake(
        f"import asyncio\n{ASYNC}{NOT_AWAITED}",
        r"send_mail was called in transaction 's' and not awaited.*[Ww]rite `await send_mail\(\.\.\.\)`",
        'send_mail("ada@example.com", "hello")', 'await send_mail("ada@example.com", "hello")',
    ),
    "variables": Mistake(
        TOOLS + BLOCK,
        r"COUNTERSIGN_\w+ is not set.*write `policy-service dev my_agent\.py`, which sets it",
        "python my_agent.py", "policy-service dev my_agent.py",
    ),
}  # fmt: skip
UNSET = {"variables"}
QUIET = ('for _ in range(2): refund("pay_7", 1240)', "with txn.repeat():")

MORE = {
    "a method": (
        "from countersign import tool\nclass Desk:\n    @tool('refund', resource=('Payment', 'payment_id'))\n"
        "    def refund(self, payment_id: str) -> None: ...\n",
        r"'refund' is a method: 'self'.*write a plain function",
    ),
    "a resource that is no pair": (
        TOOLS.replace('("Payment", "payment_id")', '"payment_id"'),
        r"resource='payment_id', which is no type.*write resource=\(\"Payment\", \"payment_id\"\)",
    ),
    "a step that was called": (
        TOOLS + "from countersign import run_transaction\nrun_transaction(None, key='p')\n",
        r"write run_transaction\(step, key=\.\.\.\) without calling step",
    ),
}


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of somebody whose service runs with the manifests of `TOOLS`."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "my_agent.py").write_text(TOOLS)
    done = run(folder, (*EXPORT, "--out", "bundle"), {})
    assert done.returncode == 0, done.stderr
    (folder / "bundle/tools").mkdir()
    for name in ("refund.json", "send_mail.json"):
        (folder / "bundle" / name).rename(folder / "bundle/tools" / name)
    (folder / "bundle/rules.cedar").write_text(POLICIES)
    (folder / "bundle/groups.toml").write_text(GROUPS)
    paths = {"PYTHONPATH": PATHS}
    with WarmService(folder / "service", folder / "bundle", port=free_port(), environment=paths) as service:
        settings = service.enroll("my-agent", "none")
        yield agent_environment(settings)


def run(folder: Path, words: tuple[str, ...], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """One command of a user's."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("COUNTERSIGN_")}
    mine = {"COUNTERSIGN_JOURNAL": str(folder / "journal.db"), "PYTHONPATH": PATHS}
    return warm.run(words, cwd=folder, env=inherited | mine | env)


@pytest.mark.parametrize("name", FIRST)
def test_the_error_names_the_fix(name: str, user: dict[str, str], tmp_path: Path) -> None:
    mistake = FIRST[name]
    (tmp_path / "my_agent.py").write_text(mistake.script)
    done = run(tmp_path, mistake.command, {} if name in UNSET else user)
    assert done.returncode == 1
    assert re.search(mistake.says, done.stderr.strip().splitlines()[-1]), done.stderr


@pytest.mark.parametrize(("script", "says"), MORE.values(), ids=MORE)
def test_so_do_the_next_ones(script: str, says: str, user: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text(script)
    done = run(tmp_path, ("my_agent.py",), user)
    assert re.search(says, done.stderr), done.stderr


def test_the_page_lists_these_and_no_others() -> None:
    section = PAGE.read_text().partition("## Mistakes")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(FIRST) + 1
    for wrote, instead in (*((one.wrote, one.instead) for one in FIRST.values()), QUIET):
        assert [row for row in rows if f"`{wrote}`" in row and f"`{instead}`" in row], wrote
