"""What an operator does about passkeys that were lost or stolen.

Lost: they are taken away, what was voted with them stands, and the person enrols anew (which then waits). Stolen: the
passkey is revoked, and the votes it proved leave every count, as those of a revoked approver do; what only they had
approved waits for people again, at its redemption at the latest.
"""

from __future__ import annotations

from sqlalchemy import select, update
from sqlmodel import col

from policy_service.audit.log import append
from policy_service.errors import NotFoundError
from policy_service.identity.agents import OPERATOR
from policy_service.identity.passkeys import passkeys_of, remove
from policy_service.storage.alone import stop
from policy_service.storage.core import find_one
from policy_service.storage.database import Tx
from policy_service.storage.proof_tables import AssertionRow, PasskeyRow
from policy_service.storage.tables import VoteRow


def revoke_passkey(tx: Tx, passkey_id: str, reason: str) -> int:
    """A passkey is in the wrong hands; how many votes left the count. One that its person has removed may be revoked
    still.

    Raises:
        NotFoundError: there is no such passkey.
    """
    row = find_one(tx.conn, PasskeyRow, passkey_id=passkey_id)
    if row is None:
        raise NotFoundError(f"there is no passkey {passkey_id!r}; `policy-service passkeys list` names them")
    person = f"{row.iss}|{row.sub}"
    stop(tx, person)
    remove(tx, row, by=OPERATOR, actor=OPERATOR, reason=reason)
    proved = select(col(AssertionRow.vote_id)).where(col(AssertionRow.passkey_id) == passkey_id)
    theirs = (col(VoteRow.vote_id).in_(proved), col(VoteRow.revoked_at).is_(None))
    votes = tx.conn.execute(update(VoteRow).where(*theirs).values(revoked_at=tx.now)).rowcount
    body = {"person": person, "passkey_id": passkey_id, "votes": votes, "reason": reason}
    append(tx, "passkey_revoked", actor=OPERATOR, body=body)
    return votes


def reset_passkeys(tx: Tx, iss: str, sub: str, reason: str) -> int:
    """Take a person's passkeys away, because they lost them; how many.

    Raises:
        NotFoundError: they have none.
    """
    stop(tx, f"{iss}|{sub}")
    live = [row for row in passkeys_of(tx.conn, iss, sub) if row.removed_at is None]
    if not live:
        raise NotFoundError(f"{iss}|{sub} has no passkey")
    return sum(remove(tx, row, by=OPERATOR, actor=OPERATOR, reason=reason) for row in live)
