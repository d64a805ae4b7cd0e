"""Back-channel logout of people by their providers: OpenID Connect Back-Channel Logout 1.0.

A logout token is verified like an ID token, with the keys of the provider whose address was called. Then, in order
(section 2.6): it is for us; its ``events`` name the logout; it has no ``nonce``, which would make it an ID token; it
names a subject or a session; it is new. Each is applied once: its ``jti`` is kept until it expires.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import and_, delete, or_
from sqlalchemy.exc import IntegrityError
from sqlmodel import col

from policy_service.identity.claims import MAX_LENGTHS
from policy_service.identity.external_jwt import UntrustedTokenError, audiences, text_claim
from policy_service.identity.people import suspend_slack_links
from policy_service.identity.sessions import end_sessions
from policy_service.issuers import SignInProvider
from policy_service.storage.core import table
from policy_service.storage.credential_tables import LogoutTokenRow, SessionRow
from policy_service.storage.database import Tx

LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"


LOGOUT_TYPES = ("logout+jwt", "JWT")  # the second for providers from before the final standard


_MAX_LOGOUT_LIFE = timedelta(hours=24)  # of a token; the standard recommends two minutes


@dataclass(frozen=True, slots=True)
class Logout:
    """The sessions to end: those of a provider's session, or all of a person."""

    iss: str
    sub: str | None
    sid: str | None
    jti: str
    expires_at: datetime


def read_logout(provider: SignInProvider, claims: Mapping[str, Any], now: datetime) -> Logout:
    """The content of a token whose signature and times are valid.

    Raises:
        UntrustedTokenError: it is no logout token of this provider for us.
    """
    if claims.get("iss") != provider.issuer:
        raise UntrustedTokenError("it is another issuer's")
    if provider.client_id not in audiences(claims):
        raise UntrustedTokenError("it is for another client")
    events = claims.get("events")
    if not isinstance(events, dict) or not isinstance(events.get(LOGOUT_EVENT), dict):
        raise UntrustedTokenError("its events name no logout")
    if "nonce" in claims:
        raise UntrustedTokenError("it holds a nonce, so it is an ID token")
    sub, sid = (
        text_claim(claims, name, MAX_LENGTHS["sub"]) if name in claims else None for name in ("sub", "sid")
    )
    if sub is None and sid is None:
        raise UntrustedTokenError("it says neither who nor which session")
    if claims["exp"] > (now + _MAX_LOGOUT_LIFE).timestamp():
        raise UntrustedTokenError("it is valid for more than a day")
    expires_at = datetime.fromtimestamp(int(claims["exp"]), UTC)
    return Logout(provider.issuer, sub, sid, text_claim(claims, "jti", MAX_LENGTHS["sub"]), expires_at)


def apply_logout(tx: Tx, logout: Logout) -> int:
    """End the sessions of a logout. Returns the number of open ones. A logout of all sessions of a person also
    suspends their Slack links: no other event reports that a person has left.

    Raises:
        UntrustedTokenError: it was applied before.
    """
    row = {"iss": logout.iss, "jti": logout.jti, "expires_at": logout.expires_at}
    try:
        with tx.conn.begin_nested():
            tx.conn.execute(table(LogoutTokenRow).insert().values(row))
    except IntegrityError as error:
        raise UntrustedTokenError("it was applied before") from error
    if logout.sub is not None and logout.sid is None:
        suspend_slack_links(tx, logout.iss, logout.sub)
    named = col(SessionRow.sid) == logout.sid
    theirs = col(SessionRow.sub) == logout.sub
    if logout.sid is None:
        which = theirs
    elif logout.sub is None:
        which = named
    else:  # a session without a provider's id may be the one
        which = and_(theirs, or_(named, col(SessionRow.sid).is_(None)))
    return end_sessions(tx, and_(col(SessionRow.iss) == logout.iss, which))


def delete_expired_logouts(tx: Tx, before: datetime) -> int:
    """Delete records of expired logout tokens. Returns their number."""
    return tx.conn.execute(delete(LogoutTokenRow).where(col(LogoutTokenRow.expires_at) < before)).rowcount
