"""A person is an issuer and a subject; groups of a token count while they are fresh."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update

from policy_service.identity.people import Person, find_person, record_sign_in
from policy_service.storage.core import table
from policy_service.storage.database import Database
from policy_service.storage.tables import PersonRow
from tests.unit.storage.databases import SHORT_ON_SQLITE

IDP = "https://idp.example"
MAX_AGE = 43_200


ADA = {"email": "ada@x.example", "groups": ["finance"]}


def find(db: Database, sub: str = "42", iss: str = IDP) -> Person | None:
    now = db.write_sync(lambda tx: tx.now)
    return db.read_sync(lambda conn: find_person(conn, iss, sub, "oidc", now, MAX_AGE))


def signed_in(db: Database, name: str = "Ada", sub: str = "42", **said: Any) -> datetime:
    return db.write_sync(lambda tx: (record_sign_in(tx, IDP, sub, name, **said), tx.now)[1])


def test_another_issuer_or_an_address_identifies_no_person(store: Database) -> None:
    """F7."""
    signed_in(store, **ADA)
    found = find(store)
    assert found == Person(IDP, "42", "Ada", "oidc", frozenset({"finance"}))
    assert found.key == "https://idp.example|42"
    for iss, sub in (("https://other.example", "42"), (IDP, "43"), (IDP, "ada@x.example")):
        assert find(store, sub, iss) is None


def test_an_address_that_moves_to_another_person_moves_nothing_else(store: Database) -> None:
    signed_in(store, **ADA)
    signed_in(store, "Eve", "43", email="ada@x.example")
    assert find(store, "43") == Person(IDP, "43", "Eve", "oidc", frozenset())


@pytest.mark.parametrize("engine", SHORT_ON_SQLITE)
def test_a_later_sign_in_brings_the_newest_name_groups_and_reason_for_none(store: Database) -> None:
    signed_in(store, groups=["finance", "cfo"])
    signed_in(store, "Ada L.", groups=["finance"])
    assert find(store) == Person(IDP, "42", "Ada L.", "oidc", frozenset({"finance"}))
    signed_in(store, groups=[], groups_problem="no claim 'groups'")
    found = find(store)
    assert found is not None
    assert (found.name, found.groups, found.groups_problem) == ("Ada", frozenset(), "no claim 'groups'")
    signed_in(store, groups=["finance"])
    assert find(store) == Person(IDP, "42", "Ada", "oidc", frozenset({"finance"}))
    signed_in(store)
    assert find(store) == Person(IDP, "42", "Ada", "oidc", frozenset())


def test_groups_end_exactly_at_the_limit(store: Database) -> None:
    at = signed_in(store, groups=["finance"])
    for seconds, groups in ((MAX_AGE - 0.000001, {"finance"}), (MAX_AGE, set()), (MAX_AGE + 60, set())):
        now = at + timedelta(seconds=seconds)
        found = store.read_sync(lambda conn, now=now: find_person(conn, IDP, "42", "oidc", now, MAX_AGE))
        assert found is not None and found.groups == groups


def test_a_revoked_person_is_not_found(store: Database) -> None:
    signed_in(store)
    gone = update(table(PersonRow))
    store.write_sync(lambda tx: tx.conn.execute(gone.values(revoked_at=tx.now)).rowcount)
    assert find(store) is None


@pytest.mark.parametrize("engine", SHORT_ON_SQLITE)
async def test_two_first_sign_ins_at_once_both_work(store: Database) -> None:
    await asyncio.gather(*(store.write(lambda tx: record_sign_in(tx, IDP, "42", "Ada")) for _ in range(8)))
    assert find(store) is not None
