"""Shared by all commands: the journal, tables, JSON output and error messages.

Text from an agent or a tool is shown with control characters made visible; JSON is ASCII. Neither can control the
terminal.
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
    """The location of a command's journal."""
    return parse_location(named) if named else journal_path_from_env()


ToolsOption = Annotated[
    str,
    typer.Option("--tools", help="Module or file that defines the tools, like my_agent or ./my_agent.py."),
]
AllToolsOption = Annotated[
    list[str],
    typer.Option(
        "--tools",
        help="Module or file that defines tools, like my_agent or ./my_agent.py; repeat it for several.",
    ),
]


@contextmanager
def open_journal(named: str | None) -> Iterator[Journal]:
    """The journal of a command, closed afterwards.

    Raises:
        MisuseError: there is none at this location, nor at the default one.
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
    """Print SDK errors as one line and exit; any other exception is a bug and keeps its traceback."""
    try:
        yield
    except CountersignError as error:
        typer.echo(f"{error.code}: {escape_unprintable(str(error))}", err=True)
        raise typer.Exit(1) from error


def print_json(value: Any) -> None:
    """Print one document."""
    typer.echo(json_text(value, indent=2))


def print_members(members: Mapping[str, Any], *, indent: str = "") -> None:
    """Print each non-empty member on a line of its own, so that it can be copied whole."""
    for name, value in members.items():
        if value is not None:
            typer.echo(f"{indent}{name}: {escape_unprintable(str(value))}")


def format_minute(moment: str | None) -> str | None:
    """A time for tables: `2026-11-24 23:30`, in UTC. JSON has the full value."""
    return moment and moment[:16].replace("T", " ")


def print_table(
    columns: Sequence[str], rows: Sequence[Mapping[str, Any]], *, none: str = "", whole: Collection[str] = ()
) -> None:
    """Print a table of these columns, or `none` if it has no rows. `whole` columns are never truncated."""
    if none and not rows:
        typer.echo(none)
        return
    # A truncated value cannot be copied.
    table = Table(*(Column(name, overflow="fold", no_wrap=name in whole) for name in columns))
    for row in rows:
        table.add_row(*("" if row[name] is None else escape_unprintable(str(row[name])) for name in columns))
    Console(markup=False, highlight=False).print(table)
