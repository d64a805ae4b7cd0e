"""The pytest plugin, as somebody uses it who tests their own agent: another pytest, in a project of its own."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from policy_service.channels.admin.dev.folder import merge_manifests, prepare_folder, read_tools
from tests.conventions.documents import all_blocks
from tests.conventions.repository import ROOT
from tests.fakes import warm

PAGE = "docs/how-to/test-agents.md"
BEGUN, PROGRAM, TYPED, MODEL = (one.text for one in all_blocks("text") if one.document == PAGE)
(SETTINGS,) = (one.text for one in all_blocks("toml") if one.document == PAGE)

AGENT = '''
from countersign import current_effect, tool

paid = {}


@tool("refund", resource=("Account", "customer"))
def refund(payment_id: str, amount_cents: int, currency: str, customer: str, reason: str) -> str:
    """Send money back for one payment."""
    return paid.setdefault(current_effect().call_key, f"{amount_cents} {currency} for {payment_id}")
'''

MORE = """
import subprocess, sys
from types import SimpleNamespace
import pytest
from countersign import Denied, MisuseError, ReviewPending, default_runtime, transaction
from countersign.testing.people import VoteRefused
from my_agent import refund

HUGE, SMALL = ("pay_7", 600_000, "USD", "cus_1001", "late"), ("pay_7", 1, "USD", "cus_1001", "late")


def ask(args=HUGE, key="case-81"):
    with transaction(key=key) as txn:
        refund(*args)
    return txn.effects[0].result


def waits():
    with pytest.raises(ReviewPending) as waiting:
        ask()
    return waiting.value


def test_two_people_of_a_group(countersign_people):
    waits()
    countersign_people.approve("case-81", by="finance")
    waits()
    countersign_people.approve("case-81", by="finance-2", reason="me too")
    assert ask() == "600000 USD for pay_7"
    with pytest.raises(MisuseError, match="the transaction is 'settled'"):
        countersign_people.approve("case-81", by="finance")


def test_one_person_is_one_vote(countersign_people):
    waiting = waits()
    countersign_people.approve(waiting, by="finance")
    countersign_people.approve(SimpleNamespace(pending=waiting), by="finance-1")
    waits()


def test_a_group_that_is_not_asked(countersign_people):
    waiting = waits()
    for error, what, by, says in (
        (MisuseError, waiting, "admin", "no review is open for 'admin'; open ones are for finance"),
        (VoteRefused, waiting, "admin-1", "admin-1 may not decide this, or not so: only people in"),
        (VoteRefused, waiting, "boss", "'boss' is no group of this bundle; there are .*finance"),
        (MisuseError, "case-18", "finance", "agent has staged nothing as one transaction under the key 'case-18'"),
        (MisuseError, 7, "finance", "is not a review"),
    ):
        with pytest.raises(error, match=says):
            countersign_people.approve(what, by=by)


def test_decisions(countersign_decide):
    args = {"payment_id": "p", "amount_cents": 1, "currency": "USD", "customer": "cus_1001", "reason": "late"}
    assert countersign_decide("refund", args).outcome == "release"
    review = countersign_decide("refund", args | {"amount_cents": 5001})
    assert (review.outcome, review.gates) == ("review", ("refund-needs-finance",))
    with pytest.raises(MisuseError, match="no tool 'refnud'; did you mean 'refund'"):
        countersign_decide("refnud", args)
    with pytest.raises(MisuseError, match="no tool 'transfer'; its reviewed manifest is missing"):
        countersign_decide("transfer", {})
    unknown = countersign_decide("transfer", {}, unknown=True)
    assert (unknown.outcome, unknown.reasons[0].code) == ("deny", "unknown_tool")


def test_a_program_of_its_own_finds_the_service(countersign_runtime):
    script = "from my_agent import refund; from countersign import transaction\\n" \\
        "with transaction(key='case-9') as txn: refund('p', 1, 'USD', 'cus_1001', 'late')\\n" \\
        "print(txn.effects[0].result)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "1 USD for p\\n", done.stderr


class TestWithoutTheRole:
    @pytest.fixture
    def countersign_roles(self):
        return ()

    def test_nothing_is_permitted(self, countersign_runtime):
        with pytest.raises(Denied):
            ask(SMALL)


class TestByName:
    @pytest.fixture
    def countersign_agent(self):
        return "support-bot"

    @pytest.mark.parametrize("run", [1, 2])
    def test_an_agent_by_name_is_enrolled_once(self, countersign_runtime, run):
        assert default_runtime().settings.agent == "support-bot"
        ask(SMALL, f"case-{run}")


def test_one_service_for_all(_countersign_services, countersign_service):
    assert len(_countersign_services._running) == 1
"""

# The environment of a person who works with another service all day.
STALE = {
    "COUNTERSIGN_URL": "https://countersign.example",
    "COUNTERSIGN_ISSUER": "https://countersign.example",
    "COUNTERSIGN_TOKEN_FILE": "/var/run/token",
    "COUNTERSIGN_DATABASE_URL": "postgresql://countersign.example/x",
}


BY_NAME = ("-p", "countersign.pytest_plugin")

# Of the plugins that happen to be installed where this repository is worked on none is needed, and to load them all
# takes longer than most of these tests.
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def pytest_in(
    folder: Path,
    files: dict[str, str],
    settings: str = SETTINGS,
    *words: str,
    alone: bool = True,
    warmed: bool = True,
) -> subprocess.CompletedProcess[str]:
    """A run of pytest; ``warmed``: in a process that has imported the SDK before."""
    for name, text in {"my_agent.py": AGENT, "pyproject.toml": settings, **files}.items():
        (folder / name).write_text(text)
    ours = ("COUNTERSIGN_", "PYTEST")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = os.pathsep.join([str(folder), str(ROOT), str(ROOT / "sdk/python")])
    environment |= STALE | {"PYTHONPATH": path} | (ALONE if alone else {})
    command = ["-m", "pytest", *(words or BY_NAME), "-W", "error", "-q"]
    if warmed:
        return warm.run(command, cwd=folder, env=environment, timeout=110)
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def last(done: subprocess.CompletedProcess[str]) -> str:
    return re.sub(r" in .*", "", done.stdout.strip().splitlines()[-1])


def bundle_in(folder: Path) -> None:
    (folder / "policies").symlink_to(ROOT / "policies")


def test_the_page_and_all_its_claims_run(tmp_path: Path) -> None:
    bundle_in(tmp_path)
    before = sorted(path.name for path in (ROOT / "policies").iterdir())
    done = pytest_in(tmp_path, {"test_page.py": PROGRAM, "test_more.py": MORE, "test_model.py": MODEL})
    assert last(done) == "16 passed", done.stdout
    assert sorted(path.name for path in (ROOT / "policies").iterdir()) == before
    assert '"finance-1"' not in (ROOT / "policies" / "groups.toml").read_text()


def test_the_first_of_the_page_holds_of_the_bundle_that_dev_makes(tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text(AGENT)
    folder = prepare_folder(tmp_path / "my_agent.py", None)
    merge_manifests(folder, asyncio.run(read_tools(folder.script, os.environ)))
    settings = '[tool.pytest.ini_options]\ncountersign_bundle = "policies"\n'
    done = pytest_in(tmp_path, {"test_page.py": BEGUN, "test_typed.py": TYPED}, settings)
    assert last(done) == "4 passed", done.stdout


TRIES = """
import pytest
from countersign.testing import service

@pytest.fixture(scope="session", autouse=True)
def tries():
    real, made = service.TestedService.__init__, []
    def counting(self, *given):
        made.append(1)
        real(self, *given)
    service.TestedService.__init__ = counting
    yield
    print("TRIES", len(made))
"""
ONE = "def test_it(countersign_runtime): ...\n"
BROKEN: dict[str, tuple[dict[str, str], str]] = {
    "no folder": ({}, "there is no bundle at .*policies.; name the folder"),
    "a rule that is none": ({"x.cedar": "permit everything"}, r"did not start: .*x\.cedar"),
    "a file of groups that is none": ({"groups.toml": "[groups"}, "groups.toml of the bundle cannot be read"),
}


@pytest.mark.parametrize(("files", "says"), BROKEN.values(), ids=BROKEN.keys())
def test_an_unusable_bundle_is_reported_to_each_test(
    files: dict[str, str], says: str, tmp_path: Path
) -> None:
    """Each start takes seconds, and ends the same way."""
    if files:
        (tmp_path / "policies").mkdir()
    for name, text in files.items():
        (tmp_path / "policies" / name).write_text(text)
    asked = "\n".join(f"def test_{n}(countersign_runtime): ..." for n in range(3))
    done = pytest_in(tmp_path, {"conftest.py": TRIES, "test_three.py": asked}, SETTINGS, *BY_NAME, "-s")
    assert last(done) == "3 errors"
    # in full and in the summary, for each test
    assert len(re.findall(says, done.stdout)) >= 3, done.stdout
    assert "TRIES 1" in done.stdout
    assert "Traceback" not in done.stdout and "another exception" not in done.stdout


def test_without_the_service_it_says_what_to_install(tmp_path: Path) -> None:
    bundle_in(tmp_path)
    hidden = "import sys\nsys.modules['policy_service'] = None\n"
    done = pytest_in(tmp_path, {"test_one.py": ONE, "conftest.py": hidden})
    assert last(done) == "1 error"
    assert "install the distribution countersign-service" in done.stdout


def test_it_costs_nothing_until_a_fixture_is_asked_for(tmp_path: Path) -> None:
    used = (
        "import sys\n"
        "def test_it():\n"
        "    ours = {name for name in sys.modules if name.startswith(('countersign', 'httpx2', 'policy_service'))}\n"
        "    assert ours == {'countersign', 'countersign.pytest_plugin'}\n"
    )
    done = pytest_in(tmp_path, {"test_one.py": used}, settings="[tool.pytest.ini_options]\n", warmed=False)
    assert last(done) == "1 passed", done.stdout


def test_found_by_its_entry_point_and_named_once_more_it_is_one_plugin(tmp_path: Path) -> None:
    found = tmp_path / "countersign_sdk-9.dist-info"
    found.mkdir()
    project = tomllib.loads((ROOT / "sdk/python/pyproject.toml").read_text())["project"]
    points = project["entry-points"]["pytest11"]
    lines = "".join(f"{name} = {module}\n" for name, module in points.items())
    (found / "entry_points.txt").write_text(f"[pytest11]\n{lines}")
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: countersign-sdk\nVersion: 9\n")
    listed = {"test_one.py": "def test_it(pytestconfig): assert pytestconfig.getini('countersign_roles')\n"}
    others = [f"-pno:{one.name}" for one in entry_points(group="pytest11") if one.name not in points]
    for named in (BY_NAME, ()):
        done = pytest_in(tmp_path, listed, SETTINGS, *others, *named, alone=False, warmed=False)
        assert last(done) == "1 passed", done.stdout + done.stderr
