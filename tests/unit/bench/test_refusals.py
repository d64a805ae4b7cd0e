"""The bench ends where something was left out that its figures claim to include."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from countersign.contract import PrivateKey
from policy_service.storage import sqlite
from tests.bench import base, measuring, submitting
from tests.bench.kept import DECISIONS, SPENT, counting, require_kept
from tests.bench.load import drive, request
from tests.bench.measuring import TIME, BenchError, Row
from tests.bench.servers import PATH, Signer
from tests.fakes.http_server import Quiet, served


class Careless(Quiet):
    """A service that lets everything in and signs nothing."""

    protocol_version = "HTTP/1.0"  # it keeps no connection, so its end waits for none

    def respond(self) -> None:
        self.body()
        self.answer(201, b'{"state":"redeemed"}', {"Agent-Nonce": "any"})


@pytest.fixture
def port() -> Iterator[int]:
    with served(Careless) as url:
        yield int(url.rpartition(":")[2])


def body(run_key: str, subject: str) -> bytes:
    sent = {"run_key": run_key, "effects": [{"args": {"subject": subject}}]}
    return request("POST", PATH, 1, {}, json.dumps(sent).encode())


def test_an_altered_request_that_is_let_in_ends_the_bench(port: int) -> None:
    with pytest.raises(BenchError, match="answered 201"):
        submitting.require_authentication(port, Signer(PrivateKey.generate(), port))


def test_a_missing_receipt_ends_the_bench(port: int) -> None:
    spends = Signer(PrivateKey.generate(), port).submissions(1, spend=True)
    with pytest.raises(BenchError, match="answered 201"):
        drive(port, spends, 1, holding=submitting.RECEIPT)


def test_durability_below_full_ends_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "synchronous=full" in submitting.durability()
    monkeypatch.setattr(submitting, "open_writer", partial(sqlite.open_writer, durable=False))
    with pytest.raises(BenchError, match="synchronous = 1"):
        submitting.durability()


@pytest.mark.parametrize("missing", [DECISIONS, *SPENT])
def test_a_missing_decision_or_audit_row_ends_the_bench(tmp_path: Path, missing: str) -> None:
    file = tmp_path / "rows.db"
    count = counting(f"sqlite:///{file}")
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.executescript("CREATE TABLE decisions (id); CREATE TABLE audit (kind TEXT)")
        before = count()
        for kind in SPENT * 2:
            db.execute("INSERT INTO audit VALUES (?)", (kind,))
        db.execute("INSERT INTO decisions VALUES (1), (2)")
        require_kept(before, count(), SPENT, 2)
        table, where = (DECISIONS, "id = 1") if missing == DECISIONS else ("audit", f"kind = '{missing}'")
        db.execute(f"DELETE FROM {table} WHERE rowid = (SELECT min(rowid) FROM {table} WHERE {where})")
        with pytest.raises(BenchError, match=f"2 requests left 1 rows of {missing}"):
            require_kept(before, count(), SPENT, 2)


@pytest.mark.parametrize("second", [body("a", "y"), body("b", "x")], ids=["run key", "arguments"])
def test_two_requests_that_are_alike_end_the_bench(second: bytes) -> None:
    submitting.require_different([body("a", "x"), body("b", "y")], set())
    with pytest.raises(BenchError, match="same run key or arguments"):
        submitting.require_different([body("a", "x"), second], set())


def test_each_request_of_the_load_is_different() -> None:
    with served(Careless) as url:
        signer = Signer(PrivateKey.generate(), int(url.rpartition(":")[2]))
        seen: set[int] = set()
        for spend in (True, False):
            submitting.require_different(signer.submissions(3, spend=spend), seen)
        submitting.require_different(signer.reviews(3), seen)


# --------------------------------------------------------------------------------------------- the other commit

ITS_BENCH = """
from contextlib import contextmanager
from tests.bench.measuring import TIME, Case, Group

@contextmanager
def cases(folder, wanted):
    yield [Case("ours", lambda seconds: {TIME: 3 * seconds}), Case("bare", lambda _: {TIME: 1.0}, once=True)]

GROUP = Group((), cases)
"""


def test_another_commit_is_measured_by_its_own_bench(tmp_path: Path) -> None:
    bench = tmp_path / "tests/bench"
    bench.mkdir(parents=True)
    shutil.copy(measuring.__file__, bench)
    (bench / "one.py").write_text(ITS_BENCH)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    wanted = frozenset({"ours", "newer"})
    with base.cases(tmp_path, "tests.bench.one", tmp_path / "data", wanted) as (case,):
        samples = {"ours": [{TIME: 1.0}], case.name: [case.measure(2)], f"{base.OF_BASE}bare": [{TIME: 1.0}]}
    row = Row("X", "ours / bare", "ours", "bare", TIME)
    assert row.ratios(base.samples_of(samples)) == [6]
    assert Row("Y", "newer / bare", "newer", "bare", TIME).ratios(base.samples_of(samples)) == []
