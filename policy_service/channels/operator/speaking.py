"""How the command line answers: one JSON value or a sentence, and never a trace when the service refuses."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from policy_service.errors import ServiceError
from policy_service.pap.problems import BundleError

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value.")]


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """End in a sentence, never in a trace, when the service refuses."""
    try:
        yield
    except (ServiceError, BundleError) as error:
        typer.echo(f"policy-service: {error}", err=True)
        raise typer.Exit(1) from None


def visible(text: str) -> str:
    """Text with everything that is not printable written out, as the SDK's command line has it: what an agent or a
    token calls something must not move the reader's cursor.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def say(value: Any, as_json: bool, text: str) -> None:
    typer.echo(json.dumps(value) if as_json else text)
