"""`countersign plan`: a step without consequences, from a terminal.

The exit status is for scripts: 0 where all of it would go through, 1 where something would be denied (and for any
error), 3 where people would be asked, 4 where the service could not say. Of several, the first of 1, 4, 3.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from countersign.rehearsal.foreseen import DryRun
from countersign.rehearsal.steps import load_step, run_step
from countersign.rerun import run_transaction
from countersign.runtime import Runtime
from countersign.telling import visible
from countersign.terminal import JsonOption, errors_told, json_text, print_json, print_table

DENIED: Final = 1
ASKS_PEOPLE: Final = 3
UNKNOWN: Final = 4
_KEY: Final = "plan"

StepArgument = Annotated[
    str, typer.Argument(help="The step: MODULE:FUNCTION or FILE.py:FUNCTION, a function of the transaction.")
]


def plan(
    step: StepArgument,
    key: Annotated[str, typer.Option(help="Its run key, where the step or a policy looks at it.")] = _KEY,
    as_json: JsonOption = False,
) -> None:
    """Rehearse a step: what the policy would say to each call, what live ones would change. Nothing fires or is kept.

    Ends with 0 where all of it would go through, 1 where something would be denied, 3 where people would be asked, 4
    where the service could not say.
    """
    with errors_told():
        fn = load_step(step)
        with Runtime.from_env() as runtime:
            found: DryRun = run_step(lambda: run_transaction(fn, key=key, dry_run=True, runtime=runtime))
    if as_json:
        print_json({"format": "countersign/plan/v1"} | found.to_json())
    else:
        _print(found)
    if not found.is_clean:
        raise typer.Exit(_status(found))


def _status(found: DryRun) -> int:
    if found.having("deny"):
        return DENIED
    return UNKNOWN if found.having("unknown") else ASKS_PEOPLE


def _print(found: DryRun) -> None:
    print_table(
        ("call", "tool", "args", "decision", "which means"),
        [
            {"call": number, "tool": one.tool, "args": json_text(one.args), "decision": one.decision,
             "which means": one.told}
            for number, one in enumerate(found.effects, start=1)
        ],
    )  # fmt: skip
    for live in found.live:
        typer.echo(visible(f"live {live}"))
    for changed in found.changes:
        typer.echo(visible(f"changes {changed}"))
    typer.echo("nothing fired, nothing was kept")
