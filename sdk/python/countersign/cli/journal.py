"""`countersign journal`: list, show, filter, export, stats, verify, new-key and close.

Only `close` changes a journal: with it a person states that a partial commit of live effects was corrected. `replay` is
in dry_run.py; to continue open transactions use `countersign resume`. Text from an agent or a tool is shown with
control characters made visible, and arguments a manifest declares secret are not shown.
"""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer

from countersign.cli.terminal import (
    AllToolsOption,
    JournalOption,
    JsonOption,
    format_minute,
    journal_location,
    open_journal,
    print_json,
    print_members,
    print_table,
    report_errors,
)
from countersign.errors import MisuseError, SettingsError
from countersign.journal.export import (
    DAMAGED,
    ExportFormat,
    description_of,
    escape_unprintable,
    render_export,
    summary_of,
)
from countersign.journal.location import default_key_path
from countersign.journal.queries import TransactionFilter, count, parse_time
from countersign.journal.sealing_keys import add_key
from countersign.journal.verification import verify
from countersign.journal.verification_stores import Verified
from countersign.recovery.prior_run import close
from countersign.runtime import Runtime
from countersign.settings import JOURNAL_KEY_VARIABLE, journal_key_path_from_env
from countersign.tools.registry import load_tools

journal_app: Final = typer.Typer(no_args_is_help=True, help="What was staged, asked, fired.")

_MAX_LISTED: Final = 50
_MODE: Final = 0o600  # of an exported file: it contains what the journal contains
_SUMMARY: Final = ("key", "state", "effects", "changed", "note")
_SEPARATE_MEMBERS: Final = frozenset({"effects", "dropped", "unreadable"})
_HEADER_MEMBERS: Final = frozenset({"lane", "seq", "tool", "state"})
_COUNTED: Final = ("called", "fired", "unknown", "compensated")

LimitOption = Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")]
StateOption = Annotated[str | None, typer.Option(help="State of the transaction, or of one of its effects.")]
ToolOption = Annotated[str | None, typer.Option("--tool", help="With a call of this tool.")]
AgentOption = Annotated[str | None, typer.Option(help="Of this agent.")]
TextOption = Annotated[str | None, typer.Option(help="With this in the run key, in either case.")]
SinceOption = Annotated[
    str | None, typer.Option(help="Changed at this time or later, like 2026-11-23 or 2h (ago).")
]
UntilOption = Annotated[str | None, typer.Option(help="Changed before this time.")]


@journal_app.command("list")
def list_journal(
    journal: JournalOption = None, limit: LimitOption = _MAX_LISTED, as_json: JsonOption = False
) -> None:
    """List transactions, newest first."""
    with report_errors(), open_journal(journal) as opened:
        rows = [summary_of(opened, txn) for txn in opened.transactions.newest_ids(limit)]
    _print_summaries(rows, as_json, "the journal is empty")


@journal_app.command("filter")
def filter_journal(
    state: StateOption = None,
    tool: ToolOption = None,
    agent: AgentOption = None,
    text: TextOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    journal: JournalOption = None,
    limit: LimitOption = _MAX_LISTED,
    as_json: JsonOption = False,
) -> None:
    """List the transactions that match all filters, newest first."""
    with report_errors(), open_journal(journal) as opened:
        wanted = _wanted(state, tool, agent, text, since, until)
        rows = [summary_of(opened, txn) for txn in opened.transactions.matching_ids(wanted, limit)]
    _print_summaries(rows, as_json, "no transaction matches")


@journal_app.command("show")
def show_journal(
    name: Annotated[str, typer.Argument(help="A run key, or a transaction id or its beginning.")],
    journal: JournalOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one transaction with its effects, their arguments and outcomes."""
    with report_errors(), open_journal(journal) as opened:
        found = opened.transactions.found_ids(name)
        if not found:
            raise MisuseError(
                f"the journal has no transaction {name!r}; `countersign journal list` shows what it has"
            )
        shown = [description_of(opened, txn) for txn in found]
    if as_json:
        print_json(shown)
    else:
        for one in shown:
            _print_whole(one)
    _exit_if_damaged(sum("unreadable" in one for one in shown))


def _print_whole(one: dict[str, Any]) -> None:
    print_members({name: value for name, value in one.items() if name not in _SEPARATE_MEMBERS})
    for kind in ("effects", "dropped"):
        for effect in one[kind]:
            head = f"{effect['lane']} {effect['seq']}: {escape_unprintable(effect['tool'] or '')} {effect['state']}"
            typer.echo(f"\n{head}{', not in the list' if kind == 'dropped' else ''}")
            print_members(
                {name: value for name, value in effect.items() if name not in _HEADER_MEMBERS}, indent="  "
            )
    typer.echo()


@journal_app.command("export")
def export_journal(
    form: Annotated[str, typer.Option("--format", help="json, csv or md.")] = "json",
    out: Annotated[
        Path | None, typer.Option(help="A new file with private access; else it is printed.")
    ] = None,
    state: StateOption = None,
    tool: ToolOption = None,
    agent: AgentOption = None,
    text: TextOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    journal: JournalOption = None,
) -> None:
    """Export transactions with their effects as one document, secrets hidden; without a filter all of them."""
    with report_errors(), open_journal(journal) as opened:
        wanted = _wanted(state, tool, agent, text, since, until)
        found = [description_of(opened, txn) for txn in opened.transactions.matching_ids(wanted)]
        written = render_export(_form(form), found, datetime.now(UTC).isoformat(timespec="seconds"))
        if out is not None:
            _write_new(out, written)
    typer.echo(written if out is None else f"{len(found)} transactions in {out}", nl=out is not None)
    _exit_if_damaged(sum("unreadable" in one for one in found))


@journal_app.command("new-key")
def new_key(
    file: Annotated[Path, typer.Argument(help="The key file; created with private access if it is missing.")],
) -> None:
    """Append a new key to a key file: secrets are sealed with it from now on, and the other keys still open theirs."""
    with report_errors():
        other = _other_key_file(file)
        key = add_key(file)
    typer.echo(
        f"{file} seals with {key.id} from now on; name it in {JOURNAL_KEY_VARIABLE}, and lose none of its keys"
    )
    if other is not None:
        typer.echo(
            f"but what {str(other)!r} has sealed does not open with it. Either delete {str(file)!r} and add a key "
            f"there (`countersign journal new-key {shlex.quote(str(other))}`), or copy its lines to the front of this",
            err=True,
        )


@journal_app.command("stats")
def stats(
    state: StateOption = None,
    tool: ToolOption = None,
    agent: AgentOption = None,
    text: TextOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    journal: JournalOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count transactions by state, calls by tool, fired and compensated effects, and the time reviews took."""
    with report_errors(), open_journal(journal) as opened:
        wanted = _wanted(state, tool, agent, text, since, until)
        counted = count(opened.database, wanted)
    if as_json:
        print_json(counted)
        return
    print_table(
        ("state", "transactions"),
        [{"state": s, "transactions": n} for s, n in counted["transactions"].items()],
    )
    rows = [*counted["tools"], {"tool": "all"} | counted["effects"]]
    print_table(("tool", *_COUNTED, "stand as"), [row | {"stand as": _states(row["states"])} for row in rows])
    people = counted["people"]
    took = "" if not people["answered"] else f" after {people['median_seconds']:.0f} s (median)"
    typer.echo(f"{people['asked']} calls needed a review and {people['answered']} were decided{took}")


@journal_app.command("verify")
def verify_journal(
    name: Annotated[
        str | None,
        typer.Argument(help="A run key, or a transaction id or its beginning; else everything."),
    ] = None,
    journal: JournalOption = None,
    as_json: JsonOption = False,
) -> None:
    """Recompute every chain and compare it with the rows: changes made without the SDK are named, and it exits 1.

    Anyone who can write the file can recompute all of it, or restore an old copy: the service's log shows that, not
    this command.
    """
    with report_errors():
        found = verify(journal_location(journal), name)
    if as_json:
        print_json({"format": "countersign/journal-verify/v1", "sound": found.sound} | asdict(found))
    else:
        _print_verified(found)
    if not found.sound:
        raise typer.Exit(1)


def _print_verified(found: Verified) -> None:
    if found.sound:
        typer.echo(f"intact: {len(found.chains)} transactions, {found.lines} lines")
        return
    keys = {one.txn: one.key for one in found.chains}
    print_table(
        ("damage", "key", "transaction", "line", "what"),
        [
            {"damage": one.damage.value, "key": keys.get(one.txn or ""), "transaction": (one.txn or "")[:12] or None,
             "line": one.line, "what": one.what}
            for one in found.findings
        ],
    )  # fmt: skip
    typer.echo("not intact: keep the file as it is, and compare with the service's log what it says of these")


def _wanted(
    state: str | None,
    tool: str | None,
    agent: str | None,
    text: str | None,
    since: str | None,
    until: str | None,
) -> TransactionFilter:
    now = time.time()
    return TransactionFilter(state, tool, agent, text, parse_time(since, now), parse_time(until, now))


def _print_summaries(rows: list[dict[str, Any]], as_json: bool, none: str) -> None:
    if as_json:
        print_json(rows)
    else:
        short = [row | {"changed": format_minute(row["changed"])} for row in rows]
        print_table(_SUMMARY, short, none=none, whole={"state", "changed"})
    _exit_if_damaged(sum(row["state"] == DAMAGED for row in rows))


def _exit_if_damaged(count: int) -> None:
    """What could be read was shown; the exit status says that something is missing."""
    if count:
        typer.echo(
            f"{count} of them cannot be read, or not completely, and are shown as damaged; `countersign journal "
            "verify` names what was changed",
            err=True,
        )
        raise typer.Exit(1)


def _other_key_file(file: Path) -> Path | None:
    """The key file currently configured for the journal, if `file` is a new one that would replace it."""
    try:
        known = journal_key_path_from_env() or default_key_path(journal_location(None))
    except SettingsError:
        return (
            None  # no journal is configured, or none that could be read, so there is nothing to compare with
        )
    return known if known is not None and known.exists() and not file.exists() else None


def _states(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} {state}" for state, n in counts.items())


def _form(name: str) -> ExportFormat:
    for form in get_args(ExportFormat):
        if name == form:
            return form  # type: ignore[no-any-return]
    raise MisuseError(f"there is no format {name!r}; there are {', '.join(get_args(ExportFormat))}")


def _write_new(path: Path, text: str) -> None:
    try:
        path.touch(_MODE, exist_ok=False)
        path.write_text(text, encoding="utf-8", newline="")
    except FileExistsError:
        raise MisuseError(
            f"{str(path)!r} is there already; nothing was written: name another --out, or remove it"
        ) from None
    except OSError as error:
        raise MisuseError(f"{str(path)!r} cannot be written: {error.strerror}") from error


def close_journal(
    txn: Annotated[str, typer.Argument(help="The transaction's id, or enough of its beginning.")],
    tools: AllToolsOption,
    by: Annotated[str, typer.Option(help="Your name.")],
    why: Annotated[str, typer.Option(help="What was found and done, for later readers.")],
    as_json: JsonOption = False,
) -> None:
    """Close an unsettled transaction whose live effects were committed in part, after a person has corrected that.

    What its adapters had prepared is undone, and nothing else changes. Its state is closed, never done, and its key is
    used up. Refused for any other transaction, and while a process owns it.
    """
    with report_errors():
        load_tools(*tools)
        with Runtime.from_env() as runtime:
            record = close(runtime.engine(runtime.sync_executor()), txn, by=by, why=why)
            summary = summary_of(runtime.journal, record.txn)
    if as_json:
        print_json(summary)
    else:
        print_members(summary)
