"""What is reserved and spent of each budget, row by row, inside a unit of `spending.py`, which has the rules."""

from __future__ import annotations

from dataclasses import dataclass

from countersign.errors import JournalError, MisuseError
from countersign.journal.chain import Change
from countersign.journal.database import Row, Unit


@dataclass(frozen=True, slots=True)
class Hold:
    """What one call asks of one budget."""

    budget: str
    measure: str
    per: str
    currency: str
    most: int
    period: str
    amount: int


@dataclass(frozen=True, slots=True)
class Shortage:
    """The first budget that had no room, as it stood at that moment."""

    hold: Hold
    spent: int
    reserved: int


def shortage(change: Change, hold: Hold) -> Shortage | None:
    """Under the write lock, so what is read here still holds where it is taken."""
    declare(change, hold)
    row = change.unit.execute(
        "SELECT spent, reserved FROM spent WHERE budget = ? AND period = ?", (hold.budget, hold.period)
    ).fetchone()
    fits = row["spent"] + row["reserved"] + hold.amount <= hold.most
    return None if fits else Shortage(hold, row["spent"], row["reserved"])


def declare(change: Change, hold: Hold) -> None:
    declared = change.run(
        "budgets",
        "INSERT INTO budgets (name, measure, per, currency, most, seen_at) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (name) DO UPDATE SET most = excluded.most, seen_at = excluded.seen_at "
        "WHERE budgets.measure = excluded.measure AND budgets.per = excluded.per "
        "AND budgets.currency = excluded.currency",
        (hold.budget, hold.measure, hold.per, hold.currency, hold.most, change.at),
    )
    if declared != 1:
        raise MisuseError(
            f"budget {hold.budget!r} counts something else on this journal than {hold.measure} {hold.currency} per "
            f"{hold.per}; give this one another name"
        )
    change.run(
        "spent",
        "INSERT INTO spent (budget, period, changed_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        (hold.budget, hold.period, change.at),
    )


def take(change: Change, call_id: str, hold: Hold) -> None:
    """INVARIANT: spent and reserved together never pass the limit by a reservation."""
    taken = change.run(
        "spent",
        "UPDATE spent SET reserved = reserved + ?, changed_at = ? "
        "WHERE budget = ? AND period = ? AND spent + reserved + ? <= ?",
        (hold.amount, change.at, hold.budget, hold.period, hold.amount, hold.most),
        *("reserved", "changed_at"),
    )
    if taken != 1:
        raise JournalError(f"budget {hold.budget!r} changed under the journal's lock; nothing was reserved")
    _write_hold(change, call_id, hold)


def hold_anyway(change: Change, call_id: str, hold: Hold) -> None:
    """What has happened is held whatever the limit."""
    change.run(
        "spent",
        "UPDATE spent SET reserved = reserved + ?, changed_at = ? WHERE budget = ? AND period = ?",
        (hold.amount, change.at, hold.budget, hold.period),
        *("reserved", "changed_at"),
    )
    _write_hold(change, call_id, hold)


def _write_hold(change: Change, call_id: str, hold: Hold) -> None:
    change.run(
        "llm_holds",
        "INSERT INTO llm_holds (call_id, budget, period, held) VALUES (?, ?, ?, ?)",
        (call_id, hold.budget, hold.period, hold.amount),
    )


def open_holds(unit: Unit, call_id: str) -> list[Row]:
    return unit.execute(
        "SELECT budget, period, held FROM llm_holds WHERE call_id = ? AND charged IS NULL", (call_id,)
    ).fetchall()


def charge(change: Change, call_id: str, hold: Row, amount: int) -> None:
    """Turn what was held into what it took; in the period it was reserved in, however late that is."""
    change.run(
        "spent",
        "UPDATE spent SET reserved = reserved - ?, spent = spent + ?, changed_at = ? WHERE budget = ? AND period = ?",
        (hold["held"], amount, change.at, hold["budget"], hold["period"]),
        *("reserved", "spent", "changed_at"),
    )
    change.run(
        "llm_holds",
        "UPDATE llm_holds SET charged = ? WHERE call_id = ? AND budget = ?",
        (amount, call_id, hold["budget"]),
        "charged",
    )


def over(unit: Unit, call_id: str) -> tuple[str, ...]:
    rows = unit.execute(
        "SELECT name FROM llm_holds JOIN spent USING (budget, period) JOIN budgets ON name = llm_holds.budget "
        "WHERE call_id = ? AND spent.spent + spent.reserved > most ORDER BY name",
        (call_id,),
    )
    return tuple(row["name"] for row in rows)
