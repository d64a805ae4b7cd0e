"""Server-side sessions of people.

The cookie is 256 random bits; the database holds its hash. A session ends by idleness, by age, by sign-out, and is
never carried over a sign-in: each sign-in makes a new one, so a planted cookie is worth nothing. Neither is a stolen
one once its session goes by another (`another_cookie`). What an open page does by itself is no activity: only a
person's own request keeps a session from idling out.

A provider tells that somebody signed out over there: OpenID Connect Back-Channel Logout 1.0.

The logout token is verified as an ID token is, by the keys of the provider whose address was called, and then
(section 2.6) in order: it is for us; its ``events`` name the logout; it holds no ``nonce``, for then it is an ID token;
it says who or which session; it is new. Each is obeyed once: its ``jti`` is kept as long as it holds.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, or_, select, true, update
from sqlalchemy.exc import IntegrityError
from sqlmodel import col

from policy_service.errors import ForbiddenError, UnauthenticatedError
from policy_service.identity.claims import MAX_LENGTHS
from policy_service.identity.external_jwt import UntrustedTokenError, audiences, text_claim
from policy_service.identity.people import (
    Person,
    find_person,
    is_revoked,
    slack_links_of,
    suspend_slack_links,
)
from policy_service.issuers import SignInProvider
from policy_service.settings import Settings
from policy_service.storage.audit_writer import append
from policy_service.storage.core import find, table, update_rows
from policy_service.storage.credential_tables import LogoutTokenRow, SessionRow
from policy_service.storage.database import Database, Tx
from policy_service.storage.slack_tables import SlackLinkRow
from policy_service.storage.system_tables import PasskeyRow
from policy_service.storage.unit_of_work import Clock, utc_now

_BYTES = 32
# a change of passkeys or Slack accounts is told on every page for so long, session by session
_NOTICE_PERIOD = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Notice:
    """That a passkey of this person was added or removed, or a Slack account linked to them, in another session, and
    not long ago.
    """

    what: str  # "added", "removed" or "linked"
    name: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Session:
    """A live session and its form token."""

    person: Person
    csrf: str
    key: str = ""  # its id's hash: names it, opens nothing
    auth_at: datetime | None = None  # when its person last proved who they are, where that is known
    notices: tuple[Notice, ...] = ()


def hash_secret(secret: str) -> str:
    """What is stored of a secret that is random and long: its SHA-256."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def open_session(
    tx: Tx,
    iss: str,
    sub: str,
    assurance: str,
    *,
    max_s: int,
    trust: str | None = None,
    sid: str | None = None,
    auth_at: datetime | None = None,
) -> str:
    """A fresh session; the cookie's value, once. ``sid`` is what the provider calls its own, which it may end;
    ``auth_at``: when its person proved who they are, where it is known.

    Raises:
        ForbiddenError: an operator took this person out of every decision.
    """
    if is_revoked(tx.conn, iss, sub):
        raise ForbiddenError("an operator of this deployment has taken you out of its decisions")
    cookie = secrets.token_urlsafe(_BYTES)
    row = {
        "id_hash": hash_secret(cookie),
        "iss": iss,
        "sub": sub,
        "assurance": assurance,
        "trust": trust,
        "sid": sid,
        "csrf_token": secrets.token_urlsafe(_BYTES),
        "auth_at": auth_at,
        "created_at": tx.now,
        "seen_at": tx.now,
        "expires_at": tx.now + timedelta(seconds=max_s),
    }
    tx.conn.execute(table(SessionRow).insert().values(row))
    append(tx, "signed_in", actor=f"person:{iss}|{sub}", body={"assurance": assurance})
    return cookie


class Sessions:
    """Finding and ending sessions."""

    def __init__(self, db: Database, settings: Settings, clock: Clock = utc_now) -> None:
        self._db = db
        self._settings = settings
        self._trusted = frozenset(provider.trust for provider in settings.providers)
        self._clock = clock

    async def find(self, cookie: str, *, touch: bool = True) -> Session | None:
        """The live session of a cookie, or None when it is unknown, ended, idle too long or too old.

        ``touch`` says that the person is there now; event streams and what a page fetches by itself pass False.
        """
        now = self._clock()
        found = await self._db.read(lambda conn: self._live(conn, cookie, now))
        if found is None:
            return None
        row, person, notices = found
        if touch and (now - row.seen_at).total_seconds() >= self._settings.session_touch_s:
            await self._db.write(lambda tx: _touch(tx, row.id_hash))
        return Session(person, row.csrf_token, row.id_hash, row.auth_at, notices)

    async def sign_out(self, cookie: str, *, everywhere: bool = False) -> None:
        """End a session, or every session of its person. An unknown cookie is ignored."""
        await self._db.write(lambda tx: _end_all(tx, cookie) if everywhere else end_session(tx, cookie))

    def _live(
        self, conn: Connection, cookie: str, now: datetime
    ) -> tuple[SessionRow, Person, tuple[Notice, ...]] | None:
        columns = table(SessionRow).columns
        row = conn.execute(select(*columns).where(col(SessionRow.id_hash) == hash_secret(cookie))).first()
        if row is None or row.revoked_at is not None or now >= row.expires_at:
            return None
        if row.assurance == "dev" and not self._settings.dev_signin:
            return None  # opened while the development sign-in was on; switching it off ends them all
        if row.assurance == "oidc" and row.trust not in self._trusted:
            return None  # the operator no longer lets this provider vouch, or asks for more than it did
        if (now - row.seen_at).total_seconds() >= self._settings.session_idle_s:
            return None
        person = find_person(conn, row.iss, row.sub, row.assurance, now, self._settings.max_group_age_s)
        if person is None:
            return None
        live = SessionRow(**row._mapping)
        return live, person, _notices(conn, live, now)


def _notices(conn: Connection, session: SessionRow, now: datetime) -> tuple[Notice, ...]:
    """What others did to this person's passkeys and Slack accounts lately, and this session has not been told."""
    since = max(now - _NOTICE_PERIOD, session.told_at or session.created_at - _NOTICE_PERIOD)
    found = []
    for row in find(conn, PasskeyRow, iss=session.iss, sub=session.sub):
        changes = (("added", row.created_at, row.created_by), ("removed", row.removed_at, row.removed_by))
        found += [
            Notice(what, row.name, at)
            for what, at, by in changes
            if at is not None and at > since and by != session.id_hash
        ]
    found += [
        Notice("linked", row.account, row.linked_at)
        for row in slack_links_of(conn, session.iss, session.sub)
        if row.linked_at > since and row.linked_by != session.id_hash
    ]
    return tuple(sorted(found, key=lambda notice: notice.at))


def _touch(tx: Tx, id_hash: str) -> None:
    tx.conn.execute(update(SessionRow).where(col(SessionRow.id_hash) == id_hash).values(seen_at=tx.now))


def rotate_cookie(tx: Tx, session: Session) -> str:
    """The same session under another cookie, so that whoever else holds the one it had is signed out; its value, once.
    What was done in it stays its own: nobody is told that they did it elsewhere.

    Raises:
        UnauthenticatedError: the session has ended meanwhile.
    """
    cookie = secrets.token_urlsafe(_BYTES)
    live = (col(SessionRow.id_hash) == session.key, col(SessionRow.revoked_at).is_(None))
    if tx.conn.execute(update(SessionRow).where(*live).values(id_hash=hash_secret(cookie))).rowcount != 1:
        raise UnauthenticatedError("nobody is signed in here any more; sign in again")
    for row, by in ((PasskeyRow, "created_by"), (PasskeyRow, "removed_by"), (SlackLinkRow, "linked_by")):
        whose = {"iss": session.person.iss, "sub": session.person.sub, by: session.key}
        update_rows(tx.conn, row, whose, {by: hash_secret(cookie)})
    return cookie


def end_session(tx: Tx, cookie: str | None) -> None:
    """End the session of a cookie; none, or one that is over, is ignored."""
    if cookie is not None:
        _end(tx, col(SessionRow.id_hash) == hash_secret(cookie))


def end_sessions_of(tx: Tx, iss: str, sub: str) -> int:
    """End every session of a person; how many were open."""
    return _end(tx, and_(col(SessionRow.iss) == iss, col(SessionRow.sub) == sub))


def end_sessions(tx: Tx, which: ColumnElement[bool]) -> int:
    """End the sessions that are so; how many were open."""
    return _end(tx, which)


def end_every_session(tx: Tx) -> int:
    """End the session of everybody; how many were open."""
    return _end(tx, true())


def _end_all(tx: Tx, cookie: str) -> None:
    whose = select(col(SessionRow.iss), col(SessionRow.sub))
    row = tx.conn.execute(whose.where(col(SessionRow.id_hash) == hash_secret(cookie))).first()
    if row is not None:
        end_sessions_of(tx, row.iss, row.sub)


def _end(tx: Tx, which: ColumnElement[bool]) -> int:
    ended = update(SessionRow).where(which, col(SessionRow.revoked_at).is_(None)).values(revoked_at=tx.now)
    rows = tx.conn.execute(ended.returning(col(SessionRow.iss), col(SessionRow.sub))).all()
    for row in rows:
        append(tx, "signed_out", actor=f"person:{row.iss}|{row.sub}", body={})
    return len(rows)


def delete_expired_sessions(tx: Tx, before: datetime) -> int:
    """Delete sessions that were over before that moment; how many."""
    return tx.conn.execute(delete(SessionRow).where(col(SessionRow.expires_at) < before)).rowcount


LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"
LOGOUT_TYPES = ("logout+jwt", "JWT")  # the second for providers of before the standard's final form
_MAX_LOGOUT_LIFE = timedelta(hours=24)  # of a token; the standard advises two minutes


@dataclass(frozen=True, slots=True)
class Logout:
    """Whose sessions end: those of a provider's session, or all of a person's."""

    iss: str
    sub: str | None
    sid: str | None
    jti: str
    expires_at: datetime


def read_logout(provider: SignInProvider, claims: Mapping[str, Any], now: datetime) -> Logout:
    """What a token says whose signature and times hold.

    Raises:
        UntrustedTokenError: it is no logout token of this provider's for us.
    """
    if claims.get("iss") != provider.issuer:
        raise UntrustedTokenError("it is another issuer's")
    if provider.client_id not in audiences(claims):
        raise UntrustedTokenError("it is for somebody else")
    events = claims.get("events")
    if not isinstance(events, dict) or not isinstance(events.get(LOGOUT_EVENT), dict):
        raise UntrustedTokenError("it tells of no logout")
    if "nonce" in claims:
        raise UntrustedTokenError("it holds a nonce, so it is an ID token")
    sub, sid = (
        text_claim(claims, name, MAX_LENGTHS["sub"]) if name in claims else None for name in ("sub", "sid")
    )
    if sub is None and sid is None:
        raise UntrustedTokenError("it says neither who nor which session")
    if claims["exp"] > (now + _MAX_LOGOUT_LIFE).timestamp():
        raise UntrustedTokenError("it holds for longer than a day")
    expires_at = datetime.fromtimestamp(int(claims["exp"]), UTC)
    return Logout(provider.issuer, sub, sid, text_claim(claims, "jti", MAX_LENGTHS["sub"]), expires_at)


def apply_logout(tx: Tx, logout: Logout) -> int:
    """End the sessions a logout is about; how many were open. One of everything a person has open puts their Slack
    accounts to rest as well, until they sign in again: nothing else would tell these that somebody has left.

    Raises:
        UntrustedTokenError: it was obeyed before.
    """
    row = {"iss": logout.iss, "jti": logout.jti, "expires_at": logout.expires_at}
    try:
        with tx.conn.begin_nested():
            tx.conn.execute(table(LogoutTokenRow).insert().values(row))
    except IntegrityError as error:
        raise UntrustedTokenError("it was obeyed before") from error
    if logout.sub is not None and logout.sid is None:
        suspend_slack_links(tx, logout.iss, logout.sub)
    named = col(SessionRow.sid) == logout.sid
    theirs = col(SessionRow.sub) == logout.sub
    if logout.sid is None:
        which = theirs
    elif logout.sub is None:
        which = named
    else:  # a session the provider did not name when it began may be the one
        which = and_(theirs, or_(named, col(SessionRow.sid).is_(None)))
    return end_sessions(tx, and_(col(SessionRow.iss) == logout.iss, which))


def delete_expired_logouts(tx: Tx, before: datetime) -> int:
    """Delete what is known of logout tokens that hold no more; how many."""
    return tx.conn.execute(delete(LogoutTokenRow).where(col(LogoutTokenRow.expires_at) < before)).rowcount
