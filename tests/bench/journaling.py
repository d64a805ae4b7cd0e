"""J1 to J3: the SDK's journal for one effect against one bare SQLite insert of the same bytes.

`intent, outcome` is written around a call: FIRING before it, the outcome after it. `whole` is all that is written
from the first call to the end when the policy releases at once: transaction, lease and list, the call, the frozen list
with its attempt, the redemption, FIRING, the outcome, the end. `live` is one call of a tool that can be undone.

FULL is the journal as it is. NORMAL is the same code with no commit waiting for the disk, to see what the journal
costs apart from the disk: no setting does that, for FIRING must be on the disk before a tool is called.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from countersign.contract import (
    Effect,
    Outcome,
    Resource,
    call_key,
    canonicalize,
    effect_id,
    txn_digest,
    txn_id,
)
from countersign.journal import EffectOutcome, Journal, Lease, LocalState, LocalTxn, StagedRow
from countersign.journal.database import Unit
from countersign.journal.records import LIVE_LANE, STAGED_LANE
from countersign.journal.sqlite import SQLiteDatabase
from tests.bench.measuring import TIME, BenchError, Case, Group, Row, wall_case

AGENT, TOOL, DIGEST = "bench-agent", "send_mail", "0" * 64
ARGS = {"customer": "cus_1001", "to": "ada@example.com", "subject": "Your order", "body": "shipped " * 90}
ARGS_BYTES = canonicalize(ARGS)
MOST = "\N{LESS-THAN OR EQUAL TO} "

ROWS = (
    Row("J1", "journal: FIRING, call, outcome, no commit waits \N{DIVISION SIGN} one insert NORMAL",
        "intent, outcome; NORMAL", "insert NORMAL", TIME, MOST + "4.5"),
    Row("J2", "journal: FIRING, call, outcome, both on the disk \N{DIVISION SIGN} one insert FULL",
        "intent, outcome", "insert FULL", TIME, MOST + "2.6"),
    Row("J2w", "journal: staged, frozen, redeemed, fired, outcome, end \N{DIVISION SIGN} one insert FULL",
        "whole", "insert FULL", TIME),
    Row("J3", "journal: one call of a live tool \N{DIVISION SIGN} one insert NORMAL",
        "live", "insert NORMAL", TIME, MOST + "3"),
)  # fmt: skip


class _Unforced(SQLiteDatabase):
    """A journal's file none of whose commits waits for the disk."""

    @contextmanager
    def unit(self, *, durable: bool) -> Iterator[Unit]:
        """As the journal's, but never durable."""
        del durable
        with super().unit(durable=False) as unit:
            yield unit


class _Effects:
    """Effects that were not staged before."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._made = 0

    def make(self) -> tuple[str, Effect]:
        """A run key and its one effect."""
        self._made += 1
        run_key = f"{self._name}-{self._made}"
        key = call_key(agent=AGENT, run_key=run_key, tool=TOOL, args=ARGS)
        effect = Effect.stage(
            agent=AGENT, txn=txn_id(agent=AGENT, run_key=run_key), call_key=key, seq=1, tool=TOOL,
            tool_digest=DIGEST, resource=Resource("Account", "cus_1001"), args=ARGS,
        )  # fmt: skip
        return run_key, effect


def stage(journal: Journal, run_key: str, effect: Effect) -> tuple[Lease, int, str]:
    """What the SDK writes down before it asks the service."""
    book = journal.transactions
    with journal.database.unit(durable=False):
        book.open(txn=effect.txn, agent=AGENT, run_key=run_key, independent=False)
        lease = journal.leases.acquire(effect.txn)
        if not isinstance(lease, Lease):
            raise BenchError(f"the lease is held by {lease}")
        staging = book.begin_staging(lease)
    book.stage(
        lease, staging, StagedRow(effect.effect_id, effect.call_key, TOOL, ARGS_BYTES, STAGED_LANE, 1, ())
    )
    digest = txn_digest(effect_digests=[effect.digest])
    return (
        lease,
        staging,
        book.freeze(lease, staging, [effect], secret={effect.tool_digest: ()}, txn_digest=digest, live=0),
    )


def redeemed(journal: Journal, run_key: str, effect: Effect) -> tuple[Lease, int, str]:
    """And when the service has answered with a receipt."""
    lease, staging, attempt = stage(journal, run_key, effect)
    journal.effect_log.redeemed(lease, staging, [effect.effect_id])
    return lease, staging, attempt


def fire(journal: Journal, effect: Effect, lease: Lease, staging: int, attempt: str) -> None:
    """What is written around the call."""
    journal.effect_log.begin(lease, staging, effect.effect_id, before=(), lease_seconds=60)
    journal.effect_log.write(
        lease, staging, [EffectOutcome(effect.effect_id, Outcome.FIRED, attempt, b'"ok"')]
    )


def whole(journal: Journal, run_key: str, effect: Effect) -> None:
    """All of it, had the tool been called."""
    lease, staging, attempt = redeemed(journal, run_key, effect)
    fire(journal, effect, lease, staging, attempt)
    journal.transactions.end(lease, LocalTxn.SETTLED)
    with journal.database.unit(durable=False):
        journal.transactions.end_live(lease, staging, LocalState.UNDONE)
        journal.leases.release(lease)


class _Live:
    """One transaction in which a live tool is called again and again."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        run_key, effect = _Effects("live").make()
        journal.transactions.open(txn=effect.txn, agent=AGENT, run_key=run_key, independent=False)
        lease = journal.leases.acquire(effect.txn)
        if not isinstance(lease, Lease):
            raise BenchError(f"the lease is held by {lease}")
        self._lease, self._staging, self._seq = lease, journal.transactions.begin_staging(lease), 0

    def call(self) -> Callable[[], None]:
        """One more call, named before the clock starts."""
        self._seq += 1
        key = call_key(agent=AGENT, run_key="live", tool=TOOL, args=ARGS, n=self._seq)
        name = effect_id(txn=self._lease.txn, call_key=key)
        call = StagedRow(name, key, TOOL, ARGS_BYTES, LIVE_LANE, self._seq, ())
        return lambda: self._journal.transactions.stage(self._lease, self._staging, call)


def _bare_table(folder: Path, level: str) -> sqlite3.Connection:
    """A table of one's own, each insert a commit of that durability."""
    bare = sqlite3.connect(folder / f"bare-{level}.db", isolation_level=None)
    bare.executescript(
        f"PRAGMA journal_mode=WAL; PRAGMA synchronous={level}; CREATE TABLE effects (id INTEGER PRIMARY KEY, txn TEXT, "
        "args BLOB); CREATE INDEX by_txn ON effects (txn)"
    )
    return bare


@contextmanager
def cases(folder: Path, wanted: frozenset[str]) -> Iterator[list[Case]]:
    """A journal, one that never waits for the disk, and bare tables next to them."""
    del wanted
    journal, unforced = Journal(folder / "journal.db"), Journal(folder / "unforced.db")
    unforced.database.__class__ = _Unforced
    full, normal = _bare_table(folder, "FULL"), _bare_table(folder, "NORMAL")
    effects, live = _Effects("bench"), _Live(journal)

    def around(of: Journal) -> Callable[[], None]:
        run_key, effect = effects.make()
        lease, staging, attempt = redeemed(of, run_key, effect)
        return lambda: fire(of, effect, lease, staging, attempt)

    def all_of_it() -> Callable[[], None]:
        run_key, effect = effects.make()
        return lambda: whole(journal, run_key, effect)

    def insert(into: sqlite3.Connection) -> Callable[[], None]:
        row = (effects.make()[1].txn, ARGS_BYTES)
        return lambda: _void(into.execute("INSERT INTO effects (txn, args) VALUES (?, ?)", row))

    yield [
        wall_case("intent, outcome", lambda n: [around(journal) for _ in range(n)]),
        wall_case("intent, outcome; NORMAL", lambda n: [around(unforced) for _ in range(n)]),
        wall_case("whole", lambda n: [all_of_it() for _ in range(n)]),
        wall_case("live", lambda n: [live.call() for _ in range(n)]),
        wall_case("insert FULL", lambda n: [insert(full) for _ in range(n)], reference=True),
        wall_case("insert NORMAL", lambda n: [insert(normal) for _ in range(n)], reference=True),
    ]
    journal.close()
    unforced.close()
    full.close()
    normal.close()


def _void(_: object) -> None:
    """The responses are not checked."""


GROUP = Group(ROWS, cases)
