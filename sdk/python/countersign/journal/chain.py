"""The hash chain: each change of a transaction's rows adds a line that states the new values, in the same commit.

Rules: a line binds its position in the journal (`id`) and in its transaction (`n`), the hash of the previous line, the
time, and each changed column. Text written by an agent, a tool or a person is stated as a digest only. The hash of a
line is SHA-256("countersign/journal/v1\\n" + its JSON with sorted keys). Triggers enforce that lines are never changed
or deleted. The transaction's row holds the head, and a line that does not follow from it is refused. What belongs
to no transaction (manifests, epochs, spending on models) has a chain of its own, named "". `verification.py` reads all
of it back. Before a process continues a transaction, `find_damage` verifies that transaction only, in the open journal.
There is no index of lines by transaction, so its chain is read backwards from the head, and rows of other tables by the
keys its lines name. Lines behind the head, and rows there that no line names, need the full verification.

What it proves: whether rows and lines are as the SDK wrote them, and which are not. What it cannot prove: an attacker
who may write the file and knows this format can recompute every line, or restore an older state: from a copy, or by
deleting the last transactions with all their rows and lines. Only an external anchor can show that. The anchor is the
service's log: `txn_digest`, the attempt and each outcome are there too, signed, and out of this process's reach.
Keeping the head of a chain elsewhere is another anchor. A digest hides a text only as well as the text is hard to
guess. For a sealed value (sealing.py) the line has the digest of the sealed bytes, which reveals nothing.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import orjson

from countersign.errors import JournalError
from countersign.journal.database import Database, Row, Unit
from countersign.journal.findings import Damage, Scan

OWN: Final = ""
"""The chain of what belongs to no transaction."""

KEYS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "transactions": (),
        "effects": ("staging", "lane", "seq"),
        "outbox": ("id",),
        "receipts": ("attempt_id",),
        "meta": ("name",),
        "manifests": ("tool", "digest"),
        "budgets": ("name",),
        "spent": ("budget", "period"),
        "llm_calls": ("call_id",),
        "llm_holds": ("call_id", "budget"),
    }
)
"""Every table whose rows the chain binds, with the key columns of a row within a chain."""

OF_NO_TRANSACTION: Final = frozenset({"manifests", "budgets", "spent", "llm_calls", "llm_holds"})
"""The tables whose rows all belong to the chain `OWN`."""

UNBOUND: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "transactions": frozenset({"holder", "generation", "lease_until", "updated_at"})
        | frozenset({"chain_n", "chain_id", "chain_hash"}),
    }
)
"""Columns that no line states, on purpose. The lease says who may write now, not what happened: it changes with every
write, and a false one stops the owner or lets another process wait for its time. `updated_at` moves with it. The head
is compared with the last line itself.
"""

CLEAR: Final = frozenset(
    {
        *("txn", "agent", "independent", "state", "stagings", "staging", "live", "rev", "txn_digest"),
        *("attempt_id", "redeemed", "landed", "parked", "lane", "seq", "effect_id", "tool", "call_key"),
        *("tool_digest", "resource_type", "effect_digest", "generation", "compensates", "outcome", "digest"),
    }
)
"""Columns whose text a line states as it is: names and constants of this package. Other text becomes a digest."""

_RUN_KEY: Final = "period"  # the only key column that a program chooses: it may hold a run key
_DOMAIN: Final = b"countersign/journal/v1\n"
_MILLISECONDS: Final = 1000
_LAST: Final = "coalesce((SELECT max(id) FROM chain), 0)"
_HEAD: Final = (
    f"SELECT {_LAST}, t.chain_n, coalesce(c.hash, '') FROM transactions t "  # noqa: S608
    "LEFT JOIN chain c ON c.id = t.chain_id AND c.txn = t.txn AND c.n = t.chain_n WHERE t.txn = ?"
)
# a literal, to match the partial index
_OWN_HEAD: Final = (
    f"SELECT {_LAST}, coalesce(max(n), 0), "  # noqa: S608
    "coalesce((SELECT hash FROM chain WHERE txn = '' ORDER BY n DESC LIMIT 1), '') FROM chain WHERE txn = ''"
)


class Change:
    """The changes of one unit of work to one transaction, and the line they become."""

    def __init__(self, unit: Unit, txn: str, kind: str, at: float) -> None:
        self.unit = unit
        self.txn = txn
        self.at = at
        self._kind = kind
        self._rows: list[list[Any]] = []

    def run(self, table: str, sql: str, parameters: tuple[Any, ...], *changes: str) -> int:
        """Run one INSERT or UPDATE, record the new values of the affected rows and return their number. `changes`
        are the columns it sets; none means all. A column that no line states is NULL.
        """
        rows = self.unit.execute(_returning(table, sql, changes), parameters).fetchall()
        self._rows += [[table, *row_statement(table, row)] for row in rows]
        return len(rows)

    def update(self, table: str, where: str, parameters: tuple[Any, ...], /, **columns: Any) -> int:
        """Set these columns of the matching rows and return their number."""
        keys, values = self.unit.update(table, KEYS[table], columns, where, parameters)
        if keys:
            says = _columns_statement(table, values)
            self._rows += [[table, _key_statement(table, key), says] for key in keys]
        return len(keys)

    def insert(self, table: str, *, or_ignore: bool = False, only_given: bool = False, **columns: Any) -> int:
        """Insert a row; with `or_ignore` only if its key is free. The line states the whole row as the database
        holds it, or with `only_given` the given values, whose text no database changes: those that no line states
        are NULL.
        """
        sql = _insertion(table, tuple(columns), or_ignore)
        if not only_given:
            return self.run(table, sql, tuple(columns.values()))
        self.unit.execute(sql, tuple(columns.values()))
        self._rows.append([table, *row_statement(table, columns)])
        return 1

    def write(self) -> None:
        """Add the line, if anything was changed."""
        if not self._rows:
            return
        last, n, prev = self._head()
        place = {
            "at": int(self.at * _MILLISECONDS),
            "id": last + 1,
            "kind": self._kind,
            "n": n + 1,
            "prev": prev,
        }
        # names of columns are ASCII, so this is RFC 8785 but for integers that a double does not hold: they are exact
        body = orjson.dumps({**place, "rows": self._rows, "txn": self.txn}, option=orjson.OPT_SORT_KEYS)
        self.unit.execute(
            "INSERT INTO chain (id, txn, n, kind, body, prev, hash) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (last + 1, self.txn, n + 1, self._kind, body, prev, line_hash(body)),
        )

    def _head(self) -> tuple[int, int, str]:
        """The number of the journal's last line; number and hash of this chain's last line. The hash is read from
        the line itself: a trigger compares it with the transaction's row, so that nothing is added to a truncated
        chain.
        """
        query = (_OWN_HEAD, ()) if self.txn == OWN else (_HEAD, (self.txn,))
        last, n, prev = self.unit.execute(*query).fetchone() or (0, 0, "")
        return int(last), int(n), str(prev)


@contextmanager
def record_changes(unit: Unit, txn: str, kind: str, at: float) -> Iterator[Change]:
    """Inside a unit: collect changes into one line of the transaction's chain."""
    change = Change(unit, txn, kind, at)
    yield change
    change.write()


def line_hash(body: bytes) -> str:
    """The hash of a line, which the next line names."""
    return hashlib.sha256(_DOMAIN + body).hexdigest()


def row_statement(table: str, row: Row) -> tuple[list[Any], dict[str, Any]]:
    """A row as a line states it: its key and its bound columns."""
    return _key_statement(table, [row[name] for name in KEYS[table]]), _columns_statement(table, row)


def _key_statement(table: str, key: Iterable[Any]) -> list[Any]:
    named = zip(KEYS[table], key, strict=True)
    return [_value_statement(name, value) if name == _RUN_KEY else value for name, value in named]


def _columns_statement(table: str, row: Row) -> dict[str, Any]:
    return {name: _value_statement(name, row[name]) for name in _bound(table, tuple(row.keys()))}


@cache
def _bound(table: str, columns: tuple[str, ...]) -> tuple[str, ...]:
    without = UNBOUND.get(table, frozenset()).union(KEYS[table])
    return tuple(name for name in columns if name not in without)


def _value_statement(column: str, value: Any) -> Any:
    """One value: numbers and names of this package as they are, other text as a digest of its type and bytes."""
    kind = type(value)
    if kind is str:
        if column in CLEAR:
            return value
        return f"text:{hashlib.sha256(value.encode('utf-8', 'surrogateescape')).hexdigest()}"
    if value is None or kind is int:
        return value
    if kind is float:
        # RETURNING returns a whole number of a REAL column as an integer, SELECT as a float
        return int(value) if value.is_integer() else repr(value)
    return f"bytes:{hashlib.sha256(value).hexdigest()}"


@cache
def _insertion(table: str, columns: tuple[str, ...], or_ignore: bool) -> str:
    sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
    return f"{sql} ON CONFLICT DO NOTHING" if or_ignore else sql


@cache
def _returning(table: str, sql: str, changes: tuple[str, ...]) -> str:
    return f"{sql} RETURNING {', '.join((*KEYS[table], *changes)) if changes else '*'}"


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
