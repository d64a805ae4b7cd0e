"""A session ends by inactivity, age, sign-out or a change of its provider; its cookie is not stored."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text

from policy_service.identity.people import record_sign_in
from policy_service.identity.sessions import Sessions, open_session
from policy_service.storage.core import table
from policy_service.storage.credential_tables import SessionRow
from policy_service.storage.database import Database, Tx
from tests.unit.identity.parties import Clock, lines, settings

IDP = "https://idp.example"
PROVIDERS = [{"name": "idp", "title": "IdP", "issuer": IDP, "client_id": "c", "client_secret": "s"}]


class Browser:
    """A signed-in person and the clock on the wall."""

    def __init__(self, db: Database, clock: Clock, folder: Path) -> None:
        self.db, self.clock, self.folder = db, clock, folder
        self.settings = settings(folder, dev_signin=True, providers=PROVIDERS)
        self.sessions = Sessions(db, self.settings, clock)
        self.find = self.sessions.find

    def sign_in(self, sub: str = "42", assurance: str = "oidc") -> str:
        def unit(tx: Tx) -> str:
            record_sign_in(tx, IDP, sub, f"Person {sub}")
            trust = self.settings.providers[0].trust if assurance == "oidc" else None
            return open_session(tx, IDP, sub, assurance, max_s=self.settings.session_max_s, trust=trust)

        return self.db.write_sync(unit)

    async def found_with(self, cookie: str, **given: Any) -> bool:
        """Whether a service with these settings takes the cookie."""
        other = Sessions(self.db, settings(self.folder, **given), self.clock)
        return await other.find(cookie) is not None


@pytest.fixture
def browser(timed: Database, clock: Clock, tmp_path: Path) -> Browser:
    return Browser(timed, clock, tmp_path)


async def test_every_sign_in_makes_another_cookie_and_another_form_token(browser: Browser) -> None:
    """H3: a planted cookie is worth nothing."""
    cookies = [browser.sign_in() for _ in range(2)]
    sessions = [await browser.find(cookie) for cookie in cookies]
    assert cookies[0] != cookies[1]
    assert len({session.csrf for session in sessions if session is not None}) == 2
    assert all(len(cookie) >= 43 for cookie in cookies), "256 bits"
    for session in sessions:
        assert session is not None
        assert (session.person.key, session.person.assurance) == ("https://idp.example|42", "oidc")


async def test_neither_the_cookie_nor_its_hash_opens_anything_from_the_database(browser: Browser) -> None:
    cookie = browser.sign_in()
    held = await browser.db.read(lambda conn: list(conn.scalars(select(table(SessionRow).c.id_hash))))
    assert cookie not in str(held)
    for unknown in (held[0], "", "x", "\udc80", "a" * 5000):
        assert await browser.find(unknown) is None


async def test_an_hour_without_a_request_ends_it(browser: Browser) -> None:
    cookie = browser.sign_in()
    for seconds, open_still in ((3599, True), (3599, True), (3600, False)):  # each request counts
        browser.clock.later(seconds)
        assert (await browser.find(cookie) is not None) is open_still


async def test_a_session_expires_in_spite_of_activity(browser: Browser) -> None:
    cookie = browser.sign_in()
    for seconds in [1800] * 23 + [1799]:
        browser.clock.later(seconds)
        assert await browser.find(cookie) is not None
    browser.clock.later(1)
    assert await browser.find(cookie) is None


async def test_requests_within_a_minute_write_once(browser: Browser) -> None:
    cookie = browser.sign_in()
    commits: list[int] = []
    browser.db.on_commit(lambda: commits.append(1))
    browser.clock.later(61)
    for _ in range(5):
        await browser.find(cookie)
    browser.db.write_sync(lambda tx: tx.now)
    assert len(commits) <= 3


async def test_signing_out_everywhere_ends_only_own_sessions(browser: Browser) -> None:
    """H11: also the one on the laptop that was lost."""
    await browser.sessions.sign_out("unknown")
    assert lines(browser.db) == []
    mine = browser.sign_in()
    for _ in range(2):
        await browser.sessions.sign_out(mine)
    actor = "person:https://idp.example|42"
    assert lines(browser.db) == [("signed_in", actor, {"assurance": "oidc"}), ("signed_out", actor, {})]
    there, others = browser.sign_in(), browser.sign_in("43")
    assert await browser.find(mine) is None
    assert await Sessions(browser.db, browser.settings, browser.clock).find(mine) is None
    assert [await browser.find(one) is None for one in (there, others)] == [False, False]
    again = browser.sign_in()
    await browser.sessions.sign_out(again, everywhere=True)
    assert [await browser.find(one) is None for one in (again, there, others)] == [True, True, False]
    assert [kind for kind, _, _ in lines(browser.db)].count("signed_out") == 3


async def test_a_person_who_is_no_longer_known_has_no_session(browser: Browser) -> None:
    cookie = browser.sign_in()
    browser.db.write_sync(lambda tx: tx.conn.execute(text("DELETE FROM people")).rowcount)
    assert await browser.find(cookie) is None


async def test_switching_the_development_sign_in_off_ends_its_sessions(browser: Browser) -> None:
    """K5: what was opened from the terminal of a trial must not outlive the trial."""
    dev, real = browser.sign_in(assurance="dev"), browser.sign_in()
    assert await browser.find(dev) is not None
    assert not await browser.found_with(dev, providers=PROVIDERS)
    assert await browser.found_with(real, providers=PROVIDERS)


async def test_a_provider_that_is_no_longer_trusted_takes_its_sessions_along(browser: Browser) -> None:
    cookie = browser.sign_in()
    of_groups = {"groups_claim": "groups"}
    others = ({"issuer": "https://other.example"}, {"client_id": "other"}, {"required": {"hd": "a.example"}})
    for changed in (*others, of_groups, of_groups | {"members_of": ["staff"]}):
        assert not await browser.found_with(cookie, providers=[PROVIDERS[0] | changed]), changed
    assert await browser.found_with(cookie, providers=[PROVIDERS[0] | {"title": "Another title"}])
