"""What people, operators and time do, in the model: vote, revoke, freeze, activate a bundle, sweep."""

from __future__ import annotations

from datetime import timedelta

from countersign.contract import EffectState, TxnState
from tests.model.agents_side import GRACE, outcome_known
from tests.model.rules import Bundle
from tests.model.state import OPEN, Book, Effect, Refused, Transaction, Vote

E, T = EffectState, TxnState


def vote(
    book: Book, who: str, txn: Transaction, effect: Effect, verdict: str, reason: str | None
) -> tuple[str, bool]:
    """Cast a vote on a revision as it was read; the review's state, and whether the vote was taken in time."""
    review = effect.review
    assert review is not None
    if who in book.revoked_people:
        raise Refused(401)
    if book.head(txn.id) is not txn:
        raise Refused(409, "stale_review")
    voters = frozenset[str]().union(*(gate.groups for gate in effect.gates))
    if who == book.owners[txn.agent] or not book.bundle.groups_of(who) & voters:
        raise Refused(403, "not_eligible")
    if review.state == "open" and book.now >= review.answer_by:
        book.end(txn, effect, E.EXPIRED)
    if review.state != "open":
        if not any((v.person, v.verdict) == (who, verdict) for v in review.votes):
            review.votes.append(Vote(who, verdict, late=True))
        return review.state, False
    if verdict == "deny" and not reason:
        raise Refused(400, "reason_required")
    mine = (who, verdict, False, False)
    if mine not in [(v.person, v.verdict, v.late, v.revoked) for v in review.votes]:
        review.votes.append(Vote(who, verdict, late=False))
    if verdict == "deny":
        book.end(txn, effect, E.DENIED)
    elif book.counted(txn, effect, effect.gates):
        book.settle(txn, effect)
    return review.state, True


# -- operators -------------------------------------------------------------------------------------------------


def revoke_effect(book: Book, txn: Transaction, effect: Effect) -> None:
    """End one open effect."""
    head = book.head(txn.id)
    same = next((e for e in head.everything if e.id == effect.id), None)
    if same is None:
        raise Refused(404, "not_found")
    if same.state not in OPEN:
        raise Refused(409, "illegal_state")
    book.end(head, same, E.REVOKED)


def revoke_if_open(book: Book, txn_id: str) -> bool:
    """End a transaction unless it ended by itself."""
    head = book.head(txn_id)
    for effect in head.effects:
        if effect.state in OPEN:
            book.end(head, effect, E.REVOKED)
            return True
    return False


def revoke_effect_if_open(book: Book, effect_id: str) -> bool:
    """End an effect or a compensation unless it ended by itself, or with a sibling."""
    for txn in book.all_revisions():
        for effect in txn.everything:
            if effect.id == effect_id and effect.state in OPEN:
                book.end(txn, effect, E.REVOKED)
                return True
    return False


def open_under(book: Book, bundle: Bundle) -> list[str]:
    """The effects, and compensations, that are open by a decision of this commit."""
    found = {e.id for _, e in _all(book) if e.state in OPEN and e.decided_by == bundle.name}
    return sorted(found)


def revoke_approver(book: Book, who: str) -> int:
    """Their votes leave the count; how many."""
    book.revoked_people.add(who)
    gone = 0
    for txn in book.all_revisions():
        for effect in txn.everything:
            for cast in [] if effect.review is None else effect.review.votes:
                if cast.person == who and not cast.revoked:
                    cast.revoked = True
                    gone += 1
    return gone


def revoke_agent(book: Book, name: str, keys: list[str]) -> list[str]:
    """Freeze it, end its keys; the transactions of its that are open still."""
    book.frozen.add(name)
    book.revoked_keys.update(keys)
    return sorted({txn.id for txn, effect in _all(book) if txn.agent == name and effect.state in OPEN})


# -- what happens by itself ------------------------------------------------------------------------------------


def activate(book: Book, bundle: Bundle) -> None:
    """Another bundle is in force: everything open that it has not answered for is asked about, by effect id."""
    book.bundle = bundle
    open_ones = [(txn, effect) for txn, effect in _all(book) if effect.state in OPEN]
    due = [(e.id, txn.rev, txn, e) for txn, e in open_ones if e.asked_under != bundle.name]
    for _, _, txn, effect in sorted(due, key=lambda row: row[:2]):
        if effect.state in OPEN:
            book.settle(txn, effect)
            book.expire_if_over(txn)


def sweep(book: Book) -> None:
    """What the timers do, in their order."""
    for txn, effect in sorted(_all(book), key=lambda row: (_due(row[1]), row[1].id)):
        review = effect.review
        if review is not None and review.state == "open" and book.now >= review.answer_by:
            book.end(txn, effect, E.EXPIRED)
    for txn in book.all_revisions():
        book.expire_if_over(txn)
    for txn, effect in _all(book):
        if effect.state is E.REDEEMED and effect.unknown_at is not None and book.now >= effect.unknown_at:
            book.move(effect, E.UNKNOWN)
            outcome_known(book, txn, effect)
            book.follow(txn)
    for txn, effect in _all(book):
        if effect.compensates is not None:
            book.expire_if_lapsed(txn, effect)
    for txn in book.all_revisions():
        _ask_to_take_back(book, txn)


def _all(book: Book) -> list[tuple[Transaction, Effect]]:
    return [(txn, effect) for txn in book.all_revisions() for effect in txn.everything]


def _due(effect: Effect) -> float:
    return 0.0 if effect.review is None else effect.review.answer_by.timestamp()


def _ask_to_take_back(book: Book, txn: Transaction) -> None:
    """Something fired, its siblings did not, it could be taken back, and no compensation was requested: one task."""
    open_ = {E.REDEEMED, E.COMPENSATING, E.UNKNOWN}
    if txn.state not in {T.REDEEMED, T.UNSETTLED} or any(effect.state in open_ for effect in txn.everything):
        return
    for effect in txn.effects:
        known = any((i, kind) == (effect.id, "compensation_due") for i, kind, _ in book.tasks)
        due = book.now >= effect.changed_at + timedelta(seconds=GRACE)
        if effect.state is E.FIRED and effect.can_be_undone and due and not known:
            book.open_task(effect, "compensation_due")
