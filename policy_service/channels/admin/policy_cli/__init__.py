"""Commands for policy authors: check, test, new, fmt, schema, diff, explain, calls, replay."""

from __future__ import annotations

import typer

from policy_service.channels.admin.policy_cli import (
    check,
    diff,
    explain,
    fmt,
    new,
    replay,
    run_cases,
)


def add_author_verbs(app: typer.Typer) -> None:
    """Add the commands for policy authors."""
    app.command("check")(check.check)
    app.command("test")(run_cases.run_cases)
    app.command("new")(new.new)
    app.command("fmt")(fmt.fmt)
    app.command("schema")(check.schema)
    app.command("diff")(diff.diff)
    app.command("explain")(explain.explain_call)
    app.command("calls")(replay.calls)
    app.command("replay")(replay.replay_calls)
