"""What the agent does, in the model: submit, answer proposals and questions, withdraw, release, redeem.

Each answers with what the wire is expected to say, or raises `Refused`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from countersign.contract import EffectState, TxnState, names
from tests.model.gates import OWNER
from tests.model.reviewing.book import (
    VALID_FOR,
    Book,
    Call,
    Comment,
    Effect,
    Proposal,
    Refused,
    Review,
    Revision,
)
from tests.model.state import OPEN

E, T = EffectState, TxnState
AGENT = "robot"
TOKEN_LIFE = 120


@dataclass(frozen=True)
class Token:
    """One minted release."""

    revision: Revision
    effect: Effect
    decision: int
    exp: int


@dataclass(frozen=True)
class Said:
    """What an acknowledged request says."""

    revision: Revision
    status: int = 200
    tokens: tuple[Token, ...] = ()
    mode: tuple[str, ...] = ()  # of each token
    spent: bool = False


def args_of(tool: str, amount: int) -> dict[str, object]:
    """The arguments of a call with this amount."""
    return {"account": "acme", "amount": amount} if tool == "pay" else {"to": "acme", "text": f"t{amount}"}


# -- submitting ------------------------------------------------------------------------------------------------


def submit(book: Book, run: str, calls: tuple[Call, ...]) -> Said:
    """Stage these calls under this run key; whether they can be answered at all is weighed apart."""
    txn = names.txn_id(agent=AGENT, run_key=run)
    known = book.revisions.setdefault(txn, [])
    if known:
        head = known[-1]
        if not book.expire_if_over(head):
            book.expire_if_unanswered(head)
        same, spent = head.calls == list(calls), head.state is T.REDEEMED
        if spent and not same:
            raise Refused(409, "already_redeemed")
        if same and (spent or head.state in {T.REVIEW, T.READY}):
            return Said(head)
        for revision in reversed(known):
            if revision.calls == list(calls) and any(map(_denied_by_person, revision.effects)):
                return Said(revision)
        if head.state in {T.REVIEW, T.READY}:
            _supersede(book, head)
    return Said(_revision(book, txn, run, calls), status=201)


def _denied_by_person(effect: Effect) -> bool:
    votes = [] if effect.review is None else effect.review.votes
    return effect.state is E.DENIED and any(v.verdict == "deny" and not v.late for v in votes)


def _supersede(book: Book, head: Revision) -> None:
    """The revision in force ends: its votes void, its releases dead, what is proposed on it too."""
    book.withdraw_open(head)
    head.state = T.ENDED


def _revision(book: Book, txn: str, run: str, calls: Sequence[Call]) -> Revision:
    """A list decided from the start, with the arguments that were accepted for its calls."""
    known, effects, editors = book.revisions[txn], list[Effect](), set[str]()
    for call in calls:
        key = names.call_key(
            agent=AGENT, run_key=run, tool=call.tool, args=args_of(call.tool, call.amount), n=0
        )
        effect_id = names.effect_id(txn=txn, call_key=key)
        changes = accepted(known, effect_id)
        editors |= {proposal.person for proposal in changes}
        amount = changes[-1].amount if changes else call.amount
        effects.append(_decided(book, effect_id, call, amount))
    states = {effect.state for effect in effects}
    at_once = states == {E.RELEASED}
    state = T.READY if at_once else T.REVIEW
    revision = Revision(txn, len(known) + 1, run, effects, frozenset(editors), state)
    known.append(revision)
    if at_once:
        book.start_clock(revision)
    if E.DENIED in states:
        book.withdraw_open(revision)
        book.follow(revision)
    return revision


def accepted(known: Sequence[Revision], effect_id: str) -> list[Proposal]:
    """Every change of one call that was accepted, in order: the last one stands, and all their makers are barred."""
    made = [
        proposal
        for revision in known
        for effect in revision.effects
        if effect.id == effect_id and effect.review is not None
        for proposal in effect.review.proposals
        if proposal.state == "accepted"
    ]
    return sorted(made, key=lambda proposal: proposal.became or 0)


def _decided(book: Book, effect_id: str, call: Call, amount: int) -> Effect:
    fired = book.laws.gates_of(call.tool, amount)
    state = E.DENIED if fired is None else E.REVIEW if fired else E.RELEASED
    valid_for = min([VALID_FOR, *(gate.valid_for for gate in fired or ())])
    effect = Effect(effect_id, call, amount, state, fired or (), valid_for, book.laws)
    if state is E.REVIEW:
        book.ask_people(effect)
    return effect


# -- answering people --------------------------------------------------------------------------------------------


def accept(book: Book, who: str, revision: Revision, effect: Effect, proposal: Proposal) -> Said:
    """The agent, or its owner, takes other arguments: the revision they were proposed on is dead."""
    if who in book.revoked:
        raise Refused(401)
    if who not in {AGENT, OWNER}:
        raise Refused(403, "not_eligible")
    if proposal.state == "accepted":
        return Said(book.head(revision.id))
    late = any(one.review is not None and book.over(one.review) for one in revision.effects)
    gone = proposal.person in book.revoked
    if proposal.state != "open" or not book.is_head(revision) or late or gone:
        raise Refused(409, "proposal_closed")
    proposal.state, proposal.became = "accepted", len(book.revisions[revision.id]) + 1
    _supersede(book, revision)
    return Said(_revision(book, revision.id, revision.run, revision.calls))


def decline(book: Book, who: str, revision: Revision, proposal: Proposal) -> Said:
    """The agent or its owner does not want it, or whoever proposed takes it back."""
    if who in book.revoked:
        raise Refused(401)
    if who not in {AGENT, OWNER, proposal.person}:
        raise Refused(403, "not_eligible")
    if proposal.state not in {"open", "declined"}:
        raise Refused(409, "proposal_closed")
    proposal.state = "declined"
    return Said(revision)


def answer(book: Book, revision: Revision, effect: Effect, question: Comment, words: str) -> Said:
    """The agent answers a question: a claim, and no vote."""
    review = effect.review
    assert review is not None
    if question.answer == words:
        return Said(revision)
    require_open(book, revision, effect, review)
    if question.answer is not None:
        raise Refused(409, "already_answered")
    question.answer = words
    return Said(revision)


def require_open(book: Book, revision: Revision, effect: Effect, review: Review) -> None:
    """Nothing is added to what nobody decides any more; one whose time is over expires now."""
    if book.over(review):
        book.end(revision, effect, E.EXPIRED)
    if not review.is_open:
        raise Refused(409, "review_closed")


# -- spending --------------------------------------------------------------------------------------------------


def release(book: Book, revision: Revision) -> Said:
    """Ask for the releases of a revision."""
    head = book.head(revision.id)
    if head is not revision:
        raise Refused(409, "superseded")
    if book.expire_if_over(head):
        return Said(head)
    if head.state is not T.READY:
        raise Refused(409, "not_ready")
    assert head.valid_until is not None
    exp = min(int(book.now.timestamp()) + TOKEN_LIFE, int(head.valid_until.timestamp()))
    tokens = tuple(Token(head, effect, effect.decision, exp) for effect in head.effects)
    return Said(head, tokens=tokens, mode=tuple(_mode(book, head, effect) for effect in head.effects))


def _mode(book: Book, revision: Revision, effect: Effect) -> str:
    if not effect.gates:
        return "auto"
    return "break_glass" if book.count(revision, effect, effect.gates).opened else "review"


def redeem(book: Book, tokens: Sequence[Token], attempt: str) -> Said:
    """Spend releases under an attempt: the whole list, or nothing. Everything is asked again."""
    if (known := book.attempts.get(attempt)) is not None:
        return Said(known, spent=True)
    revision = tokens[0].revision
    head = book.head(revision.id)
    if int(book.now.timestamp()) >= tokens[0].exp:
        raise Refused(400, "expired_token")
    if head is not revision:
        raise Refused(409, "superseded")
    if any(effect.attempt is not None for effect in head.effects):
        raise Refused(409, "already_redeemed")
    if book.expire_if_over(head):
        return Said(head)
    if any(effect.state is not E.RELEASED for effect in head.effects):
        raise Refused(409, "not_ready")
    if any(token.decision != token.effect.decision for token in tokens):
        raise Refused(409, "superseded")
    for effect in head.effects:
        if not book.settle(head, effect):
            return Said(head)
    if book.expire_if_over(head):
        return Said(head)
    book.redeem(head, attempt)
    return Said(head, spent=True)


def open_effects(book: Book) -> list[tuple[Revision, Effect]]:
    """What is not decided for good."""
    return [(r, e) for r in book.all_revisions() for e in r.effects if e.state in OPEN]
