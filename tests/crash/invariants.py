"""The invariants of the design, checked from outside once everything has come to rest.

Each is one function under its own name. It sees what an auditor could get: the calls the world received, the answers
the agent was given, the service's tables, the agent's journal. It yields a sentence for each breach.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select
from sqlmodel import SQLModel

from countersign.contract import EffectState, TxnState, can_transition, load
from countersign.contract import digests as names
from countersign.journal.states import OPEN_TXN
from countersign.journal.verification import verify
from policy_service.storage import tables
from policy_service.storage.core import table
from policy_service.storage.system_tables import AuditRow, IdempotencyRow, OutboxRow
from tests.crash.agent import lines
from tests.fakes.log_check import faults_of_log

Row = Mapping[str, Any]
_RANK = {"review": 0, "ready": 1, "redeemed": 2, "settled": 3, "unsettled": 3, "ended": 3}
_HAPPENED = {"fired", "compensating", "compensated", "compensation_failed"}
_NOT_HAPPENED = {"denied", "expired", "withdrawn", "revoked", "failed", "unused", "review", "released"}
_NEEDS_TASK = {"unknown", "compensation_failed"}
_TERMINAL = {state.value for state in EffectState if not any(can_transition(state, to) for to in EffectState)}


@dataclass
class Evidence:
    """Everything that is known of one story, once it is over."""

    conn: Connection
    agents: tuple[Path, ...]  # folders of agents
    votes_acknowledged: list[tuple[str, str]] = field(default_factory=list)  # person and review, acknowledged
    idempotent: frozenset[str] = frozenset()  # tools that may be called again with the same call key

    def rows(self, model: type[SQLModel]) -> list[Row]:
        """A table of the service."""
        return [dict(row._mapping) for row in self.conn.execute(select(*table(model).columns))]

    @cached_property
    def world(self) -> list[dict[str, Any]]:
        """Every call a tool has received."""
        return [line for folder in self.agents for line in lines(folder / "world.jsonl")]

    @cached_property
    def answers(self) -> list[dict[str, Any]]:
        """Every answer an agent has received."""
        return [line for folder in self.agents for line in lines(folder / "answers.jsonl")]

    @cached_property
    def effects(self) -> dict[tuple[str, int], Row]:
        """Every effect at every revision."""
        return {(row["effect_id"], row["rev"]): row for row in self.rows(tables.EffectRow)}

    @cached_property
    def redemptions(self) -> dict[str, Row]:
        """Every redemption, by effect."""
        return {row["effect_id"]: row for row in self.rows(tables.RedemptionRow)}

    @cached_property
    def log(self) -> list[Row]:
        """The log in the order in which it was written, each line with its body."""
        found = sorted(self.rows(AuditRow), key=lambda row: str(row["audit_id"]))
        return [{**row, "body": json.loads(row["body"])} for row in found]

    def redeemed_effect(self, redemption: Row) -> Row:
        """The effect at the revision that was spent."""
        return self.effects[redemption["effect_id"], redemption["rev"]]


def breaches(evidence: Evidence) -> list[str]:
    """Every breach of every invariant, each under its name."""
    return [f"{name}: {fault}" for name, check in INVARIANTS.items() for fault in check(evidence)]


def fired_only_when_redeemed(seen: Evidence) -> Iterator[str]:
    """I-1: no fire without a redemption, no redemption without a release decision."""
    for call in seen.world:
        redemption = seen.redemptions.get(call["effect_id"])
        if redemption is None or redemption["attempt_id"] != call["attempt"]:
            yield f"{call['tool']} {call['effect_id'][:8]} was called, and {redemption} is its redemption"
        elif _seconds(redemption["redeemed_at"]) > call["at"]:
            yield f"{call['tool']} {call['effect_id'][:8]} was called before it was redeemed"
    decisions = {row["decision_id"]: row for row in seen.rows(tables.DecisionRow)}
    met = {(row["effect_id"], row["rev"]) for row in seen.rows(tables.ReviewRow) if row["state"] == "met"}
    for redemption in seen.redemptions.values():
        decision = decisions.get(redemption["decision_id"])
        effect = (redemption["effect_id"], redemption["rev"])
        released = decision is not None and (
            decision["outcome"] == "release" or (decision["outcome"] == "review" and effect in met)
        )
        if not released or (decision and (decision["effect_id"], decision["rev"]) != effect):
            yield f"{effect} was redeemed on {decision}"


def fired_bytes_are_the_voted_bytes(seen: Evidence) -> Iterator[str]:
    """I-2: what the tool was called with has the digest that was redeemed, and that the votes saw."""
    for call in seen.world:
        redemption = seen.redemptions.get(call["effect_id"])
        if redemption is None:
            continue  # I-1 says so
        effect = seen.redeemed_effect(redemption)
        stored = names.args_digest(args=load(effect["args"]))
        if not call["args_digest"] == effect["args_digest"] == stored:
            yield f"{call['tool']} was called with {call['args']}, redeemed was {effect['args']!r}"
    for vote in seen.rows(tables.VoteRow):
        if vote["effect_digest"] != seen.effects[vote["effect_id"], vote["rev"]]["effect_digest"]:
            yield f"vote {vote['vote_id']} saw other bytes than its effect has"


def fired_once(seen: Evidence) -> Iterator[str]:
    """I-3: at most one redemption and one intended fire; the count is 0, 1 or unknown, and the service knows which."""
    calls: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for call in seen.world:
        calls[call["effect_id"]].append(call)
    for effect_id, made in calls.items():
        again_allowed = made[0]["tool"] in seen.idempotent
        if len(made) > 1 and not again_allowed:
            yield f"{made[0]['tool']} {effect_id[:8]} was called {len(made)} times"
        if len({(call["call_key"], call["attempt"], call["args_digest"]) for call in made}) > 1:
            yield f"{made[0]['tool']} {effect_id[:8]} was called as different calls"
    for (effect_id, _), effect in seen.effects.items():
        this = seen.redemptions.get(effect_id, {}).get("rev") == effect["rev"]
        happened = len(calls.get(effect_id, ())) if this else 0
        if effect["state"] in _HAPPENED and not happened:
            yield f"{effect['tool']} {effect_id[:8]} is {effect['state']} and was never called"
        if effect["state"] in _NOT_HAPPENED and happened:
            yield f"{effect['tool']} {effect_id[:8]} is {effect['state']} and was called"
    for attempt in seen.rows(tables.AttemptRow):
        named = {"attempt_id": attempt["attempt_id"], "redeemer": attempt["redeemer"]}
        spent = {e for e, row in seen.redemptions.items() if named.items() <= row.items()}
        whole = {e for (e, rev), row in seen.effects.items()
                 if (row["txn"], rev, row["kind"]) == (attempt["txn"], attempt["rev"], attempt["kind"])}  # fmt: skip
        if not spent or (attempt["kind"] == "effect" and spent != whole):
            yield f"attempt {attempt['attempt_id']} spent {len(spent)} of {len(whole)} effects"


def redeemed_while_it_was_allowed(seen: Evidence) -> Iterator[str]:
    """I-4: at redemption unexpired, unrevoked, of this agent and audience, and the policy did not deny."""
    transactions = {(row["txn"], row["rev"]): row for row in seen.rows(tables.TransactionRow)}
    agents = {row["name"] for row in seen.rows(tables.AgentRow)}
    frozen, stopped, denied = set[str](), set[str](), set[str]()
    for line in seen.log:
        kind, body = line["kind"], line["body"]
        if kind in {"agent_frozen", "agent_unfrozen"}:
            (frozen.add if kind == "agent_frozen" else frozen.discard)(body["agent"])
        elif kind in {"stop_began", "stop_ended"}:
            (stopped.add if kind == "stop_began" else stopped.discard)(body["what"])
        elif kind == "decision_made":
            (denied.add if body["outcome"] == "deny" else denied.discard)(line["effect_id"])
        elif kind == "effect_redeemed":
            effect = seen.effects[line["effect_id"], line["rev"]]
            transaction = transactions[effect["txn"], effect["rev"]]
            until = effect["lapses_at"] if effect["kind"] == "compensate" else transaction["valid_until"]
            if until is None or line["at"] >= until:
                yield f"{effect['tool']} was redeemed at {line['at']}, allowed until {until}"
            if effect["kind"] == "effect" and effect["agent"] in frozen:
                yield f"{effect['tool']} was redeemed while {effect['agent']} was frozen"
            if stopped & {"everything", f"tool:{effect['tool']}"}:
                yield f"{effect['tool']} was redeemed while {stopped} was stopped"
            if line["effect_id"] in denied:
                yield f"{effect['tool']} was redeemed while its last decision denied it"
            if not {effect["agent"], seen.redemptions[line["effect_id"]]["redeemer"]} <= agents:
                yield f"{effect['tool']} was redeemed by somebody unknown"
            if seen.redemptions[line["effect_id"]]["redeemer"] != transaction["aud"]:
                yield f"{effect['tool']} was redeemed by another than its audience"


def reviewed_by_distinct_people(seen: Evidence) -> Iterator[str]:
    """I-5: the gates of a reviewed release were met by distinct people, on this revision, without a denial."""
    owners = {row["name"]: row["owner"] for row in seen.rows(tables.AgentRow)}
    votes: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for vote in seen.rows(tables.VoteRow):
        if not vote["late"]:
            votes[vote["effect_id"], vote["rev"]].append(vote)
    for redemption in seen.redemptions.values():
        effect = seen.redeemed_effect(redemption)
        cast = votes[effect["effect_id"], effect["rev"]]
        before = [vote for vote in cast if vote["cast_at"] <= redemption["redeemed_at"]]
        people = {f"{vote['iss']}|{vote['sub']}" for vote in before if vote["verdict"] == "approve"}
        asked = max((gate["quorum"] for gate in effect["gates"]), default=0)
        if len(people) < asked:
            yield f"{effect['tool']} was redeemed with {sorted(people)}, asked were {asked}"
        if any(vote["verdict"] == "deny" for vote in before):
            yield f"{effect['tool']} was redeemed although somebody denied it"
        if owners.get(effect["agent"]) in people:
            yield f"{effect['tool']} was approved by the owner of its agent"


def terminal_states_absorb(seen: Evidence) -> Iterator[str]:
    """I-6: nothing leaves a terminal state, on either side."""
    states: dict[tuple[str, int], str] = {}
    for line in seen.log:
        kind, _, state = line["kind"].partition("_")
        if kind != "effect":
            continue
        effect = (line["effect_id"], line["rev"])
        if states.get(effect) in _TERMINAL:
            yield f"{effect} was {states[effect]}, then {line['kind']}"
        states[effect] = line["body"]["to"] if state == "submitted" else state
    for (effect_id, _rev), reported in _last_reported(seen).items():
        now = next(row["state"] for (e, rev), row in seen.effects.items() if (e, rev) == (effect_id, _rev))
        if reported in _TERMINAL and reported != now:
            yield f"{effect_id[:8]} was reported as {reported} and is {now}"


def acknowledged_survives(seen: Evidence) -> Iterator[str]:
    """I-7: what was answered is there; what was not is absent or complete (the rest is I-3 and I-8)."""
    transactions = {(row["txn"], row["rev"]): row["state"] for row in seen.rows(tables.TransactionRow)}
    attempts = {row["attempt_id"] for row in seen.redemptions.values()}
    for answer in seen.answers:
        if not 200 <= answer["status"] < 300:
            continue
        for view in _views(answer["body"]):
            held = transactions.get((view["txn"], view["rev"]))
            if held is None or _RANK[held] < _RANK[view["state"]]:
                yield f"{answer['method']} {answer['path']} reported {view['state']}, the service holds {held}"
            if view.get("receipt") and view.get("attempt_id") not in attempts:
                yield f"{answer['path']} gave a receipt of attempt {view.get('attempt_id')}, which is not there"
        if answer["path"] == "/v1/outcomes":
            for one in answer["asked"]["outcomes"]:
                states = [row["state"] for (e, _), row in seen.effects.items() if e == one["effect_id"]]
                if "redeemed" in states:
                    yield f"the report that {one['effect_id'][:8]} is {one['outcome']} was taken and is lost"
    voted = {(row["sub"], row["review_id"]) for row in seen.rows(tables.VoteRow)}
    lost = [one for one in seen.votes_acknowledged if one not in voted]
    yield from (f"the vote of {sub} on {review} is lost" for sub, review in lost)


def one_line_for_each_transition(seen: Evidence) -> Iterator[str]:
    """I-8: every transition has exactly one audit row and the reverse."""
    yield from faults_of_log(seen.conn)


def errors_release_nothing(seen: Evidence) -> Iterator[str]:
    """I-11: an error anywhere never releases."""
    for answer in seen.answers:
        body = answer["body"] if isinstance(answer["body"], dict) else {}
        if answer["status"] >= 400 and (body.get("receipt") or body.get("releases") or body.get("release")):
            yield f"{answer['path']} answered {answer['status']} with a permission"
    for decision in seen.rows(tables.DecisionRow):
        wrong = [one["code"] for one in decision["reasons"] if one["code"].endswith("_error")]
        if wrong and decision["outcome"] != "deny":
            yield f"decision {decision['decision_id']} met {wrong} and said {decision['outcome']}"


def one_resource_for_a_key(seen: Evidence) -> Iterator[str]:
    """I-12: the same idempotency key gives the same resource, or an error."""
    made: dict[str, set[str]] = defaultdict(set)
    for answer in seen.answers:
        if answer["key"] and 200 <= answer["status"] < 300:
            made[answer["key"]].add(answer["body"]["txn"])
    kept = {row["key"]: row["resource"] for row in seen.rows(IdempotencyRow)}
    for key, resources in made.items():
        if len(resources | {kept[key]} if key in kept else resources) > 1:
            yield f"the key {key} named {resources}, and {kept.get(key)} is kept"
    known = {row["txn"] for row in seen.rows(tables.TransactionRow)}
    gone = [(key, txn) for key, txn in kept.items() if txn not in known]
    yield from (f"the key {key} names {txn}, which is not there" for key, txn in gone)


def nothing_hangs(seen: Evidence) -> Iterator[str]:
    """I-14: what can be finished is finished, and the rest has tasks."""
    now = datetime.now(UTC)
    asked = {row["effect_id"] for row in seen.rows(tables.TaskRow) if row["state"] == "open"}
    for (effect_id, _), effect in seen.effects.items():
        if effect["state"] == "redeemed":
            yield f"{effect['tool']} {effect_id[:8]} is still redeemed"
        if effect["state"] in _NEEDS_TASK and effect_id not in asked:
            yield f"{effect['tool']} {effect_id[:8]} is {effect['state']}, and there is no task"
        if effect["state"] == "compensating" and not any(
            row["compensates"] == effect_id and row["state"] in {"review", "unknown"}
            for row in seen.effects.values()
        ):
            yield f"{effect['tool']} {effect_id[:8]} is compensating, and nothing is under way"
    for review in seen.rows(tables.ReviewRow):
        if review["state"] == "open" and review["answer_by"] <= now:
            yield f"review {review['review_id']} is open past its time"
    for transaction in seen.rows(tables.TransactionRow):
        until = transaction["valid_until"]
        if transaction["state"] == TxnState.READY.value and (until is None or until <= now):
            yield f"transaction {transaction['txn'][:8]} is ready past its time"
    for message in seen.rows(OutboxRow):
        if message["state"] != "sent":
            yield f"message {message['kind']} is {message['state']}"
    indexes = sorted(line["idx"] or 0 for line in seen.log)
    if indexes != list(range(1, len(indexes) + 1)):
        yield "the log is not numbered densely"
    yield from (fault for folder in seen.agents for fault in _hanging(folder, asked, seen))


def _hanging(folder: Path, asked: Iterable[str], seen: Evidence) -> Iterator[str]:
    """What an agent's journal leaves open: only what waits for people, or is a task."""
    path = folder / "journal.db"
    if not path.exists():
        return
    yield from (f"the journal is not as it was written: {found}" for found in verify(path).findings)
    journal = sqlite3.connect(path)
    journal.row_factory = sqlite3.Row
    try:
        transactions = journal.execute("SELECT * FROM transactions").fetchall()
        effects = journal.execute("SELECT * FROM effects").fetchall()
        unsent = journal.execute(
            "SELECT count(*) FROM outbox WHERE reported_at IS NULL AND refused IS NULL"
        ).fetchone()[0]
    finally:
        journal.close()
    open_states = {"review", "unsettled", "redeemed"}
    waiting = {row["txn"] for row in seen.rows(tables.TransactionRow) if row["state"] in open_states}
    for row in transactions:
        if row["state"] in OPEN_TXN and row["txn"] not in waiting:
            yield f"the journal holds {row['run_key']} as {row['state']}: {row['note']}"
    firing = [row for row in effects if row["state"] == "firing"]
    yield from (f"the journal holds {row['tool']} as {row['state']}" for row in firing)
    if unsent:
        yield f"{unsent} outcomes were never reported"


INVARIANTS: dict[str, Callable[[Evidence], Iterator[str]]] = {
    "I-1": fired_only_when_redeemed,
    "I-2": fired_bytes_are_the_voted_bytes,
    "I-3": fired_once,
    "I-4": redeemed_while_it_was_allowed,
    "I-5": reviewed_by_distinct_people,
    "I-6": terminal_states_absorb,
    "I-7": acknowledged_survives,
    "I-8": one_line_for_each_transition,
    "I-11": errors_release_nothing,
    "I-12": one_resource_for_a_key,
    "I-14": nothing_hangs,
}


def _views(body: Any) -> Iterator[Row]:
    """Every transaction in an answer."""
    if isinstance(body, dict):
        if {"txn", "rev", "state", "effects"} <= body.keys():
            yield body
        if isinstance(body.get("transaction"), dict):
            yield {**body["transaction"], **{k: body[k] for k in ("receipt", "attempt_id") if k in body}}


def _last_reported(seen: Evidence) -> dict[tuple[str, int], str]:
    reported = {}
    for answer in seen.answers:
        for view in _views(answer["body"]) if 200 <= answer["status"] < 300 else ():
            reported.update({(one["effect_id"], view["rev"]): one["state"] for one in view["effects"]})
    return reported


def _seconds(moment: datetime) -> float:
    return moment.timestamp()


def counted(world: Iterable[Row]) -> Counter[str]:
    """How often each tool was called."""
    return Counter(call["tool"] for call in world)
