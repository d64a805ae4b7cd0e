"""What every command has: the journal it reads, tables, one JSON document, errors as sentences.

Text that came from an agent or a tool is shown with control characters made visible; JSON is ASCII. Neither moves the
cursor of whoever reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from countersign.errors import CountersignError
from countersign.journal import Journal, require_journal
from countersign.journal.export import escape_unprintable, json_text
from countersign.journal.location import JournalLocation, parse_location
from countersign.settings import journal_key_path_from_env, journal_path_from_env

JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of text for people.")]


JournalOption = Annotated[
    str | None,
    typer.Option(
        "--journal",
        help="Journal file or postgresql:// address; else COUNTERSIGN_JOURNAL, else the agent's own.",
    ),
]


def journal_location(named: str | None) -> JournalLocation:
    """Where a command's journal lies."""
    return parse_location(named) if named else journal_path_from_env()


ToolsOption = Annotated[
    str,
    typer.Option("--tools", help="Module or file that defines the tools, like my_agent or ./my_agent.py."),
]
AllToolsOption = Annotated[
    list[str],
    typer.Option(
        "--tools",
        help="Module or file that defines tools, like my_agent or ./my_agent.py; say it again for each further one.",
    ),
]


@contextmanager
def open_journal(named: str | None) -> Iterator[Journal]:
    """The journal of a command, closed afterwards.

    Raises:
        MisuseError: there is none at this place, nor where one is by default.
    """
    chosen = journal_location(named)
    require_journal(chosen)
    opened = Journal(chosen, key_path=journal_key_path_from_env())
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def report_errors() -> Iterator[None]:
    """Errors of ours are sentences for people; everything else is a bug and keeps its traceback."""
    try:
        yield
    except CountersignError as error:
        typer.echo(f"{error.code}: {escape_unprintable(str(error))}", err=True)
        raise typer.Exit(1) from error


def print_json(value: Any) -> None:
    """Print one document."""
    typer.echo(json_text(value, indent=2))


def print_members(members: Mapping[str, Any], *, indent: str = "") -> None:
    """Print each member that says something on a line of its own, whole: a line may be copied, a cell may not."""
    for name, value in members.items():
        if value is not None:
            typer.echo(f"{indent}{name}: {escape_unprintable(str(value))}")


def format_minute(moment: str | None) -> str | None:
    """A time as a table has it: `2026-11-24 23:30`, in UTC. JSON has all of it."""
    return moment and moment[:16].replace("T", " ")


def print_table(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], *, none: str = "", whole: Collection[str] = ()
) -> None:
    """Print a table of these columns, or where it has no row what `none` says. `whole` ones are never broken."""
    if none and not rows:
        typer.echo(none)
        return
    # What is cut off cannot be copied.
    table = Table(*(Column(name, overflow="fold", no_wrap=name in whole) for name in columns))
    for row in rows:
        table.add_row(*("" if row[name] is None else escape_unprintable(str(row[name])) for name in columns))
    Console(markup=False, highlight=False).print(table)
