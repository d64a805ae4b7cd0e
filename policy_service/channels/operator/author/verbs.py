"""The author's verbs, and what each is called."""

from __future__ import annotations

import typer

from policy_service.channels.operator.author import (
    checking,
    differing,
    explaining,
    exporting,
    formatting,
    replaying,
    schema,
    starting,
    testing,
)


def add_author_verbs(app: typer.Typer) -> None:
    """Put every verb of this room on the command line."""
    app.command("check")(checking.check)
    app.command("test")(testing.run_cases)
    app.command("new")(starting.new)
    app.command("fmt")(formatting.fmt)
    app.command("schema")(schema.schema)
    app.command("diff")(differing.diff)
    app.command("explain")(explaining.explain_call)
    app.command("calls")(exporting.calls)
    app.command("replay")(replaying.replay_calls)
