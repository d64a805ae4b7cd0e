"""The review queue: the reviews of one tab for one person, paged by key.

Everybody who is signed in can read every review. The tab "needs me" is selected by the groups an open review
asks (:mod:`policy_service.storage.review_tables`), without reviews this person has answered and those of
their own agents. Cedar is evaluated for the rows of the page only and removes those it refuses. So the count
of the tab is exact if Cedar refuses nothing or everything fits on one page; otherwise it may be too high,
never too low.

A filter scans a bounded number of reviews; the page reports that, and its cursor continues there. A review
with damaged rows is shown as unreadable and affects no other row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, TypeAlias, cast

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import col

from policy_service.pap.bundle import Bundle
from policy_service.queries import repository
from policy_service.queries.batches import batch_kind
from policy_service.queries.context import Context
from policy_service.queries.cursors import format_cursor, parse_cursor
from policy_service.queries.effects import (
    Money,
    Piece,
    effect_sentence,
    first_money,
    tool_title,
)
from policy_service.queries.review_context import Quarantine, ReviewContext, read_review_contexts
from policy_service.queries.review_models import Risk
from policy_service.queries.reviews import owner_name
from policy_service.queries.vote_eligibility import Voter, count_votes, current_groups, progress, vote_refusal
from policy_service.storage.core import key_after, key_before, table
from policy_service.storage.review_tables import OpenReviews
from policy_service.storage.tables import AgentRow, EffectRow, ReviewRow


class Tab(StrEnum):
    """Reviews that wait for this person, all open ones, those of their own agents, settled ones."""

    ME = "me"
    OPEN = "open"
    MINE = "mine"
    DECIDED = "decided"


Order: TypeAlias = Literal["due", "newest"]


@dataclass(frozen=True, slots=True)
class QueueFilter:
    """What a person wants to see; empty filters do not apply."""

    tab: Tab = Tab.ME
    agent: str = ""
    tool: str = ""
    group: str = ""
    risk: str = ""
    text: str = ""
    order: Order = "due"

    @property
    def filtered(self) -> bool:
        """Whether any filter applies."""
        return any((self.agent, self.tool, self.group, self.risk, self.text))


@dataclass(frozen=True, slots=True)
class CappedCount:
    """A number up to a limit."""

    number: int = 0
    capped: bool = False

    @property
    def words(self) -> str:
        """`7`, or `1,000+`."""
        return f"{self.number:,}{'+' if self.capped else ''}"


@dataclass(frozen=True, slots=True)
class TabCounts:
    """The number of reviews on each tab, without filters."""

    me: CappedCount = CappedCount()
    open: CappedCount = CappedCount()
    mine: CappedCount = CappedCount()
    decided: CappedCount = CappedCount()


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One review in the list."""

    review_id: str
    effect_id: str
    rev: int
    txn: str
    tool: str
    title: str
    sentence: tuple[Piece, ...]
    risk: Risk
    agent: str
    owner: str | None
    gates: tuple[str, ...]  # titles, or policy ids
    amount: Money | None
    have: int
    need: int
    answer_by: datetime
    opened_at: datetime
    can_vote: bool
    state: str = "open"
    effect_state: str = "review"
    settled_at: datetime | None = None
    alike: str = ""  # key of its batch; empty if it must be decided alone
    opened: bool = False  # released by break-glass
    broken: bool = False  # its stored rows are unreadable


@dataclass(frozen=True, slots=True)
class QueuePage:
    """A page of a tab; `next_cursor` is opaque, None at the end."""

    rows: tuple[QueueRow, ...]
    next_cursor: str | None = None
    counts: TabCounts = TabCounts()
    looked_through: int = 0  # reviews a filter scanned before it stopped; 0 at the end


COUNT_CAP = 1_000  # higher counts are not useful
DECIDED_CAP = 99  # an exact count of settled reviews is not useful
WINDOW = 1_000  # reviews a filter scans for one page
TEXT_WINDOW = 300  # the same if sentences have to be built
_ROUNDS = 3  # pages of "needs me" evaluated by Cedar to fill one

_reviews = table(ReviewRow).c
_Key = tuple[datetime, str]


async def queue_page(
    ctx: Context, voter: Voter, wanted: QueueFilter, cursor: str | None, limit: int
) -> QueuePage:
    """A page of a tab.

    Raises:
        InvalidRequestError: the cursor is invalid.
    """
    after, now = parse_cursor(cursor), ctx.clock()
    return await ctx.db.read(lambda conn: _QueueReader(conn, ctx, voter, wanted, now).page(after, limit))


async def count_waiting(ctx: Context, voter: Voter) -> CappedCount:
    """The count of the tab "needs me"."""
    now = ctx.clock()
    return await ctx.db.read(lambda conn: _QueueReader(conn, ctx, voter, QueueFilter(), now).count_me())


class _QueueReader:
    """One read of the queue on one connection."""

    def __init__(
        self, conn: Connection, ctx: Context, voter: Voter, wanted: QueueFilter, now: datetime
    ) -> None:
        self._conn, self._ctx, self._voter, self._wanted, self._now = conn, ctx, voter, wanted, now
        self._bundle: Bundle = ctx.active.current
        self._groups = current_groups(self._bundle, voter.key, voter.groups)
        owned = select(col(AgentRow.name)).where(col(AgentRow.owner) == voter.key)
        self._owned = sorted(conn.execute(owned).scalars())

    def page(self, after: _Key | None, limit: int) -> QueuePage:
        """The rows after a key, with the counts of the tabs."""
        rows, following, looked = self._read_page(after, limit)
        counts = self._counts()
        if self._wanted.tab is Tab.ME and after is None and following is None and not self._wanted.filtered:
            counts = replace(counts, me=CappedCount(len(rows)))  # all of them were evaluated
        return QueuePage(
            rows=tuple(rows),
            next_cursor=None if following is None else format_cursor(*following),
            counts=counts,
            looked_through=looked,
        )

    def _read_page(self, after: _Key | None, limit: int) -> tuple[list[QueueRow], _Key | None, int]:
        """The rows of a page, the key to continue at (None at the end), and how many reviews a filter
        scanned.
        """
        rows: list[QueueRow] = []
        window = limit + 1
        if self._wanted.filtered:
            window = TEXT_WINDOW if self._wanted.text else WINDOW
        for _ in range(_ROUNDS):
            found = self._next_reviews(after, window)
            kept = self._with_text([review for review in found if self._matches(review)])
            shown = kept[: limit - len(rows)]
            rows += self._rows(shown)
            if len(kept) > len(shown):
                after = self._key(shown[-1]) if shown else after
                if len(rows) == limit:
                    return rows, after, 0
                continue  # Cedar removed some of them
            if len(found) < window:
                return rows, None, 0
            after = self._key(found[-1])
            if self._wanted.filtered:
                return rows, after, window
        return rows, after, 0

    def _next_reviews(self, after: _Key | None, limit: int) -> list[ReviewRow]:
        """The next reviews of the tab; of the filters only the group is applied."""
        wanted = self._wanted
        if wanted.tab is Tab.ME or wanted.group:
            ids = self._review_groups().page(
                self._conn, newest=wanted.order == "newest", after=after, limit=limit
            )
            rows = {review.review_id: review for review in repository.reviews_by_id(self._conn, ids)}
            return [rows[review_id] for review_id in ids if review_id in rows]
        query, review_id = select(*_reviews).limit(limit), _reviews.review_id
        if wanted.tab is Tab.DECIDED:
            settled_at = _reviews.settled_at
            query = query.where(settled_at.is_not(None)).order_by(settled_at.desc(), review_id.desc())
            if after is not None:
                query = query.where(key_before((settled_at, review_id), after))
            return repository.rows(self._conn, ReviewRow, query)
        query = query.where(_reviews.state == "open")
        if wanted.tab is Tab.MINE:
            query = query.where(_reviews.agent.in_(self._owned))
        if wanted.order == "newest":
            query = query.order_by(review_id.desc())
            query = query if after is None else query.where(review_id < after[1])
        else:
            query = query.order_by(_reviews.answer_by, review_id)
            query = query if after is None else query.where(key_after((_reviews.answer_by, review_id), after))
        return repository.rows(self._conn, ReviewRow, query)

    def _review_groups(self) -> OpenReviews:
        """The open reviews that ask this person's groups, or the group of the filter."""
        named = frozenset({self._wanted.group} if self._wanted.group else ())
        if self._wanted.tab is not Tab.ME:
            return OpenReviews(named)
        groups = self._groups & named if named else self._groups
        return OpenReviews(groups, person=(self._voter.iss, self._voter.sub), owned=self._owned)

    def _matches(self, review: ReviewRow) -> bool:
        wanted = self._wanted
        asked = {"agent": wanted.agent, "tool": wanted.tool, "risk": wanted.risk}
        if wanted.tab is Tab.MINE and review.agent not in self._owned:
            return False
        return all(getattr(review, name) == value for name, value in asked.items() if value)

    def _with_text(self, reviews: list[ReviewRow]) -> list[ReviewRow]:
        """Those whose sentence contains the text, ignoring case; sentences contain no secrets."""
        if not (text := self._wanted.text.casefold()):
            return reviews
        effects = repository.searchable_effects(
            self._conn, [(review.effect_id, review.rev) for review in reviews]
        )
        named = {(effect.effect_id, effect.rev): effect for effect in effects}
        found = ((review, named.get((review.effect_id, review.rev))) for review in reviews)
        return [
            review
            for review, effect in found
            if effect is not None and text in self._sentence_text(review, effect)
        ]

    def _sentence_text(self, review: ReviewRow, effect: EffectRow) -> str:
        with Quarantine(review):
            return "".join(piece.text for piece in effect_sentence(self._bundle, effect)).casefold()
        return ""

    def _key(self, review: ReviewRow) -> _Key:
        if self._wanted.tab is Tab.DECIDED:
            return review.settled_at or review.opened_at, review.review_id
        return (review.opened_at if self._wanted.order == "newest" else review.answer_by), review.review_id

    def _counts(self) -> TabCounts:
        is_open = _reviews.state == "open"
        return TabCounts(
            me=self.count_me(),
            open=self._count(COUNT_CAP, is_open),
            mine=self._count(COUNT_CAP, is_open, _reviews.agent.in_(self._owned)),
            decided=self._count(DECIDED_CAP, _reviews.settled_at.is_not(None)),
        )

    def count_me(self) -> CappedCount:
        """How many reviews wait for this person."""
        asks = OpenReviews(self._groups, person=(self._voter.iss, self._voter.sub), owned=self._owned)
        return _capped(asks.count(self._conn, COUNT_CAP + 1), COUNT_CAP)

    def _count(self, cap: int, *where: Any) -> CappedCount:
        some = select(_reviews.review_id).where(*where).limit(cap + 1).subquery()
        return _capped(self._conn.execute(select(func.count()).select_from(some)).scalar_one(), cap)

    def _rows(self, reviews: Sequence[ReviewRow]) -> list[QueueRow]:
        cases = self._cases(reviews)
        answered = repository.answered_reviews(
            self._conn, self._voter.iss, self._voter.sub, [review.review_id for review in reviews]
        )
        rows = (self._row(review, cases.get(review.review_id), answered) for review in reviews)
        return list(filter(None, rows))

    def _cases(self, reviews: Sequence[ReviewRow]) -> dict[str, ReviewContext]:
        """All contexts at once; one by one only if one of them is unreadable."""
        try:
            together = read_review_contexts(self._conn, reviews)
        except SQLAlchemyError:
            raise
        except Exception:  # noqa: BLE001 - the damaged one is reported when each is read by itself
            together = [case for one in reviews for case in self._read_one(one)]
        return {case.review.review_id: case for case in together}

    def _read_one(self, review: ReviewRow) -> list[ReviewContext]:
        with Quarantine(review):
            return read_review_contexts(self._conn, [review])
        return []

    def _row(self, review: ReviewRow, case: ReviewContext | None, answered: set[str]) -> QueueRow | None:
        """The row; a placeholder if it is unreadable; None if it does not wait for this person."""
        if case is None:
            return _unreadable_row(review)
        with Quarantine(review):
            row = self._describe(case, answered)
            return row if row.can_vote or self._wanted.tab is not Tab.ME else None
        return _unreadable_row(review)

    def _describe(self, case: ReviewContext, answered: set[str]) -> QueueRow:
        ctx, bundle, now = self._ctx, self._bundle, self._now
        review, effect, gates = case.review, case.effect, case.gates
        have, need = progress(count_votes(ctx, bundle, case.snapshot, effect, case.agent, gates, now))
        waits = (
            review.state == "open"
            and review.review_id not in answered
            and vote_refusal(ctx, bundle, case.agent, review, gates, self._voter, now) is None
        )
        return QueueRow(
            review_id=review.review_id,
            effect_id=effect.effect_id,
            rev=effect.rev,
            txn=effect.txn,
            tool=effect.tool,
            title=tool_title(bundle, effect),
            sentence=effect_sentence(bundle, effect),
            risk=cast(Risk, review.risk),
            agent=effect.agent,
            owner=owner_name(bundle, case.agent.owner),
            gates=case.gate_titles,
            amount=first_money(bundle, effect),
            have=have,
            need=need,
            answer_by=review.answer_by,
            opened_at=review.opened_at,
            can_vote=waits,
            state=review.state,
            effect_state=effect.state,
            settled_at=review.settled_at,
            alike=batch_kind(bundle, case) if waits else "",
            opened=review.break_glass_at is not None,
        )


def _capped(number: int, cap: int) -> CappedCount:
    return CappedCount(min(number, cap), number > cap)


def _unreadable_row(review: ReviewRow) -> QueueRow:
    return QueueRow(
        review_id=review.review_id,
        effect_id=review.effect_id,
        rev=review.rev,
        txn=review.txn,
        tool=review.tool,
        title=review.tool,
        sentence=(Piece("This review of "), Piece(review.tool, value=True), Piece(" cannot be read")),
        risk=cast(Risk, review.risk),
        agent=review.agent,
        owner=None,
        gates=(),
        amount=None,
        have=0,
        need=0,
        answer_by=review.answer_by,
        opened_at=review.opened_at,
        can_vote=False,
        state=review.state,
        settled_at=review.settled_at,
        broken=True,
    )
