"""A name is enrolled once, a key belongs to one agent for ever, and every change is in the audit log."""

import asyncio
from typing import Any

import pytest

from countersign.contract import PrivateKey
from policy_service.errors import ConflictError, InvalidRequestError, NotFoundError
from policy_service.identity import agents
from policy_service.identity.proofs import find_key
from policy_service.storage.database import Database
from tests.unit.identity.parties import START as NOW
from tests.unit.identity.parties import lines
from tests.unit.storage.databases import SHORT_ON_SQLITE

KEY = PrivateKey.from_seed(bytes(range(32))).public


@pytest.fixture
def store(store: Database) -> Database:
    owned = {"owner": "https://idp|42", "roles": ["support-agent"]}
    store.write_sync(lambda tx: agents.enroll(tx, "billing-bot", **owned))
    store.write_sync(lambda tx: agents.enroll(tx, "other-bot"))
    return store


def agent(db: Database, name: str) -> Any:
    return db.read_sync(lambda conn: agents.find_agent(conn, name))


def key(db: Database, kid: str) -> Any:
    return db.read_sync(lambda conn: find_key(conn, kid, NOW))


def test_an_enrolled_agent_is_found_as_it_was_enrolled(store: Database) -> None:
    found = agent(store, "billing-bot")
    assert (found.owner, found.roles, found.teams) == ("https://idp|42", ["support-agent"], [])
    assert (found.frozen_at, agent(store, "other-bot").owner) == (None, None)
    assert agent(store, "Billing-bot") is None
    assert [row.name for row in store.read_sync(agents.list_agents)] == ["billing-bot", "other-bot"]


BAD_NAMES = ["", " ", "a b", "-a", ".a", "a/b", "a|b", "a\n", "a\x00", "ä", "a" * 101, "a:b", "\u202ebot"]


def test_a_name_that_cannot_be_one_is_refused_and_quoted(store: Database) -> None:
    for name in BAD_NAMES:
        with pytest.raises(InvalidRequestError) as caught:
            store.write_sync(lambda tx, name=name: agents.enroll(tx, name))
        assert repr(name) in str(caught.value)
    for owner in ("", "somebody", "|42", "https://idp|", "|"):
        with pytest.raises(InvalidRequestError, match=r"ISSUER\|SUBJECT"):
            store.write_sync(lambda tx, owner=owner: agents.enroll(tx, "new-bot", owner=owner))


def test_a_name_is_enrolled_once_and_the_first_enrolment_stays(store: Database) -> None:
    with pytest.raises(ConflictError, match="billing-bot"):
        store.write_sync(lambda tx: agents.enroll(tx, "billing-bot", owner="https://idp|666"))
    assert agent(store, "billing-bot").owner == "https://idp|42"


@pytest.mark.parametrize("engine", SHORT_ON_SQLITE)
async def test_of_two_concurrent_enrolments_of_a_name_one_is_refused(store: Database) -> None:
    enrolling = (store.write(lambda tx: agents.enroll(tx, "new-bot")) for _ in range(8))
    outcomes = await asyncio.gather(*enrolling, return_exceptions=True)
    assert sorted(type(one).__name__ for one in outcomes) == ["ConflictError"] * 7 + ["NoneType"]


def test_a_key_leads_to_its_party(store: Database) -> None:
    store.write_sync(lambda tx: agents.add_key(tx, "billing-bot", KEY))
    found = key(store, KEY.kid)
    assert (found.agent, found.key.kid, found.key.raw) == ("billing-bot", KEY.kid, KEY.raw)
    assert key(store, KEY.kid[:-1]) is None
    unknown = PrivateKey.generate().public
    with pytest.raises(NotFoundError, match="agent enroll unknown"):
        store.write_sync(lambda tx: agents.add_key(tx, "unknown", unknown))
    with pytest.raises(NotFoundError, match=unknown.kid):
        store.write_sync(lambda tx: agents.revoke_key(tx, unknown.kid))


def test_a_party_has_several_keys_and_loses_one_alone(store: Database) -> None:
    second = PrivateKey.generate().public
    for one in (KEY, second):
        store.write_sync(lambda tx, one=one: agents.add_key(tx, "billing-bot", one))
    store.write_sync(lambda tx: agents.revoke_key(tx, KEY.kid))
    assert (key(store, KEY.kid), key(store, second.kid) is None) == (None, False)
    keys = store.read_sync(lambda conn: agents.list_keys(conn, "billing-bot"))
    assert {one.kid: one.revoked_at is not None for one in keys} == {KEY.kid: True, second.kid: False}


@pytest.mark.parametrize("again", ["billing-bot", "other-bot"])
@pytest.mark.parametrize("revoked", [True, False])
@pytest.mark.parametrize("engine", SHORT_ON_SQLITE)
def test_a_key_is_given_once(store: Database, again: str, revoked: bool) -> None:
    """C20: not to another party, and not again after it was revoked: somebody may have taken it."""
    store.write_sync(lambda tx: agents.add_key(tx, "billing-bot", KEY))
    if revoked:
        store.write_sync(lambda tx: agents.revoke_key(tx, KEY.kid))
    with pytest.raises(ConflictError, match=KEY.kid):
        store.write_sync(lambda tx: agents.add_key(tx, again, KEY))
    found = key(store, KEY.kid)
    assert found is None if revoked else found.agent == "billing-bot"


def test_each_change_is_one_line_of_the_log_and_a_refusal_is_none(store: Database) -> None:
    store.write_sync(lambda tx: agents.add_key(tx, "billing-bot", KEY))
    for _ in range(2):
        store.write_sync(lambda tx: agents.revoke_key(tx, KEY.kid))
    with pytest.raises(ConflictError):
        store.write_sync(lambda tx: agents.enroll(tx, "billing-bot"))
    enrolled = {"agent": "billing-bot", "owner": "https://idp|42", "roles": ["support-agent"], "teams": []}
    assert lines(store) == [
        ("agent_enrolled", "operator", enrolled),
        ("agent_enrolled", "operator", {"agent": "other-bot", "owner": None, "roles": [], "teams": []}),
        ("agent_key_added", "operator", {"agent": "billing-bot", "kid": KEY.kid}),
        ("agent_key_revoked", "operator", {"agent": "billing-bot", "kid": KEY.kid}),
    ]
