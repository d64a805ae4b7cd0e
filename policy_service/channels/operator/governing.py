"""The policies from the command line: let a commit follow that does not descend from the one in force."""

from __future__ import annotations

from typing import Annotated

import typer

from policy_service.channels.operator.socket import place_of, run_verb
from policy_service.channels.operator.speaking import AsJson, say, sentences
from policy_service.errors import StartError
from policy_service.settings import load_settings

policies_app = typer.Typer(no_args_is_help=True, help="The policies this service follows.")


@policies_app.command("accept")
def accept(
    commit: Annotated[str, typer.Argument(help="The commit in full, as the refusal names it.")],
    reason: Annotated[str, typer.Option(help="Why, in your words; it stays in the log.", prompt=True)],
    as_json: AsJson = False,
) -> None:
    """Let a rewritten or rewound branch come into force, once and for this commit only."""
    with sentences():
        settings = load_settings()
        if not settings.policies_repository:
            raise StartError("policies_repository is not set: a folder has no history to keep to")
        done = {**run_verb(settings, "policies-accept", {"commit": commit, "reason": reason})}
        done["database"] = place_of(settings)
        text = (
            f"{commit} comes into force at the next look, if the branch is there by then, it loads and is signed as "
            f"asked for\n(in the database {done['database']})"
        )
        say(done, as_json, text)
