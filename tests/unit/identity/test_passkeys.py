"""A challenge serves one person in one session for one thing, once; a passkey's counter is noted once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from policy_service.errors import ForbiddenError
from policy_service.identity.passkeys import Spent, require_for, used
from policy_service.storage.core import find_one, insert_row
from policy_service.storage.database import Database, Tx
from policy_service.storage.proof_tables import PasskeyRow

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
SPENT = Spent("vote", "https://idp.example|maya", "session", "about", NOW + timedelta(seconds=1))
HERS: dict[str, Any] = {"purpose": "vote", "person": SPENT.person, "session": SPENT.session, "now": NOW}


def test_it_is_nobody_elses_for_nothing_else_and_once() -> None:
    assert require_for(SPENT, **HERS) is SPENT
    others = {
        "person": "https://idp.example|tomas",
        "session": "x",
        "purpose": "enrol",
        "now": SPENT.expires_at,
    }
    for member, other in others.items():
        with pytest.raises(ForbiddenError):
            require_for(SPENT, **HERS | {member: other})
    with pytest.raises(ForbiddenError):
        require_for(None, **HERS)


@pytest.mark.parametrize("engine", ["sqlite"])
def test_of_two_answers_read_at_the_same_counter_one_counts(store: Database) -> None:
    row = PasskeyRow(
        passkey_id="pk_1", credential_id="c", key_digest="d", public_key=b"k", iss="https://idp.example",
        sub="maya", name="blue", sign_count=4, vouched_by=None, created_by="s", created_at=NOW, counts_from=NOW,
    )  # fmt: skip

    def twice(tx: Tx) -> None:
        insert_row(tx.conn, row)
        stale = find_one(tx.conn, PasskeyRow, passkey_id="pk_1")
        assert stale is not None
        used(tx, stale, 5)
        with pytest.raises(ForbiddenError):
            used(tx, stale, 6)
        kept = find_one(tx.conn, PasskeyRow, passkey_id="pk_1")
        assert kept is not None
        assert kept.sign_count == 5

    store.write_sync(twice)
