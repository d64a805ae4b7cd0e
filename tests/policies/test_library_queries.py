"""The queries of the library bundles on small databases return what their rules expect."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from countersign.contract import canonicalize
from policy_service.domain.policy_request import Facts
from policy_service.pap.bundle import load_bundle

LIBRARY = Path(__file__).resolve().parents[2] / "policies/library"
NOON = datetime(2026, 1, 14, 12, tzinfo=UTC)


class Asked:
    """One library bundle with a database of its own."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._file = folder / "facts.sqlite3"
        self._patch = patch

    async def facts(
        self, rule: str, variable: str, script: str, tool: str, now: datetime = NOON, /, **args: Any
    ) -> Facts:
        with closing(sqlite3.connect(self._file)) as db:
            db.executescript(script)
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


PAYEES = {"settled": True, "waiting": False, "never": False, "unknown": None, "no account": None}


@pytest.mark.parametrize(("payee", "paid"), PAYEES.items())
async def test_settled_payment_makes_a_payee_known(asked: Asked, payee: str, paid: bool | None) -> None:
    """Without a row or an account the payee is unknown."""
    pay = {"payee": payee, "amount_cents": 1, "reference": ""}
    facts = await asked.facts("first-recipient", "LEDGER_URL", LEDGER, "pay", **pay)
    assert (facts.failed is None) is (paid is not None)
    if paid is None:
        assert "ledger" in str(facts.failed)
    else:
        assert facts.resource["paid_before"] is paid


# Nine to five in Berlin: on Friday before the clocks go forward it is 08:00 UTC, on Monday after it 07:00.
CALENDAR = """
CREATE TABLE office_hours (opens_at TEXT, closes_at TEXT);
INSERT INTO office_hours VALUES ('2026-03-27T08:00:00+00:00', '2026-03-27T16:00:00+00:00'),
    ('2026-03-30T07:00:00+00:00', '2026-03-30T15:00:00+00:00');
"""


HOURS = [
    ("2026-03-27T07:59:59.999999+00:00", False),
    ("2026-03-27T08:00:00+00:00", True),
    ("2026-03-27T08:00:00.000001+00:00", True),
    ("2026-03-27T15:59:59.999999+00:00", True),
    ("2026-03-27T16:00:00+00:00", False),
    ("2026-03-28T12:00:00+00:00", False),  # a Saturday has no row
    ("2026-03-30T07:00:00+00:00", True),  # summer time: an hour earlier by UTC
    ("2026-03-30T15:30:00+00:00", False),
    ("2027-03-30T12:00:00+00:00", False),  # the calendar has ended
]


@pytest.mark.parametrize(("now", "is_open"), HOURS)
async def test_office_hours_follow_the_calendar(asked: Asked, now: str, is_open: bool) -> None:
    deploy = ("office-hours", "CALENDAR_URL", CALENDAR, "deploy", datetime.fromisoformat(now))
    facts = await asked.facts(*deploy, service="billing", version="v1")
    assert (facts.failed, facts.agent["office_open"]) == (None, is_open)


@pytest.mark.parametrize("ids", [["a"], ["a", "a", "b"], [str(number) for number in range(1001)]])
async def test_list_is_counted_with_repeats(asked: Asked, ids: list[str]) -> None:
    facts = await asked.facts("bulk", "COUNT_URL", "", "delete_records", table="drafts", ids=ids)
    assert (facts.failed, facts.resource["listed"]) == (None, len(ids))


MEMORIES = """
CREATE TABLE memories (id TEXT, shared INTEGER);
CREATE TABLE entries (memory TEXT, bytes INTEGER);
INSERT INTO memories VALUES ('m1', 0), ('m2', 1);
INSERT INTO entries VALUES ('m1', 40), ('m1', 2), ('other', 1000);
"""


TEXTS = [("m1", "prefers tea", 42), ("m1", "Überprüfung 💡", 42), ("m2", "x", 0)]


@pytest.mark.parametrize(("memory", "text", "stored"), TEXTS)
async def test_text_and_memory_are_measured(asked: Asked, memory: str, text: str, stored: int) -> None:
    said = {"memory": memory, "text": text, "bytes": 1}
    facts = await asked.facts("memory", "MEMORY_URL", MEMORIES, "remember", **said)
    assert facts.failed is None
    expected = {"text_bytes": len(text.encode()), "stored_bytes": stored, "shared": memory == "m2"}
    assert facts.resource == expected
