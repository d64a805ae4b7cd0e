"""`countersign`: what a person does with an agent's tools and journal from a terminal.

`resume` finishes what is parked or was interrupted, `tools export` drafts manifests for review, `journal list
| show` reads the journal. Text that came from an agent or a tool is shown with control characters made
visible, and arguments a manifest calls secret are not shown at all. The composition happens here; every
decision is somewhere else.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import orjson
import typer
from rich.console import Console
from rich.table import Table

from countersign.drafting import manifest_json
from countersign.errors import CountersignError, MisuseError
from countersign.journal import Journal
from countersign.manifests import manifest_path
from countersign.recovery import Resumed
from countersign.resuming import resume_async
from countersign.runtime import Runtime
from countersign.settings import journal_path_from_env
from countersign.telling import describe, summary, visible
from countersign.tool import Tool, ToolRegistry, default_registry

app: Final = typer.Typer(no_args_is_help=True, add_completion=False, help="Agents' tools and journal.")
tools_app: Final = typer.Typer(no_args_is_help=True, help="The tools an agent may ask for.")
journal_app: Final = typer.Typer(no_args_is_help=True, help="What was staged, asked, fired.")
app.add_typer(tools_app, name="tools")
app.add_typer(journal_app, name="journal")

_MAX_LISTED: Final = 50
_PROMPT_SECONDS: Final = 0.1  # the least time between two rounds of --follow

ToolsOption = Annotated[
    str,
    typer.Option("--tools", help="Module or file that defines the tools, like my_agent or ./my_agent.py."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")]
JournalOption = Annotated[
    Path | None,
    typer.Option("--journal", help="Journal file; else COUNTERSIGN_JOURNAL, else the agent's own."),
]


@app.command()
def resume(
    tools: ToolsOption,
    follow: Annotated[
        float | None, typer.Option(help="Look again every so many seconds until nothing waits for people.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fire what was approved since it was parked, and finish what a crash interrupted."""
    with _told():
        load_tools(tools)
        with Runtime.from_env() as runtime:
            asyncio.run(_resume(runtime, follow, as_json))


@tools_app.command("export")
def export(
    tools: ToolsOption,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; else tools/ beside each module.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Replace manifests that are there already.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a draft manifest for every tool, for people to review and put into the bundle."""
    with _told():
        written = [_export(one, out, force=force) for one in load_tools(tools)]
    if as_json:
        _print_json([{"tool": name, "path": str(path), "written": new} for name, path, new in written])
        return
    for name, path, new in written:
        typer.echo(f"{name}: {path}" if new else f"{name}: kept {path} (--force replaces it)")


@journal_app.command("list")
def list_journal(
    journal: JournalOption = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")] = _MAX_LISTED,
    as_json: JsonOption = False,
) -> None:
    """List transactions, newest first."""
    with _told(), _journal(journal) as opened:
        rows = [summary(opened, record) for record in opened.transactions.newest(limit)]
    if as_json:
        _print_json(rows)
        return
    _print_table(("key", "state", "effects", "changed", "note"), rows)


@journal_app.command("show")
def show_journal(
    name: Annotated[str, typer.Argument(help="A run key, a transaction id, or the beginning of one.")],
    journal: JournalOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one transaction with its effects, their arguments and what became of them."""
    with _told(), _journal(journal) as opened:
        found = opened.transactions.find(name)
        if not found:
            raise MisuseError(
                f"the journal has no transaction {name!r}; `countersign journal list` shows what it has"
            )
        told = [describe(opened, record) for record in found]
    if as_json:
        _print_json(told)
        return
    for one in told:
        effects = one.pop("effects")
        for key, value in one.items():
            typer.echo(f"{key}: {visible(str(value))}")
        _print_table(("lane", "seq", "tool", "state", "args", "result", "error"), effects)


def load_tools(name: str) -> ToolRegistry:
    """Import the module or file that defines the tools, as `python NAME` would find it.

    Raises:
        MisuseError: there is no such module, or it registers no tool.
    """
    path = Path(name)
    if path.suffix == ".py":
        _import_file(path.resolve())
    else:
        sys.path.insert(0, str(Path.cwd()))
        _import_module(name)
    if not list(default_registry):
        raise MisuseError(f"{name!r} defines no tools; decorate functions with @tool")
    return default_registry


def _import_module(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise  # the module is there, something it imports is not
        raise MisuseError(f"no module {name!r} here; name a module or a file ending in .py") from error


def _import_file(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise MisuseError(f"no file {str(path)!r}; name a module or a file ending in .py")
    sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)


async def _resume(runtime: Runtime, follow: float | None, as_json: bool) -> None:
    while True:
        found = await resume_async(runtime)
        _print_resumed(found, as_json)
        if follow is None or not any(one.waiting for one in found):
            return
        await asyncio.sleep(max(follow, _PROMPT_SECONDS))


def _print_resumed(found: list[Resumed], as_json: bool) -> None:
    if as_json:
        _print_json([{name: getattr(one, name) for name in Resumed.__dataclass_fields__} for one in found])
        return
    if not found:
        typer.echo("nothing is left to finish")
    for one in found:
        typer.echo(f"{visible(one.run_key)}: {one.before} -> {one.after}: {visible(one.note)}")


def _export(one: Tool, out: Path | None, *, force: bool) -> tuple[str, Path, bool]:
    path = manifest_path(one) if out is None else out / f"{one.name}.json"
    if path is None:
        raise MisuseError(f"tool {one.name!r} has no source file; name a folder with --out")
    raw = manifest_json(one.draft_manifest())
    if path.exists() and not force:
        return one.name, path, False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return one.name, path, True


@contextmanager
def _journal(path: Path | None) -> Iterator[Journal]:
    chosen = path or journal_path_from_env()
    if not chosen.is_file():
        raise MisuseError(f"there is no journal at {str(chosen)!r}; name one with --journal")
    opened = Journal(chosen)
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def _told() -> Iterator[None]:
    """Errors of ours are sentences for people; everything else is a bug and keeps its traceback."""
    try:
        yield
    except CountersignError as error:
        typer.echo(f"{error.code}: {visible(str(error))}", err=True)
        raise typer.Exit(1) from error


def _print_json(value: Any) -> None:
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def _print_table(columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    table = Table(*columns)
    for row in rows:
        table.add_row(*("" if row[name] is None else visible(str(row[name])) for name in columns))
    Console(markup=False, highlight=False).print(table)
