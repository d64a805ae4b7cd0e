"""What reviewers propose in place of an effect's arguments: the table, and the questions that are asked of it.

A proposal is about one effect at one revision and is never changed but in its state; its bytes are stored as they were
admitted. One that was accepted names the revision it made. A person has one open proposal for a review at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final

from sqlalchemy import CheckConstraint, Connection, Index, LargeBinary, Select, bindparam, select
from sqlalchemy import text as sql
from sqlmodel import Field, col

from policy_service.storage.core import Row, find, find_one, rows_of, table
from policy_service.storage.types import UtcDateTime

OPEN: Final = "open"
ACCEPTED: Final = "accepted"
DECLINED: Final = "declined"
LAPSED: Final = "lapsed"

_OPEN = sql("state = 'open'")


class ProposalRow(Row, table=True):
    """Other arguments for one effect at one revision, as a reviewer proposes them."""

    __tablename__: ClassVar[Any] = "proposals"
    __table_args__ = (
        CheckConstraint("state IN ('open', 'accepted', 'declined', 'lapsed')", name="proposal_state_known"),
        Index(
            "uq_proposals_person",
            "review_id",
            "iss",
            "sub",
            unique=True,
            sqlite_where=_OPEN,
            postgresql_where=_OPEN,
        ),
        Index("ix_proposals_txn", "txn", "state"),
    )

    proposal_id: str = Field(primary_key=True)
    review_id: str = Field(foreign_key="reviews.review_id", index=True)
    txn: str
    effect_id: str
    rev: int  # the revision that was read
    tool_digest: str
    iss: str
    sub: str
    name: str
    assurance: str
    args: bytes = Field(sa_type=LargeBinary)
    args_digest: str
    reason: str
    channel: str
    state: str = OPEN
    proposed_at: datetime = Field(sa_type=UtcDateTime)
    decided_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    decided_by: str | None = None  # an actor, as the log names it
    answer: str | None = None  # what whoever declined it said
    became_rev: int | None = None  # the revision it made, once accepted


def _all() -> Select[Any]:
    return select(*table(ProposalRow).columns)


_BY_TRANSACTION = (
    _all().where(col(ProposalRow.txn) == bindparam("txn")).order_by(col(ProposalRow.proposal_id))
)
_ACTIVE = _BY_TRANSACTION.where(col(ProposalRow.state).in_([OPEN, ACCEPTED]))
_ACCEPTED = _BY_TRANSACTION.where(col(ProposalRow.state) == ACCEPTED)
_OPEN_ON = (
    _all()
    .where(col(ProposalRow.review_id) == bindparam("review_id"), col(ProposalRow.state) == OPEN)
    .order_by(col(ProposalRow.proposal_id))
)


def proposal_by_id(conn: Connection, proposal_id: str) -> ProposalRow | None:
    """A proposal by its id."""
    return find_one(conn, ProposalRow, proposal_id=proposal_id)


def open_proposals(conn: Connection, review_id: str) -> list[ProposalRow]:
    """The open proposals of a review, oldest first."""
    return rows_of(ProposalRow, conn.execute(_OPEN_ON, {"review_id": review_id}))


def proposals_by(conn: Connection, review_id: str, iss: str, sub: str) -> list[ProposalRow]:
    """Everything a person ever proposed on a review, one of them open at most."""
    return find(conn, ProposalRow, review_id=review_id, iss=iss, sub=sub)


def active_proposals(conn: Connection, txn: str) -> list[ProposalRow]:
    """The proposals of a transaction that are open or were accepted, at whichever revision, oldest first."""
    return rows_of(ProposalRow, conn.execute(_ACTIVE, {"txn": txn}))


def active_proposals_by_txn(conn: Connection, txns: Sequence[str]) -> dict[str, list[ProposalRow]]:
    """The same for many transactions, by one query."""
    query = _all().where(col(ProposalRow.txn).in_(txns), col(ProposalRow.state).in_([OPEN, ACCEPTED]))
    found: dict[str, list[ProposalRow]] = {}
    for row in rows_of(ProposalRow, conn.execute(query.order_by(col(ProposalRow.proposal_id)))):
        found.setdefault(row.txn, []).append(row)
    return found


def accepted_proposals(conn: Connection, txn: str) -> list[ProposalRow]:
    """The changes that were accepted under a transaction, in the order they were."""
    found = rows_of(ProposalRow, conn.execute(_ACCEPTED, {"txn": txn}))
    return sorted(found, key=lambda row: row.became_rev or 0)


Edits = Mapping[tuple[str, str], bytes]
"""The arguments in force of each changed call, by (effect_id, tool_digest)."""


def edits_of(accepted: Iterable[ProposalRow]) -> Edits:
    """What the accepted changes come to: of each call the last one counts."""
    return {(row.effect_id, row.tool_digest): row.args for row in accepted}
