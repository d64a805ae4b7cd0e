"""`countersign budget list | calls | settle`: limits, usage and open calls of language models.

It reads the journal and the file of budgets (COUNTERSIGN_BUDGETS). Stored reasoning is not shown, only its presence.
Only `settle` writes: a person states whether a call was made whose process died or whose response was lost. A call that
may still be running cannot be settled.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from countersign.cli.terminal import (
    JournalOption,
    JsonOption,
    format_minute,
    open_journal,
    print_json,
    print_table,
    report_errors,
)
from countersign.clock import SystemClock
from countersign.errors import MisuseError
from countersign.journal import Journal
from countersign.journal.database import Row
from countersign.llm.budgets import day_of, format_amount, load_budgets, renews_at
from countersign.settings import BUDGETS_VARIABLE

budget_app: Final = typer.Typer(no_args_is_help=True, help="Usage and limits of calls to language models.")

_PERIODS: Final = 20
_CALLS: Final = 50
_MAX_LISTED: Final = 1000
_CALL_COLUMNS: Final = ("call", "began", "run", "model", "state", "in", "out", "cost", "note")
_OPEN: Final = frozenset({"reserved", "unknown"})
_SHORTEST_ID: Final = 8
_UNDER_WAY_SECONDS: Final = 3600


@budget_app.command("list")
def list_budgets(
    journal: JournalOption = None,
    limit: Annotated[
        int, typer.Option(min=1, max=_MAX_LISTED, help="How many days or runs of each, newest first.")
    ] = _PERIODS,
    as_json: JsonOption = False,
) -> None:
    """Show each budget: its limit, what is spent and reserved in each day (UTC) or run, and when it renews."""
    now = SystemClock().wall()
    with report_errors(), open_journal(journal) as opened:
        rows = [line for budget in _budgets(opened) for line in _lines(opened, budget, limit, now)]
    columns = ("budget", "period", "measure", "limit", "spent", "reserved", "left", "renews")
    _print(
        columns, rows, as_json, none=f"no budget was asked on this journal, and {BUDGETS_VARIABLE} names none"
    )


@budget_app.command("calls")
def list_calls(
    journal: JournalOption = None,
    limit: Annotated[int, typer.Option(min=1, max=_MAX_LISTED, help="How many, newest first.")] = _CALLS,
    as_json: JsonOption = False,
) -> None:
    """List the calls themselves, newest first; an empty field is unknown."""
    with report_errors(), open_journal(journal) as opened:
        rows = [_call(dict(row)) for row in opened.spending.calls(limit)]
    _print_calls(rows, as_json)


@budget_app.command("settle")
def settle(
    call: Annotated[str, typer.Argument(help="The call's id, or enough of its beginning.")],
    made: Annotated[
        bool | None,
        typer.Option("--made/--not-made", help="Whether the model was called, as its vendor says."),
    ] = None,
    journal: JournalOption = None,
    as_json: JsonOption = False,
) -> None:
    """State whether a reserved or unknown call was made: if so, its reservation is spent; if not, it is freed."""
    with report_errors(), open_journal(journal) as opened:
        if made is None:
            raise MisuseError(
                "use --made or --not-made; the vendor's own list of requests or its bill shows it"
            )
        row = _open_call(opened, call, SystemClock().wall())
        if made:
            opened.spending.assume(row["call_id"], "made, a person says; its usage is not known")
        else:
            opened.spending.release(row["call_id"], "not made, a person says")
        settled = _call(dict(opened.spending.calls_named(row["call_id"])[0]))
    _print_calls([settled], as_json)


def _open_call(opened: Journal, beginning: str, now: float) -> Row:
    found = opened.spending.calls_named(beginning) if len(beginning) >= _SHORTEST_ID else []
    if len(found) != 1:
        raise MisuseError(
            f"{beginning!r} names {'several calls' if found else 'no call'} of this journal; `countersign budget "
            f"calls` shows their ids, of which {_SHORTEST_ID} characters or more are enough"
        )
    (row,) = found
    if row["state"] not in _OPEN:
        raise MisuseError(
            f"call {row['call_id']} is {row['state']}; only an unknown or reserved call can be settled"
        )
    if row["state"] == "reserved" and now - row["began_at"] < _UNDER_WAY_SECONDS:
        raise MisuseError(
            f"call {row['call_id']} began less than an hour ago and may be running; if its process is dead, "
            "settle it later"
        )
    return row


def _budgets(opened: Journal) -> list[dict[str, Any]]:
    """The budgets used on this journal, and unused ones of the file."""
    known = {row["name"]: dict(row) for row in opened.spending.budgets()}
    path = os.environ.get(BUDGETS_VARIABLE)
    for one in load_budgets(Path(path)) if path else ():
        declared = {"measure": one.measure, "per": one.per, "currency": one.currency, "most": one.units}
        known[one.name] = {"name": one.name} | declared
    return sorted(known.values(), key=lambda row: (row["per"], row["name"]))


def _lines(opened: Journal, budget: dict[str, Any], limit: int, now: float) -> Iterator[dict[str, Any]]:
    """One line for each period; a daily budget always has today's."""
    periods = [dict(row) for row in opened.spending.periods(budget["name"], limit)]
    today = day_of(now).isoformat()
    if budget["per"] == "day" and all(row["period"] != today for row in periods):
        periods.insert(0, {"period": today, "spent": 0, "reserved": 0})
    for row in periods:
        yield _line(budget, row, renews_at(budget["per"], now) if row["period"] == today else None)
    if not periods:
        yield _line(budget, {"period": None, "spent": 0, "reserved": 0}, None)


def _line(budget: dict[str, Any], row: dict[str, Any], renews: datetime | None) -> dict[str, Any]:
    measure, most = budget["measure"], budget["most"]
    return {
        "budget": budget["name"],
        "per": budget["per"],
        "period": row["period"],
        "measure": f"{measure} {budget['currency']}".strip(),
        "limit": f"{format_amount(measure, most):f}",
        "spent": f"{format_amount(measure, row['spent']):f}",
        "reserved": f"{format_amount(measure, row['reserved']):f}",
        "left": f"{format_amount(measure, max(0, most - row['spent'] - row['reserved'])):f}",
        "over": row["spent"] + row["reserved"] > most,
        "renews": None if renews is None else renews.isoformat(),
    }


def _call(row: dict[str, Any]) -> dict[str, Any]:
    reasoning, cost, currency = row.pop("reasoning"), row.pop("cost"), row.pop("currency")
    for name in ("began", "ended"):
        at = row.pop(f"{name}_at")
        row[name] = None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    known = None if cost is None else f"{format_amount('money', cost):f} {currency}"
    return row | {"cost": known, "has_reasoning": reasoning is not None}


def _print_calls(rows: list[dict[str, Any]], as_json: bool) -> None:
    """The table shortens ids to what `settle` accepts, and shows the tokens in and out."""
    short = [
        {"call": row["call_id"][:_SHORTEST_ID], "in": row["input_tokens"], "out": row["output_tokens"]}
        | row
        | {"began": format_minute(row["began"])}
        for row in rows
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(
            _CALL_COLUMNS,
            short,
            none="no call to a language model in this journal",
            whole={"call", "began", "state"},
        )


def _print(columns: tuple[str, ...], rows: list[dict[str, Any]], as_json: bool, *, none: str = "") -> None:
    if as_json:
        print_json(rows)
    else:
        print_table(columns, rows, none=none)
