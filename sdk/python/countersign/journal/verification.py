"""Verifying a journal: compute every chain anew, and compare every row with what its chain says last.

Read only: the journal is opened as it is, damaged or not, and nothing in it is changed. In this order:

    1  the file: SQLite's own check of every page and index; a PostgreSQL server checks its own pages as it reads them
    2  the schema: tables, indexes and triggers as this SDK makes them, and no trigger besides; where 1 or 2 finds that
       rows cannot be read for what they are, nothing further is compared
    3  each line: its bytes have its hash, it stands where it says, it follows from the line before it
    4  the head that the transaction's row holds is the last line; no number of the whole journal is left out
    5  each row: there, known to the chain, and every bound column (chain.UNBOUND lists the others) as stated last

What this cannot show stands in chain.py.

Whoever goes on with a transaction asks `damage_of` it first: steps 3 to 5 of it alone, in the journal that is open.
There is no index by transaction to find lines with, so its chain is read from the head backwards, and rows beside its
own by the keys its lines name: lines behind the head, and rows no line speaks of there, only the whole look finds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import orjson

from countersign.errors import JournalError, MisuseError
from countersign.journal.chain import KEYS, OF_NO_TRANSACTION, OWN, line_hash, row_statement
from countersign.journal.damage import Chain, Damage, Scan, Verified, printable
from countersign.journal.database import Database, Row, Unit
from countersign.journal.location import JournalLocation, JournalUrl
from countersign.journal.meta import txn_of
from countersign.journal.verification_stores import PostgresStore, SQLiteStore

_PLACE: Final = ("id", "txn", "n", "kind", "prev")
_OWN_ROWS: Final = ("transactions", "effects")
_FROM_HEAD: Final = "SELECT * FROM chain WHERE txn = ? AND id <= ? ORDER BY id DESC LIMIT ?"
_Key = tuple[Any, ...]
_Rows = dict[tuple[str, _Key], dict[str, Any]]
_Stated = dict[tuple[str, _Key], dict[str, tuple[Any, int]]]


def verify(place: JournalLocation, name: str | None = None) -> Verified:
    """Verify a journal, or what it holds of one transaction: a run key, an id, or the beginning of one.

    Raises:
        MisuseError: there is no such journal, or no such transaction in it.
        JournalError: the database cannot be asked.
    """
    look = _Verifier()
    store = PostgresStore(place) if isinstance(place, JournalUrl) else SQLiteStore(place)
    with store.errors_found(look), store.opened() as db:
        look.at(db, store, name)
    return Verified(tuple(look.chains), tuple(look.findings), look.lines)


def find_damage(database: Database, txn: str) -> str | None:
    """What shows that the record of a transaction is not as the SDK wrote it, in words; None where nothing does.

    Raises:
        JournalError: the database cannot be asked.
    """
    look = _Verifier()
    with database.unit(durable=False) as unit:  # nobody writes meanwhile
        look.alone(unit, txn)
    if not look.findings:
        return None
    return (
        f"the journal's record of transaction {txn[:12]} is not as the SDK wrote it: {look.findings[0].what}. Nothing "
        "is done with it; `countersign journal verify` names everything"
    )


def require_intact(database: Database, txn: str) -> None:
    """The same, raised.

    Raises:
        JournalError: the record is damaged, or the database cannot be asked.
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
        """Look at all of it, or at one transaction."""
        store.look_at_file(db, self)
        store.look_at_schema(db, self)
        if not self.legible:
            return  # what cannot be read for what it is, is not compared either
        wanted = _matching_txns(db, name)
        rows = _rows(db, wanted)
        heads = {row["txn"]: row for row in db.execute("SELECT * FROM transactions")}
        for txn, lines in _chains(db, wanted):
            self._transaction(txn, lines, heads.get(txn), rows.pop(txn, {}))
        for txn, left in rows.items():
            self._transaction(txn, [], heads.get(txn), left)
        if wanted is None:
            self._numbers(db)

    def alone(self, db: Unit, txn: str) -> None:
        """Look at one transaction that is there, without looking through the others."""
        row = db.execute("SELECT * FROM transactions WHERE txn = ?", (txn,)).fetchone()
        lines = db.execute(_FROM_HEAD, (txn, row["chain_id"], max(row["chain_n"], 0))).fetchall()[::-1]
        told = self._chain(txn, lines)
        self._head(row, lines)
        self._compare(txn, told, _transaction_rows(db, txn, told))

    def _transaction(self, txn: str, lines: Sequence[Row], row: Row | None, rows: _Rows) -> None:
        """Steps 3 to 5 for one chain."""
        self.lines += len(lines)
        told = self._chain(txn, lines)
        if row is not None:
            self._head(row, lines)
        last = printable(str(lines[-1]["hash"])) if lines else ""
        if txn != OWN:
            known = (None,) * 3 if row is None else (row["run_key"], row["txn_digest"], row["attempt_id"])
            key, digest, attempt = (printable(one) for one in known)
            self.chains.append(Chain(printable(txn), key, len(lines), last, digest, attempt))
        self._compare(txn, told, rows)

    def _chain(self, txn: str, lines: Sequence[Row]) -> _Stated:
        """Step 3. Answers the last word on each column, and in which line it stands."""
        told: _Stated = defaultdict(dict)
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
                told[table, key].update({column: (value, n) for column, value in says.items()})
        return told

    def _read(self, txn: str, line: Row) -> list[tuple[str, _Key, dict[str, Any]]]:
        """One line's rows; none if it cannot be believed."""
        if line_hash(line["body"]) != line["hash"]:
            self.found(Damage.LINE_CHANGED, "its bytes do not have the hash beside them", txn, line["n"])
            return []
        try:
            body = orjson.loads(line["body"])
            place = {name: body[name] for name in _PLACE}
            rows = [(table, tuple(key), dict(says)) for table, key, says in body["rows"]]
        except (ValueError, KeyError, TypeError) as error:
            self.found(Damage.LINE_CHANGED, f"it is no line of this SDK: {error}", txn, line["n"])
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
        """Step 4, for the whole journal: a transaction that was deleted with all its lines leaves a gap."""
        last = 0
        for row in db.execute("SELECT id FROM chain ORDER BY id"):
            if row["id"] != last + 1:
                self.found(
                    Damage.LINE_MISSING,
                    f"of the whole journal {_number_range(last + 1, row['id'] - 1)} not there",
                )
            last = row["id"]

    def _compare(self, txn: str, told: _Stated, rows: _Rows) -> None:
        """Step 5."""
        for (table, key), says in told.items():
            n = max(n for _, n in says.values())
            row = rows.get((table, key))
            if row is None:
                self.found(Damage.ROW_MISSING, f"{_row(table, key)} is gone; the line speaks of it", txn, n)
                continue
            for column, value in row.items():
                word, at = says.get(column, (None, n))  # what no line states was never anything
                if value != word:
                    what = f"{_row(table, key)}: {column} is {value!r}; the line says {word!r}"
                    self.found(Damage.ROW_CHANGED, what, txn, at)
        for table, key in rows.keys() - told.keys():
            self.found(Damage.ROW_UNKNOWN, f"{_row(table, key)}: no line speaks of it", txn)


def _matching_txns(db: Unit, name: str | None) -> list[str] | None:
    """The transactions of that name, also where only lines are left of one."""
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


def _rows(db: Unit, wanted: Sequence[str] | None) -> defaultdict[str, _Rows]:
    """Every bound row as a line would state it now, by the chain it belongs to."""
    found: defaultdict[str, _Rows] = defaultdict(dict)
    for table in KEYS:
        for row in db.execute(f"SELECT * FROM {table}"):  # noqa: S608 - a table of ours
            txn = (
                OWN if table in OF_NO_TRANSACTION else txn_of(row["name"]) if table == "meta" else row["txn"]
            )
            if wanted is None or txn in wanted:
                key, says = row_statement(table, row)
                found[txn][table, tuple(key)] = says
    return found


def _transaction_rows(db: Unit, txn: str, told: _Stated) -> _Rows:
    """The same of one transaction: its own rows, and those beside them that its lines speak of."""
    asked = [(table, "txn", txn) for table in _OWN_ROWS]
    asked += [(table, KEYS[table][0], key[0]) for table, key in told if table not in _OWN_ROWS]
    found = {}
    for table, column, value in asked:
        for row in db.execute(f"SELECT * FROM {table} WHERE {column} = ?", (value,)):  # noqa: S608 - words of ours
            key, says = row_statement(table, row)
            found[table, tuple(key)] = says
    return found


def _chains(db: Unit, wanted: Sequence[str] | None) -> Iterator[tuple[str, list[Row]]]:
    """Every chain there is a line of."""
    lines = db.execute("SELECT * FROM chain ORDER BY txn, n, id")
    for txn, of in groupby(lines, key=lambda line: str(line["txn"])):
        if wanted is None or txn in wanted:
            yield txn, list(of)


def _row(table: str, key: _Key) -> str:
    return " ".join([table, *(str(part) for part in key)])


def _number_range(first: int, last: int) -> str:
    return f"line {first} is" if first == last else f"lines {first} to {last} are"
