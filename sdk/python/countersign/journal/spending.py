"""What calls to language models cost, and what is reserved for calls in progress: exact across threads and processes.

Rules: a call is reserved before it is made and settled after it, each in one durable unit, so that planned spending is
known after a crash. A reservation is all or nothing, under the journal's write lock and by a conditional UPDATE: spent
and reserved together never exceed the limit. An unknown cost (the process ended, the answer was lost) stays reserved
and never expires. A call recorded as done stays done, even over budget; cost beyond its reservation is spent all
the same, and the next call is refused.

Every change is a line of the chain of what belongs to no transaction (chain.py), in the same unit.

Amounts are integers in the measure of their budget (llm/budgets.py). Prompts and answers are not stored, except the
reasoning of a call if its program asked to keep it, and that is sealed (sealing.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from countersign.clock import Clock
from countersign.errors import JournalError, MisuseError
from countersign.journal.chain import OWN, Change, record_changes
from countersign.journal.database import Database, Row, Unit
from countersign.journal.sealed_values import SealContext
from countersign.journal.sealing import Seals


@dataclass(frozen=True, slots=True)
class BudgetHold:
    """What one call reserves of one budget."""

    budget: str
    measure: str
    per: str
    currency: str
    most: int
    period: str
    amount: int


@dataclass(frozen=True, slots=True)
class Shortage:
    """The first budget that was exhausted, as of that moment."""

    hold: BudgetHold
    spent: int
    reserved: int


_OUTCOME: Final = (
    "provider answered_by finish_reasons input_tokens output_tokens cached_tokens written_tokens reasoning_tokens "
    "all_tokens cost currency milliseconds reasoning"
).split()
_REASONING: Final = "reasoning"


class Spending:
    """The tables of calls and budgets."""

    def __init__(self, database: Database, clock: Clock, seals: Seals) -> None:
        self._database = database
        self._clock = clock
        self._seals = seals

    def reserve(
        self,
        call_id: str,
        run: str | None,
        model: str,
        holds: Sequence[BudgetHold],
        *,
        keeps_reasoning: bool = False,
    ) -> Shortage | None:
        """Reserve all of it and record the call. If a budget is exhausted, reserve nothing and return it.

        Raises:
            JournalSealed: its reasoning is to be kept, and there is no sealing key.
            MisuseError: a budget of that name has another measure.
        """
        with self._changing("reserved") as change:
            if keeps_reasoning:
                self._seals.require_key(change.unit)  # after the call it would be too late to refuse
            for hold in holds:
                if (short := shortage(change, hold)) is not None:
                    return short
            _begin(change, call_id, run, model)
            for hold in holds:
                _take(change, call_id, hold)
        return None

    def settle(
        self, call_id: str, outcome: Mapping[str, Any], charges: Mapping[str, int | None]
    ) -> tuple[str, ...]:
        """Record a completed call and its cost; an unknown cost (None) counts as what was reserved. Returns the
        budgets over their limit.

        Raises:
            MisuseError: the call was recorded or released before.
        """
        with self._changing("done") as change:
            ended = {name: outcome.get(name) for name in _OUTCOME}
            ended |= {"state": "done", "ended_at": change.at}
            if (reasoning := ended[_REASONING]) is not None:
                # a model's reasoning may quote any secret, so all of it is sealed
                about = _seal_context(call_id)
                ended[_REASONING] = self._seals.seal_text(change.unit, about, reasoning, secret=True)
            _require_updated(change.update("llm_calls", *_open(call_id), **ended), call_id)
            for hold in _open_holds(change.unit, call_id):
                known = charges.get(hold["budget"])
                _charge(change, call_id, hold, hold["held"] if known is None else known)
            return _exceeded_budgets(change.unit, call_id)

    def record(
        self,
        call_id: str,
        run: str | None,
        model: str,
        outcome: Mapping[str, Any],
        holds: Sequence[BudgetHold],
    ) -> tuple[str, ...]:
        """Record a call made without a reservation: it is spent even beyond the limit. Returns the budgets over
        their limit.
        """
        with self._database.unit(durable=True):
            with self._changing("made") as change:  # its line precedes that of `settle`
                _begin(change, call_id, run, model)
                for hold in holds:
                    _declare(change, hold)
                    _take_over_limit(change, call_id, hold)
            return self.settle(call_id, outcome, {hold.budget: hold.amount for hold in holds})

    def release(self, call_id: str, note: str) -> None:
        """The call was never made: free its reservation.

        Raises:
            MisuseError: it was recorded or released before.
        """
        self._end(call_id, "released", note, spent=False)

    def assume(self, call_id: str, note: str) -> None:
        """A person states that the call was made. Its cost is unknown, so all of its reservation is spent.

        Raises:
            MisuseError: it was recorded or released before.
        """
        self._end(call_id, "done", note, spent=True)

    def _end(self, call_id: str, state: str, note: str, *, spent: bool) -> None:
        """End a call without a response: spend its reservation, or free it."""
        with self._changing(state) as change:
            ended = {"state": state, "ended_at": change.at, "note": note}
            _require_updated(change.update("llm_calls", *_open(call_id), **ended), call_id)
            for hold in _open_holds(change.unit, call_id):
                _charge(change, call_id, hold, hold["held"] if spent else 0)

    def doubt(self, call_id: str, note: str) -> None:
        """It is unknown whether the call was made, or what it cost: it stays reserved. An ended call is left alone."""
        with self._changing("unknown") as change:
            reserved = ("call_id = ? AND state = 'reserved'", (call_id,))
            change.update("llm_calls", *reserved, state="unknown", ended_at=change.at, note=note)

    @contextmanager
    def _changing(self, kind: str) -> Iterator[Change]:
        at = self._clock.wall()
        with (
            self._database.unit(durable=True) as unit,
            record_changes(unit, OWN, f"llm_{kind}", at) as change,
        ):
            yield change

    def reasoning(self, call_id: str) -> str | None:
        """The kept reasoning of a call, unsealed.

        Raises:
            JournalSealed: its key is not available.
            JournalError: it was changed.
        """
        row = self.call(call_id)
        try:
            return None if row is None else self._seals.open_text(_seal_context(call_id), row[_REASONING])
        except ValueError as error:
            raise JournalError(
                f"the reasoning of call {call_id[:12]} in the journal is damaged: {error}"
            ) from error

    def budgets(self) -> list[Row]:
        """Every budget declared on this journal."""
        return self._database.rows(
            "SELECT name, measure, per, currency, most FROM budgets ORDER BY per, name"
        )

    def periods(self, budget: str, limit: int) -> list[Row]:
        """What was spent and reserved of a budget, newest period first."""
        return self._database.rows(
            "SELECT period, spent, reserved FROM spent WHERE budget = ? ORDER BY changed_at DESC, period DESC LIMIT ?",
            (budget, limit),
        )

    def calls(self, limit: int) -> list[Row]:
        """Calls, newest first."""
        return self._database.rows("SELECT * FROM llm_calls ORDER BY id DESC LIMIT ?", (limit,))

    def call(self, call_id: str) -> Row | None:
        return self._database.row("SELECT * FROM llm_calls WHERE call_id = ?", (call_id,))

    def calls_named(self, beginning: str) -> list[Row]:
        """Calls whose id has this prefix; two at most, because a name must be unique."""
        return self._database.rows(
            "SELECT * FROM llm_calls WHERE substr(call_id, 1, ?) = ? ORDER BY id LIMIT 2",
            (len(beginning), beginning),
        )


def _seal_context(call_id: str) -> SealContext:
    """What the seal of a call's reasoning is bound to: a call belongs to no transaction."""
    return SealContext("", call_id, _REASONING)


def _begin(change: Change, call_id: str, run: str | None, model: str) -> None:
    change.insert("llm_calls", call_id=call_id, run=run, model=model, state="reserved", began_at=change.at)


def _open(call_id: str) -> tuple[str, tuple[str]]:
    """The condition that the call has not ended."""
    return "call_id = ? AND state IN ('reserved', 'unknown')", (call_id,)


def _require_updated(updated: int, call_id: str) -> None:
    if updated != 1:
        raise MisuseError(
            f"call {call_id[:12]} was recorded or released before and stays as it is; one block is one call, "
            "record another one with record_llm(...) or in a block of its own"
        )


def shortage(change: Change, hold: BudgetHold) -> Shortage | None:
    """Read under the write lock, so it stays valid until the reservation."""
    _declare(change, hold)
    row = change.unit.execute(
        "SELECT spent, reserved FROM spent WHERE budget = ? AND period = ?", (hold.budget, hold.period)
    ).fetchone()
    fits = row["spent"] + row["reserved"] + hold.amount <= hold.most
    return None if fits else Shortage(hold, row["spent"], row["reserved"])


def _declare(change: Change, hold: BudgetHold) -> None:
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
    change.insert("spent", or_ignore=True, budget=hold.budget, period=hold.period, changed_at=change.at)


def _take(change: Change, call_id: str, hold: BudgetHold) -> None:
    """INVARIANT: a reservation never makes spent and reserved together exceed the limit."""
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


def _take_over_limit(change: Change, call_id: str, hold: BudgetHold) -> None:
    """Reserve without a limit: the call has already been made."""
    change.run(
        "spent",
        "UPDATE spent SET reserved = reserved + ?, changed_at = ? WHERE budget = ? AND period = ?",
        (hold.amount, change.at, hold.budget, hold.period),
        *("reserved", "changed_at"),
    )
    _write_hold(change, call_id, hold)


def _write_hold(change: Change, call_id: str, hold: BudgetHold) -> None:
    change.insert("llm_holds", call_id=call_id, budget=hold.budget, period=hold.period, held=hold.amount)


def _open_holds(unit: Unit, call_id: str) -> list[Row]:
    found: list[Row] = unit.execute(
        "SELECT budget, period, held FROM llm_holds WHERE call_id = ? AND charged IS NULL", (call_id,)
    ).fetchall()
    return found


def _charge(change: Change, call_id: str, hold: Row, amount: int) -> None:
    """Turn a reservation into a cost, in the period it was reserved in, however late."""
    change.run(
        "spent",
        "UPDATE spent SET reserved = reserved - ?, spent = spent + ?, changed_at = ? WHERE budget = ? AND period = ?",
        (hold["held"], amount, change.at, hold["budget"], hold["period"]),
        *("reserved", "spent", "changed_at"),
    )
    change.update("llm_holds", "call_id = ? AND budget = ?", (call_id, hold["budget"]), charged=amount)


def _exceeded_budgets(unit: Unit, call_id: str) -> tuple[str, ...]:
    rows = unit.execute(
        "SELECT name FROM llm_holds JOIN spent USING (budget, period) JOIN budgets ON name = llm_holds.budget "
        "WHERE call_id = ? AND spent.spent + spent.reserved > most ORDER BY name",
        (call_id,),
    )
    return tuple(row["name"] for row in rows)
