"""The development sign-in: a one-time link that the service prints on its own terminal, on loopback only.

A reader of that terminal could also read the database, so the link is as secure as the host. It is used by one
conditional UPDATE. Votes of such a session carry ``assurance: dev`` into every token they release.
"""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta

from sqlalchemy import delete, update
from sqlmodel import col

from countersign.contract import ErrorCode
from policy_service.errors import ForbiddenError, InvalidRequestError
from policy_service.identity.people import record_sign_in
from policy_service.identity.sessions import hash_secret, open_session
from policy_service.settings import Settings
from policy_service.storage.core import find_one, table
from policy_service.storage.credential_tables import SignInLinkRow
from policy_service.storage.database import Tx
from policy_service.storage.unit_of_work import append

DEV_ISSUER = "urn:countersign:dev"
_BYTES = 32
_MAX_NAME = 100  # characters; it is shown with every vote


def create_link(tx: Tx, settings: Settings, sub: str, name: str) -> str:
    """The address of a one-time link that signs in ``sub``.

    Raises:
        ForbiddenError: the development sign-in is off.
        InvalidRequestError: the subject or the name is not readable.
    """
    _require_on(settings)
    for what, text in (("subject", sub), ("name", name)):
        if not 0 < len(text) <= _MAX_NAME or not text.isprintable() or text != text.strip():
            raise InvalidRequestError(
                f"the {what} {text!r} cannot be a person's; write 1 to {_MAX_NAME} letters"
            )
    token = secrets.token_urlsafe(_BYTES)
    row = {
        "token_hash": hash_secret(token),
        "iss": DEV_ISSUER,
        "sub": sub,
        "name": name,
        "created_at": tx.now,
        "expires_at": tx.now + timedelta(seconds=settings.sign_in_link_s),
    }
    tx.conn.execute(table(SignInLinkRow).insert().values(row))
    append(tx, "sign_in_link_made", actor="operator", body={"person": f"{DEV_ISSUER}|{sub}"})
    return f"{settings.public_url}/sign-in/dev?token={token}"


def spend_link(tx: Tx, settings: Settings, token: str) -> str:
    """Sign in the person of a link, once. Returns the cookie, which is not stored.

    Raises:
        ForbiddenError: the development sign-in is off.
        InvalidRequestError: bad_token (unknown or used), expired_token.
    """
    _require_on(settings)
    link = find_one(tx.conn, SignInLinkRow, token_hash=hash_secret(token))
    if link is None or link.used_at is not None:
        raise InvalidRequestError(
            "this sign-in link is unknown or was used; ask the terminal for another: policy-service signin NAME",
            code=ErrorCode.BAD_TOKEN,
        )
    if tx.now >= link.expires_at:
        raise InvalidRequestError(
            "this sign-in link is too old; ask for another", code=ErrorCode.EXPIRED_TOKEN
        )
    where = (col(SignInLinkRow.token_hash) == link.token_hash, col(SignInLinkRow.used_at).is_(None))
    if tx.conn.execute(update(SignInLinkRow).where(*where).values(used_at=tx.now)).rowcount != 1:
        raise InvalidRequestError(
            "this sign-in link was used a moment ago; ask for another", code=ErrorCode.BAD_TOKEN
        )
    record_sign_in(tx, link.iss, link.sub, link.name)
    return open_session(tx, link.iss, link.sub, "dev", max_s=settings.session_max_s, auth_at=tx.now)


def revoke_all_links(tx: Tx) -> None:
    """Make all unused links invalid."""
    tx.conn.execute(update(SignInLinkRow).where(col(SignInLinkRow.used_at).is_(None)).values(used_at=tx.now))


def _require_on(settings: Settings) -> None:
    if not settings.dev_signin:
        raise ForbiddenError(
            "the development sign-in is off; start the service with COUNTERSIGN_DEV_SIGNIN=true"
        )


def delete_expired_links(tx: Tx, before: datetime) -> int:
    """Delete links that expired before that time. Returns their number."""
    return tx.conn.execute(delete(SignInLinkRow).where(col(SignInLinkRow.expires_at) < before)).rowcount
