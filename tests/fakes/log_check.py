"""I-8 as a check: every transition has exactly one audit row, and the reverse.

The log is replayed. Each row of a transition must start where the row before it ended, so that a missing, doubled
or invented row breaks the chain; and every chain must end in the state the tables hold. Of an
archived transaction they hold the narrow rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select
from sqlmodel import SQLModel

from countersign.contract import EffectState, TxnState, can_transition
from policy_service.storage import tables
from policy_service.storage.archive_tables import ArchivedTransactionRow, SpentEffectRow
from policy_service.storage.core import table
from policy_service.storage.review_tables import ProposalRow
from policy_service.storage.system_tables import AuditRow

Thing = tuple[Any, ...]


class Replay:
    """The states in the log, by what kind of thing it is and its name."""

    def __init__(self) -> None:
        self.states: dict[Thing, str] = {}
        self.named: Counter[tuple[str, str]] = Counter()
        self.faults: list[str] = []
        self.archived: list[str] = []

    def take(self, row: Any) -> None:
        """One line, as the database has it."""
        body = json.loads(row.body)
        kind, _, state = row.kind.partition("_")
        effect = ("effect", row.effect_id, row.rev)
        transaction = ("transaction", row.txn, row.rev)
        if row.kind == "rows_archived":
            self.archived.append(row.txn)
        elif row.kind == "effect_submitted":
            self._begin(effect, body["to"], row)
        elif kind == "effect":
            self._move(effect, body, EffectState(state), row)
        elif row.kind == "transaction_submitted":
            self._begin(transaction, body["to"], row)
        elif kind == "transaction":
            self._move(transaction, body, TxnState(state), row)
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
            self._begin(("review", body["review_id"]), body["state"], row)
        elif row.kind in {"review_settled", "review_reopened"}:
            self._step(("review", body["review_id"]), body["came_from"], body["state"], row)
        elif row.kind == "task_opened":
            self._begin(("task", body["task_id"]), "open", row)
        elif row.kind == "task_settled":
            self.states["task", body["task_id"]] = "settled"
        elif row.kind == "proposal_opened":
            self._begin(("proposal", body["proposal_id"]), "open", row)
        elif row.kind.startswith("proposal_"):
            self._step(("proposal", body["proposal_id"]), "open", row.kind.removeprefix("proposal_"), row)

    def _begin(self, thing: Thing, state: str, row: Any) -> None:
        if thing in self.states:
            self.faults.append(f"{row.kind} {thing} twice")
        self.states[thing] = state

    def _move(self, thing: Thing, body: Mapping[str, Any], to: EffectState | TxnState, row: Any) -> None:
        came_from = type(to)(body["from"])
        if body["to"] != to.value or not can_transition(came_from, to):
            self.faults.append(f"{row.kind} {thing}: the line says {body}")
        self._step(thing, came_from.value, to.value, row)

    def _step(self, thing: Thing, came_from: str, to: str, row: Any) -> None:
        if self.states.get(thing) != came_from:
            self.faults.append(f"{row.kind} {thing}: was {self.states.get(thing)}, the line says {came_from}")
        self.states[thing] = to


def faults_of_log(conn: Connection) -> list[str]:
    """What the log and the tables tell differently; empty when every transition has exactly one row."""
    replay, past = Replay(), Replay()
    archived = {row["txn"]: row for row in _rows(conn, ArchivedTransactionRow)}
    rows = table(AuditRow).c
    # by index, not by time: a clock may have been set back
    lines = conn.execute(select(*rows).order_by(rows.idx.is_(None), rows.idx, rows.audit_id)).all()
    returned = {line.audit_id: line.txn for line in lines if _returns(line)}
    left = Counter(returned.values())
    for line in lines:
        left[line.txn] -= line.audit_id in returned
        (past if line.txn in archived or left[line.txn] > 0 else replay).take(line)
    effects = _rows(conn, tables.EffectRow)
    held: dict[Thing, str] = {("effect", r["effect_id"], r["rev"]): r["state"] for r in effects}
    held |= {("transaction", r["txn"], r["rev"]): r["state"] for r in _rows(conn, tables.TransactionRow)}
    for kind, model in (("review", tables.ReviewRow), ("task", tables.TaskRow), ("proposal", ProposalRow)):
        held |= {(kind, r[f"{kind}_id"]): r["state"] for r in _rows(conn, model)}
    redemptions = _rows(conn, tables.RedemptionRow)
    named = Counter(("decision_id", r["decision_id"]) for r in _rows(conn, tables.DecisionRow))
    named.update(("vote_id", r["vote_id"]) for r in _rows(conn, tables.VoteRow))
    named.update(("jti", r["jti"]) for r in redemptions)
    attempts = {(r["redeemer"], r["attempt_id"]) for r in _rows(conn, tables.AttemptRow)}
    redeemed = {(r["redeemer"], r["attempt_id"]) for r in redemptions}
    redemptions_differ = _differ("attempts", sorted(attempts), sorted(redeemed))
    names_differ = _differ("named once", replay.named, named)
    replay.faults += _faults_of_archive(conn, past, archived, Counter(returned.values()))
    return [*replay.faults, *_differ("states", replay.states, held), *names_differ, *redemptions_differ]


def _returns(line: Any) -> bool:
    """Whether an archived transaction came back with this line, which a receipt from before a restore proves."""
    return line.kind == "transaction_submitted" and "archived" in json.loads(line.body)


def _faults_of_archive(
    conn: Connection, past: Replay, archived: Mapping[str, Any], returned: Counter[str]
) -> list[str]:
    """The narrow rows hold the states that the log ends in, and each redeemed effect once."""
    held: dict[Thing, str] = {("transaction", r["txn"], r["rev"]): r["state"] for r in archived.values()}
    spent = {r["effect_id"]: r["state"] for r in _rows(conn, SpentEffectRow)}
    ended = {
        thing[1]: state for thing, state in past.states.items() if thing[0] == "effect" and thing[1] in spent
    }
    moved = Counter(past.archived) - returned
    return [
        *past.faults,
        *_differ("archived", {thing: past.states.get(thing) for thing in held}, held),
        *_differ("spent effects", ended, spent),
        *_differ("redemptions", sum(1 for name, _ in past.named if name == "jti"), _attempted(conn)),
        *_differ("lines about archiving", moved, Counter(list(archived))),
    ]


def _attempted(conn: Connection) -> int:
    """How many spent effects have an attempt."""
    return sum(1 for row in _rows(conn, SpentEffectRow) if row["attempt_id"] is not None)


def _rows(conn: Connection, model: type[SQLModel]) -> list[Mapping[str, Any]]:
    return [dict(row._mapping) for row in conn.execute(select(*table(model).columns))]


def _differ(what: str, logged: object, held: object) -> list[str]:
    return [] if logged == held else [f"{what}: the log has {logged}, the tables hold {held}"]
