"""I-8 as a check: every transition has exactly one audit row, and the reverse.

The log is replayed. Each row that tells of a move must start where the row before it ended, so that a missing, doubled
or invented row breaks the chain; and every chain must end in the state the tables hold.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, select
from sqlmodel import SQLModel

from countersign.contract import EffectState, TxnState, can_move
from policy_service.storage.core import table
from policy_service.storage.plumbing import AuditRow
from policy_service.storage.proposals import ProposalRow
from policy_service.storage.tables import (
    AttemptRow,
    DecisionRow,
    EffectRow,
    RedemptionRow,
    ReviewRow,
    TaskRow,
    TransactionRow,
    VoteRow,
)

Thing = tuple[str, ...]


class Replay:
    """The states the log tells of."""

    def __init__(self) -> None:
        self.effects: dict[Thing, str] = {}
        self.transactions: dict[Thing, str] = {}
        self.reviews: dict[Thing, str] = {}
        self.tasks: dict[Thing, str] = {}
        self.proposals: dict[Thing, str] = {}
        self.named: Counter[tuple[str, str]] = Counter()
        self.faults: list[str] = []

    def take(self, row: Any) -> None:
        """One line, as the database has it."""
        body = json.loads(row.body)
        kind, _, state = row.kind.partition("_")
        effect = (row.effect_id or "", str(row.rev))
        transaction = (row.txn or "", str(row.rev))
        if row.kind == "effect_submitted":
            self._begin(self.effects, effect, body["to"], row)
        elif kind == "effect":
            self._move(self.effects, effect, body, EffectState(state), row)
        elif row.kind == "transaction_submitted":
            self._begin(self.transactions, transaction, body["to"], row)
        elif kind == "transaction":
            self._move(self.transactions, transaction, body, TxnState(state), row)
        else:
            self._people(row, body)
        for name in ("decision_id", "vote_id"):
            if row.kind in {"decision_made", "vote_recorded", "break_glass_signed"} and name in body:
                self.named[(name, body[name])] += 1
        if row.kind in {"effect_redeemed", "redemption_recalled"}:
            self.named[("jti", body["jti"])] += 1

    def _people(self, row: Any, body: Mapping[str, Any]) -> None:
        """What people are asked, and what they propose."""
        if row.kind == "review_opened":
            self._begin(self.reviews, (body["review_id"],), body["state"], row)
        elif row.kind in {"review_settled", "review_reopened"}:
            self._review(body, row)
        elif row.kind == "task_opened":
            self._begin(self.tasks, (body["task_id"],), "open", row)
        elif row.kind == "task_settled":
            self.tasks[(body["task_id"],)] = "settled"
        elif row.kind == "proposal_opened":
            self._begin(self.proposals, (body["proposal_id"],), "open", row)
        elif row.kind.startswith("proposal_"):
            self._proposal((body["proposal_id"],), row.kind.removeprefix("proposal_"), row)

    def _begin(self, known: dict[Thing, str], thing: Thing, state: str, row: Any) -> None:
        if thing in known:
            self.faults.append(f"{row.kind} {thing} twice")
        known[thing] = state

    def _move(
        self,
        known: dict[Thing, str],
        thing: Thing,
        body: Mapping[str, Any],
        to: EffectState | TxnState,
        row: Any,
    ) -> None:
        came_from = type(to)(body["from"])
        if known.get(thing) != came_from.value or body["to"] != to.value:
            self.faults.append(f"{row.kind} {thing}: was {known.get(thing)}, the line says {body}")
        if not can_move(came_from, to):
            self.faults.append(f"{row.kind} {thing}: no such move from {came_from}")
        known[thing] = to.value

    def _review(self, body: Mapping[str, Any], row: Any) -> None:
        thing = (body["review_id"],)
        if self.reviews.get(thing) != body["came_from"]:
            self.faults.append(f"{row.kind} {thing}: was {self.reviews.get(thing)}, the line says {body}")
        self.reviews[thing] = body["state"]

    def _proposal(self, thing: Thing, to: str, row: Any) -> None:
        if self.proposals.get(thing) != "open":
            self.faults.append(f"{row.kind} {thing}: was {self.proposals.get(thing)}")
        self.proposals[thing] = to


def faults_of_log(conn: Connection) -> list[str]:
    """What the log and the tables tell differently; empty when every transition has exactly one row."""
    replay = Replay()
    rows = table(AuditRow).c
    # by index, not by time: a clock may have been set back
    for line in conn.execute(select(*rows).order_by(rows.idx.is_(None), rows.idx, rows.audit_id)):
        replay.take(line)
    effects = {(r["effect_id"], str(r["rev"])): r["state"] for r in _rows(conn, EffectRow)}
    transactions = {(r["txn"], str(r["rev"])): r["state"] for r in _rows(conn, TransactionRow)}
    reviews = {(r["review_id"],): r["state"] for r in _rows(conn, ReviewRow)}
    tasks = {(r["task_id"],): r["state"] for r in _rows(conn, TaskRow)}
    proposals = {(r["proposal_id"],): r["state"] for r in _rows(conn, ProposalRow)}
    redemptions = list(_rows(conn, RedemptionRow))
    named = Counter(("decision_id", r["decision_id"]) for r in _rows(conn, DecisionRow))
    named.update(("vote_id", r["vote_id"]) for r in _rows(conn, VoteRow))
    named.update(("jti", r["jti"]) for r in redemptions)
    attempts = {(r["redeemer"], r["attempt_id"]) for r in _rows(conn, AttemptRow)}
    return [
        *replay.faults,
        *_differ("effects", replay.effects, effects),
        *_differ("transactions", replay.transactions, transactions),
        *_differ("reviews", replay.reviews, reviews),
        *_differ("tasks", replay.tasks, tasks),
        *_differ("proposals", replay.proposals, proposals),
        *_differ("named once", replay.named, named),
        *_differ(
            "attempts", sorted(attempts), sorted({(r["redeemer"], r["attempt_id"]) for r in redemptions})
        ),
    ]


def _rows(conn: Connection, model: type[SQLModel]) -> Iterable[Mapping[str, Any]]:
    return [dict(row._mapping) for row in conn.execute(select(*table(model).columns))]


def _differ(what: str, told: object, held: object) -> list[str]:
    return [] if told == held else [f"{what}: the log tells {told}, the tables hold {held}"]
