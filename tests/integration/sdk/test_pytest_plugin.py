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

from policy_service.channels.operator.dev.drafts import merge, read_tools
from policy_service.channels.operator.dev.folder import prepare
from tests.fakes import warm
from tests.fakes.payments import PAY, Payments, gate
from tests.house.documents import all_blocks
from tests.house.repository import ROOT

PAGE = "docs/testing.md"
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

HUGE = ("pay_7", 600_000, "USD", "cus_1001", "late")


def ask():
    with transaction(key="case-81") as txn:
        refund(*HUGE)
    return txn.effects[0].result


def test_two_people_of_a_group(countersign_people):
    with pytest.raises(ReviewPending):
        ask()
    countersign_people.approve("case-81", by="finance")
    with pytest.raises(ReviewPending):
        ask()
    countersign_people.approve("case-81", by="finance-2", reason="me too")
    assert ask() == "600000 USD for pay_7"
    with pytest.raises(MisuseError, match="the transaction is 'settled'"):
        countersign_people.approve("case-81", by="finance")


def test_one_person_is_one_vote(countersign_people):
    with pytest.raises(ReviewPending) as waiting:
        ask()
    countersign_people.approve(waiting.value, by="finance")
    countersign_people.approve(SimpleNamespace(pending=waiting.value), by="finance-1")
    with pytest.raises(ReviewPending):
        ask()


def test_a_group_that_is_not_asked(countersign_people):
    with pytest.raises(ReviewPending) as waiting:
        ask()
    with pytest.raises(MisuseError, match="nothing waits for 'admin'; asked are finance"):
        countersign_people.approve(waiting.value, by="admin")
    with pytest.raises(VoteRefused, match="admin-1 may not decide this, or not so: only people in"):
        countersign_people.approve(waiting.value, by="admin-1")
    with pytest.raises(VoteRefused, match="'boss' is no group of this bundle; there are .*finance"):
        countersign_people.approve(waiting.value, by="boss")
    with pytest.raises(MisuseError, match="agent has staged nothing as one under the key 'case-18'"):
        countersign_people.approve("case-18", by="finance")
    with pytest.raises(MisuseError, match="is no question to people"):
        countersign_people.approve(7, by="finance")


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
            with transaction(key="case-81"):
                refund("pay_7", 1, "USD", "cus_1001", "late")


class TestByName:
    @pytest.fixture
    def countersign_agent(self):
        return "support-bot"

    @pytest.mark.parametrize("run", [1, 2])
    def test_an_agent_by_name_is_enrolled_once(self, countersign_runtime, run):
        assert default_runtime().settings.agent == "support-bot"
        with transaction(key=f"case-{run}"):
            refund("pay_7", 1, "USD", "cus_1001", "late")


def test_one_service_for_all(_countersign_services, countersign_service):
    assert len(_countersign_services._running) == 1
"""

PAYING = '''
from countersign import NotDone, tool

standing, answers = [], True


@tool("pay", resource=("Account", "account"), compensate="unpay",
      compensation_map={"payment": "result:/id", "amount": "args:/amount"})
def pay(account: str, amount: int) -> dict[str, str]:
    """Pay somebody."""
    standing.append(account)
    if not answers:
        raise TimeoutError("the bank does not answer")
    return {"id": account}


@tool("unpay", resource=("Account", "payment"))
def unpay(payment: str, amount: int) -> str:
    """Take a payment back."""
    standing.remove(payment)
    return "taken back"


@tool("mail", resource=("Account", "to"))
def mail(to: str, text: str) -> str:
    """Write to somebody."""
    if text == "bounces":
        raise NotDone("there is no such address")
    if not answers:
        raise TimeoutError("the post does not answer")
    return "sent"
'''

UNHAPPY = """
import pytest
import my_agent
from countersign import (
    EffectFailed, IndependentFailures, MisuseError, OutcomeUnknown, resume, transaction
)
from countersign.testing import VoteRefused
from my_agent import mail, pay


@pytest.fixture(autouse=True)
def world(monkeypatch):
    monkeypatch.setattr(my_agent, "standing", [])
    monkeypatch.setattr(my_agent, "answers", True)


@pytest.fixture
def silent(world, monkeypatch):
    monkeypatch.setattr(my_agent, "answers", False)


def pay_and_write(text="bounces"):
    with transaction(key="a") as txn:
        paid = pay("acme", 10)
        mail("acme", text)
    return paid.result


def ended():
    (found,) = resume()
    return found.after.value


def test_a_compensation_that_waits_is_approved(countersign_people):
    with pytest.raises(EffectFailed):
        pay_and_write()
    assert my_agent.standing == ["acme"]
    countersign_people.approve("a", by="finance")
    assert (ended(), my_agent.standing) == ("settled", [])


def test_by_the_error_that_names_it(countersign_people):
    with pytest.raises(EffectFailed) as failed:
        pay_and_write()
    with pytest.raises(MisuseError, match="nothing waits for 'legal'; asked are finance"):
        countersign_people.approve(failed.value, by="legal")
    countersign_people.deny(failed.value, "they keep it", by="finance")
    resume()
    assert my_agent.standing == ["acme"]
    with pytest.raises(MisuseError, match="nothing waits for people"):
        countersign_people.approve(failed.value, by="finance")
    countersign_people.settle("a", "left_standing", by="finance")
    with pytest.raises(MisuseError, match="nothing of that is to be settled"):
        countersign_people.settle("a", "left_standing", by="finance")


def test_an_unknown_outcome_that_fired(countersign_people, silent):
    with pytest.raises(OutcomeUnknown) as unknown:
        with transaction(key="a"):
            pay("acme", 10)
    countersign_people.settle(unknown.value, "fired", by="finance", result={"id": "acme"}, reason="it is booked")
    assert ended() == "settled"
    assert my_agent.standing == ["acme"]


def test_an_unknown_outcome_that_did_not_fire(countersign_people, silent):
    with pytest.raises(OutcomeUnknown):
        with transaction(key="a"):
            pay("acme", 10)
    countersign_people.settle("a", "not_fired", by="finance")
    assert ended() == "ended"


def test_another_transaction_is_none_of_this(countersign_people, silent):
    with pytest.raises(OutcomeUnknown):
        with transaction(key="a"):
            pay("acme", 10)
    my_agent.answers = True
    with transaction(key="b"):
        mail("acme", "hello")
    with pytest.raises(MisuseError, match="nothing of that is to be settled: the transaction is 'settled'"):
        countersign_people.settle("b", "fired", by="finance")


def test_of_two_it_says_which(countersign_people, silent):
    with pytest.raises(OutcomeUnknown) as unknown:
        with transaction(key="a") as txn:
            with txn.parallel():
                pay("acme", 10)
                mail("acme", "hello")
    with pytest.raises(MisuseError, match="say which by tool=.* there are unknown of .*, unknown of"):
        countersign_people.settle("a", "fired", by="finance")
    with pytest.raises(MisuseError, match="nothing of that is to be settled"):
        countersign_people.settle("a", "fired", by="finance", tool="unpay")
    countersign_people.settle("a", "not_fired", by="finance", tool="mail")
    countersign_people.settle("a", "not_fired", by="finance")
    assert ended() == "ended"


def test_what_is_no_word_on_it(countersign_people, silent):
    with pytest.raises(OutcomeUnknown):
        with transaction(key="a"):
            effect = pay("acme", 10).effect_id
    with pytest.raises(VoteRefused, match="'boss' is no group of this bundle; there are .*finance"):
        countersign_people.settle("a", "fired", by="boss")
    with pytest.raises(MisuseError, match="'done' is no answer to a task; there are fired, not_fired"):
        countersign_people.settle("a", "done", by="finance")
    with pytest.raises(VoteRefused, match="finance-1 may not decide this, or not so: .*fired"):
        countersign_people.settle("a", "compensated", by="finance")
    with pytest.raises(VoteRefused, match="reason"):
        countersign_people.settle("a", "fired", by="finance", reason=" ")
    with pytest.raises(MisuseError, match="nothing of that is to be settled"):
        countersign_people.settle("a", "fired", by="finance", effect="0" * 64)
    with pytest.raises(MisuseError, match="agent has staged nothing as one under the key 'z'"):
        countersign_people.settle("z", "fired", by="finance")
    countersign_people.settle("a", "fired", by="finance", effect=effect)
    with pytest.raises(MisuseError, match="nothing of that is to be settled"):
        countersign_people.settle("a", "not_fired", by="finance")


class TestOnShortPages:
    @pytest.fixture
    def countersign_environment(self):
        return {"COUNTERSIGN_MAX_PAGE_SIZE": "1"}

    def test_all_of_them_are_read(self, countersign_people):
        for key in "abc":
            with pytest.raises(EffectFailed):
                with transaction(key=key):
                    pay(key, 10)
                    mail("acme", "bounces")
        for key in "cab":
            countersign_people.approve(key, by="finance")
        resume()
        assert my_agent.standing == []
        my_agent.answers = False
        for key in "def":
            with pytest.raises(OutcomeUnknown):
                with transaction(key=key):
                    pay(key, 10)
        for key in "fde":
            countersign_people.settle(key, "fired", by="finance")
"""


# What stands in the environment of somebody who works with another service all day.
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


def bundle_beside(folder: Path) -> None:
    (folder / "policies").symlink_to(ROOT / "policies")


def test_the_page_runs_as_it_stands_and_so_does_all_it_promises(tmp_path: Path) -> None:
    bundle_beside(tmp_path)
    before = sorted(path.name for path in (ROOT / "policies").iterdir())
    done = pytest_in(tmp_path, {"test_page.py": PROGRAM, "test_more.py": MORE, "test_model.py": MODEL})
    assert last(done) == "16 passed", done.stdout
    assert sorted(path.name for path in (ROOT / "policies").iterdir()) == before
    assert '"finance-1"' not in (ROOT / "policies" / "groups.toml").read_text()


def test_what_did_not_end_well_is_decided_by_people_too(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    bundle = Payments(tmp_path / "policies").rules(gate("taking-back", "finance", action="unpay"))
    typed = {name: PAY["args"]["properties"][name] for name in ("account", "amount")}
    bundle.write("tools/pay.json", PAY | {"args": PAY["args"] | {"properties": typed}})
    done = pytest_in(tmp_path, {"my_agent.py": PAYING, "test_unhappy.py": UNHAPPY})
    assert last(done) == "8 passed", done.stdout


def test_the_first_of_the_page_holds_of_the_bundle_that_dev_makes(tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text(AGENT)
    folder = prepare(tmp_path / "my_agent.py", None)
    merge(folder, asyncio.run(read_tools(folder.script, os.environ)))
    done = pytest_in(
        tmp_path,
        {"test_page.py": BEGUN, "test_typed.py": TYPED},
        '[tool.pytest.ini_options]\ncountersign_bundle = "policies"\n',
    )
    assert last(done) == "4 passed", done.stdout


@pytest.mark.long
def test_the_fixtures_have_types_that_a_strict_test_may_name(tmp_path: Path) -> None:
    wrong = TYPED + "    countersign_people.settle('case-81', by='finance')\n"
    for name, text in {"my_agent.py": AGENT, "test_typed.py": TYPED, "test_wrong.py": wrong}.items():
        (tmp_path / name).write_text(text)
    words = ("--strict", "--no-error-summary", f"--cache-dir={tmp_path / 'cache'}")
    found = subprocess.run(
        [sys.executable, "-m", "mypy", *words, "test_typed.py", "test_wrong.py"],
        cwd=tmp_path, env=os.environ | {"MYPYPATH": str(ROOT / "sdk/python")},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    (said,) = [line for line in found.stdout.splitlines() if line.startswith("test_")]
    assert said.startswith("test_wrong.py") and '"answer"' in said, found.stdout


def test_a_failing_rule_fails_its_test(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    for path in (ROOT / "policies").iterdir():
        if path.name not in {"support.cedar", "cases"}:
            (tmp_path / "policies" / path.name).symlink_to(path)
    loose = "permit (principal, action, resource);"
    (tmp_path / "policies" / "support.cedar").write_text(f'@id("everything")\n{loose}\n')
    done = pytest_in(tmp_path, {"test_page.py": PROGRAM})
    assert last(done) == "5 failed, 1 passed", done.stdout


ONE = "def test_it(countersign_runtime): ...\n"
BROKEN = {
    "no folder": ({}, "there is no bundle at .*policies.; name the folder"),
    "a rule that is none": ({"x.cedar": "permit everything"}, r"(?s)did not start.*x\.cedar"),
    "a file of groups that is none": ({"groups.toml": "[groups"}, "groups.toml of the bundle cannot be read"),
}


@pytest.mark.parametrize(("files", "says"), BROKEN.values(), ids=BROKEN.keys())
def test_a_bundle_that_cannot_be_used_is_told_in_its_words(
    files: dict[str, str], says: str, tmp_path: Path
) -> None:
    if files:
        (tmp_path / "policies").mkdir()
    for name, text in files.items():
        (tmp_path / "policies" / name).write_text(text)
    done = pytest_in(tmp_path, {"test_one.py": ONE})
    assert last(done) == "1 error"
    assert re.search(says, done.stdout), done.stdout
    assert "Traceback" not in done.stdout


def test_a_bundle_that_cannot_be_used_is_tried_once_and_told_to_each_test(tmp_path: Path) -> None:
    """Each start takes seconds, and ends the same way."""
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "x.cedar").write_text("permit everything")
    tries = """
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
    asked = "\n".join(f"def test_{n}(countersign_runtime): ..." for n in range(3))
    done = pytest_in(tmp_path, {"conftest.py": tries, "test_three.py": asked}, SETTINGS, *BY_NAME, "-s")
    assert last(done) == "3 errors"
    assert "TRIES 1" in done.stdout
    # in full and in the summary, for each test
    assert done.stdout.count("did not start") == 2 * 3, done.stdout
    assert "another exception" not in done.stdout


def test_without_the_service_it_says_what_to_install(tmp_path: Path) -> None:
    bundle_beside(tmp_path)
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
    points = tomllib.loads((ROOT / "sdk/python/pyproject.toml").read_text())["project"]["entry-points"][
        "pytest11"
    ]
    lines = "".join(f"{name} = {module}\n" for name, module in points.items())
    (found / "entry_points.txt").write_text(f"[pytest11]\n{lines}")
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: countersign-sdk\nVersion: 9\n")
    listed = {
        "test_one.py": "def test_it(pytestconfig):\n    assert pytestconfig.getini('countersign_roles')\n"
    }
    others = [f"-pno:{one.name}" for one in entry_points(group="pytest11") if one.name not in points]
    for named in (BY_NAME, ()):
        done = pytest_in(tmp_path, listed, SETTINGS, *others, *named, alone=False, warmed=False)
        assert last(done) == "1 passed", done.stdout + done.stderr
