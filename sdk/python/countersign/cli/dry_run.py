"""`countersign plan` and `countersign journal replay`: run a step without consequences.

The step is `my_agent:close_ticket` or `./my_agent.py:close_ticket`, a function that takes the transaction. Its module
is imported like those of `--tools`.

Exit status of `replay`: 0 if the step does what was recorded, 1 if it does not (and for any error). Exit status of
`plan`: 0 if everything would be released, 1 if something would be denied, 2 if the step could not be run to its end, 3
if something would need a review, 4 if the service could not answer; if several apply, the first of 1, 4, 3. A live call
that is denied ends the step, as it would in a real run.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer

from countersign.cli.terminal import (
    JournalOption,
    JsonOption,
    journal_location,
    print_json,
    print_table,
    report_errors,
)
from countersign.errors import CountersignError, Denied, MisuseError, ReviewRequired, ServiceUnavailable
from countersign.errors.execution import error_location
from countersign.journal.export import escape_unprintable, json_text
from countersign.runtime import Runtime
from countersign.simulation.dry_run_report import DryRun
from countersign.simulation.replay import Mode, replay
from countersign.simulation.replay_report import ReplayResult, require_mode
from countersign.texts import text_of
from countersign.tools.registry import load_tools
from countersign.transactions.rerun import require_step, run_transaction
from countersign.transactions.transaction import Transaction


def load_step(target: str) -> Callable[[Transaction], Any]:
    """Import the module or file, and return its function.

    Raises:
        MisuseError: it names no function, the module cannot be imported, or has none of that name.
    """
    name, _, function = target.rpartition(":")
    if not name or not function.isidentifier():
        raise MisuseError(
            f"{target!r} names no step; write MODULE:FUNCTION or FILE.py:FUNCTION, like my_agent:close_ticket"
        )
    load_tools(name)
    module = sys.modules[Path(name).stem if name.endswith(".py") else name]
    found = getattr(module, function, None)
    if found is None:
        raise MisuseError(f"{name!r} has no {function!r}; name a function in it that takes the transaction")
    return require_step(found, f"what runs {target!r}", f"`def {function}(txn):` in {name}")


def run_step(call: Callable[[], Any]) -> Any:
    """Call a step; an async one on an event loop. Its output goes to stderr, because stdout may be a document."""
    with contextlib.redirect_stdout(sys.stderr):
        answer = call()
        return asyncio.run(answer) if inspect.iscoroutine(answer) else answer


DENIED: Final = 1
NOT_RUN: Final = 2
ASKS_PEOPLE: Final = 3
UNKNOWN: Final = 4
_KEY: Final = "plan"

StepArgument = Annotated[
    str, typer.Argument(help="The step: MODULE:FUNCTION or FILE.py:FUNCTION, a function of the transaction.")
]


def plan(
    step: StepArgument,
    key: Annotated[str, typer.Option(help="Its run key, if the step or a policy uses it.")] = _KEY,
    as_json: JsonOption = False,
) -> None:
    """Dry-run a step: the policy's decision for each call, and the changes of live ones. Nothing fires or is kept.

    Exits 0 if everything would be released, 1 if something would be denied, 2 if the step could not be run to its end,
    3 if something would need a review, 4 if the service could not answer.
    """
    with _report_ends():
        fn = load_step(step)
        with Runtime.from_env() as runtime:
            found: DryRun = run_step(lambda: run_transaction(fn, key=key, dry_run=True, runtime=runtime))
    if as_json:
        print_json({"format": "countersign/plan/v1"} | found.to_json())
    else:
        _print(found)
    if not found.is_clean:
        raise typer.Exit(_status(found))


_ENDS: Final[dict[type[CountersignError], int]] = {
    Denied: DENIED,
    ReviewRequired: ASKS_PEOPLE,
    ServiceUnavailable: UNKNOWN,
}


@contextmanager
def _report_ends() -> Iterator[None]:
    """Report what ends the step. A refused live call ends it with the exit status of a refused staged one. Any other
    exception is reported in one line, because a traceback would print lines of the program.
    """
    try:
        yield
    except CountersignError as ended:
        typer.echo(f"{ended.code}: {escape_unprintable(text_of(ended))}", err=True)
        raise typer.Exit(_ENDS.get(type(ended), NOT_RUN)) from ended
    except Exception as raised:
        message = f"the step raised {type(raised).__name__}: {text_of(raised)} ({error_location(raised)})"
        typer.echo(escape_unprintable(message), err=True)
        raise typer.Exit(NOT_RUN) from raised


def _status(found: DryRun) -> int:
    if found.having("deny"):
        return DENIED
    return UNKNOWN if found.having("unknown") else ASKS_PEOPLE


def _print(found: DryRun) -> None:
    print_table(
        ("call", "tool", "args", "decision", "which means"),
        [
            {"call": number, "tool": one.tool, "args": json_text(one.args), "decision": one.decision,
             "which means": one.summary}
            for number, one in enumerate(found.effects, start=1)
        ],
    )  # fmt: skip
    for live in found.live:
        typer.echo(escape_unprintable(f"live {live}"))
    for changed in found.changes:
        typer.echo(escape_unprintable(f"changes {changed}"))
    typer.echo("nothing fired, nothing was kept")


def replay_journal(
    key: Annotated[str, typer.Argument(help="A run key, or a transaction id or its beginning.")],
    step: Annotated[str, typer.Option("--step", help="The step: MODULE:FUNCTION or FILE.py:FUNCTION.")],
    mode: Annotated[
        str, typer.Option(help="verify runs live calls again and undoes them; reconstruct runs nothing.")
    ] = "verify",
    export: Annotated[
        Path | None,
        typer.Option("--from", help="An export of `journal export --format json`, instead of a journal."),
    ] = None,
    journal: JournalOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a step again and report differences from the record. Nothing fires, no review opens.

    Exits 0 if it does what was recorded, and 1 if it does not.
    """
    with report_errors():
        require_mode(mode)
        fn = load_step(step)
        place = None if export is not None else journal_location(journal)
        found: ReplayResult = run_step(
            lambda: replay(key, fn, mode=cast("Mode", mode), export=export, journal=place)
        )
    if as_json:
        print_json({"format": "countersign/replay/v1"} | found.to_json())
    else:
        _print_replayed(found)
    if found.divergences:
        raise typer.Exit(1)


def _print_replayed(found: ReplayResult) -> None:
    print_table(
        ("lane", "call", "tool", "args", "outcome", "result"),
        [
            {"lane": one.lane, "call": one.position, "tool": one.tool, "args": one.args, "outcome": one.outcome,
             "result": one.recorded}
            for one in found.outcomes
        ],
    )  # fmt: skip
    for divergence in found.divergences:
        typer.echo(f"differs: {divergence}")
    for unchecked in found.unchecked:
        typer.echo(escape_unprintable(f"unchecked: {unchecked}"))
    typer.echo(f"{found.status}; nothing fired")
