"""`countersign`: commands for an agent's tools, journal and budgets.

`resume` finishes parked and interrupted transactions, `worker` does so continuously, `accept` and `decline` respond to
a reviewer's proposal, `answer` responds to reviewers' questions, `plan` is a dry run of a step (dry_run.py), `tools
list | export` shows tools and drafts their manifests for review, `tools catalogue | take` has ready ones
(catalogue.py), `journal` reads the journal and closes unsettled transactions (journal.py), `budget` shows model usage
and settles unknown calls (budgets.py). Text from an agent or a tool is shown with control characters made visible.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from countersign.cli.budgets import budget_app
from countersign.cli.catalogue import show_catalogue, take
from countersign.cli.dry_run import plan, replay_journal
from countersign.cli.journal import close_journal, journal_app
from countersign.cli.terminal import (
    AllToolsOption,
    JsonOption,
    ToolsOption,
    print_json,
    print_table,
    report_errors,
)
from countersign.contract import digests
from countersign.contract.codes import ErrorCode
from countersign.errors import CountersignError, MisuseError, ServiceRefused
from countersign.errors.pending import Question, open_questions
from countersign.integrations.errors import require_package
from countersign.journal.export import escape_unprintable, json_text
from countersign.manifests.drafts import manifest_json
from countersign.manifests.export import ExportedDraft, export_drafts, export_manifests
from countersign.manifests.mcp_drafts import MAX_LISTING_BYTES, mcp_drafts
from countersign.recovery.recovery import RecoveryResult, resume_async
from countersign.recovery.worker import run_worker
from countersign.runtime import Runtime
from countersign.tools.definition import Tool
from countersign.tools.registry import load_tools, modules_in_folder

app: Final = typer.Typer(no_args_is_help=True, add_completion=False, help="Agents' tools and journal.")
tools_app: Final = typer.Typer(no_args_is_help=True, help="The tools an agent may ask for.")
app.add_typer(tools_app, name="tools")
app.add_typer(journal_app, name="journal")
app.add_typer(budget_app, name="budget")
app.command("plan")(plan)
tools_app.command("catalogue")(show_catalogue)
tools_app.command("take")(take)
journal_app.command("replay")(replay_journal)
journal_app.command("close")(close_journal)

_KEPT_UP: Final = 3  # exit status; 2 means a usage error
_LEAST_PAUSE_SECONDS: Final = 0.1  # the least time between two rounds of --follow

_NEXT: Final = (
    "These are drafts and count for nothing yet. Next: review them like code (risk, money, recipients, the sentence "
    "people read), move them into tools/ of your policies' bundle, commit, and write a permit for each action."
)

OptionalToolsOption = Annotated[
    str | None,
    typer.Option("--tools", help="Module or file that defines the tools, like my_agent or ./my_agent.py."),
]
McpOption = Annotated[
    str | None,
    typer.Option("--mcp", help="File with an MCP server's answer to tools/list; - reads it from the input."),
]


@journal_app.command("recover")
@journal_app.command("resume")
@app.command("recover", hidden=True)  # an alias for users who expect this name
@app.command()
def resume(
    tools: AllToolsOption,
    follow: Annotated[
        float | None, typer.Option(help="Repeat every so many seconds until no review is open.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fire what was approved since it was parked, and finish what a crash interrupted.

    Exits 0 if all is finished or waits for a review, 3 if something else is open (an unknown outcome, an unavailable
    service), and 1 if nothing could be read.
    """
    with report_errors():
        load_tools(*tools)
        with Runtime.from_env() as runtime:
            found = asyncio.run(_resume(runtime, follow, as_json))
    _exit_if_unfinished(found)


@app.command()
def worker(
    tools: AllToolsOption,
    once: Annotated[bool, typer.Option("--once", help="Go through the journal once and end.")] = False,
    every: Annotated[float, typer.Option(min=_LEAST_PAUSE_SECONDS, help="Seconds between two looks.")] = 5.0,
    as_json: JsonOption = False,
) -> None:
    """Fire effects as they are approved, until the worker is stopped.

    Several workers may share one journal. SIGTERM or Ctrl-C lets the firing effect finish, and begins no other. With
    --once it exits like `resume`.
    """
    found: list[RecoveryResult] = []
    teller = _progress_printer(as_json)

    def tell(one: RecoveryResult) -> None:
        if once:
            found.append(one)
        teller(one)

    with report_errors():
        load_tools(*tools)
        with Runtime.from_env() as runtime:
            asyncio.run(run_worker(runtime, tell, every_seconds=None if once else every))
    if not once:
        typer.echo("stopped")
    _exit_if_unfinished(found)


@app.command()
def accept(proposal: Annotated[str, typer.Argument(help="The id a ReviewPending error names.")]) -> None:
    """Accept the arguments a reviewer proposes, as the agent: a new review opens, and nothing fires here."""
    with report_errors(), Runtime.from_env() as runtime:
        view = runtime.client().accept_proposal(proposal)
    typer.echo(f"accepted: {escape_unprintable(view.run_key)} is at revision {view.rev}, {view.state.value}")


@app.command()
def decline(
    proposal: Annotated[str, typer.Argument(help="The id a ReviewPending error names.")],
    reason: Annotated[str | None, typer.Option(help="A reason for the reviewer who proposed it.")] = None,
) -> None:
    """Keep the arguments as they are, as the agent; the review stays open."""
    with report_errors(), Runtime.from_env() as runtime:
        view = runtime.client().decline_proposal(proposal, reason)
    typer.echo(f"declined: {escape_unprintable(view.run_key)} is at revision {view.rev}, {view.state.value}")


@app.command()
def answer(
    key: Annotated[str, typer.Argument(help="The run key of the step with the question.")],
    text: Annotated[
        str | None, typer.Argument(help="The answer; without it, the questions are shown.")
    ] = None,
    question: Annotated[str | None, typer.Option(help="The question's id, if several are open.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show reviewers' questions about a step, or answer one. Reviewers see the answer as the agent's claim."""
    with report_errors(), Runtime.from_env() as runtime:
        questions = _open_questions(runtime, key)
        if text is not None:
            runtime.client().answer(*_chosen(questions, question), text)
            typer.echo("answered")
            return
    if as_json:
        print_json([asdict(one) for one in questions])
        return
    for one in questions:
        typer.echo(escape_unprintable(f"{one.question_id}: {one} ({one.asked_at})"))
    if not questions:
        typer.echo("no question is open")


def _open_questions(runtime: Runtime, key: str) -> tuple[Question, ...]:
    """The open questions about the step with this run key, as one transaction or as independent ones.

    Raises:
        MisuseError: this agent has no such step, in its journal or on the service.
    """
    journal, client = runtime.journal, runtime.client()
    known = {record.txn for record in journal.transactions.find(key) if record.run_key == key}
    txns = known or {digests.txn_id(agent=runtime.settings.agent, run_key=key)}
    try:
        return tuple(one for txn in sorted(txns) for one in open_questions(client.view(txn)))
    except ServiceRefused as refused:
        if refused.problem_code != ErrorCode.NOT_FOUND:
            raise
        raise MisuseError(
            f"{key!r} never had a review; `countersign journal list` shows the keys there are"
        ) from None


def _chosen(questions: Sequence[Question], question_id: str | None) -> tuple[str, str]:
    """The review and the question to answer.

    Raises:
        MisuseError: there is none, or several and no id was given.
    """
    found = [one for one in questions if question_id in {None, one.question_id}]
    if len(found) == 1:
        return found[0].review_id, found[0].question_id
    if found:
        named = ", ".join(one.question_id for one in found)
        raise MisuseError(
            f"{len(found)} questions are open; name the one you answer: --question one of {named}"
        )
    raise MisuseError(
        "there is no such question, or it was answered already; leave the text out to see the open ones"
    )


@tools_app.command("export")
def export(
    tools: OptionalToolsOption = None,
    mcp: McpOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; else drafts/ next to each module.")
    ] = None,
    prefix: Annotated[
        str, typer.Option(help="With --mcp: goes before each tool's name, as in gate_mcp(..., prefix=...).")
    ] = "",
    force: Annotated[
        bool, typer.Option(help="Replace drafts that are there already; reviewed manifests never.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a draft manifest for every tool, for people to review and put into the bundle."""
    with report_errors():
        if (tools is None) is (mcp is None):
            raise MisuseError("name the tools: either --tools MODULE or --mcp FILE")
        if tools is not None and prefix:
            raise MisuseError("--prefix is for the tools of an MCP server; name those of code in @tool(NAME)")
        if mcp is not None:
            _export_listing(mcp, prefix, out, force=force, as_json=as_json)
            return
        registry = load_tools(tools or "")
        exported = export_drafts(registry, out, force=force)
    for each in registry:
        for lacking in registry.unmet(each):
            typer.echo(f"{each.name}: {lacking}", err=True)
    if as_json:
        print_json([_exported_line(one) for one in exported])
        return
    for one in exported:
        kept = "" if one.written else "kept as it was, --force replaces it: "
        typer.echo(f"{one.tool}: {kept}{one.path}")
    typer.echo(_NEXT)


def _exported_line(one: ExportedDraft) -> dict[str, Any]:
    return {"tool": one.tool, "path": str(one.path), "written": one.written}


def _export_listing(mcp: str, prefix: str, out: Path | None, *, force: bool, as_json: bool) -> None:
    """Draft the tools of an MCP server. Each one that cannot be drafted is named, and the command then exits 1."""
    require_package("jsonschema", extra="mcp")
    drafts, notes = mcp_drafts(_listing(mcp), prefix)
    made = [one.manifest for one in drafts if one.manifest is not None]
    exported = {one.tool: _exported_line(one) for one in export_manifests(made, out, force=force)}
    rows: list[dict[str, Any]] = [
        {"tool": one.tool, "path": None, "written": False}
        | ({} if one.manifest is None else exported[one.manifest.tool])
        | {"notes": list(one.notes), "problems": list(one.problems)}
        for one in drafts
    ]
    if as_json:
        print_json({"tools": rows, "notes": list(notes)})
    else:
        for line in _listing_lines(rows, notes):
            typer.echo(escape_unprintable(line))
    if any(one.problems for one in drafts):
        raise typer.Exit(1)


def _listing(mcp: str) -> bytes:
    """The listing's bytes, up to one more than the limit."""
    if mcp == "-":
        return sys.stdin.buffer.read(MAX_LISTING_BYTES + 1)
    try:
        with Path(mcp).open("rb") as file:
            return file.read(MAX_LISTING_BYTES + 1)
    except OSError as error:
        raise MisuseError(f"{mcp!r} cannot be read: {error.strerror}") from error


def _listing_lines(rows: list[dict[str, Any]], notes: tuple[str, ...]) -> Iterator[str]:
    yield from notes
    for one in rows:
        kept = "" if one["written"] or one["problems"] else "kept as it was, --force replaces it: "
        yield f"{one['tool']}: {kept}{one['path'] or 'no draft'}"
        yield from (f"  cannot be taken: {problem}" for problem in one["problems"])
        yield from (f"  review: {note}" for note in one["notes"])
    yield _NEXT


@tools_app.command("list")
def list_tools(tools: ToolsOption, as_json: JsonOption = False) -> None:
    """List every tool as its code declares it: what it acts on, whether it reads or writes, what is missing."""
    with report_errors():
        registry = load_tools(tools, connected=True)
        listed = [_tool_line(one) | {"missing": list(registry.unmet(one))} for one in registry]
    if as_json:
        files = modules_in_folder(Path(tools).resolve().parent)
        print_json({"tools": listed, "files": [str(path) for path in files]})
        return
    rows = [one | {"problem": "; ".join(filter(None, (one["problem"], *one["missing"])))} for one in listed]
    print_table(("tool", "lane", "kind", "resource", "problem"), rows)


def _tool_line(one: Tool) -> dict[str, Any]:
    line: dict[str, Any] = {
        "tool": one.name,
        "lane": one.lane,
        "kind": None,
        "resource": None,
        "draft": None,
        "problem": None,
    }
    try:
        draft = one.draft_manifest()
    except CountersignError as error:
        return line | {"problem": str(error)}
    kind = "read" if draft.reads else "write"
    resource = f"{draft.resource.type} {draft.resource.id}"
    return line | {"kind": kind, "resource": resource, "draft": manifest_json(draft).decode()}


async def _resume(runtime: Runtime, follow: float | None, as_json: bool) -> list[RecoveryResult]:
    while True:
        found = await resume_async(runtime)
        _print_resumed(found, as_json)
        if follow is None or not any(one.waiting for one in found):
            return found
        await asyncio.sleep(max(follow, _LEAST_PAUSE_SECONDS))


def _exit_if_unfinished(found: list[RecoveryResult]) -> None:
    """Tell a scheduler, by the exit status, that something could not be finished."""
    if any(one.needs_attention for one in found):
        raise typer.Exit(_KEPT_UP)


def _progress_printer(as_json: bool) -> Callable[[RecoveryResult], None]:
    """Print each change of a transaction as one line, at once."""

    def tell(one: RecoveryResult) -> None:
        typer.echo(json_text(_resumed(one)) if as_json else _line(one))
        sys.stdout.flush()

    return tell


def _resumed(one: RecoveryResult) -> dict[str, Any]:
    return asdict(one) | {"kept_up": one.needs_attention}


def _line(one: RecoveryResult) -> str:
    before, after = one.before or "damaged", one.after or "damaged"
    return f"{escape_unprintable(one.run_key or one.txn[:12])}: {before} -> {after}: {escape_unprintable(one.note)}"


def _print_resumed(found: list[RecoveryResult], as_json: bool) -> None:
    if as_json:
        print_json([_resumed(one) for one in found])
        return
    if not found:
        typer.echo("nothing is left to finish")
    for one in found:
        typer.echo(_line(one))
