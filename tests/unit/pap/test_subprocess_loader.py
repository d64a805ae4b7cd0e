"""Loading a bundle in a subprocess: the same bundle, and a service that survives any failure there."""

import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from policy_service.pap import subprocess_loader
from policy_service.pap.policy_tests.activation_check import CasesError
from policy_service.pap.problems import BundleError
from policy_service.pap.source import BundleSource, FolderSource
from policy_service.pap.subprocess_loader import BundleLoader, LoaderFailedError, RequiredCases
from policy_service.pdp.engine import decide
from tests.fakes.bundles import PERMIT_ALL, BundleFolder, pay_manifest

GATE = '@id("big") @approval("finance") forbid (principal, action, resource) when { context.input.amount > 100 };\n'
CASE = """
cases:
  - it: asks for more than a hundred
    agent: {name: robot}
    tool: pay
    args: {account: a1, amount: 101}
    expect: review
    gates: [big]
    needs: {finance: 1}
"""


@pytest.fixture
def folder(tmp_path: Path) -> BundleFolder:
    return BundleFolder(tmp_path).policies(PERMIT_ALL + GATE)


def prepared(folder: BundleFolder, seconds: float = 60) -> Any:
    """Its bundle, loaded by a loader that treats no bundle as small."""
    return BundleLoader(small_bytes=0, max_seconds=seconds).prepare(FolderSource(folder.path).read())


def refused(folder: BundleFolder, message: str) -> None:
    with pytest.raises(LoaderFailedError, match=message):
        prepared(folder)


CHAIN = " && ".join(f"context.input.amount != {n}" for n in range(1000, 1090))
ABOUT_APPROVING = (
    '@id("no-votes") forbid (principal, action == Action::"approve", resource);\n'
    '@id("votes") permit (principal, action == Action::"approve", resource);\n'
)


def test_bundle_loaded_in_a_subprocess_decides_like_one_loaded_here(folder: BundleFolder) -> None:
    """With several versions, rules about people, and a chain that is too long for the engine's JSON."""
    chain = f'@id("long") forbid (principal, action, resource) unless {{ {CHAIN} }};\n'
    folder.policies(PERMIT_ALL + GATE + ABOUT_APPROVING + chain)
    folder.write("tools/pay@old.json", pay_manifest(title="Pay, as it was"))
    bundle, passed = prepared(folder)
    assert passed is None
    here = folder.load()
    loaded = (bundle.policies, bundle.warnings, bundle.manifests, bundle.rules.versions.keys())
    assert loaded == (here.policies, here.warnings, here.manifests, here.rules.versions.keys())
    assert {action: len(rules.policies) for action, rules in bundle.rules.people.items()} == {"approve": 2}
    for amount in (100, 101, 1000):
        question = folder.question({"account": "a1", "amount": amount})
        assert decide(bundle.rules, question) == decide(here.rules, question)
    bundle.close()


def test_subprocess_reports_the_same_problems(folder: BundleFolder) -> None:
    folder.policies(PERMIT_ALL + '\n@id("x") permit (principal,').write("tools/pay.json", "{")
    with pytest.raises(BundleError) as refused_bundle:
        prepared(folder)
    assert [str(problem) for problem in refused_bundle.value.problems] == folder.problems()
    assert any(problem.startswith("rules.cedar:3") for problem in folder.problems())


@pytest.mark.parametrize("small_bytes", [0, 10**9])
def test_required_cases_are_run(folder: BundleFolder, small_bytes: int) -> None:
    def read() -> BundleSource:
        return FolderSource(folder.path).read()

    folder.write("cases/big.yaml", CASE)
    preparer, before = BundleLoader(small_bytes=small_bytes), read()
    passed = preparer.prepare(before, RequiredCases(None))[1]
    assert passed is not None and (passed.run, passed.not_run) == (1, 0)
    (folder.policies(PERMIT_ALL).path / "cases/big.yaml").unlink()
    error = CasesError if small_bytes else BundleError
    with pytest.raises(error, match=r"cases/big.yaml:3.*in force") as failed:
        preparer.prepare(read(), RequiredCases(before))
    assert failed.value.why == "cases"
    assert not small_bytes or preparer.prepare(read(), None)[1] is None


def entered(monkeypatch: pytest.MonkeyPatch, instead: str) -> None:
    """Let the subprocess run other code."""
    code = f"import os, signal, sys, time; sys.stdin.buffer.read(); {instead}"
    monkeypatch.setattr(subprocess_loader, "_BEGIN", code)


def test_failing_subprocess_refuses_the_bundle(folder: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """It sees no secret either."""
    entered(monkeypatch, "os.kill(os.getpid(), signal.SIGKILL)")
    refused(folder, r"the process that read it ended \(SIGKILL\)")
    seen = tmp_path / "seen.txt"
    monkeypatch.setenv("COUNTERSIGN_DATABASE_URL", "postgresql://user:word@db/x")
    entered(monkeypatch, f"open({str(seen)!r}, 'w').write(' '.join(os.environ))")
    refused(folder, "answered nothing")
    assert "COUNTERSIGN" not in seen.read_text()


def test_hanging_subprocess_is_killed(folder: BundleFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    entered(monkeypatch, "time.sleep(600)")
    preparer = BundleLoader(small_bytes=0, max_seconds=0.5)
    with pytest.raises(LoaderFailedError, match=r"longer than 0.5 seconds"):
        preparer.prepare(FolderSource(folder.path).read())
    assert not preparer._running


def test_parser_crash_ends_only_the_subprocess(folder: BundleFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The depth check is disabled here, so that the parser crashes."""
    deep = "(" * 20_000 + "true" + ")" * 20_000
    folder.policies(f'@id("deep") permit (principal, action, resource) when {{ {deep} }};\n')
    assert any("brackets are nested" in problem for problem in folder.problems())
    uncounted = "import policy_service.pap.scan as s; s.MAX_NESTING = s.MAX_CHAIN = 10**9; "
    monkeypatch.setattr(subprocess_loader, "_BEGIN", uncounted + subprocess_loader._BEGIN)
    refused(folder, r"ended \((SIGSEGV|SIGABRT)\)")


def test_close_ends_running_loads(folder: BundleFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    entered(monkeypatch, "time.sleep(600)")
    preparer, errors = BundleLoader(small_bytes=0), []

    def prepare() -> None:
        with pytest.raises(LoaderFailedError) as error:
            preparer.prepare(FolderSource(folder.path).read())
        errors.append(str(error.value))

    thread = threading.Thread(target=prepare)
    thread.start()
    while not preparer._running:
        time.sleep(0.01)
    preparer.close()
    thread.join(30)
    prepare()
    assert [re.findall("SIGKILL|stopping", one) for one in errors] == [["SIGKILL"], ["stopping"]]


def test_subprocess_is_bounded() -> None:
    bounded = "from policy_service.pap.subprocess_loader import _bound; import resource as r; _bound(7); "
    bounded += "print(*(r.getrlimit(one)[0] for one in (r.RLIMIT_AS, r.RLIMIT_CPU, r.RLIMIT_CORE)))"
    said = subprocess.run([sys.executable, "-c", bounded], capture_output=True, text=True, check=True)
    assert said.stdout.split() == [str(4 * 1024**3), "8", "0"]
