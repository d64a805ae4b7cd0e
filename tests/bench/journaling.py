"""J1, J2: the SDK's journal for one effect against one bare SQLite insert, both with every commit on the disk.

The journal alone, without service or tool. `stage` is all it writes until an effect may be submitted: transaction,
lease, list, call, and the frozen list, which is the one commit that waits for the disk. `fire` adds what follows: the
redemption, the intent to fire and the outcome, two more that wait.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from countersign.contract import Effect, Outcome, Resource, call_key, canonicalize, txn_digest, txn_id
from countersign.journal import Done, Journal, Lease, LocalState, LocalTxn, Staged
from countersign.journal.transactions import STAGED_LANE
from tests.bench.measuring import TIME, BenchError, Case, Group, Row, Sample, without_collection

AGENT, TOOL, DIGEST = "bench-agent", "send_mail", "0" * 64
ARGS = {"customer": "cus_1001", "to": "ada@example.com", "subject": "Your order", "body": "shipped " * 90}
ARGS_BYTES = canonicalize(ARGS)
BATCH = 10
_SHARE = 0.3  # of --seconds: a slow disk needs some time to show its middle

ROWS = (
    Row("J1", "journal: one effect durably staged \N{DIVISION SIGN} one insert", "journal, stage", "insert", TIME),
    Row("J2", "journal: staged, fired, outcome \N{DIVISION SIGN} one insert", "journal, fire", "insert", TIME,
        "\N{LESS-THAN OR EQUAL TO} 2.5"),
)  # fmt: skip


def wall_case(name: str, batch: Callable[[int], Sequence[Callable[[], None]]]) -> Case:
    """A case that waits for the disk: time on the wall for one piece of work, prepared before the clock starts."""

    def measure(seconds: float) -> Sample:
        spent, done = 0.0, 0
        while spent < seconds * _SHARE:
            works = batch(BATCH)
            with without_collection():
                start = time.perf_counter()
                for work in works:
                    work()
                spent += time.perf_counter() - start
            done += len(works)
        return {TIME: spent / done * 1e6}

    return Case(name, measure)


class _Effects:
    """Effects nobody has staged before."""

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


def stage(journal: Journal, run_key: str, effect: Effect, digest: str) -> tuple[Lease, int, str]:
    """What the SDK writes down before it asks the service."""
    book = journal.transactions
    book.open(txn=effect.txn, agent=AGENT, run_key=run_key, independent=False)
    lease = journal.leases.acquire(effect.txn)
    if not isinstance(lease, Lease):
        raise BenchError(f"the lease is held by {lease}")
    staging = book.begin_staging(lease)
    call = Staged(effect.effect_id, effect.call_key, TOOL, ARGS_BYTES, STAGED_LANE, 1)
    book.stage(lease, staging, call)
    return lease, staging, book.freeze(lease, staging, [effect], txn_digest=digest, live=0)


def fire(journal: Journal, run_key: str, effect: Effect, digest: str) -> None:
    """What it writes down from the first call to the end, had the tool been called."""
    lease, staging, attempt = stage(journal, run_key, effect, digest)
    ready = {effect.effect_id: LocalState.RELEASED}
    journal.transactions.see(lease, state=LocalTxn.READY, rev=1, effects=ready)
    journal.firing.redeemed(lease, staging, [effect.effect_id])
    journal.firing.begin(lease, staging, effect.effect_id, before=(), lease_seconds=60)
    journal.firing.write(lease, staging, [Done(effect.effect_id, Outcome.FIRED, attempt, b'"ok"')])
    journal.transactions.end(lease, LocalTxn.SETTLED)
    journal.leases.release(lease)


@contextmanager
def cases(folder: Path) -> Iterator[list[Case]]:
    """A journal, and a bare table beside it."""
    journal = Journal(folder / "journal.db")
    bare = sqlite3.connect(folder / "bare.db", isolation_level=None)
    bare.executescript(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE effects (id INTEGER PRIMARY KEY, txn TEXT, "
        "args BLOB); CREATE INDEX by_txn ON effects (txn)"
    )

    def journaled(
        write: Callable[[Journal, str, Effect, str], object], effects: _Effects
    ) -> Callable[[], None]:
        run_key, effect = effects.make()
        digest = txn_digest(effect_digests=[effect.digest])
        return lambda: void(write(journal, run_key, effect, digest))

    def insert(effects: _Effects) -> Callable[[], None]:
        row = (effects.make()[1].txn, ARGS_BYTES)
        return lambda: void(bare.execute("INSERT INTO effects (txn, args) VALUES (?, ?)", row))

    staged, fired, inserted = _Effects("stage"), _Effects("fire"), _Effects("insert")
    yield [
        wall_case("journal, stage", lambda n: [journaled(stage, staged) for _ in range(n)]),
        wall_case("journal, fire", lambda n: [journaled(fire, fired) for _ in range(n)]),
        wall_case("insert", lambda n: [insert(inserted) for _ in range(n)]),
    ]
    journal.close()
    bare.close()


def void(_: object) -> None:
    """Nobody looks at what was answered."""


GROUP = Group(ROWS, cases)
