"""The Python in the documents runs: against the real service, as a reader would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import countersign
from countersign import integrations
from examples.local_service import free_port
from tests.conventions.documents import all_blocks
from tests.conventions.repository import ROOT
from tests.fakes.desk import agent_environment
from tests.fakes.local_service import WarmService

AGENT = "docs-agent"
ROLE = "support-agent"
TUTORIAL = "docs/tutorial/first-hour.md"  # tests/integration/dev/test_tutorial.py runs it
DOCUMENTS = sorted({block.document for block in all_blocks("python")} - {TUTORIAL})


def script_of(document: str) -> str:
    """The Python blocks of one document, in order: one program."""
    return "\n".join(block.text for block in all_blocks("python") if block.document == document)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of somebody who has started the service and enrolled an agent."""
    data = tmp_path_factory.mktemp("docs") / "service"
    with WarmService(data, ROOT / "policies", port=free_port()) as service:
        settings = service.enroll(AGENT, ROLE)
        yield agent_environment(settings) | {"COUNTERSIGN_ALLOW_DEV": "1"}


def run(script: str, reader: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "my_agent.py").write_text(script)
    return python(["my_agent.py"], reader, folder)


def python(words: list[str], reader: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("COUNTERSIGN_")}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=60,
        env=inherited | reader | {"COUNTERSIGN_JOURNAL": str(folder / "journal.db")}, check=False,
    )  # fmt: skip


SAYS = {
    "README.md": ["refunded 1240 USD to cus_1001"],
    "sdk/python/COMING_FROM.md": [
        "1240 USD for pay_21",
        "12 1 900 USD for pay_22",
        "500 USD for pay_23 and 90 USD for pay_24",
        "100 USD for pay_25, 100 USD for pay_26",
    ],
    "docs/how-to/write-an-adapter.md": ["1"],
    "sdk/python/README.md": ["1240 USD for pay_7"],
    "docs/how-to/transactions.md": [
        "2",
        "refund waits for finance",
        "900 USD for pay_9",
        "900 USD for pay_15",
        "sent to ada@example.com",
        "Denied",
        "500 USD for pay_17",
    ],
    "docs/how-to/undo-live-work.md": [],
    "docs/how-to/call-http-services.md": [],
    "docs/how-to/dry-run-and-replay.md": ["refund review finance", "same 900 USD for pay_9"],
    "docs/how-to/handle-failures.md": [],
}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_program_of_a_document_runs(document: str, reader: dict[str, str], tmp_path: Path) -> None:
    output = []
    for _ in range(2):  # a reader starts it again, and it finds what it has done
        result = run(script_of(document), reader, tmp_path)
        assert (result.returncode, result.stderr) == (0, "")
        output.append(result.stdout)
    assert output[0] == output[1]
    assert output[0].splitlines() == SAYS[document]


BARE = """from countersign import RestApi


def step(txn):
    return txn


def read(bank: RestApi) -> str:
    return bank.get("/state").json["state"]
"""


def test_a_strict_type_checker_has_nothing_to_say_of_the_programs_of_the_documents(tmp_path: Path) -> None:
    """One mypy run for all, with one program that must fail, because reading the SDK takes most of the time."""
    programs = {"bare.py": BARE} | {
        f"{document.replace('/', '_').removesuffix('.md')}.py": script_of(document) for document in DOCUMENTS
    }
    for name, program in programs.items():
        (tmp_path / name).write_text(program)
    words = ["--strict", "--config-file=", "--cache-dir=cache", "--no-error-summary"]
    output = python(["-m", "mypy", *words, *programs], {}, tmp_path).stdout.splitlines()
    found = [line.partition(":")[0] + line.rpartition(" ")[2] for line in output]
    assert found == ["bare.py[no-untyped-def]", "bare.py[no-any-return]"]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_tools_of_a_document_are_taken_up_by_dev_and_by_export(document: str, tmp_path: Path) -> None:
    (tmp_path / "my_agent.py").write_text(script_of(document))
    for words in (["list", "--json"], ["export", "--out", "drafts"]):
        done = python(["-m", "countersign.cli", "tools", *words, "--tools", "my_agent.py"], {}, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert '"problem": "' not in done.stdout


README = [
    ("ticket-1", "1240", "cus_1001", "refunded 1240 USD to cus_1001\n"),
    ("ticket-2", "124000", "cus_1001", "waits for finance"),
    ("ticket-3", "1240", "cus_1003", "never-to-closed-accounts"),
]


@pytest.mark.parametrize(("key", "amount", "customer", "says"), README)
def test_the_readme_says_what_happens(
    key: str, amount: str, customer: str, says: str, reader: dict[str, str], tmp_path: Path
) -> None:
    script = script_of("README.md")
    for was, becomes in {"ticket-4711": key, "1240": amount, "cus_1001": customer}.items():
        assert was in script
        script = script.replace(was, becomes)
    result = run(script, reader, tmp_path)
    fires = key == "ticket-1"
    assert says in (result.stdout if fires else result.stderr)
    assert (result.returncode, "refunded" in result.stdout) == (0 if fires else 1, fires)


def test_the_first_example_is_short_and_shows_undo_and_gate(reader: dict[str, str], tmp_path: Path) -> None:
    lines = [line for line in script_of("README.md").splitlines() if line]
    assert len(lines) <= 15
    refused = script_of("README.md")
    end = "    finally:\n     print(stock.snapshot()); raise SystemExit\n    print("
    changes = [("cus_1001", "cus_1003"), ("    with t", "    try:\n     with t"), ("    print(", end)]
    for was, becomes in changes:
        refused = refused.replace(was, becomes)
    assert run(refused, reader, tmp_path).stdout == "{'cups': 3}\n"


def test_the_page_of_errors_names_every_error_that_leaving_a_block_raises() -> None:
    public = {name: getattr(countersign, name) for name in countersign.__all__}
    kinds = (countersign.Stopped, countersign.FireError, countersign.WorldError)
    errors = {name for name, one in public.items() if isinstance(one, type) and issubclass(one, kinds)}
    errors -= {one.__name__ for one in kinds} | {"WorkerStopping"}
    page = (ROOT / "docs/reference/sdk-errors.md").read_text()
    table = page.partition("## Errors")[2].partition("\n## ")[0]
    rows = " ".join(line for line in table.splitlines() if line.startswith("| `"))
    assert sorted(name for name in errors | {"IndependentFailures"} if f"`{name}`" not in rows) == []


def test_the_page_of_transactions_shows_every_kind() -> None:
    program = script_of("docs/how-to/transactions.md")
    assert "    with transaction(key=" in program and "async with transaction(key=" in program
    assert ", independent=True)" in program and "run_transaction(step, key=" in program


NO_NAMES_OF_OURS = {  # keywords of `transaction` and of a manifest, a state, a fixture
    *("on_behalf_of", "timeout_seconds", "on_exhausted", "compensation_failed", "countersign_people")
}


def test_commands_and_files_named_for_new_users_exist() -> None:
    text = (ROOT / "sdk/python/COMING_FROM.md").read_text()
    cells = [line.split("|")[2] for line in text.splitlines() if line.startswith("| ")]
    names = {name for cell in cells for name in re.findall(r"`([A-Z]\w*[a-z]\w*|\w+_\w+)\b", cell)}
    known = {*countersign.__all__, *integrations.__all__} | NO_NAMES_OF_OURS
    assert "BudgetExceeded" in names and "run_openai" in names
    assert sorted(name for name in names - known if not name.isupper()) == []
