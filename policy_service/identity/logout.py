"""A provider tells that somebody signed out over there: OpenID Connect Back-Channel Logout 1.0.

The logout token is verified as an ID token is, by the keys of the provider whose address was called, and then
(section 2.6) in order: it is for us; its ``events`` name the logout; it holds no ``nonce``, for then it is an ID token;
it says who or which session; it is new. Each is obeyed once: its ``jti`` is kept as long as it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import and_, delete, or_
from sqlalchemy.exc import IntegrityError
from sqlmodel import col

from policy_service.identity.claims import LONGEST
from policy_service.identity.foreign_tokens import UntrustedTokenError, audiences, text_claim
from policy_service.identity.sessions import end_sessions
from policy_service.identity.slack_links import rest_until_signed_in
from policy_service.issuers import SignInProvider
from policy_service.storage.core import table
from policy_service.storage.credentials import LogoutTokenRow, SessionRow
from policy_service.storage.database import Tx

EVENT = "http://schemas.openid.net/event/backchannel-logout"
TYPES = ("logout+jwt", "JWT")  # the second for providers of before the standard's final form
_LONGEST_LIFE = timedelta(hours=24)  # of a token; the standard advises two minutes


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
    if not isinstance(events, dict) or not isinstance(events.get(EVENT), dict):
        raise UntrustedTokenError("it tells of no logout")
    if "nonce" in claims:
        raise UntrustedTokenError("it holds a nonce, so it is an ID token")
    sub, sid = (
        text_claim(claims, name, LONGEST["sub"]) if name in claims else None for name in ("sub", "sid")
    )
    if sub is None and sid is None:
        raise UntrustedTokenError("it says neither who nor which session")
    if claims["exp"] > (now + _LONGEST_LIFE).timestamp():
        raise UntrustedTokenError("it holds for longer than a day")
    expires_at = datetime.fromtimestamp(int(claims["exp"]), UTC)
    return Logout(provider.issuer, sub, sid, text_claim(claims, "jti", LONGEST["sub"]), expires_at)


def obey(tx: Tx, logout: Logout) -> int:
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
        rest_until_signed_in(tx, logout.iss, logout.sub)
    named = col(SessionRow.sid) == logout.sid
    theirs = col(SessionRow.sub) == logout.sub
    if logout.sid is None:
        which = theirs
    elif logout.sub is None:
        which = named
    else:  # a session the provider did not name when it began may be the one
        which = and_(theirs, or_(named, col(SessionRow.sid).is_(None)))
    return end_sessions(tx, and_(col(SessionRow.iss) == logout.iss, which))


def forget_logouts(tx: Tx, before: datetime) -> int:
    """Delete what is known of logout tokens that hold no more; how many."""
    return tx.conn.execute(delete(LogoutTokenRow).where(col(LogoutTokenRow.expires_at) < before)).rowcount
