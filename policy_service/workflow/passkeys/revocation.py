"""What an operator does about passkeys that were lost or stolen.

Lost: they are taken away, what was voted with them stands, and the person enrols anew (which then waits). Stolen: the
passkey is revoked, and with it every one it vouched for, and those these vouched for: whoever held it could have
enrolled one of their own by its word. The votes all of them proved leave every count, as those of a revoked approver
do; what only they had approved waits for people again, at its redemption at the latest.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select, update
from sqlmodel import col

from policy_service.audit.log import append
from policy_service.errors import NotFoundError
from policy_service.identity.agents import OPERATOR
from policy_service.identity.passkeys import passkeys_of, remove_passkey
from policy_service.storage.advisory_locks import lock_exclusive
from policy_service.storage.core import find_one
from policy_service.storage.database import Tx
from policy_service.storage.system_tables import AssertionRow, PasskeyRow
from policy_service.storage.tables import VoteRow


@dataclass(frozen=True, slots=True)
class RevokedPasskeys:
    """What came of it: the passkeys that count no more, the one that was named in front, and how many votes left the
    count."""

    passkeys: tuple[str, ...]
    votes: int


def revoke_passkey(tx: Tx, passkey_id: str, reason: str) -> RevokedPasskeys:
    """A passkey is in the wrong hands. One that its person has removed may be revoked still.

    Raises:
        NotFoundError: there is no such passkey.
    """
    row = find_one(tx.conn, PasskeyRow, passkey_id=passkey_id)
    if row is None:
        raise NotFoundError(f"there is no passkey {passkey_id!r}; `policy-service passkeys list` names them")
    person = f"{row.iss}|{row.sub}"
    lock_exclusive(tx, person)
    theirs = _with_what_it_vouched_for(row, passkeys_of(tx.conn, row.iss, row.sub))
    votes = 0
    for one in theirs:
        remove_passkey(tx, one, by=OPERATOR, actor=OPERATOR, reason=reason)
        left = _votes_leave(tx, one.passkey_id)
        body = {"person": person, "passkey_id": one.passkey_id, "votes": left, "reason": reason}
        append(tx, "passkey_revoked", actor=OPERATOR, body=body)
        votes += left
    return RevokedPasskeys(tuple(one.passkey_id for one in theirs), votes)


def _with_what_it_vouched_for(row: PasskeyRow, all_of_them: list[PasskeyRow]) -> list[PasskeyRow]:
    """Oldest first, as they are given: whoever vouches is older than what it vouches for."""
    found = {row.passkey_id: row}
    for one in all_of_them:
        if one.vouched_by in found:
            found[one.passkey_id] = one
    return list(found.values())


def _votes_leave(tx: Tx, passkey_id: str) -> int:
    proved = select(col(AssertionRow.vote_id)).where(col(AssertionRow.passkey_id) == passkey_id)
    standing = (col(VoteRow.vote_id).in_(proved), col(VoteRow.revoked_at).is_(None))
    return tx.conn.execute(update(VoteRow).where(*standing).values(revoked_at=tx.now)).rowcount


def reset_passkeys(tx: Tx, iss: str, sub: str, reason: str) -> int:
    """Take a person's passkeys away, because they lost them; how many.

    Raises:
        NotFoundError: they have none.
    """
    lock_exclusive(tx, f"{iss}|{sub}")
    live = [row for row in passkeys_of(tx.conn, iss, sub) if row.removed_at is None]
    if not live:
        raise NotFoundError(f"{iss}|{sub} has no passkey")
    return sum(remove_passkey(tx, row, by=OPERATOR, actor=OPERATOR, reason=reason) for row in live)
