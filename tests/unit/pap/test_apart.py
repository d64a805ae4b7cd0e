"""Preparing a bundle in a process of its own: the same bundle, and a service that outlives whatever happens there."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from policy_service.pap import apart
from policy_service.pap.apart import Cases, EndedError, Preparer
from policy_service.pap.cases.guarding import CasesError
from policy_service.pap.problems import BundleError
from policy_service.pap.source import FolderSource
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


def apart_only(seconds: float = 60) -> Preparer:
    """One that takes no bundle for small."""
    return Preparer(small_bytes=0, max_seconds=seconds)


def read(folder: BundleFolder):  # type: ignore[no-untyped-def]
    return FolderSource(folder.path).read()


CHAIN = " && ".join(f"context.input.amount != {n}" for n in range(1000, 1090))
ABOUT_APPROVING = (
    '@id("nobody-votes") forbid (principal, action == Action::"approve", resource);\n'
    '@id("votes") permit (principal, action == Action::"approve", resource);\n'
)


def test_a_bundle_read_apart_is_the_one_read_here_and_decides_as_it(folder: BundleFolder) -> None:
    """With other versions, rules about people, and a chain too long for the engine's JSON, which comes as a tree."""
    chain = f'@id("long") forbid (principal, action, resource) unless {{ {CHAIN} }};\n'
    folder.policies(PERMIT_ALL + GATE + ABOUT_APPROVING + chain)
    folder.write("tools/pay@old.json", pay_manifest(title="Pay, as it was"))
    bundle, _ = apart_only().prepare(read(folder))
    here = folder.load()
    told = (bundle.policies, bundle.warnings, bundle.manifests, bundle.rules.versions.keys())
    assert told == (here.policies, here.warnings, here.manifests, here.rules.versions.keys())
    assert {action: len(rules.policies) for action, rules in bundle.rules.people.items()} == {"approve": 2}
    for amount in (100, 101, 1000):
        question = folder.question({"account": "a1", "amount": amount})
        assert decide(bundle.rules, question) == decide(here.rules, question)
    bundle.close()


def test_what_is_wrong_is_told_as_here(folder: BundleFolder) -> None:
    folder.policies(PERMIT_ALL + '\n@id("x") permit (principal,').write("tools/pay.json", "{")
    with pytest.raises(BundleError) as told:
        apart_only().prepare(read(folder))
    assert [str(problem) for problem in told.value.problems] == folder.problems()
    assert any(problem.startswith("rules.cedar:3") for problem in folder.problems())


@pytest.mark.parametrize("small_bytes", [0, 10**9])
def test_cases_are_run_where_they_are_asked_for(folder: BundleFolder, small_bytes: int) -> None:
    folder.write("cases/big.yaml", CASE)
    before = read(folder)
    preparer = Preparer(small_bytes=small_bytes)
    passed = preparer.prepare(before, Cases(None))[1]
    assert passed is not None
    assert (passed.run, passed.not_run) == (1, 0)
    folder.policies(PERMIT_ALL)
    (folder.path / "cases/big.yaml").unlink()
    with pytest.raises(
        CasesError if small_bytes else BundleError, match=r"cases/big.yaml:3.*in force"
    ) as told:
        preparer.prepare(read(folder), Cases(before))
    assert told.value.why == "cases"
    assert preparer.prepare(read(folder), None)[1] is None


def entered(monkeypatch: pytest.MonkeyPatch, instead: str) -> None:
    """Let the process do something else than read the bundle."""
    monkeypatch.setattr(apart, "_BEGIN", f"import os, signal, sys, time; sys.stdin.buffer.read(); {instead}")


ENDS = {
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", r"the process that read it ended \(SIGKILL\)"),
    "half an answer": ("pass", "answered nothing"),
}


@pytest.mark.parametrize(("instead", "told"), ENDS.values(), ids=ENDS)
def test_a_process_that_does_not_answer_is_a_bundle_that_is_refused(
    folder: BundleFolder, monkeypatch: pytest.MonkeyPatch, instead: str, told: str
) -> None:
    entered(monkeypatch, instead)
    with pytest.raises(EndedError, match=told):
        apart_only().prepare(read(folder))


def test_a_process_that_hangs_is_ended_and_the_bundle_refused(
    folder: BundleFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered(monkeypatch, "time.sleep(600)")
    preparer = apart_only(seconds=1.5)
    with pytest.raises(EndedError, match=r"longer than 1.5 seconds"):
        preparer.prepare(read(folder))
    assert not preparer._running


def test_a_text_that_ends_the_parser_ends_the_other_process_only(
    folder: BundleFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Depth is counted before any parser; whatever else may end one ends here: the count is taken away."""
    deep = "(" * 20_000 + "true" + ")" * 20_000
    folder.policies(f'@id("deep") permit (principal, action, resource) when {{ {deep} }};\n')
    begin = apart._BEGIN.replace(
        "from policy_service",
        "import policy_service.pap.scan as s; s.MAX_NESTING = s.MAX_CHAIN = 10**9; from policy_service",
        1,
    )
    with pytest.raises(BundleError, match="brackets are nested"):
        apart_only().prepare(read(folder))
    monkeypatch.setattr(apart, "_BEGIN", begin)
    with pytest.raises(EndedError, match=r"ended \((SIGSEGV|SIGABRT)\)"):
        apart_only().prepare(read(folder))


def test_closing_ends_what_is_being_read_and_nothing_begins_afterwards(
    folder: BundleFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered(monkeypatch, "time.sleep(600)")
    preparer, told = apart_only(), []

    def prepare() -> None:
        try:
            preparer.prepare(read(folder))
        except EndedError as error:
            told.append(str(error))

    thread = threading.Thread(target=prepare)
    thread.start()
    while not preparer._running:
        time.sleep(0.01)
    preparer.close()
    thread.join(30)
    assert len(told) == 1
    assert "SIGKILL" in told[0]
    prepare()
    assert "stopping" in told[1]


def test_the_process_sees_no_secret_and_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERSIGN_DATABASE_URL", "postgresql://user:word@db/x")
    seen = tmp_path / "seen"
    entered(monkeypatch, f"open({str(seen)!r}, 'w').write(' '.join(os.environ))")
    folder = BundleFolder(tmp_path / "bundle").policies(PERMIT_ALL)
    with pytest.raises(EndedError):
        apart_only().prepare(read(folder))
    assert "COUNTERSIGN" not in seen.read_text()
    bounded = (
        "from policy_service.pap.reading_apart import _bound; import resource as r; _bound(7); "
        "print(r.getrlimit(r.RLIMIT_AS)[0], r.getrlimit(r.RLIMIT_CPU)[0], r.getrlimit(r.RLIMIT_CORE)[0])"
    )
    said = subprocess.run(
        [sys.executable, "-c", bounded], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert said.stdout.split() == [str(4 * 1024**3), "8", "0"]
