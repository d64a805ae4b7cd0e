"""What callers learn of an archived transaction: its outcome or where its rows are, never its content.

Verbs ask only after they did not find the rows, so a transaction that is not archived costs no query.
"""

from __future__ import annotations

from sqlalchemy import Connection

from countersign.contract import ErrorCode
from policy_service.errors import ConflictError, NotFoundError, RequestError
from policy_service.storage.archive_tables import (
    ArchivedTransactionRow,
    archived_transaction,
    is_archived_attempt,
    spent_effects,
)


def archived_refusal(conn: Connection, txn: str) -> ConflictError | None:
    """Why an archived run key decides and fires nothing; None if the transaction is not archived.

    The caller has proven that the transaction is its own.
    """
    row = archived_transaction(conn, txn)
    if row is None:
        return None
    known = {"txn": row.txn, "rev": row.rev, "state": row.state}
    spent = spent_effects(conn, txn)
    if not spent:
        return ConflictError(
            f"this run key ended without firing anything and was archived ({_where(row)}); take another run key",
            code=ErrorCode.ILLEGAL_STATE,
            **known,
        )
    effects = [
        {"effect_id": one.effect_id, "seq": one.seq, "state": one.state}
        for one in spent
        if one.kind == "effect"
    ]
    return ConflictError(
        f"this run key was redeemed and archived ({_where(row)}); nothing more fires under it. Another run key would "
        "repeat what it did",
        code=ErrorCode.ALREADY_REDEEMED,
        **known,
        effects=effects,
    )


def archived_not_found(conn: Connection, agent: str, txn: str) -> NotFoundError | None:
    """The 404 of an archived transaction for its agent or its redeemer; None for others, and if it is not archived."""
    row = archived_transaction(conn, txn)
    if row is None or agent not in {row.agent, row.aud}:
        return None
    return NotFoundError(f"the transaction {txn!r} was {row.state} and archived ({_where(row)})")


def archived_attempt_error(conn: Connection, redeemer: str, attempt_id: str) -> RequestError | None:
    """Why nothing can be reported or renewed under an archived attempt; None if it is not archived."""
    if not is_archived_attempt(conn, redeemer, attempt_id):
        return None
    return ConflictError(
        f"every outcome of the attempt {attempt_id!r} was recorded, and its transaction is archived",
        code=ErrorCode.ALREADY_REPORTED,
    )


def _where(row: ArchivedTransactionRow) -> str:
    return f"{row.archived_at:%Y-%m-%d}, file {row.file}"
