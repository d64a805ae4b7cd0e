"""Whom the open reviews ask: a row for each group of each open review, so that a person's questions are found by key.

The rows are derived: the gates of the effect say who may answer, these say it in a form an index can serve. They are
written where a review opens or asks more, and go where it settles, so there are as many as there are open questions,
however many were ever decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import Any, ClassVar

from sqlalchemy import Connection, Index, Select, bindparam, delete, func, insert, select, union
from sqlmodel import Field

from policy_service.domain.person_actions import BREAK_GLASS
from policy_service.storage.core import Row, key_after, table
from policy_service.storage.tables import VoteRow
from policy_service.storage.types import UtcDateTime


class ReviewGroupRow(Row, table=True):
    """One group that an open review asks. Newest first goes by the primary key, time left by the index."""

    __tablename__: ClassVar[Any] = "review_groups"
    __table_args__ = (
        Index("ix_review_groups_due", "asked", "answer_by", "review_id"),
        Index("ix_review_groups_review", "review_id"),
    )

    asked: str = Field(primary_key=True)
    review_id: str = Field(primary_key=True)
    answer_by: datetime = Field(sa_type=UtcDateTime)
    agent: str  # whose effect it is: nobody is asked about their own


_review_groups = table(ReviewGroupRow)
_row = _review_groups.c
_votes = table(VoteRow).c
_DELETE = delete(_review_groups).where(_row.review_id == bindparam("of"))
_MAX_ARMS = 200  # of one statement; SQLite takes 500


def set_review_groups(
    conn: Connection, review_id: str, *, groups: Iterable[str], answer_by: datetime, agent: str
) -> None:
    """The review asks exactly these groups now."""
    delete_review_groups(conn, review_id)
    values = [
        {"asked": group, "review_id": review_id, "answer_by": answer_by, "agent": agent}
        for group in sorted(set(groups))
    ]
    conn.execute(insert(_review_groups), values)


def delete_review_groups(conn: Connection, review_id: str) -> None:
    """Nobody is asked any more."""
    conn.execute(_DELETE, {"of": review_id})


class OpenReviews:
    """The open reviews that ask one of some groups: of anybody, or as one person who has not answered them."""

    def __init__(
        self, groups: Iterable[str], *, person: tuple[str, str] | None = None, owned: Sequence[str] = ()
    ) -> None:
        """``person``: leave out what this (issuer, subject) has voted on; ``owned``: what these agents ask."""
        self._groups = sorted(set(groups))
        self._person = person
        self._owned = list(owned)

    def page(
        self, conn: Connection, *, newest: bool, after: tuple[datetime, str] | None, limit: int
    ) -> list[str]:
        """Ids, those that expire first in front or the newest, after a key."""
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
    """The questions to one group, by an index to their first few: however many there are."""
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
            _votes.verdict != BREAK_GLASS,  # a signature for an emergency answers no gate
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
