"""Verify a journal: recompute every chain, and compare every row with the last values its chain states.

Read only: the journal is opened as it is, damaged or not, and never changed. In this order:

    1  the file: SQLite checks every page and index; a PostgreSQL server checks its own pages as it reads them
    2  the schema: tables, indexes and triggers as this SDK creates them, and no other trigger; if 1 or 2 finds that
       rows cannot be read reliably, nothing further is compared
    3  each line: its bytes have its hash, it is at its own position, it follows from the previous line
    4  the head in the transaction's row is the last line; the journal's line numbers have no gap
    5  each row: it exists, the chain knows it, and every bound column (chain.UNBOUND lists the others) is as stated

chain.py explains what this cannot show.

Steps 3 to 5 are in chain.py, because every run verifies its own transaction by them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby

from countersign.errors import MisuseError
from countersign.journal.chain import (
    KEYS,
    OF_NO_TRANSACTION,
    OWN,
    ChainScan,
    Rows,
    number_range,
    row_statement,
)
from countersign.journal.database import Row, Unit
from countersign.journal.findings import Damage, printable
from countersign.journal.location import JournalLocation, JournalUrl
from countersign.journal.meta import txn_of
from countersign.journal.verification_stores import Chain, PostgresStore, SQLiteStore, Verified


def verify(place: JournalLocation, name: str | None = None) -> Verified:
    """Verify a journal, or one transaction of it: a run key, an id, or a prefix of an id.

    Raises:
        MisuseError: there is no such journal or transaction.
        JournalError: the database cannot be read.
    """
    scan = _Verifier()
    store = PostgresStore(place) if isinstance(place, JournalUrl) else SQLiteStore(place)
    with store.errors_found(scan), store.opened() as db:
        scan.at(db, store, name)
    return Verified(tuple(scan.chains), tuple(scan.findings), scan.lines)


class _Verifier(ChainScan):
    """One pass over a journal."""

    def __init__(self) -> None:
        super().__init__()
        self.chains: list[Chain] = []
        self.lines = 0

    def at(self, db: Unit, store: PostgresStore | SQLiteStore, name: str | None) -> None:
        """Verify all of it, or one transaction."""
        store.check_file(db, self)
        store.check_schema(db, self)
        if not self.legible:
            return  # unreliable rows are not compared
        selected = _matching_txns(db, name)
        rows = _rows(db, selected)
        heads = {row["txn"]: row for row in db.execute("SELECT * FROM transactions")}
        for txn, lines in _chains(db, selected):
            self._transaction(txn, lines, heads.get(txn), rows.pop(txn, {}))
        for txn, left in rows.items():
            self._transaction(txn, [], heads.get(txn), left)
        if selected is None:
            self._numbers(db)

    def _transaction(self, txn: str, lines: Sequence[Row], row: Row | None, rows: Rows) -> None:
        """Steps 3 to 5 for one chain."""
        self.lines += len(lines)
        text = self.read_chain(txn, lines)
        if row is not None:
            self.check_head(row, lines)
        last = printable(str(lines[-1]["hash"])) if lines else ""
        if txn != OWN:
            known = (None,) * 3 if row is None else (row["run_key"], row["txn_digest"], row["attempt_id"])
            key, digest, attempt = (printable(one) for one in known)
            self.chains.append(Chain(printable(txn), key, len(lines), last, digest, attempt))
        self.compare(txn, text, rows)

    def _numbers(self, db: Unit) -> None:
        """Step 4, for the whole journal: a transaction deleted with all its lines leaves a gap."""
        last = 0
        for row in db.execute("SELECT id FROM chain ORDER BY id"):
            if row["id"] != last + 1:
                self.found(
                    Damage.LINE_MISSING,
                    f"of the whole journal {number_range(last + 1, row['id'] - 1)} not there",
                )
            last = row["id"]


def _matching_txns(db: Unit, name: str | None) -> list[str] | None:
    """The transactions of that name, including those with nothing but lines left."""
    if name is None:
        return None
    found = db.execute(
        "SELECT txn FROM transactions WHERE run_key = :name OR substr(txn, 1, length(:name)) = :name "
        "UNION SELECT txn FROM chain WHERE txn <> '' AND substr(txn, 1, length(:name)) = :name ORDER BY txn",
        {"name": name},
    ).fetchall()
    if not found:
        raise MisuseError(
            f"the journal has no transaction {name!r}; `countersign journal list` shows what it has"
        )
    return [row["txn"] for row in found]


def _rows(db: Unit, selected: Sequence[str] | None) -> defaultdict[str, Rows]:
    """Every bound row as a line would state it now, by chain."""
    found: defaultdict[str, Rows] = defaultdict(dict)
    for table in KEYS:
        for row in db.execute(f"SELECT * FROM {table}"):  # noqa: S608 - a constant
            txn = (
                OWN if table in OF_NO_TRANSACTION else txn_of(row["name"]) if table == "meta" else row["txn"]
            )
            if selected is None or txn in selected:
                key, says = row_statement(table, row)
                found[txn][table, tuple(key)] = says
    return found


def _chains(db: Unit, selected: Sequence[str] | None) -> Iterator[tuple[str, list[Row]]]:
    """Every chain that has a line."""
    lines = db.execute("SELECT * FROM chain ORDER BY txn, n, id")
    for txn, of in groupby(lines, key=lambda line: str(line["txn"])):
        if selected is None or txn in selected:
            yield txn, list(of)
