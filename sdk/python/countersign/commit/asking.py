"""Waiting for people: one look after the other, with nothing held open, until they have answered or the time is up.

Rules: a service that does not answer is away and has not said no, so it is asked again after growing pauses; nothing is
decided or fired here. Whoever waits hears whether the service was there at the end.
"""

from __future__ import annotations

from collections.abc import Callable

from countersign.backoff import backoff
from countersign.commit.answering import Answering
from countersign.commit.edits import open_proposals
from countersign.contract.states import EffectState, TxnState
from countersign.contract.wire import EffectView, TransactionView
from countersign.engine import Engine
from countersign.errors import OverQuota, ReviewPending, ServiceUnavailable
from countersign.errors.reasons import Asks, PendingReview, open_questions
from countersign.journal import Lease, LocalState, LocalTxn
from countersign.settings import Settings


async def until_answered(
    engine: Engine,
    txn: str,
    until: float,
    answering: Answering,
    before_each: Callable[[], None] = lambda: None,
    concerns: Callable[[TransactionView], bool] = lambda _: False,
) -> TransactionView | None:
    """The transaction as it was last seen: no longer in review, or one that concerns whoever waits, or the time is up.
    None: there was no time to look. What people ask meanwhile is answered.

    Raises:
        ServiceUnavailable, OverQuota: the time is up, and the last look got no answer.
    """
    clock, settings = engine.clock, engine.settings
    view: TransactionView | None = None
    away: ServiceUnavailable | OverQuota | None = None
    missed = 0
    while (left := until - clock.steady()) > 0:
        before_each()
        try:
            wait = max(1, min(int(left), settings.poll_seconds))
            view = await engine.service.view(txn, wait=wait, asked_after=answering.last_seen)
            if view.state is TxnState.REVIEW:
                await answering.answer(engine, view)
        except (ServiceUnavailable, OverQuota) as error:
            away, missed = error, missed + 1
        else:
            away, missed = None, 0
            if view.state is not TxnState.REVIEW or concerns(view):
                return view
        # Also after an answer: a service that answers a long poll at once must not be asked in a tight loop.
        pause = pause_seconds(settings, missed, away)
        await engine.waits.sleep(max(0.0, min(until - clock.steady(), pause)))
    if away is not None:
        raise away
    return view


def pause_seconds(
    settings: Settings, missed: int, away: ServiceUnavailable | OverQuota | None = None
) -> float:
    """Longer with every look that got no answer; no longer than a long poll may take, so that what people answer is
    noticed as soon as ever, but as long as the service says that a quota lasts.
    """
    pause = backoff(settings.retry_base_seconds, missed, settings.poll_seconds)
    return max(pause, (away.retry_after or 0) if isinstance(away, OverQuota) else 0)


def why_away(away: ServiceUnavailable | OverQuota) -> str:
    """Why the last look got no answer, for whoever waits."""
    return away.why if isinstance(away, ServiceUnavailable) else away.detail


def note_where_it_stands(
    engine: Engine, lease: Lease, view: TransactionView, *, parked: bool = False
) -> None:
    """Keep what the service answered before the redemption in the journal."""
    engine.journal.transactions.see(
        lease,
        state=LocalTxn(view.state.value),
        rev=view.rev,
        effects={one.effect_id: LocalState(one.state.value) for one in view.effects},
        parked=parked,
    )


def pending_of(
    view: TransactionView,
    key: str,
    *,
    parked: bool,
    waited: bool = False,
    connected: bool = False,
    unreached: str = "",
) -> ReviewPending:
    """What a program is told of a transaction in review: whom it waits for, what they propose and ask, as of `view`.
    `waited`: by one that would have run it again. `connected`: it calls an MCP server.
    """
    return ReviewPending(
        key,
        view.txn,
        [pending_review(one) for one in view.effects if one.state is EffectState.REVIEW],
        parked=parked,
        waited=waited,
        connected=connected,
        unreached=unreached,
        proposals=open_proposals(view),
        questions=open_questions(view),
    )


def pending_review(view: EffectView) -> PendingReview:
    """Who is asked about one effect, until when and where."""
    review = view.review
    if review is None:
        return PendingReview(view.effect_id, view.tool, None, None, None)
    return PendingReview(
        view.effect_id,
        view.tool,
        review.review_id,
        review.url,
        review.answer_by.isoformat(timespec="minutes"),
        tuple(map(Asks.of, review.needs)),
    )
