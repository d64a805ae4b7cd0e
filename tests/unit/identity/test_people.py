"""A person is an issuer and a subject; groups of a token count while they are young."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from sqlalchemy import update

from policy_service.identity.people import Person, find_person, remember
from policy_service.storage.core import table
from policy_service.storage.database import Database
from policy_service.storage.tables import PersonRow
from tests.unit.storage.databases import BOTH

IDP = "https://idp.example"
MAX_AGE = 43_200


def find(db: Database, sub: str = "42", iss: str = IDP, later_s: float = 0) -> Person | None:
    now = db.write_sync(lambda tx: tx.now) + timedelta(seconds=later_s)
    return db.read_sync(lambda conn: find_person(conn, iss, sub, "oidc", now, MAX_AGE))


def test_a_person_is_found_by_issuer_and_subject(store: Database) -> None:
    store.write_sync(lambda tx: remember(tx, IDP, "42", "Ada", email="ada@x.example", groups=["finance"]))
    found = find(store)
    assert found == Person(IDP, "42", "Ada", "oidc", frozenset({"finance"}))
    assert found.key == "https://idp.example|42"


@pytest.mark.parametrize(
    ("iss", "sub"), [("https://other.example", "42"), (IDP, "43"), (IDP, "ada@x.example")]
)
def test_the_same_subject_elsewhere_or_the_address_is_nobody(store: Database, iss: str, sub: str) -> None:
    """F7."""
    store.write_sync(lambda tx: remember(tx, IDP, "42", "Ada", email="ada@x.example"))
    assert find(store, sub, iss) is None


def test_an_address_that_moves_to_another_person_moves_nothing_else(store: Database) -> None:
    store.write_sync(lambda tx: remember(tx, IDP, "42", "Ada", email="ada@x.example", groups=["finance"]))
    store.write_sync(lambda tx: remember(tx, IDP, "43", "Eve", email="ada@x.example"))
    eve = find(store, "43")
    assert eve is not None
    assert eve.groups == frozenset()


@pytest.mark.parametrize("engine", BOTH)
def test_a_later_sign_in_brings_the_newest_name_and_groups(store: Database) -> None:
    store.write_sync(lambda tx: remember(tx, IDP, "42", "Ada", groups=["finance", "cfo"]))
    store.write_sync(lambda tx: remember(tx, IDP, "42", "Ada L.", groups=["finance"]))
    found = find(store)
    assert found is not None
    assert (found.name, found.groups) == ("Ada L.", frozenset({"finance"}))


@pytest.mark.parametrize("engine", BOTH)
def test_the_reason_for_missing_groups_is_that_of_the_last_sign_in(store: Database) -> None:
    store.write_sync(lambda tx: remember(tx, IDP, "42", "Ada", groups=[], groups_problem="no claim 'groups'"))
    found = find(store)
    assert found is not None
    assert (found.groups, found.groups_problem) == (frozenset(), "no claim 'groups'")
    store.write_sync(lambda tx: remember(tx, IDP, "42", "Ada", groups=["finance"]))
    assert find(store) == Person(IDP, "42", "Ada", "oidc", frozenset({"finance"}))


@pytest.mark.parametrize(
    ("later_s", "groups"), [(MAX_AGE - 5, {"finance"}), (MAX_AGE, set()), (MAX_AGE + 60, set())]
)
def test_groups_older_than_the_limit_count_as_none(store: Database, later_s: float, groups: set[str]) -> None:
    store.write_sync(lambda tx: remember(tx, IDP, "42", "Ada", groups=["finance"]))
    found = find(store, later_s=later_s)
    assert found is not None
    assert found.groups == groups


def test_a_sign_in_without_groups_leaves_none_of_an_earlier_one(store: Database) -> None:
    store.write_sync(lambda tx: remember(tx, IDP, "42", "Ada", groups=["finance"]))
    store.write_sync(lambda tx: remember(tx, IDP, "42", "Ada"))
    found = find(store)
    assert found is not None
    assert found.groups == frozenset()


def test_somebody_who_was_revoked_is_nobody(store: Database) -> None:
    store.write_sync(lambda tx: remember(tx, IDP, "42", "Ada"))
    gone = update(table(PersonRow))
    store.write_sync(lambda tx: tx.conn.execute(gone.values(revoked_at=tx.now)).rowcount)
    assert find(store) is None


def test_groups_end_exactly_at_the_limit(store: Database) -> None:
    signed_in = store.write_sync(lambda tx: (remember(tx, IDP, "42", "Ada", groups=["finance"]), tx.now)[1])

    def at(seconds: float) -> frozenset[str]:
        now = signed_in + timedelta(seconds=seconds)
        found = store.read_sync(lambda conn: find_person(conn, IDP, "42", "oidc", now, MAX_AGE))
        assert found is not None
        return found.groups

    assert at(MAX_AGE - 0.000001) == {"finance"}
    assert at(MAX_AGE) == frozenset()


@pytest.mark.anyio
@pytest.mark.parametrize("engine", BOTH)
async def test_two_first_sign_ins_at_once_both_work(store: Database) -> None:
    await asyncio.gather(*(store.write(lambda tx: remember(tx, IDP, "42", "Ada")) for _ in range(8)))
    assert find(store) is not None
