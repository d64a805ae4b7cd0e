"""The queries of the ready rules, asked of small databases: what they count is what their rules take it for."""

import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from countersign.contract import canonicalize
from policy_service.domain.question import Facts
from policy_service.pap.bundle import load_bundle

LIBRARY = Path(__file__).resolve().parents[2] / "policies/library"
NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)

pytestmark = pytest.mark.anyio


class Asked:
    """One ready rule beside a database of its own."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._file = folder / "facts.sqlite3"
        self._patch = patch

    async def facts(
        self, rule: str, variable: str, script: str, tool: str, args: dict[str, Any], now: datetime = NOON
    ) -> Facts:
        with sqlite3.connect(self._file) as db:
            db.executescript(script)
        db.close()
        self._patch.setenv(variable, f"sqlite:///{self._file}")
        bundle = load_bundle(LIBRARY / rule)
        try:
            return await bundle.facts_for(tool, args, canonicalize(args), agent="robot", now=now)
        finally:
            bundle.close()


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(tmp_path, monkeypatch)


LEDGER = """
CREATE TABLE payees (id TEXT, account_since TEXT);
CREATE TABLE payments (payee TEXT, settled_at TEXT);
INSERT INTO payees VALUES ('settled', '2025-06-01T00:00:00Z'), ('waiting', '2025-06-01T00:00:00Z'),
    ('never', '2026-01-14T11:00:00Z'), ('no account', NULL);
INSERT INTO payments VALUES ('settled', '2025-07-01T00:00:00Z'), ('settled', NULL), ('waiting', NULL);
"""


@pytest.mark.parametrize(("payee", "paid"), [("settled", True), ("waiting", False), ("never", False)])
async def test_only_a_settled_payment_makes_a_payee_known(asked: Asked, payee: str, paid: bool) -> None:
    args = {"payee": payee, "amount_cents": 1, "reference": ""}
    facts = await asked.facts("first-recipient", "LEDGER_URL", LEDGER, "pay", args)
    assert facts.failed is None
    assert facts.resource["paid_before"] is paid


@pytest.mark.parametrize("payee", ["nobody", "no account"])
async def test_a_payee_without_a_row_or_an_account_is_not_known(asked: Asked, payee: str) -> None:
    args = {"payee": payee, "amount_cents": 1, "reference": ""}
    facts = await asked.facts("first-recipient", "LEDGER_URL", LEDGER, "pay", args)
    assert facts.failed is not None
    assert "ledger" in facts.failed


# Nine to five in Berlin: on Friday before the clocks go forward it is 08:00 UTC, on Monday after it 07:00.
CALENDAR = """
CREATE TABLE office_hours (opens_at TEXT, closes_at TEXT);
INSERT INTO office_hours VALUES ('2026-03-27T08:00:00+00:00', '2026-03-27T16:00:00+00:00'),
    ('2026-03-30T07:00:00+00:00', '2026-03-30T15:00:00+00:00');
"""


@pytest.mark.parametrize(
    ("now", "is_open"),
    [
        ("2026-03-27T07:59:59.999999+00:00", False),
        ("2026-03-27T08:00:00+00:00", True),
        ("2026-03-27T08:00:00.000001+00:00", True),
        ("2026-03-27T15:59:59.999999+00:00", True),
        ("2026-03-27T16:00:00+00:00", False),
        ("2026-03-28T12:00:00+00:00", False),  # a Saturday has no row
        ("2026-03-30T07:00:00+00:00", True),  # summer time: an hour earlier by UTC
        ("2026-03-30T15:30:00+00:00", False),
        ("2027-03-30T12:00:00+00:00", False),  # the calendar has ended
    ],
)
async def test_the_office_is_open_as_the_calendar_says_across_summer_time(
    asked: Asked, now: str, is_open: bool
) -> None:
    args = {"service": "billing", "version": "v1"}
    moment = datetime.fromisoformat(now)
    facts = await asked.facts("office-hours", "CALENDAR_URL", CALENDAR, "deploy", args, moment)
    assert facts.failed is None
    assert facts.agent["office_open"] is is_open


@pytest.mark.parametrize("ids", [["a"], ["a", "a", "b"], [str(number) for number in range(1001)]])
async def test_a_list_is_counted_with_repeats(asked: Asked, ids: list[str]) -> None:
    facts = await asked.facts("bulk", "COUNT_URL", "", "delete_records", {"table": "drafts", "ids": ids})
    assert facts.failed is None
    assert facts.resource["listed"] == len(ids)


MEMORIES = """
CREATE TABLE memories (id TEXT, shared INTEGER);
CREATE TABLE entries (memory TEXT, bytes INTEGER);
INSERT INTO memories VALUES ('m1', 0), ('m2', 1);
INSERT INTO entries VALUES ('m1', 40), ('m1', 2), ('other', 1000);
"""


@pytest.mark.parametrize("text", ["prefers tea", "Überprüfung 💡"])
async def test_a_text_is_measured_in_bytes_and_a_memory_by_its_own_entries(asked: Asked, text: str) -> None:
    args = {"memory": "m1", "text": text, "bytes": 1}
    facts = await asked.facts("memory", "MEMORY_URL", MEMORIES, "remember", args)
    assert facts.failed is None
    assert facts.resource == {"text_bytes": len(text.encode()), "stored_bytes": 42, "shared": False}


async def test_an_empty_memory_holds_nothing(asked: Asked) -> None:
    args = {"memory": "m2", "text": "x", "bytes": 1}
    facts = await asked.facts("memory", "MEMORY_URL", MEMORIES, "remember", args)
    assert facts.resource == {"text_bytes": 1, "stored_bytes": 0, "shared": True}
