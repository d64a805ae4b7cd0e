"""Whom a gate asks is told the same way wherever an agent reads it: how many, of whom, and with a passkey or not."""

from __future__ import annotations

import pytest

from countersign import Asks, ReviewPending, ReviewRequired, SQLiteAdapter, run_transaction
from countersign.contract import Verdict
from countersign.contract.wire import Need
from tests.fakes import service
from tests.fakes.desk import Desk, notes_database, refund_tool
from tests.fakes.running import fails, order_tool

GATE = Need(gates=("large",), groups=("finance", "cfo"), quorum=2, have=0, step_up="passkey")
WORDS = "2 of finance|cfo with passkey"


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "ASKED", GATE)


def test_who_waits_for_people_reads_it(desk: Desk) -> None:
    pending = fails(desk, ReviewPending, (refund_tool(desk), "o-1", 90_000), match="refund waits for ")
    (review,) = pending.error.reviews
    assert review.asks == (Asks(("finance", "cfo"), 2, "passkey"),)
    assert WORDS in pending.said


def test_so_does_who_would_have_to_ask_before_a_live_effect(desk: Desk) -> None:
    """A live effect cannot wait, and is not told less of whom it would have waited for."""

    @order_tool(desk, lane="live", adapter=SQLiteAdapter(notes_database(desk.folder)), ask="live")
    def note(order_id: str) -> None: ...

    desk.service.policy = lambda *_: Verdict.REVIEW
    refused = fails(desk, ReviewRequired, (note, "o-1"), match="would have to agree")
    assert refused.error.asks == (Asks(("finance", "cfo"), 2, "passkey"),)
    assert WORDS in refused.said


def test_so_does_a_dry_run(desk: Desk) -> None:
    refund = refund_tool(desk)
    found = run_transaction(lambda _: refund("o-1", 90_000), key="t-1", dry_run=True, runtime=desk.runtime)
    assert [one.told for one in found.effects] == [f"asks {WORDS}"]
