"""What the tables hold, and the same of the model, in one form: after every step they are equal."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.model.reviewing.book import Book
from tests.model.reviewing.real import Everything


def amount_in(args: bytes) -> int:
    """The one number in the arguments of a call here."""
    return int(re.sub(rb"\D", b"", args))


def held_in(found: Everything) -> dict[str, Any]:
    """What the service holds, in the words of the model."""
    tables = found.tables
    where = {row.review_id: (row.effect_id, row.rev) for row in tables.reviews}
    return {
        "effects": {
            (e.effect_id, e.rev): (
                e.state, amount_in(e.args), e.valid_for_s, e.redeemed_by,
                sorted((gate["policy_id"], gate["quorum"]) for gate in e.gates),
            )
            for e in tables.effects
        },
        "transactions": {
            (t.txn, t.rev): (t.state, t.valid_until, _names(t.edited_by)) for t in tables.transactions
        },
        "reviews": {
            (r.effect_id, r.rev): (
                r.state, r.answer_by, sorted(r.escalated), r.escalate_at, _names(r.edited_by),
                r.break_glass_at is not None,
            )
            for r in tables.reviews
        },
        "votes": Counter(
            (*where[v.review_id], v.sub, v.verdict, v.late, v.revoked_at is not None) for v in tables.votes
        ),
        "proposals": {
            p.reason: (p.effect_id, p.rev, p.sub, amount_in(p.args), p.state, p.became_rev)
            for p in found.proposals
        },
        "comments": {
            c.text: (*where[c.review_id], c.sub, c.kind, c.for_requester, c.answer) for c in found.comments
        },
        "tasks": Counter((t.effect_id, t.rev, t.kind, t.state) for t in tables.tasks),
    }  # fmt: skip


def _names(keys: Iterable[str]) -> list[str]:
    return sorted(key.rpartition("|")[2] for key in keys)


def remembered_in(book: Book) -> dict[str, Any]:
    """What the model holds."""
    asked = book.everything()
    return {
        "effects": {
            (e.id, r.rev): (
                e.state.value, e.amount, e.valid_for, e.attempt,
                sorted((gate.name, gate.quorum) for gate in e.gates),
            )
            for r in book.all_revisions()
            for e in r.effects
        },
        "transactions": {
            (r.id, r.rev): (r.state.value, r.valid_until, sorted(r.editors)) for r in book.all_revisions()
        },
        "reviews": {
            (e.id, r.rev): (
                q.state, q.answer_by, sorted(q.escalated), min(q.escalates.values(), default=None),
                sorted(r.editors), q.opened,
            )
            for r, e, q in asked
        },
        "votes": Counter(
            (e.id, r.rev, v.person, v.verdict, v.late, v.revoked) for r, e, q in asked for v in q.votes
        ),
        "proposals": {
            p.words: (e.id, r.rev, p.person, p.amount, p.state, p.became)
            for r, e, q in asked
            for p in q.proposals
        },
        "comments": {
            c.words: (e.id, r.rev, c.person, "question" if c.question else "comment", c.own_side, c.answer)
            for r, e, q in asked
            for c in q.comments
        },
        "tasks": Counter((t.effect, t.rev, t.kind, t.state) for t in book.tasks),
    }  # fmt: skip
