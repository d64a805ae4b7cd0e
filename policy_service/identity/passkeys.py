"""Passkeys of people, and their WebAuthn challenges.

A challenge is 256 random bits, stored hashed, for one person in one session. One UPDATE spends it, and it expires
after minutes. A credential or key that was ever enrolled is never enrolled again, by anyone: two people with one
device would be one person with two votes. A passkey is active from the time in its row until it is removed. A counter
that does not rise means a copy of the key: the answer is refused and the operator alerted.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import Connection, delete, update
from sqlmodel import col

from countersign.contract import ErrorCode
from policy_service.errors import ConflictError, ForbiddenError, InvalidRequestError, NotFoundError
from policy_service.identity.sessions import Session, hash_secret
from policy_service.identity.webauthn import RegisteredCredential, key_digest
from policy_service.storage.core import find, find_one, insert_row, insert_row_or_ignore, table, update_rows
from policy_service.storage.credential_tables import SessionRow
from policy_service.storage.database import Tx
from policy_service.storage.system_tables import ChallengeRow, PasskeyRow
from policy_service.storage.types import new_id
from policy_service.storage.unit_of_work import append

log = structlog.get_logger(__name__)

OPERATOR = "operator"
_MAX_NAME = 60  # characters: one line on a phone
_MAX_PASSKEYS = 20  # passkeys of one person
_BYTES = 32
_HANDLE_LABEL = b"countersign/passkey-handle/v1\n"


@dataclass(frozen=True, slots=True)
class SpentChallenge:
    """A challenge that was just spent."""

    purpose: str
    person: str
    session: str
    about: Mapping[str, Any]
    expires_at: datetime


def user_handle(iss: str, sub: str) -> bytes:
    """The user handle an authenticator stores: it identifies a person and reveals nothing about them."""
    return hashlib.sha256(_HANDLE_LABEL + f"{iss}|{sub}".encode()).digest()


def passkeys_of(conn: Connection, iss: str, sub: str) -> list[PasskeyRow]:
    """Every passkey of a person, removed ones too, oldest first."""
    return sorted(find(conn, PasskeyRow, iss=iss, sub=sub), key=lambda row: (row.created_at, row.passkey_id))


def active_passkeys(conn: Connection, iss: str, sub: str, now: datetime) -> list[PasskeyRow]:
    """The active passkeys of a person."""
    return [row for row in passkeys_of(conn, iss, sub) if is_active(row, now)]


def is_active(row: PasskeyRow, now: datetime) -> bool:
    """Whether a passkey counts: past its waiting time, and not removed."""
    return row.removed_at is None and now >= row.counts_from


def find_passkey(conn: Connection, credential_id: str) -> PasskeyRow | None:
    """The passkey of a credential, removed or not."""
    return find_one(conn, PasskeyRow, credential_id=credential_id)


def issue_challenge(tx: Tx, session: Session, purpose: str, about: Mapping[str, Any], *, life_s: int) -> str:
    """Create a challenge for this person in this session. Returns its nonce, which is not stored."""
    nonce = secrets.token_urlsafe(_BYTES)
    row = ChallengeRow(
        nonce_hash=hash_secret(nonce),
        purpose=purpose,
        iss=session.person.iss,
        sub=session.person.sub,
        session=session.key,
        about=dict(about),
        created_at=tx.now,
        expires_at=tx.now + timedelta(seconds=life_s),
    )
    insert_row(tx.conn, row)
    return nonce


def challenge_bytes(nonce: str) -> bytes:
    """The challenge of an enrolment or its confirmation, where only the nonce is signed."""
    return hashlib.sha256(nonce.encode()).digest()


def spend_challenge(tx: Tx, nonce: str) -> SpentChallenge | None:
    """Spend a challenge, whether or not its answer is valid; None if it is unknown or spent."""
    row = find_one(tx.conn, ChallengeRow, nonce_hash=hash_secret(nonce))
    if row is None:
        return None
    claim = update(table(ChallengeRow)).where(
        col(ChallengeRow.nonce_hash) == row.nonce_hash, col(ChallengeRow.used_at).is_(None)
    )
    if tx.conn.execute(claim.values(used_at=tx.now)).rowcount != 1:
        return None
    return SpentChallenge(row.purpose, f"{row.iss}|{row.sub}", row.session, row.about, row.expires_at)


def require_matching_challenge(
    spent: SpentChallenge | None, purpose: str, person: str, session: str, now: datetime
) -> SpentChallenge:
    """Require that a spent challenge was issued for this purpose, person and session.

    Raises:
        ForbiddenError: step_up_required; it was not.
    """
    if spent is None:
        raise step_up_error("this confirmation was used before, or never was one")
    if spent.person != person or spent.session != session:
        raise step_up_error("this confirmation was begun by another person or in another session")
    if spent.purpose != purpose:
        raise step_up_error("this confirmation was begun for something else")
    if now >= spent.expires_at:
        raise step_up_error("this confirmation took too long")
    return spent


def step_up_error(why: str) -> ForbiddenError:
    """The error of a failed confirmation; the person starts again."""
    return ForbiddenError(
        f"{why}; open the page again and repeat the confirmation", code=ErrorCode.STEP_UP_REQUIRED
    )


def enrol_passkey(
    tx: Tx, session: Session, made: RegisteredCredential, name: str, *, vouched_by: str | None, wait_s: int
) -> PasskeyRow:
    """Store a new passkey. If it replaces lost ones and no older one confirms it, it is active only after ``wait_s``.

    Raises:
        ConflictError: this device is enrolled already.
    """
    person, digest = session.person, key_digest(made.public_key)
    replaces = vouched_by is None and bool(passkeys_of(tx.conn, person.iss, person.sub))
    row = PasskeyRow(
        passkey_id=new_id("pk", tx.now),
        credential_id=made.credential_id,
        key_digest=digest,
        public_key=made.public_key,
        iss=person.iss,
        sub=person.sub,
        name=name,
        sign_count=made.sign_count,
        vouched_by=vouched_by,
        created_by=session.key,
        created_at=tx.now,
        counts_from=tx.now + timedelta(seconds=wait_s if replaces else 0),
    )
    if not insert_row_or_ignore(tx.conn, row):
        raise ConflictError("this passkey was enrolled before, by you or another person; use another one")
    body = {"passkey_id": row.passkey_id, "key": digest, "vouched_by": vouched_by, "waits": replaces}
    append(tx, "passkey_enrolled", actor=f"person:{person.key}", body={"person": person.key, **body})
    return row


def require_passkey_name(name: str) -> str:
    """A person's name for a passkey.

    Raises:
        InvalidRequestError: it is not readable.
    """
    name = name.strip()
    if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        raise InvalidRequestError(f"call the passkey by 1 to {_MAX_NAME} letters, for example 'blue key'")
    return name


def require_passkey_capacity(conn: Connection, iss: str, sub: str) -> None:
    """Refuse more than the maximum number of passkeys.

    Raises:
        ConflictError: the maximum is reached.
    """
    if sum(row.removed_at is None for row in passkeys_of(conn, iss, sub)) >= _MAX_PASSKEYS:
        raise ConflictError(f"{_MAX_PASSKEYS} passkeys are enough for one person; remove one first")


def own_passkey(conn: Connection, session: Session, passkey_id: str) -> PasskeyRow:
    """A passkey this person has now.

    Raises:
        NotFoundError: they have none with that id.
    """
    row = find_one(conn, PasskeyRow, passkey_id=passkey_id)
    if row is None or (row.iss, row.sub) != (session.person.iss, session.person.sub) or row.removed_at:
        raise NotFoundError(f"you have no passkey {passkey_id!r}")
    return row


def remove_passkey(tx: Tx, row: PasskeyRow, *, by: str, actor: str, reason: str | None = None) -> bool:
    """Remove a passkey; False if it was removed before. Earlier votes with it remain valid."""
    where = (col(PasskeyRow.passkey_id) == row.passkey_id, col(PasskeyRow.removed_at).is_(None))
    gone = update(table(PasskeyRow)).where(*where).values(removed_at=tx.now, removed_by=by)
    if tx.conn.execute(gone).rowcount != 1:
        return False
    body = {"person": f"{row.iss}|{row.sub}", "passkey_id": row.passkey_id, "key": row.key_digest}
    append(tx, "passkey_removed", actor=actor, body=body if reason is None else body | {"reason": reason})
    return True


def record_use(tx: Tx, row: PasskeyRow, counter: int) -> None:
    """Record an answer and its counter. ``row`` is the state that was read.

    Raises:
        ForbiddenError: step_up_required; it was removed or used meanwhile.
    """
    where = (
        col(PasskeyRow.passkey_id) == row.passkey_id,
        col(PasskeyRow.removed_at).is_(None),
        col(PasskeyRow.sign_count) == row.sign_count,
    )
    noted = update(table(PasskeyRow)).where(*where).values(sign_count=counter, last_used_at=tx.now)
    if tx.conn.execute(noted).rowcount != 1:
        raise step_up_error("this passkey was removed or used elsewhere a moment ago")


def counter_regressed(row: PasskeyRow, counter: int) -> bool:
    """Whether a counter does not rise (WebAuthn section 6.1.1); authenticators without one always send 0."""
    return (counter > 0 or row.sign_count > 0) and counter <= row.sign_count


def report_counter_regression(tx: Tx, row: PasskeyRow, counter: int) -> None:
    """Alert the operator: a copy of a passkey may be in use."""
    body = {
        "person": f"{row.iss}|{row.sub}",
        "passkey_id": row.passkey_id,
        "was": row.sign_count,
        "said": counter,
    }
    append(tx, "passkey_counter_regressed", actor=f"person:{row.iss}|{row.sub}", body=body)
    log.error("passkey_counter_regressed", **body)


def dismiss_notices(tx: Tx, session: Session) -> None:
    """Dismiss the notices of this session; those of the person's other sessions stay."""
    update_rows(tx.conn, SessionRow, {"id_hash": session.key}, {"told_at": tx.now})


def delete_expired_challenges(tx: Tx, before: datetime) -> int:
    """Delete challenges that expired before that time. Returns their number."""
    return tx.conn.execute(delete(ChallengeRow).where(col(ChallengeRow.expires_at) < before)).rowcount
