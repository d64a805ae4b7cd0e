"""Output of the command line: one JSON value or text, and a sentence instead of a traceback for each refusal."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from policy_service.errors import ServiceError
from policy_service.pap.problems import BundleError, Problem

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value.")]


@contextlib.contextmanager
def report_errors(as_json: bool = False) -> Iterator[None]:
    """Print a refusal as one sentence and exit with status 1; a bundle's problems as JSON with ``as_json``."""
    try:
        yield
    except BundleError as error:
        if not as_json:
            typer.echo(escape_lines(f"policy-service: {error}"), err=True)
        else:
            print_result(
                {"ok": False, "problems": [problem_json(each) for each in error.problems]}, as_json, ""
            )
        raise typer.Exit(1) from None
    except ServiceError as error:
        typer.echo(escape_lines(f"policy-service: {error}"), err=True)
        raise typer.Exit(1) from None


def problem_json(problem: Problem) -> dict[str, Any]:
    """One problem of a bundle as JSON."""
    return {
        "file": problem.file,
        "line": problem.line,
        "message": problem.message,
        "code": problem.code,
        "level": problem.level,
    }


def escape_unprintable(text: str) -> str:
    """Escape every unprintable character. Names from agents and tokens must not control the reader's terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def escape_lines(text: str) -> str:
    """The same for a text of several lines. Escape untrusted words before they are put into a line."""
    return "\n".join(map(escape_unprintable, text.split("\n")))


def print_result(value: Any, as_json: bool, text: str) -> None:
    typer.echo(json.dumps(value) if as_json else escape_lines(text))
