"""``policy-service calls``: the recorded calls of the last days, one a line, for ``replay`` and ``diff --calls``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from policy_service.channels.operator.socket import run_verb
from policy_service.channels.operator.speaking import sentences
from policy_service.settings import load_settings

Days = Annotated[int, typer.Option("--days", min=1, max=3650, help="How far back.")]
WithSecrets = Annotated[
    bool,
    typer.Option("--with-secrets", help="Keep arguments that the manifest calls secret; guard the file."),
]


def calls(days: Days = 7, with_secrets: WithSecrets = False) -> None:
    """Print what agents submitted in the last days, one JSON object a line, and change nothing.

    Without --with-secrets secret arguments are replaced, and a replay says where a rule would have read one.
    """
    with sentences():
        for call in run_verb(load_settings(), "recorded-calls", {"days": days, "with_secrets": with_secrets}):
            typer.echo(json.dumps(call, sort_keys=True))
