"""Server-side sessions of people.

A cookie is 256 random bits; the database stores its hash. A session ends by inactivity, by age or by sign-out. Each
sign-in creates a new session, so a planted cookie is worthless; a stolen one becomes worthless with `rotate_cookie`.
Background requests of an open page are not activity: only a person's own request prevents the timeout.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, and_, delete, true, update
from sqlmodel import col

from policy_service.errors import ForbiddenError, UnauthenticatedError
from policy_service.identity.people import Person, find_person, is_revoked, slack_links_of
from policy_service.settings import Settings
from policy_service.storage.core import find, find_one, table, update_rows
from policy_service.storage.credential_tables import SessionRow
from policy_service.storage.database import Database, Tx
from policy_service.storage.slack_tables import SlackLinkRow
from policy_service.storage.system_tables import PasskeyRow
from policy_service.storage.unit_of_work import Clock, append, utc_now

_BYTES = 32
# how long each session shows a notice of changed passkeys or Slack accounts
_NOTICE_PERIOD = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Notice:
    """A passkey was added or removed, or a Slack account linked, recently and in another session of this person."""

    what: str  # "added", "removed" or "linked"
    name: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Session:
    """A live session and its form token."""

    person: Person
    csrf: str
    key: str = ""  # the hash of its id: identifies it, cannot be used as a cookie
    auth_at: datetime | None = None  # time of the last authentication, if known
    notices: tuple[Notice, ...] = ()


def hash_secret(secret: str) -> str:
    """The SHA-256 under which a long random secret is stored."""
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
    """Create a session and return its cookie, which is not stored. ``sid``: the provider's id of its own session,
    which it may end; ``auth_at``: the time of the authentication, if known.

    Raises:
        ForbiddenError: an operator revoked this person.
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
    """Finds and ends sessions."""

    def __init__(self, db: Database, settings: Settings, clock: Clock = utc_now) -> None:
        self._db = db
        self._settings = settings
        self._trusted = frozenset(provider.trust for provider in settings.providers)
        self._clock = clock

    async def find(self, cookie: str, *, touch: bool = True) -> Session | None:
        """The live session of a cookie, or None if it is unknown, ended, inactive too long or expired.

        ``touch`` records activity; event streams and background requests pass False.
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
        row = find_one(conn, SessionRow, id_hash=hash_secret(cookie))
        if row is None or row.revoked_at is not None or now >= row.expires_at:
            return None
        if row.assurance == "dev" and not self._settings.dev_signin:
            return None  # the development sign-in was switched off, which ends its sessions
        if row.assurance == "oidc" and row.trust not in self._trusted:
            return None  # the provider was removed, or its settings have changed
        if (now - row.seen_at).total_seconds() >= self._settings.session_idle_s:
            return None
        person = find_person(conn, row.iss, row.sub, row.assurance, now, self._settings.max_group_age_s)
        if person is None:
            return None
        return row, person, _notices(conn, row, now)


def _notices(conn: Connection, session: SessionRow, now: datetime) -> tuple[Notice, ...]:
    """Recent changes by other sessions to this person's passkeys and Slack accounts, not yet dismissed in this
    session.
    """
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
    """Give a session another cookie, so that a copy of the old one is invalid. Returns the cookie, which is not
    stored. Changes made in the session still belong to it, so it shows no notices of them.

    Raises:
        UnauthenticatedError: the session has ended.
    """
    cookie = secrets.token_urlsafe(_BYTES)
    live = (col(SessionRow.id_hash) == session.key, col(SessionRow.revoked_at).is_(None))
    if tx.conn.execute(update(SessionRow).where(*live).values(id_hash=hash_secret(cookie))).rowcount != 1:
        raise UnauthenticatedError("this session has ended; sign in again")
    for row, by in ((PasskeyRow, "created_by"), (PasskeyRow, "removed_by"), (SlackLinkRow, "linked_by")):
        whose = {"iss": session.person.iss, "sub": session.person.sub, by: session.key}
        update_rows(tx.conn, row, whose, {by: hash_secret(cookie)})
    return cookie


def end_session(tx: Tx, cookie: str | None) -> None:
    """End the session of a cookie; None or an ended one is ignored."""
    if cookie is not None:
        end_sessions(tx, col(SessionRow.id_hash) == hash_secret(cookie))


def end_sessions_of(tx: Tx, iss: str, sub: str) -> int:
    """End every session of a person. Returns the number of open ones."""
    return end_sessions(tx, and_(col(SessionRow.iss) == iss, col(SessionRow.sub) == sub))


def end_every_session(tx: Tx) -> int:
    """End all sessions. Returns the number of open ones."""
    return end_sessions(tx, true())


def _end_all(tx: Tx, cookie: str) -> None:
    row = find_one(tx.conn, SessionRow, id_hash=hash_secret(cookie))
    if row is not None:
        end_sessions_of(tx, row.iss, row.sub)


def end_sessions(tx: Tx, which: ColumnElement[bool]) -> int:
    """End the sessions that match. Returns the number of open ones."""
    ended = update(SessionRow).where(which, col(SessionRow.revoked_at).is_(None)).values(revoked_at=tx.now)
    rows = tx.conn.execute(ended.returning(col(SessionRow.iss), col(SessionRow.sub))).all()
    for row in rows:
        append(tx, "signed_out", actor=f"person:{row.iss}|{row.sub}", body={})
    return len(rows)


def delete_expired_sessions(tx: Tx, before: datetime) -> int:
    """Delete sessions that expired before that time. Returns their number."""
    return tx.conn.execute(delete(SessionRow).where(col(SessionRow.expires_at) < before)).rowcount
