"""Tables of proposals and review groups, with their queries.

A proposal is about one effect at one revision; only its state changes. Its bytes are stored as admitted. An accepted
one names the revision it made. A person has at most one open proposal per review.

``review_groups`` is derived: the gates of an effect say who may vote, and this table makes that searchable by index.
Rows are written when a review opens or escalates and deleted when it settles, so there are as many as open questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, ClassVar, Final

from sqlalchemy import CheckConstraint, Connection, Index, LargeBinary, Select, bindparam, func, select, union
from sqlalchemy import text as sql
from sqlmodel import Field, col

from policy_service.domain.person_actions import BREAK_GLASS
from policy_service.storage.core import Row, fetch_rows, find, find_one, key_after, partial, rows_of, table
from policy_service.storage.tables import VoteRow
from policy_service.storage.types import UtcDateTime

# -- proposals -----------------------------------------------------------------------------------------------

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
        Index("uq_proposals_person", "review_id", "iss", "sub", unique=True, **partial(_OPEN)),
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
    decided_by: str | None = None  # an actor, as in the audit log
    answer: str | None = None  # the reason of the person who declined it
    became_rev: int | None = None  # the revision it made, once accepted


def _all() -> Select[Any]:
    return select(*table(ProposalRow).columns)


_BY_TRANSACTION = (
    _all().where(col(ProposalRow.txn) == bindparam("txn")).order_by(col(ProposalRow.proposal_id))
)
_ACCEPTED = _BY_TRANSACTION.where(col(ProposalRow.state) == ACCEPTED)


def proposal_by_id(conn: Connection, proposal_id: str) -> ProposalRow | None:
    """A proposal by its id."""
    return find_one(conn, ProposalRow, proposal_id=proposal_id)


def proposals_by(conn: Connection, review_id: str, iss: str, sub: str) -> list[ProposalRow]:
    """All proposals of one person on a review; at most one of them is open."""
    return find(conn, ProposalRow, review_id=review_id, iss=iss, sub=sub)


def active_proposals_by_txn(conn: Connection, txns: Sequence[str]) -> dict[str, list[ProposalRow]]:
    """The open and accepted proposals of many transactions, at any revision, oldest first."""
    query = _all().where(col(ProposalRow.txn).in_(txns), col(ProposalRow.state).in_([OPEN, ACCEPTED]))
    found: dict[str, list[ProposalRow]] = {}
    for row in rows_of(ProposalRow, conn.execute(query.order_by(col(ProposalRow.proposal_id)))):
        found.setdefault(row.txn, []).append(row)
    return found


def accepted_proposals(conn: Connection, txn: str) -> list[ProposalRow]:
    """The accepted changes of a transaction, in the order of acceptance."""
    found = fetch_rows(conn, ProposalRow, _ACCEPTED, txn=txn)
    return sorted(found, key=lambda row: row.became_rev or 0)


Edits = Mapping[tuple[str, str], bytes]
"""The arguments in force of each changed call, by (effect_id, tool_digest)."""


def edits_of(accepted: Iterable[ProposalRow]) -> Edits:
    """The arguments in force after these changes; the last change of a call counts."""
    return {(row.effect_id, row.tool_digest): row.args for row in accepted}


# -- review groups -------------------------------------------------------------------------------------------


class ReviewGroupRow(Row, table=True):
    """One group that an open review asks. The primary key sorts by newest, the index by time left."""

    __tablename__: ClassVar[Any] = "review_groups"
    __table_args__ = (
        Index("ix_review_groups_due", "asked", "answer_by", "review_id"),
        Index("ix_review_groups_review", "review_id"),
    )

    asked: str = Field(primary_key=True)
    review_id: str = Field(primary_key=True)
    answer_by: datetime = Field(sa_type=UtcDateTime)
    agent: str  # the requester, whose owner must not be asked


_review_groups = table(ReviewGroupRow)
_row = _review_groups.c
_votes = table(VoteRow).c
_MAX_ARMS = 200  # per statement; SQLite allows 500


class OpenReviews:
    """The open reviews that ask one of some groups, optionally without those one person has answered."""

    def __init__(
        self, groups: Iterable[str], *, person: tuple[str, str] | None = None, owned: Sequence[str] = ()
    ) -> None:
        """``person``: omit reviews this (issuer, subject) has voted on; ``owned``: omit reviews of these agents."""
        self._groups = sorted(set(groups))
        self._person = person
        self._owned = list(owned)

    def page(
        self, conn: Connection, *, newest: bool, after: tuple[datetime, str] | None, limit: int
    ) -> list[str]:
        """Ids after a key, sorted by expiry or newest first."""
        found: set[tuple[datetime, str]] = set()
        for arms, values in self._chunks(after, limit):
            query = _page(arms, newest, after is not None, self._person is not None)
            found |= {(answer_by, review_id) for review_id, answer_by in conn.execute(query, values)}
        ordered = sorted(found, key=lambda key: key[1], reverse=True) if newest else sorted(found)
        return [review_id for _, review_id in ordered[:limit]]

    def count(self, conn: Connection, cap: int) -> int:
        """How many there are, at most ``cap``."""
        if len(self._groups) > _MAX_ARMS:
            return len(self.page(conn, newest=False, after=None, limit=cap))
        for arms, values in self._chunks(None, cap):
            return min(cap, int(conn.execute(_count(arms, self._person is not None), values).scalar_one()))
        return 0

    def _chunks(self, after: tuple[datetime, str] | None, limit: int) -> Iterable[tuple[int, dict[str, Any]]]:
        at, review_id = after or (None, None)
        iss, sub = self._person or (None, None)
        common = {"most": limit, "at": at, "after": review_id, "iss": iss, "sub": sub, "owned": self._owned}
        for start in range(0, len(self._groups), _MAX_ARMS):
            chunk = self._groups[start : start + _MAX_ARMS]
            yield len(chunk), common | {f"group_{n}": group for n, group in enumerate(chunk)}


def _arm(n: int, newest: bool, following: bool, personal: bool) -> Select[Any]:
    """The first reviews of one group. Each arm reads a bounded part of an index."""
    query = select(_row.review_id, _row.answer_by).where(_row.asked == bindparam(f"group_{n}"))
    if following:
        at: Any = bindparam("at", type_=UtcDateTime())
        last: Any = bindparam("after")
        later = key_after((_row.answer_by, _row.review_id), (at, last))
        query = query.where(_row.review_id < last if newest else later)
    if personal:
        mine = select(_votes.vote_id).where(
            _votes.review_id == _row.review_id,
            _votes.iss == bindparam("iss"),
            _votes.sub == bindparam("sub"),
            _votes.late.is_(False),
            _votes.revoked_at.is_(None),
            _votes.verdict != BREAK_GLASS,  # a break-glass signature answers no gate
        )
        query = query.where(~mine.exists(), _row.agent.not_in(bindparam("owned", expanding=True)))
    order = (_row.review_id.desc(),) if newest else (_row.answer_by, _row.review_id)
    first = query.order_by(*order).limit(bindparam("most")).subquery()
    return select(first.c.review_id, first.c.answer_by)


@cache
def _page(arms: int, newest: bool, following: bool, personal: bool) -> Any:
    return union(*(_arm(n, newest, following, personal) for n in range(arms)))


@cache
def _count(arms: int, personal: bool) -> Any:
    found = _page(arms, False, False, personal).subquery()
    return select(func.count()).select_from(found)
