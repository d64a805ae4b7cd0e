"""The machine of the whole protocol: the comparison of each answer, and the invariants after every step.

At the end time passes until nothing is due, and everything is finished or somebody was told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx2
from hypothesis.stateful import invariant

from countersign.contract import EffectState, ReceiptClaims, ReleaseClaims, TxnState
from tests.model import invariants
from tests.model import peoples_side as people
from tests.model.agents_side import Answer
from tests.model.machine import Machine
from tests.model.real import Real, Shop, Tables
from tests.model.rules import USUAL
from tests.model.state import Attempt, Book, Refused, Token, new_book

E, T = EffectState, TxnState
Batch = tuple[tuple[Token, ...], list[str]]


class Protocol(Machine):
    """The whole protocol on one engine."""

    def __init__(self) -> None:
        super().__init__(Real)
        self.book: Book = new_book(self.real.clock(), USUAL)
        self.shop = Shop()
        self.submissions: list[dict[str, Any]] = []
        self.releases: list[ReleaseClaims] = []
        self.receipts: list[ReceiptClaims] = []
        self.tables: Tables = self.real.do(self.real.tables)
        self.before: dict[Any, Any] = {}  # states
        self.commits = {"usual": self.real.world.service.active.current.commit}

    # -- one step --------------------------------------------------------------------------------------------

    def ask(
        self, verb: str, expected: Callable[[], Any], actual: Callable[..., Awaitable[httpx2.Response]]
    ) -> tuple[Any, dict[str, Any]] | None:
        """Do it on both sides and compare; the model's answer, and the body of the service's."""
        both = self.exchange(verb, expected, actual)
        return None if both is None else (both[0], both[1].json())

    def transaction_told(self, wanted: Answer, view: dict[str, Any]) -> None:
        """The transaction as the answer shows it."""
        txn = wanted.txn
        assert txn is not None
        assert (view["txn"], view["rev"], view["state"]) == (txn.id, txn.rev, txn.state.value)
        assert [effect["state"] for effect in view["effects"]] == [e.state.value for e in txn.effects]
        assert [effect["effect_id"] for effect in view["effects"]] == [e.id for e in txn.effects]

    def tokens_told(self, tokens: Sequence[Token], told: Sequence[str], key: str) -> None:
        """The releases that came along."""
        assert len(told) == len(tokens)
        claims = [self.real.world.release_of(token) for token in told]
        for token, claim in zip(tokens, claims, strict=True):
            assert (claim.txn, claim.decision.rev, claim.detail.effect_id) == (
                token.txn,
                token.rev,
                token.effect.id,
            )
            assert (claim.aud, claim.exp) == (token.aud, token.exp)
            assert claim.cnf_jkt == self.real.agents[key].key.public.kid
        self.releases.extend(claims)
        if tokens:
            self.batches.append((tuple(tokens), list(told)))

    def receipt_told(self, attempt: Attempt | None, view: dict[str, Any]) -> None:
        """The receipt that came along, or none."""
        assert (view.get("receipt") is not None) is (attempt is not None)
        if attempt is None:
            return
        receipt = self.real.world.receipt_of(view)
        assert (receipt.attempt, receipt.txn) == (attempt.name, attempt.txn.id)
        assert [told.effect_id for told in receipt.effects] == [e.id for e in attempt.effects]
        assert receipt.fire_by == min(int(e.fire_by.timestamp()) for e in attempt.effects if e.fire_by)
        self.receipts.append(receipt)

    def both(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the tables hold, and the same of the model."""
        self.tables = self.real.do(self.real.tables)
        now: dict[Any, Any] = {(row.effect_id, row.rev): E(row.state) for row in self.tables.effects}
        now |= {(row.txn, row.rev): T(row.state) for row in self.tables.transactions}
        moved = [(was, now[key]) for key, was in self.before.items() if now[key] is not was]
        type(self).moves.update(moved)
        self.before = now
        return _held(self.tables), _remembered(self.book)

    @invariant()
    def i1_no_fire_without_a_redemption_no_redemption_without_a_release(self) -> None:
        invariants.i1_no_fire_without_redemption(self.tables, self.shop)

    @invariant()
    def i2_what_is_released_and_receipted_is_what_the_votes_saw(self) -> None:
        invariants.i2_same_bytes(self.tables, self.releases, self.receipts)

    @invariant()
    def i13_the_active_bundle_is_a_validated_one(self) -> None:
        active = self.real.world.service.active.current
        assert {
            tool: manifest.digest for tool, manifest in active.manifests.items()
        } == self.book.bundle.versions

    def teardown(self) -> None:
        """Let everything that is due happen: what can be finished is finished, or somebody is told (I-14)."""
        try:
            for _ in range(3):
                self.real.clock.pass_(hours=25)
                self.sweep()
                self.look()
            invariants.i14_somebody_is_told(self.tables)
            self.i8_every_transition_has_exactly_one_audit_row_and_the_reverse()
        finally:
            self._life.close()

    # -- what there is ---------------------------------------------------------------------------------------

    def key_of(self, agent: str, pick: int = 0) -> str:
        """A live key of an agent where there is one."""
        keys = [key for key in self.real.agents if key.startswith(f"{agent}/")]
        live = [key for key in keys if key not in self.book.revoked_keys]
        return (live or keys)[pick % len(live or keys)]

    def require_key(self, key: str) -> None:
        """A revoked key proves nothing."""
        if key in self.book.revoked_keys:
            raise Refused(401)

    def sweep(self) -> None:
        """What the timers do, on both sides."""
        self.tick()
        self.real.do(self.real.world.sweep)
        people.sweep(self.book)


LEFT_OUT = frozenset({"impossible_quorum"})
"""Tasks the model has not: who could ever serve a gate is weighed in together/test_quorum_watch.py."""


def _held(tables: Tables) -> dict[str, Any]:
    """What the service holds, in the words of the model."""
    votes = {row.review_id: (row.effect_id, row.rev) for row in tables.reviews}
    return {
        "effects": {
            (e.effect_id, e.rev): (
                e.state, e.redeemed_by, e.fire_by, e.lapses_at, sorted(gate["policy_id"] for gate in e.gates)
            )
            for e in tables.effects
        },
        "transactions": {(t.txn, t.rev): (t.state, t.valid_until) for t in tables.transactions},
        "reviews": {(r.effect_id, r.rev): (r.state, r.answer_by) for r in tables.reviews},
        "votes": Counter(
            (*votes[v.review_id], v.sub, v.verdict, v.late, v.revoked_at is not None) for v in tables.votes
        ),
        "tasks": Counter((t.effect_id, t.kind, t.state) for t in tables.tasks if t.kind not in LEFT_OUT),
        "attempts": {(a.redeemer, a.attempt_id): (a.txn, a.rev, a.kind) for a in tables.attempts},
    }  # fmt: skip


def _remembered(book: Book) -> dict[str, Any]:
    """The same of the model."""
    effects = [(txn, effect) for txn in book.all_revisions() for effect in txn.everything]
    asked = [(txn, effect, effect.review) for txn, effect in effects if effect.review is not None]
    return {
        "effects": {
            (e.id, t.rev): (e.state.value, e.attempt, e.fire_by, e.lapses_at, sorted(gate.name for gate in e.gates))
            for t, e in effects
        },
        "transactions": {(t.id, t.rev): (t.state.value, t.valid_until) for t in book.all_revisions()},
        "reviews": {(e.id, t.rev): (review.state, review.answer_by) for t, e, review in asked},
        "votes": Counter(
            (e.id, t.rev, v.person, v.verdict, v.late, v.revoked) for t, e, review in asked for v in review.votes
        ),
        "tasks": Counter(book.tasks),
        "attempts": {
            key: (a.txn.id, a.txn.rev, "compensate" if a.undoes else "effect") for key, a in book.attempts.items()
        },
    }  # fmt: skip
