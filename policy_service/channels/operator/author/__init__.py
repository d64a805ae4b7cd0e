"""The commands for authors of policies; none of them needs a running service."""

from __future__ import annotations

import typer

from policy_service.channels.operator.author import (
    checking,
    differing,
    explaining,
    formatting,
    replaying,
    starting,
    testing,
)


def add_author_verbs(app: typer.Typer) -> None:
    """Put the authors' commands on the command line."""
    app.command("check")(checking.check)
    app.command("test")(testing.run_cases)
    app.command("new")(starting.new)
    app.command("fmt")(formatting.fmt)
    app.command("schema")(checking.schema)
    app.command("diff")(differing.diff)
    app.command("explain")(explaining.explain_call)
    app.command("calls")(replaying.calls)
    app.command("replay")(replaying.replay_calls)
