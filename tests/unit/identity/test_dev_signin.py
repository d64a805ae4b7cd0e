"""The development sign-in: one link, one person, once, ten minutes, loopback only."""

import asyncio
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import select

from policy_service.errors import ForbiddenError, InvalidRequestError
from policy_service.identity.dev_signin import DEV_ISSUER, create_link, spend_link
from policy_service.identity.people import Person
from policy_service.identity.sessions import Sessions
from policy_service.settings import Settings
from policy_service.storage.core import table
from policy_service.storage.credential_tables import SignInLinkRow
from policy_service.storage.database import Database
from tests.unit.identity.parties import Clock, lines, settings
from tests.unit.storage.databases import SHORT_ON_SQLITE

LINKS = table(SignInLinkRow)


class Terminal:
    """Where links are printed, and the browser they are opened in."""

    def __init__(self, db: Database, clock: Clock, on: Settings, off: Settings) -> None:
        self.db, self.clock, self.on, self.off = db, clock, on, off

    def link(self, sub: str = "ada", name: str = "Ada Lovelace") -> str:
        return self.db.write_sync(lambda tx: create_link(tx, self.on, sub, name))

    async def open(self, token: str) -> str:
        return await self.db.write(lambda tx: spend_link(tx, self.on, token))

    async def refused(self, token: str) -> str:
        with pytest.raises(InvalidRequestError) as caught:
            await self.open(token)
        return caught.value.code.value


@pytest.fixture
def terminal(timed: Database, clock: Clock, tmp_path: Path) -> Terminal:
    return Terminal(timed, clock, settings(tmp_path, dev_signin=True), settings(tmp_path))


def token_of(link: str) -> str:
    return parse_qs(urlsplit(link).query)["token"][0]


async def test_a_link_signs_its_person_in(terminal: Terminal) -> None:
    link = terminal.link()
    assert link.startswith("http://127.0.0.1:8420/sign-in/dev?token=")
    cookie = await terminal.open(token_of(link))
    session = await Sessions(terminal.db, terminal.on, terminal.clock).find(cookie)
    assert session is not None
    assert session.person == Person(DEV_ISSUER, "ada", "Ada Lovelace", "dev", frozenset())


async def test_a_link_is_spent_once_and_nothing_else_opens_anything(terminal: Terminal) -> None:
    token = token_of(terminal.link())
    held = await terminal.db.read(lambda conn: list(conn.scalars(select(LINKS.c.token_hash))))
    assert token not in str(held)
    for unknown in (held[0], "", "x", "\udc80", "a" * 5000):
        assert await terminal.refused(unknown) == "bad_token"
    await terminal.open(token)
    assert await terminal.refused(token) == "bad_token"


@pytest.mark.parametrize("engine", SHORT_ON_SQLITE)
async def test_of_many_who_open_a_link_at_once_one_gets_in(terminal: Terminal) -> None:
    token = token_of(terminal.link())
    outcomes = await asyncio.gather(*(terminal.open(token) for _ in range(8)), return_exceptions=True)
    assert sorted(type(one).__name__ for one in outcomes) == ["InvalidRequestError"] * 7 + ["str"]


@pytest.mark.parametrize(("after_s", "code"), [(599, None), (600, "expired_token"), (601, "expired_token")])
async def test_a_link_lives_ten_minutes(terminal: Terminal, after_s: int, code: str | None) -> None:
    token = token_of(terminal.link())
    terminal.clock.later(after_s)
    if code is None:
        await terminal.open(token)
    else:
        assert await terminal.refused(token) == code


async def test_where_it_is_off_no_link_is_made_and_none_is_spent(terminal: Terminal) -> None:
    token = token_of(terminal.link())
    with pytest.raises(ForbiddenError, match="COUNTERSIGN_DEV_SIGNIN"):
        await terminal.db.write(lambda tx: create_link(tx, terminal.off, "ada", "Ada"))
    with pytest.raises(ForbiddenError, match="is off"):
        await terminal.db.write(lambda tx: spend_link(tx, terminal.off, token))


async def test_an_unreadable_name_gets_no_link(terminal: Terminal) -> None:
    for bad in ("", " ", " ada", "ada\n", "a\x1b[2J", "a" * 101, "\u202eada", "a\u200bda"):
        for which in ("sub", "name"):
            with pytest.raises(InvalidRequestError):
                terminal.link(**{which: bad})


async def test_making_and_using_a_link_is_logged_without_the_token(terminal: Terminal) -> None:
    token = token_of(terminal.link())
    await terminal.open(token)
    logged = lines(terminal.db)
    made, signed_in = (line[:2] for line in logged)
    assert made == ("sign_in_link_made", "operator")
    assert signed_in == ("signed_in", "person:urn:countersign:dev|ada")
    assert token not in str(logged)
