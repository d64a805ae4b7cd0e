"""Verify the record of one transaction: recompute its chain, and compare its rows with what the chain states.

Before a process continues a transaction it calls `find_damage`: steps 3 to 5 of verification.py for that transaction
only, in the open journal. There is no index of lines by transaction, so its chain is read backwards from the head, and
rows of other tables by the keys its lines name. Lines behind the head, and rows there that no line names, need the full
verification.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import orjson

from countersign.errors import JournalError
from countersign.journal.chain import KEYS, line_hash, row_statement
from countersign.journal.database import Database, Row, Unit
from countersign.journal.verification_stores import Damage, Scan


class ChainScan(Scan):
    """Compares chains with rows, and collects what differs."""

    def alone(self, db: Unit, txn: str) -> None:
        """Verify one existing transaction without reading the others."""
        row = db.execute("SELECT * FROM transactions WHERE txn = ?", (txn,)).fetchone()
        lines = db.execute(_FROM_HEAD, (txn, row["chain_id"], max(row["chain_n"], 0))).fetchall()[::-1]
        text = self.read_chain(txn, lines)
        self.check_head(row, lines)
        self.compare(txn, text, _transaction_rows(db, txn, text))

    def read_chain(self, txn: str, lines: Sequence[Row]) -> _Stated:
        """Step 3. Returns the last stated value of each column, and its line."""
        text: _Stated = defaultdict(dict)
        n, before = 0, ""
        for line in lines:
            if line["n"] > n + 1:
                self.found(Damage.LINE_MISSING, f"{number_range(n + 1, line['n'] - 1)} not there", txn, n + 1)
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

    def check_head(self, row: Row, lines: Sequence[Row]) -> None:
        """Step 4, for one transaction."""
        n, last, at = (lines[-1]["n"], lines[-1]["hash"], lines[-1]["id"]) if lines else (0, "", None)
        if row["chain_n"] > n:
            self.found(Damage.TAIL_CUT, f"{number_range(n + 1, row['chain_n'])} cut off", row["txn"], n + 1)
        elif (row["chain_n"], row["chain_hash"], row["chain_id"]) != (n, last, at):
            self.found(Damage.HEAD_CHANGED, f"its row names line {row['chain_n']} as the last one and not this",
                       row["txn"], n)  # fmt: skip

    def compare(self, txn: str, text: _Stated, rows: Rows) -> None:
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


_PLACE: Final = ("id", "txn", "n", "kind", "prev")


_OWN_ROWS: Final = ("transactions", "effects")


_FROM_HEAD: Final = "SELECT * FROM chain WHERE txn = ? AND id <= ? ORDER BY id DESC LIMIT ?"


_Key = tuple[Any, ...]


Rows = dict[tuple[str, _Key], dict[str, Any]]


_Stated = dict[tuple[str, _Key], dict[str, tuple[Any, int]]]


def find_damage(database: Database, txn: str) -> str | None:
    """A text that shows how the record of a transaction differs from what the SDK wrote, or None.

    Raises:
        JournalError: the database cannot be read.
    """
    scan = ChainScan()
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


def _transaction_rows(db: Unit, txn: str, text: _Stated) -> Rows:
    """The same for one transaction: its own rows, and those in other tables that its lines name."""
    lookups = [(table, "txn", txn) for table in _OWN_ROWS]
    lookups += [(table, KEYS[table][0], key[0]) for table, key in text if table not in _OWN_ROWS]
    found = {}
    for table, column, value in lookups:
        for row in db.execute(f"SELECT * FROM {table} WHERE {column} = ?", (value,)):  # noqa: S608 - constants
            key, says = row_statement(table, row)
            found[table, tuple(key)] = says
    return found


def _row(table: str, key: _Key) -> str:
    return " ".join([table, *(str(part) for part in key)])


def number_range(first: int, last: int) -> str:
    """The lines with these numbers, for a sentence."""
    return f"line {first} is" if first == last else f"lines {first} to {last} are"
