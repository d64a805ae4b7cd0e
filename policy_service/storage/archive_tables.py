"""What the database keeps of an archived transaction, and the rows that move to the archive.

An archived transaction keeps two kinds of narrow rows: one for the transaction and one for each spent effect. A trigger
refuses a transaction whose id is archived (migration 0009). So the database itself prevents a second redemption after
the unique key in ``redemptions`` is gone.

Audit rows stay. Every other row of the transaction moves, at all its revisions.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Any, ClassVar, Final

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Delete,
    Index,
    Select,
    bindparam,
    delete,
    func,
    select,
)
from sqlmodel import Field

from countersign.contract.keys import encode_base64url
from policy_service.storage.core import Row, fetch_rows, find, find_one, table
from policy_service.storage.reservations import ReservationRow
from policy_service.storage.review_tables import ProposalRow, ReviewGroupRow
from policy_service.storage.slack_tables import SlackCardRow
from policy_service.storage.system_tables import AssertionRow, ViewRow
from policy_service.storage.tables import (
    AttemptRow,
    CommentRow,
    DecisionRow,
    EffectRow,
    RedemptionRow,
    ReviewRow,
    TaskRow,
    TransactionRow,
    VoteRow,
)
from policy_service.storage.types import UtcDateTime, time_text


class ArchivedTransactionRow(Row, table=True):
    """An archived transaction: who may learn of it, how it ended, and where its rows are."""

    __tablename__: ClassVar[Any] = "archived_transactions"

    txn: str = Field(primary_key=True, min_length=64, max_length=64)
    rev: int  # the revision that was in force
    agent: str
    aud: str
    state: str
    file: str  # its name in the archive folder
    digest: str  # of its line there
    archived_at: datetime = Field(sa_type=UtcDateTime)


class SpentEffectRow(Row, table=True):
    """An effect of an archived transaction that was redeemed, or may have been before a restore, and its outcome."""

    __tablename__: ClassVar[Any] = "spent_effects"
    __table_args__ = (Index("ix_spent_effects_attempt", "redeemer", "attempt_id"),)

    effect_id: str = Field(primary_key=True, min_length=64, max_length=64)
    txn: str = Field(foreign_key="archived_transactions.txn", index=True)
    kind: str  # effect or compensate
    seq: int
    state: str
    redeemer: str | None = None
    attempt_id: str | None = None


def archived_transaction(conn: Connection, txn: str) -> ArchivedTransactionRow | None:
    """An archived transaction by its id."""
    return find_one(conn, ArchivedTransactionRow, txn=txn)


def archived_count(conn: Connection) -> int:
    """How many transactions are archived. It reads them all: for an operator's command only."""
    return int(conn.execute(select(func.count()).select_from(table(ArchivedTransactionRow))).scalar_one())


def return_transaction(conn: Connection, txn: str) -> ArchivedTransactionRow | None:
    """Delete the narrow row of an archived transaction without spent effects, so that it can have a new revision."""
    row = archived_transaction(conn, txn)
    if row is not None:
        conn.execute(delete(table(ArchivedTransactionRow)).where(table(ArchivedTransactionRow).c.txn == txn))
    return row


def spent_effects(conn: Connection, txn: str) -> list[SpentEffectRow]:
    """The spent effects of an archived transaction, in order."""
    return sorted(find(conn, SpentEffectRow, txn=txn), key=lambda row: (row.kind != "effect", row.seq))


def is_archived_attempt(conn: Connection, redeemer: str, attempt_id: str) -> bool:
    """Whether an archived effect was redeemed under this attempt."""
    return bool(find(conn, SpentEffectRow, redeemer=redeemer, attempt_id=attempt_id))


# -- the rows that move ----------------------------------------------------------------------------------------

Rows = dict[type[Row], list[Any]]
"""Every row of a transaction by its table, ordered by primary key."""

# A child before its parent, as foreign keys require of a deletion.
_MOVED: Final[tuple[type[Row], ...]] = (
    AssertionRow,
    ViewRow,
    VoteRow,
    CommentRow,
    ProposalRow,
    SlackCardRow,
    ReviewGroupRow,
    RedemptionRow,
    ReservationRow,
    TaskRow,
    DecisionRow,
    ReviewRow,
    AttemptRow,
    EffectRow,
    TransactionRow,
)
_BY_TXN: Final = (TransactionRow, EffectRow, AttemptRow, ProposalRow)
_BY_EFFECT: Final = (ReviewRow, DecisionRow, TaskRow, ReservationRow, RedemptionRow, SlackCardRow)
_BY_REVIEW: Final = (VoteRow, CommentRow, ReviewGroupRow)


def collect_rows(conn: Connection, txn: str) -> Rows:
    """Every row of a transaction at all its revisions."""
    found: Rows = {}
    for model in (*_BY_TXN, *_BY_EFFECT, *_BY_REVIEW, AssertionRow):
        found[model] = fetch_rows(conn, model, _select(model), txn=txn)
    shown = {vote.view_digest for vote in found[VoteRow]} - {None}
    views = [view for digest in sorted(shown) for view in find(conn, ViewRow, view_digest=digest)]
    return found | {ViewRow: views}


def delete_rows(conn: Connection, txn: str, rows: Rows) -> None:
    """Delete what :func:`collect_rows` found. The unit holds the lock of the transaction."""
    for model in _MOVED:
        if not rows[model]:
            continue
        if model is ViewRow:  # it shows one review, and has no column that says which
            shown = [view.view_digest for view in rows[ViewRow]]
            conn.execute(delete(table(ViewRow)).where(table(ViewRow).c.view_digest.in_(shown)))
        else:
            conn.execute(_delete(model), {"txn": txn})


def rows_as_json(rows: Rows) -> dict[str, list[dict[str, Any]]]:
    """The rows as plain JSON, by the name of their table; tables without rows are left out."""
    return {
        str(table(model).name): [_as_json(model, row) for row in found]
        for model, found in rows.items()
        if found
    }


@cache
def _select(model: type[Row]) -> Select[Any]:
    key = table(model).primary_key.columns
    return select(*table(model).columns).where(_belongs(model)).order_by(*key)


@cache
def _delete(model: type[Row]) -> Delete:
    return delete(table(model)).where(_belongs(model))


def _belongs(model: type[Row]) -> ColumnElement[bool]:
    """The condition of a transaction's rows, each part of which an index finds."""
    column = table(model).c
    txn: BindParameter[str] = bindparam("txn")
    if model in _BY_TXN:
        return column.txn == txn
    effects = _ids(EffectRow, "effect_id", table(EffectRow).c.txn == txn)
    if model in _BY_EFFECT:
        return column.effect_id.in_(effects)
    reviews = _ids(ReviewRow, "review_id", table(ReviewRow).c.effect_id.in_(effects))
    if model in _BY_REVIEW:
        return column.review_id.in_(reviews)
    votes = _ids(VoteRow, "vote_id", table(VoteRow).c.review_id.in_(reviews))
    return column.vote_id.in_(votes)


def _ids(model: type[Row], name: str, mine: ColumnElement[bool]) -> Select[Any]:
    return select(table(model).c[name]).where(mine)


def _as_json(model: type[Row], row: Row) -> dict[str, Any]:
    return {name: _plain(model, value) for name, value in row.__dict__.items() if value is not None}


def _plain(model: type[Row], value: Any) -> Any:
    if isinstance(value, datetime):
        return time_text(value)
    if isinstance(value, bytes):  # canonical JSON, but for what a passkey signed
        return encode_base64url(value) if model is AssertionRow else value.decode()
    return value
