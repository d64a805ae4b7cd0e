"""What people, operators and time do, in the model: vote, sign, propose, write, revoke, activate, sweep."""

from __future__ import annotations

from countersign.contract import EffectState
from tests.model.reviewing.agents import open_effects, require_open
from tests.model.reviewing.book import Book, Comment, Effect, Proposal, Refused, Review, Revision, Vote

E = EffectState


def _asked_about(book: Book, who: str, revision: Revision, effect: Effect) -> Review:
    """A review as somebody read it, which must still be about the revision in force."""
    if who in book.revoked:
        raise Refused(401)
    if not book.is_head(revision):
        raise Refused(409, "stale_review")
    assert effect.review is not None
    return effect.review


def vote(
    book: Book, who: str, revision: Revision, effect: Effect, verdict: str, reason: str | None
) -> tuple[str, bool]:
    """Approve or deny; the review's state, and whether it came in time."""
    review = _asked_about(book, who, revision, effect)
    if not book.may_decide(revision, effect, who):
        raise Refused(403, "not_eligible")
    return _cast(book, who, revision, effect, review, verdict, reason)


def sign(book: Book, who: str, revision: Revision, effect: Effect, reason: str | None) -> tuple[str, bool]:
    """Open it in an emergency, or give one of two signatures that do."""
    review = _asked_about(book, who, revision, effect)
    if who in revision.side or not (book.laws.opens(who) or book.laws.opens_alone(who)):
        raise Refused(403, "not_eligible")
    return _cast(book, who, revision, effect, review, "break_glass", reason)


def _cast(
    book: Book, who: str, revision: Revision, effect: Effect, review: Review, verdict: str, reason: str | None
) -> tuple[str, bool]:
    if book.over(review):
        book.end(revision, effect, E.EXPIRED)
    if not review.is_open:
        if not any((v.person, v.verdict) == (who, verdict) for v in review.votes):
            review.votes.append(Vote(who, verdict, late=True))
        return review.state, False
    if not reason and (verdict != "approve" or any(gate.reason for gate in effect.gates)):
        raise Refused(400, "reason_required")
    if not review.holds(who, verdict):
        review.votes.append(Vote(who, verdict, late=False))
    if verdict == "deny":
        book.end(revision, effect, E.DENIED)
    elif book.count(revision, effect, effect.gates).lets_go:
        book.settle(revision, effect)
    return review.state, True


def propose(book: Book, who: str, revision: Revision, effect: Effect, amount: int, words: str | None) -> None:
    """Offer another amount. It is no vote, and nothing else moves."""
    review = _asked_about(book, who, revision, effect)
    if not book.may_decide(revision, effect, who):
        raise Refused(403, "not_eligible")
    if not review.is_open or book.over(review):
        raise Refused(409, "review_closed")
    if not words:
        raise Refused(400, "reason_required")
    if amount == effect.amount:
        raise Refused(400, "invalid_request")
    for mine in review.proposals:
        if (mine.person, mine.state) == (who, "open"):
            if (mine.amount, mine.words) == (amount, words):
                return
            mine.state = "lapsed"
    review.proposals.append(Proposal(words, who, amount))


def comment(book: Book, who: str, revision: Revision, effect: Effect, words: str, *, question: bool) -> None:
    """Write something for the others, or ask the agent."""
    if who in book.revoked:
        raise Refused(401)
    review = effect.review
    assert review is not None
    require_open(book, revision, effect, review)
    own_side = who in revision.side
    if not (own_side and not question) and not book.may_decide(revision, effect, who):
        raise Refused(403, "not_eligible")
    same = Comment(words, who, question, own_side)
    if same not in review.comments:
        review.comments.append(same)


# -- operators, and what happens by itself ---------------------------------------------------------------------


def revoke(book: Book, who: str) -> int:
    """Somebody decides nothing any more: their votes leave the count; how many. What they proposed is not taken."""
    book.revoked.add(who)
    standing = [v for _, _, r in book.everything() for v in r.votes if v.person == who and not v.revoked]
    for cast in standing:
        cast.revoked = True
    return len(standing)


def ask_about_open(book: Book) -> None:
    """Everything open that the laws in force have not answered for is asked about, by effect id."""
    due = [(e.id, r.rev, r, e) for r, e in open_effects(book) if e.asked_under != book.laws]
    for _, _, revision, effect in sorted(due, key=lambda row: row[:2]):
        if (revision, effect) in open_effects(book):
            book.settle(revision, effect)
            book.expire_if_over(revision)


def sweep(book: Book) -> None:
    """What the timers do, in their order."""
    waiting = sorted(book.everything(), key=lambda row: (row[2].answer_by, row[1].id))
    for revision, effect, review in waiting:
        if book.over(review):
            book.end(revision, effect, E.EXPIRED)
    for _, effect, review in book.everything():
        due = [key for key, at in review.escalates.items() if at <= book.now]
        if due and review.is_open:
            book.escalate(effect, due)
    for revision in book.all_revisions():
        book.expire_if_over(revision)
    watch(book)


def watch(book: Book) -> None:
    """Whether anybody could answer what waits, the oldest question first."""
    for revision, effect, review in book.everything():
        short = review.is_open and bool(book.short(revision, effect))
        if short is not book.is_told(revision, effect):
            book.weigh(revision, effect)
