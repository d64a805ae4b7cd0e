"""The support desk's own books: a small SQLite database one can look into while the demo runs.

It replaces the payment provider and the mail server: a line written here means that it happened.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

_SCHEMA = """
CREATE TABLE payments (payment_id TEXT PRIMARY KEY, customer TEXT NOT NULL, cents INTEGER NOT NULL);
CREATE TABLE refunds (
    call_key TEXT PRIMARY KEY,
    payment_id TEXT NOT NULL REFERENCES payments,
    cents INTEGER NOT NULL,
    reason TEXT NOT NULL
);
CREATE TABLE mails (recipient TEXT NOT NULL, subject TEXT NOT NULL, body TEXT NOT NULL);
INSERT INTO payments VALUES
    ('pay_5001', 'cus_1001', 2400), ('pay_5002', 'cus_1002', 124000), ('pay_5003', 'cus_1003', 3900);
"""


class NoSuchPaymentError(Exception):
    """The books do not hold enough of that payment to give back; nothing was written."""


def create(path: Path) -> None:
    """New books with three payments in them."""
    with closing(sqlite3.connect(path)) as books:
        books.executescript(_SCHEMA)


def give_back(path: Path, payment_id: str, cents: int, reason: str, call_key: str) -> int:
    """Refund once for each call key, and never more than was paid. Answers what is left of the payment."""
    with _writing(path) as books:
        known = books.execute("SELECT 1 FROM refunds WHERE call_key = ?", (call_key,)).fetchone()
        if known is None:
            if _left(books, payment_id) < cents:
                raise NoSuchPaymentError(f"payment {payment_id!r} has no {cents} cents left to give back")
            row = (call_key, payment_id, cents, reason)
            books.execute("INSERT INTO refunds VALUES (?, ?, ?, ?)", row)
        return _left(books, payment_id)


def send(path: Path, recipient: str, subject: str, body: str) -> None:
    """Send one mail."""
    with _writing(path) as books:
        books.execute("INSERT INTO mails VALUES (?, ?, ?)", (recipient, subject, body))


def lines(path: Path) -> list[str]:
    """What has happened, one line each."""
    with closing(sqlite3.connect(path)) as books:
        refunds = books.execute("SELECT customer, r.cents FROM refunds r JOIN payments USING (payment_id)")
        mails = books.execute("SELECT recipient, subject FROM mails")
        return [f"refunded ${cents / 100:,.2f} to {customer}" for customer, cents in refunds] + [
            f"mailed {recipient}: {subject}" for recipient, subject in mails
        ]


@contextmanager
def _writing(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as books:
        books.execute("BEGIN IMMEDIATE")
        try:
            yield books
        except BaseException:
            books.execute("ROLLBACK")
            raise
        books.execute("COMMIT")


def _left(books: sqlite3.Connection, payment_id: str) -> int:
    paid = books.execute("SELECT cents FROM payments WHERE payment_id = ?", (payment_id,)).fetchone()
    back = books.execute("SELECT total(cents) FROM refunds WHERE payment_id = ?", (payment_id,)).fetchone()
    return 0 if paid is None else int(paid[0] - back[0])
