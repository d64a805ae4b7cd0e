"""What agents and executors do, in the model: submit, release, redeem, renew, report, withdraw.

Each answers with what the wire is expected to say, or raises `Refused`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from countersign.contract import EffectState, TxnState, can_transition
from countersign.contract import digests as names
from tests.model.state import OPEN, Attempt, Book, Call, Effect, Refused, Token, Transaction

E, T = EffectState, TxnState
FIRE_WINDOW = 30
TOKEN_LIFE = 120
GRACE = 60  # outcome_grace_s, where a manifest names no timeout
Calls, Tokens = tuple[Call, ...], Sequence[Token]
AUDIENCES = {"ship": "warehouse"}


@dataclass(frozen=True)
class Answer:
    """What an acknowledged request says."""

    status: int = 200
    txn: Transaction | None = None
    tokens: tuple[Token, ...] = ()
    attempt: Attempt | None = None  # a receipt of it came along
    undo: Effect | None = None


def _require_live(book: Book, party: str) -> None:
    if party in book.frozen:
        raise Refused(403, "frozen")


def require_going(book: Book, tools: Sequence[str]) -> None:
    """Nothing of it is stopped."""
    if book.stops & {"everything", *tools}:
        raise Refused(403, "frozen")


def require_redeemer(book: Book, party: str, txn: Transaction) -> None:
    """Only the redeeming party spends and reports."""
    if party not in {txn.agent, txn.aud}:
        raise Refused(404, "not_found")
    if party != txn.aud:
        raise Refused(403, "not_redeemer")


# -- submitting ------------------------------------------------------------------------------------------------


def args_of(call: Call) -> dict[str, object]:
    """The arguments of a call; the amount distinguishes calls where the tool does not use it."""
    if call.tool in {"pay", "book"}:
        return {"account": "acme", "amount": call.amount}
    if call.tool == "ship":
        return {"order": f"o{call.amount}"}
    return {"to": "acme", "text": f"t{call.amount}"}


def submit(
    book: Book, agent: str, key: str, run_key: str, calls: Calls, idem: str, attempt: str | None
) -> Answer:
    """Stage these calls under this run key."""
    versions = book.bundle.versions
    auds = {AUDIENCES.get(c.tool, agent) if versions.get(c.tool) == c.digest else agent for c in calls}
    if len(auds) > 1:
        raise Refused(422, "mixed_audience")
    _require_live(book, agent)
    require_going(book, [call.tool for call in calls])
    txn, created = _submitted(book, agent, run_key, calls, auds.pop(), idem, attempt)
    status = 201 if created else 200
    known = book.attempts.get((agent, attempt or ""))
    if attempt is None or txn.aud != agent or txn.valid_until is None:
        return Answer(status, txn)
    if known is not None:
        if known.undoes or known.txn.id != txn.id:
            return Answer(status, txn)
        return Answer(status, txn, mint(book, txn, txn.effects, agent, key, spent=True), known)
    if not created or txn.state is not T.READY:
        return Answer(status, txn)
    tokens = mint(book, txn, txn.effects, agent, key)
    return Answer(status, txn, tokens, _spend(book, txn, txn.effects, agent, attempt))


def _submitted(
    book: Book, agent: str, run_key: str, calls: Calls, aud: str, idem: str, attempt: str | None
) -> tuple[Transaction, bool]:
    txn_id = names.txn_id(agent=agent, run_key=run_key)
    asked = (run_key, calls, attempt)
    before = book.keys.get((agent, idem))
    if before is not None:
        if before[0] != asked:
            raise Refused(422, "idempotency_key_reused")  # I-12
        return book.head(before[1]), False
    known = book.revisions.setdefault(txn_id, [])
    if known:
        head = known[-1]
        if not book.expire_if_over(head):
            book.expire_if_unanswered(head)
        same, spent = head.calls == list(calls), head.effects[0].attempt is not None
        if spent and not same:
            raise Refused(409, "already_redeemed")
        book.keys[(agent, idem)] = (asked, txn_id)
        if same and (spent or head.state in {T.REVIEW, T.READY}):
            return head, False
        for revision in reversed(known):
            if revision.calls == list(calls) and any(_denied_by_person(e) for e in revision.effects):
                return revision, False
        if head.state in {T.REVIEW, T.READY}:
            _supersede(book, head)
    book.keys[(agent, idem)] = (asked, txn_id)
    txn = _revision(book, agent, run_key, txn_id, calls, aud)
    known.append(txn)
    return txn, True


def _denied_by_person(effect: Effect) -> bool:
    votes = [] if effect.review is None else effect.review.votes
    return effect.state is E.DENIED and any(v.verdict == "deny" and not v.late for v in votes)


def _supersede(book: Book, head: Transaction) -> None:
    for effect in head.effects:
        if effect.state in OPEN:
            book.move(effect, E.WITHDRAWN)
            book.close(effect, "withdrawn")
    head.state = T.ENDED


def _revision(book: Book, agent: str, run_key: str, txn_id: str, calls: Calls, aud: str) -> Transaction:
    effects = []
    for call in calls:
        key = names.call_key(agent=agent, run_key=run_key, tool=call.tool, args=args_of(call), n=call.n)
        effects.append(decided(book, names.effect_id(txn=txn_id, call_key=key), call))
    states = {effect.state for effect in effects}
    txn = Transaction(
        txn_id, len(book.revisions[txn_id]) + 1, agent, aud, effects,
        T.READY if states == {E.RELEASED} else T.REVIEW,
    )  # fmt: skip
    if txn.state is T.READY:
        txn.ready_at = book.now
        txn.valid_until = book.now + timedelta(seconds=min(effect.valid_for for effect in effects))
    if E.DENIED in states:
        for effect in effects:
            if effect.state in OPEN:
                book.move(effect, E.WITHDRAWN)
                book.close(effect, "withdrawn")
        book.follow(txn)
    return txn


def decided(book: Book, effect_id: str, call: Call, *, met: bool = False) -> Effect:
    """A new effect as the active bundle decides it; ``met``: its gates count as met."""
    fired = book.bundle.decide(call.tool, call.digest, call.amount)
    state = E.DENIED if fired is None else E.REVIEW if fired and not met else E.RELEASED
    valid_for = min([3_600, *(gate.valid_for for gate in fired or ())])
    gates = (fired or ()) if state is E.REVIEW else ()
    name = book.bundle.name
    effect = Effect(effect_id, call, state, gates, valid_for, name, name, book.now)
    if state is E.REVIEW:
        book.ask_people(effect, list(gates))
    return effect


# -- spending --------------------------------------------------------------------------------------------------


def mint(
    book: Book, txn: Transaction, effects: Sequence[Effect], party: str, key: str, *, spent: bool = False
) -> tuple[Token, ...]:
    """Releases for the key that asks."""
    until = effects[0].lapses_at if effects[0].compensates is not None else txn.valid_until
    assert until is not None
    exp = min(int(book.now.timestamp()) + TOKEN_LIFE, int(until.timestamp()))
    return tuple(Token(txn.id, txn.rev, e, -1 if spent else e.decision, party, key, exp) for e in effects)


def release(book: Book, party: str, key: str, txn_id: str, rev: int) -> Answer:
    """Ask for the releases of a transaction."""
    txn = book.head(txn_id)
    require_redeemer(book, party, txn)
    for name in (party, txn.agent):
        _require_live(book, name)
    require_going(book, [effect.call.tool for effect in txn.effects])
    if rev != txn.rev:
        raise Refused(409, "superseded")
    if book.expire_if_over(txn):
        return Answer(200, txn)
    if txn.state is not T.READY:
        raise Refused(409, "not_ready")
    return Answer(200, txn, mint(book, txn, txn.effects, party, key))


def redeem(book: Book, party: str, key: str, tokens: Sequence[Token], name: str) -> Answer:
    """Spend tokens under an attempt."""
    if (known := book.attempts.get((party, name))) is not None:
        return Answer(200, known.txn, attempt=known)
    txn, effects = _may_redeem(book, party, key, tokens)
    if book.expire_if_over(txn):
        return Answer(200, txn)
    if any(effect.state is not E.RELEASED for effect in effects):
        raise Refused(409, "not_ready")
    if any(token.decision != token.effect.decision for token in tokens):
        raise Refused(409, "superseded")
    undoes = effects[0].compensates is not None
    if not undoes:
        _require_live(book, txn.agent)
    for effect in effects:
        if not book.settle(txn, effect):
            return Answer(200, txn)
        if undoes and book.expire_if_lapsed(txn, effect):
            return Answer(200, txn)
    if book.expire_if_over(txn):
        return Answer(200, txn)
    return Answer(200, txn, attempt=_spend(book, txn, effects, party, name))


def _may_redeem(book: Book, party: str, key: str, tokens: Tokens) -> tuple[Transaction, list[Effect]]:
    """The whole list in force these tokens are for, unspent, none of it stopped."""
    if any((token.aud, token.key) != (party, key) for token in tokens):
        raise Refused(403, "not_redeemer")
    txn, effects = book.head(tokens[0].txn), [token.effect for token in tokens]
    undoes = effects[0].compensates is not None
    require_redeemer(book, party, txn)  # another list may be another party's to redeem
    if not undoes:
        _require_live(book, party)
    if any(int(book.now.timestamp()) >= token.exp for token in tokens):
        raise Refused(400, "expired_token")
    if tokens[0].rev != txn.rev:
        raise Refused(409, "superseded")
    if not undoes and effects != txn.effects:
        raise Refused(400, "bad_token")
    require_going(book, [effect.call.tool for effect in effects])
    if any(book.spent(effect.id) for effect in effects):
        raise Refused(409, "already_redeemed")
    return txn, effects


def _spend(book: Book, txn: Transaction, effects: Sequence[Effect], party: str, name: str) -> Attempt:
    attempt = Attempt(party, name, txn, tuple(effects))
    book.attempts[(party, name)] = attempt
    for effect in effects:
        book.move(effect, E.REDEEMED)
        effect.attempt = name
        _fire_window(book, effect)
    if not attempt.undoes:
        book.follow(txn)
    return attempt


def _fire_window(book: Book, effect: Effect) -> None:
    effect.fire_by = book.now + timedelta(seconds=FIRE_WINDOW)
    timeout = book.bundle.timeout(effect.call.tool, effect.call.digest)
    effect.unknown_at = effect.fire_by + timedelta(seconds=GRACE if timeout is None else timeout)


def renew(book: Book, party: str, name: str, effects: Sequence[Effect]) -> Answer:
    """Ask for more time to fire."""
    attempt = book.attempts.get((party, name))
    if attempt is None:
        raise Refused(404, "unknown_attempt")
    txn = attempt.txn
    if not attempt.undoes:
        _require_live(book, party)
    for effect in effects:
        if effect not in attempt.effects:
            raise Refused(404, "not_found")
        if effect.state is not E.REDEEMED:
            raise Refused(409, "illegal_state")
    require_going(book, [effect.call.tool for effect in effects])
    if book.now >= _until(attempt):
        return Answer(200, txn)
    if not attempt.undoes:
        _require_live(book, txn.agent)
    for effect in effects:
        _, releases, _ = book.ask_again(txn, effect)
        if not releases:
            return Answer(200, txn)
    if book.now >= _until(attempt):
        return Answer(200, txn)
    for effect in effects:
        _fire_window(book, effect)
    return Answer(200, txn, attempt=attempt)


def _until(attempt: Attempt) -> datetime:
    """The end of what it redeemed, by the shortest valid_for that was ever given."""
    txn, first = attempt.txn, attempt.effects[0]
    if first.compensates is not None:
        assert first.lapses_at is not None
        return first.lapses_at
    assert txn.ready_at is not None and txn.valid_until is not None
    shortest = timedelta(seconds=min(effect.valid_for for effect in txn.effects))
    return min(txn.valid_until, txn.ready_at + shortest)


# -- what became of it -----------------------------------------------------------------------------------------


def report(book: Book, party: str, name: str, outcomes: Sequence[tuple[Effect, E, bool]]) -> Answer:
    """Say what became of effects: each with its outcome, and whether a result came along."""
    attempt = book.attempts.get((party, name))
    if attempt is None:
        raise Refused(404, "unknown_attempt")
    if any(effect not in attempt.effects for effect, _, _ in outcomes):
        raise Refused(404, "not_found")
    for effect, reported, has_result in outcomes:
        _take(book, attempt.txn, effect, reported, has_result)
    book.follow(attempt.txn)
    return Answer(200, attempt.txn)


def _take(book: Book, txn: Transaction, effect: Effect, reported: E, has_result: bool) -> None:
    after_fired = {E.FIRED, E.COMPENSATING, E.COMPENSATED, E.COMPENSATION_FAILED}
    if reported is effect.state or (reported is E.FIRED and effect.state in after_fired):
        if effect.state is E.FIRED:  # a result that comes late is taken, one that is there stays
            effect.has_result = effect.has_result or has_result
        return
    if not can_transition(effect.state, reported):
        if reported is not E.UNKNOWN:
            book.open_task(effect, "contradiction")
        return
    was_unknown = effect.state is E.UNKNOWN
    book.move(effect, reported)
    effect.has_result = has_result
    if was_unknown:
        book.settle_task(effect, "unknown")
    outcome_known(book, txn, effect)


def outcome_known(book: Book, txn: Transaction, effect: Effect) -> None:
    """What an outcome brings with it."""
    if effect.state is E.UNKNOWN:
        book.open_task(effect, "unknown")
    if effect.compensates is None:
        return
    if effect.state is E.FIRED:
        book.move(effect.compensates, E.COMPENSATED)
    elif effect.state in {E.FAILED, E.UNUSED}:
        book.compensation_failed(txn, effect.compensates)


def withdraw(book: Book, party: str, txn_id: str) -> Answer:
    """Take a transaction back before it is spent."""
    txn = book.head(txn_id)
    if party not in {txn.agent, txn.aud}:
        raise Refused(404, "not_found")
    if party != txn.agent:
        raise Refused(403, "forbidden")
    if txn.state is T.ENDED:
        return Answer(200, txn)
    if txn.state not in {T.REVIEW, T.READY}:
        raise Refused(409, "already_redeemed")
    book.end(txn, txn.effects[0], E.WITHDRAWN)
    return Answer(200, txn)
