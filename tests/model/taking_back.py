"""Compensation, in the model: what fired is taken back by an effect of its own."""

from __future__ import annotations

from datetime import timedelta

from countersign.contract import EffectState
from countersign.contract import digests as names
from tests.model.agents_side import Answer, decided, mint, require_going, require_redeemer
from tests.model.state import Book, Call, Effect, Refused, Transaction

E = EffectState
UNDONE_BY = {"pay": "unpay", "book": "unbook"}


def compensate(book: Book, party: str, key: str, txn_id: str, forward: Effect) -> Answer:
    """Ask for what takes an effect back."""
    txn = book.head(txn_id)
    require_redeemer(book, party, txn)
    undo = forward.undo
    if undo is None:
        if forward not in txn.effects:
            raise Refused(404, "not_found")
        if forward.state is not E.FIRED or not forward.can_be_undone:
            raise Refused(409, "illegal_state")
        if forward.call.tool == "pay" and not forward.has_result:
            book.compensation_failed(txn, forward)  # it cannot even be built
            raise Refused(409, "illegal_state")
        tool = UNDONE_BY[forward.call.tool]
        require_going(book, [tool])
        undo = _open_undo(book, txn, forward, tool)
    require_going(book, [undo.call.tool])
    if undo.state is not E.RELEASED or book.expire_if_lapsed(txn, undo):
        return Answer(200, txn, undo=undo)
    return Answer(200, txn, mint(book, txn, [undo], party, key), undo=undo)


def _open_undo(book: Book, txn: Transaction, forward: Effect, tool: str) -> Effect:
    call = Call(tool, book.bundle.versions[tool], forward.call.amount)
    call_key = names.compensation_call_key(effect_id=forward.id, tool=tool)
    probe = Effect("", call, E.REVIEW, (), 0, "", "", book.now, compensates=forward)
    effect_id, met = names.effect_id(txn=txn.id, call_key=call_key), book.approved_before(probe)
    undo = decided(book, effect_id, call, met=met)
    undo.compensates, forward.undo = forward, undo
    if undo.state is E.RELEASED:
        undo.lapses_at = book.now + timedelta(seconds=undo.valid_for)
    book.move(forward, E.COMPENSATING)
    book.settle_task(forward, "compensation_due")
    if undo.state is E.DENIED:
        book.compensation_failed(txn, forward)
    book.follow(txn)
    return undo
