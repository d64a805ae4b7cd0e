"""What callers learn of an archived transaction: its outcome or where its rows are, never its content.

Verbs ask only after they did not find the rows, so a transaction that is not archived costs no query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from sqlalchemy import Connection

from countersign.contract import ErrorCode
from policy_service.errors import ConflictError, NotFoundError
from policy_service.storage.archive_tables import (
    ArchivedTransactionRow,
    SpentEffectRow,
    archived_transaction,
    is_archived_attempt,
    spent_effects,
)


def require_not_archived(conn: Connection, txn: str) -> None:
    """Refuse to decide or fire an archived transaction again. The caller has proven that it is its own.

    Raises:
        ConflictError: already_redeemed, with the outcome; illegal_state if nothing was redeemed.
    """
    row = archived_transaction(conn, txn)
    if row is None:
        return
    if not (spent := spent_effects(conn, txn)):
        raise ConflictError(
            f"this run key ended, without a redemption that this service knows of, and was archived ({_where(row)}); "
            "take another run key, unless you have a receipt",
            code=ErrorCode.ILLEGAL_STATE,
            txn=row.txn,
            rev=row.rev,
            state=row.state,
        )
    raise _redeemed(row, spent)


def refuse_missing(conn: Connection, txn: str) -> NoReturn:
    """Refuse a transaction that is not in the database.

    Raises:
        ConflictError: it is archived.
        NotFoundError: it is not.
    """
    require_not_archived(conn, txn)
    raise NotFoundError(f"there is no transaction {txn!r}")


def refuse_missing_to(conn: Connection, agent: str, txn: str) -> NoReturn:
    """Refuse a transaction that is not in the database. Only its agent and its redeemer learn that it is archived.

    What was redeemed must not look like what never arrived: an agent would do it again under another run key.

    Raises:
        ConflictError: already_redeemed: it is archived, and effects of it were redeemed.
        NotFoundError: it is archived and nothing was redeemed, or it does not exist.
    """
    row = archived_transaction(conn, txn)
    if row is not None and agent in {row.agent, row.aud}:
        if spent := spent_effects(conn, txn):
            raise _redeemed(row, spent)
        raise NotFoundError(f"the transaction {txn!r} was {row.state} and archived ({_where(row)})")
    raise NotFoundError(f"there is no transaction {txn!r}")


def require_attempt_not_archived(conn: Connection, redeemer: str, attempt_id: str) -> None:
    """Refuse to report or renew under an archived attempt.

    Raises:
        ConflictError: already_reported.
    """
    if is_archived_attempt(conn, redeemer, attempt_id):
        raise ConflictError(
            f"every outcome of the attempt {attempt_id!r} was recorded, and its transaction is archived",
            code=ErrorCode.ALREADY_REPORTED,
        )


def refuse_missing_attempt(conn: Connection, redeemer: str, attempt_id: str) -> NoReturn:
    """Refuse an attempt that is not in the database.

    Raises:
        ConflictError: already_reported: it is archived.
        NotFoundError: unknown_attempt.
    """
    require_attempt_not_archived(conn, redeemer, attempt_id)
    raise NotFoundError(f"there is no attempt {attempt_id!r}", code=ErrorCode.UNKNOWN_ATTEMPT)


def _redeemed(row: ArchivedTransactionRow, spent: Sequence[SpentEffectRow]) -> ConflictError:
    effects = [
        {"effect_id": one.effect_id, "seq": one.seq, "state": one.state}
        for one in spent
        if one.kind == "effect"
    ]
    return ConflictError(
        f"this run key was redeemed and archived ({_where(row)}); nothing more fires under it. Another run key would "
        "repeat what it did",
        code=ErrorCode.ALREADY_REDEEMED,
        txn=row.txn,
        rev=row.rev,
        state=row.state,
        effects=effects,
    )


def _where(row: ArchivedTransactionRow) -> str:
    return f"{row.archived_at:%Y-%m-%d}, file {row.file}"
