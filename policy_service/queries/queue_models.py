"""What people read of the queue: which tab, which filters, the counts, the lines of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal, TypeAlias

from policy_service.queries.pieces import ArgRow, Money, Piece
from policy_service.queries.review_models import Risk


class Tab(StrEnum):
    """Which reviews: those that wait for this person, all open ones, those of their own agents, settled ones."""

    ME = "me"
    OPEN = "open"
    MINE = "mine"
    DECIDED = "decided"


Order: TypeAlias = Literal["due", "newest"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person wants to see. Every filter narrows; an empty one does not."""

    tab: Tab = Tab.ME
    agent: str = ""
    tool: str = ""
    group: str = ""
    risk: str = ""
    text: str = ""
    order: Order = "due"

    @property
    def filtered(self) -> bool:
        """Whether anything narrows the tab."""
        return any((self.agent, self.tool, self.group, self.risk, self.text))


@dataclass(frozen=True, slots=True)
class Count:
    """How many, up to a cap."""

    number: int = 0
    capped: bool = False

    @property
    def words(self) -> str:
        """`7`, or `1,000+`."""
        return f"{self.number:,}{'+' if self.capped else ''}"


@dataclass(frozen=True, slots=True)
class TabCounts:
    """How many reviews stand on each tab, whatever the filters say."""

    me: Count = Count()
    open: Count = Count()
    mine: Count = Count()
    decided: Count = Count()


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
    gates: tuple[str, ...]  # titles, or policy ids where a gate has none
    amount: Money | None
    have: int
    need: int
    answer_by: datetime
    opened_at: datetime
    can_vote: bool
    state: str = "open"
    effect_state: str = "review"
    settled_at: datetime | None = None
    alike: str = ""  # the kind by which low-risk reviews may be decided together; empty: on its own only
    opened: bool = False  # by break-glass, without the people its gates ask
    broken: bool = False  # what is stored of it cannot be read: it is told as such and stops no other row


@dataclass(frozen=True, slots=True)
class QueuePage:
    """A page of a tab; `next_cursor` is opaque, None at the end."""

    rows: tuple[QueueRow, ...]
    next_cursor: str | None = None
    counts: TabCounts = TabCounts()
    looked_through: int = 0  # how many a filter went through without coming to the end; 0: to the end


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One review of a batch: all that is signed, and all that a ballot names."""

    review_id: str
    rev: int
    effect_id: str
    effect_digest: str
    txn_digest: str
    view_digest: str
    sentence: tuple[Piece, ...]
    args: tuple[ArgRow, ...]
    canonical: bytes
    amount: Money | None
    answer_by: datetime
    opened_at: datetime
    have: int
    need: int
    warned: bool = False  # its own page warns of something


@dataclass(frozen=True, slots=True)
class AlikePage:
    """Reviews of one kind that wait for one person: one tool, one agent, one set of rules, low risk."""

    kind: str
    agent: str
    owner: str | None
    tool: str
    title: str
    gates: tuple[str, ...]
    finality: str
    lines: Sequence[BatchLine]
    more: bool = False  # there may be more of the kind than were looked at


@dataclass(frozen=True, slots=True)
class WholePart:
    """One effect of a transaction: a line that this person may decide here, or why there is none."""

    seq: int
    sentence: tuple[Piece, ...]
    args: tuple[ArgRow, ...]
    state: str
    review_id: str | None = None
    finality: str = ""  # of one that people are asked about, and by which gates
    gates: tuple[str, ...] = ()
    line: BatchLine | None = None
    why_not_here: str = ""  # of an open review without a line


@dataclass(frozen=True, slots=True)
class WholePage:
    """A transaction of several effects, in their order, for one person who may approve all or some of it."""

    agent: str
    owner: str | None
    txn_digest: str
    parts: tuple[WholePart, ...]

    @property
    def lines(self) -> tuple[BatchLine, ...]:
        """What this person may decide here."""
        return tuple(part.line for part in self.parts if part.line is not None)

    @property
    def bytes(self) -> int:
        """Of the arguments that are drawn."""
        return sum(row.bytes for part in self.parts for row in part.args)
