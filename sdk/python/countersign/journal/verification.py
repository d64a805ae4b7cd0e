"""Verify a journal: recompute every chain, and compare every row with the last values its chain states.

Read only: the journal is opened as it is, damaged or not, and never changed. In this order:

    1  the file: SQLite checks every page and index; a PostgreSQL server checks its own pages as it reads them
    2  the schema: tables, indexes and triggers as this SDK creates them, and no other trigger; if 1 or 2 finds that
       rows cannot be read reliably, nothing further is compared
    3  each line: its bytes have its hash, it is at its own position, it follows from the previous line
    4  the head in the transaction's row is the last line; the journal's line numbers have no gap
    5  each row: it exists, the chain knows it, and every bound column (chain.UNBOUND lists the others) is as stated

chain.py explains what this cannot show.

Before a process continues a transaction it calls `find_damage`: steps 3 to 5 for that transaction only, in the open
journal. There is no index of lines by transaction, so its chain is read backwards from the head, and rows of other
tables by the keys its lines name. Lines behind the head, and rows there that no line names, need the full verification.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import orjson

from countersign.errors import JournalError, MisuseError
from countersign.journal.chain import KEYS, OF_NO_TRANSACTION, OWN, line_hash, row_statement
from countersign.journal.database import Database, Row, Unit
from countersign.journal.location import JournalLocation, JournalUrl
from countersign.journal.meta import txn_of
from countersign.journal.verification_stores import (
    Chain,
    Damage,
    PostgresStore,
    Scan,
    SQLiteStore,
    Verified,
    printable,
)

_PLACE: Final = ("id", "txn", "n", "kind", "prev")
_OWN_ROWS: Final = ("transactions", "effects")
_FROM_HEAD: Final = "SELECT * FROM chain WHERE txn = ? AND id <= ? ORDER BY id DESC LIMIT ?"
_Key = tuple[Any, ...]
_Rows = dict[tuple[str, _Key], dict[str, Any]]
_Stated = dict[tuple[str, _Key], dict[str, tuple[Any, int]]]


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


def find_damage(database: Database, txn: str) -> str | None:
    """A text that shows how the record of a transaction differs from what the SDK wrote, or None.

    Raises:
        JournalError: the database cannot be read.
    """
    scan = _Verifier()
    with database.unit(durable=False) as unit:  # excludes writers
        scan.alone(unit, txn)
    if not scan.findings:
        return None
    return (
        f"the journal's record of transaction {txn[:12]} is not as the SDK wrote it: {scan.findings[0].what}. "
        "It is not used; `countersign journal verify` lists everything"
    )


def require_intact(database: Database, txn: str) -> None:
    """Refuse a damaged record of a transaction.

    Raises:
        JournalError: the record is damaged, or the database cannot be read.
    """
    damage = find_damage(database, txn)
    if damage is not None:
        raise JournalError(damage)


class _Verifier(Scan):
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

    def alone(self, db: Unit, txn: str) -> None:
        """Verify one existing transaction without reading the others."""
        row = db.execute("SELECT * FROM transactions WHERE txn = ?", (txn,)).fetchone()
        lines = db.execute(_FROM_HEAD, (txn, row["chain_id"], max(row["chain_n"], 0))).fetchall()[::-1]
        text = self._chain(txn, lines)
        self._head(row, lines)
        self._compare(txn, text, _transaction_rows(db, txn, text))

    def _transaction(self, txn: str, lines: Sequence[Row], row: Row | None, rows: _Rows) -> None:
        """Steps 3 to 5 for one chain."""
        self.lines += len(lines)
        text = self._chain(txn, lines)
        if row is not None:
            self._head(row, lines)
        last = printable(str(lines[-1]["hash"])) if lines else ""
        if txn != OWN:
            known = (None,) * 3 if row is None else (row["run_key"], row["txn_digest"], row["attempt_id"])
            key, digest, attempt = (printable(one) for one in known)
            self.chains.append(Chain(printable(txn), key, len(lines), last, digest, attempt))
        self._compare(txn, text, rows)

    def _chain(self, txn: str, lines: Sequence[Row]) -> _Stated:
        """Step 3. Returns the last stated value of each column, and its line."""
        text: _Stated = defaultdict(dict)
        n, before = 0, ""
        for line in lines:
            if line["n"] > n + 1:
                self.found(
                    Damage.LINE_MISSING, f"{_number_range(n + 1, line['n'] - 1)} not there", txn, n + 1
                )
            elif line["prev"] != before:
                self.found(Damage.LINE_CHANGED, "it does not follow from the line before it", txn, line["n"])
            n, before = line["n"], line["hash"]
            for table, key, says in self._read(txn, line):
                text[table, key].update({column: (value, n) for column, value in says.items()})
        return text

    def _read(self, txn: str, line: Row) -> list[tuple[str, _Key, dict[str, Any]]]:
        """The rows of one line; none if the line is not valid."""
        if line_hash(line["body"]) != line["hash"]:
            self.found(Damage.LINE_CHANGED, "its bytes do not match its hash", txn, line["n"])
            return []
        try:
            body = orjson.loads(line["body"])
            place = {name: body[name] for name in _PLACE}
            rows = [(table, tuple(key), dict(says)) for table, key, says in body["rows"]]
        except (ValueError, KeyError, TypeError) as error:
            self.found(Damage.LINE_CHANGED, f"it is not a line of this SDK: {error}", txn, line["n"])
            return []
        for name in _PLACE:
            if line[name] != place[name]:
                self.found(Damage.LINE_MOVED, f"its {name} is {line[name]!r}; it was written with {place[name]!r}",
                           txn, line["n"])  # fmt: skip
                return []
        return rows

    def _head(self, row: Row, lines: Sequence[Row]) -> None:
        """Step 4, for one transaction."""
        n, last, at = (lines[-1]["n"], lines[-1]["hash"], lines[-1]["id"]) if lines else (0, "", None)
        if row["chain_n"] > n:
            self.found(Damage.TAIL_CUT, f"{_number_range(n + 1, row['chain_n'])} cut off", row["txn"], n + 1)
        elif (row["chain_n"], row["chain_hash"], row["chain_id"]) != (n, last, at):
            self.found(Damage.HEAD_CHANGED, f"its row names line {row['chain_n']} as the last one and not this",
                       row["txn"], n)  # fmt: skip

    def _numbers(self, db: Unit) -> None:
        """Step 4, for the whole journal: a transaction deleted with all its lines leaves a gap."""
        last = 0
        for row in db.execute("SELECT id FROM chain ORDER BY id"):
            if row["id"] != last + 1:
                self.found(
                    Damage.LINE_MISSING,
                    f"of the whole journal {_number_range(last + 1, row['id'] - 1)} not there",
                )
            last = row["id"]

    def _compare(self, txn: str, text: _Stated, rows: _Rows) -> None:
        """Step 5."""
        for (table, key), says in text.items():
            n = max(n for _, n in says.values())
            row = rows.get((table, key))
            if row is None:
                self.found(Damage.ROW_MISSING, f"{_row(table, key)} is missing; the line states it", txn, n)
                continue
            for column, value in row.items():
                stated_value, at = says.get(column, (None, n))  # a column that no line states was always NULL
                if value != stated_value:
                    what = f"{_row(table, key)}: {column} is {value!r}; the line states {stated_value!r}"
                    self.found(Damage.ROW_CHANGED, what, txn, at)
        for table, key in rows.keys() - text.keys():
            self.found(Damage.ROW_UNKNOWN, f"{_row(table, key)}: no line states it", txn)


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


def _rows(db: Unit, selected: Sequence[str] | None) -> defaultdict[str, _Rows]:
    """Every bound row as a line would state it now, by chain."""
    found: defaultdict[str, _Rows] = defaultdict(dict)
    for table in KEYS:
        for row in db.execute(f"SELECT * FROM {table}"):  # noqa: S608 - a constant
            txn = (
                OWN if table in OF_NO_TRANSACTION else txn_of(row["name"]) if table == "meta" else row["txn"]
            )
            if selected is None or txn in selected:
                key, says = row_statement(table, row)
                found[txn][table, tuple(key)] = says
    return found


def _transaction_rows(db: Unit, txn: str, text: _Stated) -> _Rows:
    """The same for one transaction: its own rows, and those in other tables that its lines name."""
    lookups = [(table, "txn", txn) for table in _OWN_ROWS]
    lookups += [(table, KEYS[table][0], key[0]) for table, key in text if table not in _OWN_ROWS]
    found = {}
    for table, column, value in lookups:
        for row in db.execute(f"SELECT * FROM {table} WHERE {column} = ?", (value,)):  # noqa: S608 - constants
            key, says = row_statement(table, row)
            found[table, tuple(key)] = says
    return found


def _chains(db: Unit, selected: Sequence[str] | None) -> Iterator[tuple[str, list[Row]]]:
    """Every chain that has a line."""
    lines = db.execute("SELECT * FROM chain ORDER BY txn, n, id")
    for txn, of in groupby(lines, key=lambda line: str(line["txn"])):
        if selected is None or txn in selected:
            yield txn, list(of)


def _row(table: str, key: _Key) -> str:
    return " ".join([table, *(str(part) for part in key)])


def _number_range(first: int, last: int) -> str:
    return f"line {first} is" if first == last else f"lines {first} to {last} are"
