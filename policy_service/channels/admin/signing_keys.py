"""``policy-service rotate-keys`` and ``issuer-keys``: the service's signing keys."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from policy_service.channels.admin.output import AsJson, print_result, report_errors
from policy_service.settings import load_settings
from policy_service.tokens.keys import read_keys, rotate_keys


def add_commands(app: typer.Typer) -> None:
    """Add `rotate-keys` and `issuer-keys`."""
    app.command("rotate-keys")(rotate)
    app.command("issuer-keys")(issuer_keys)


def rotate(
    compromised: Annotated[
        bool,
        typer.Option("--compromised", help="Replace every key and secret, and publish no old key."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Rotate the signing key. It is used from the next start. Copy the keys folder to all replicas."""
    with report_errors():
        settings = load_settings()
        kid = rotate_keys(settings.key_dir, now=time.time(), compromised=compromised)
        print_result({"current": kid}, as_json, f"the key {kid} signs after the next start of the service")


def issuer_keys(as_json: AsJson = False) -> None:
    """Print the thumbprints of the current, next and previous signing key, which agents pin."""
    with report_errors():
        kids = [key.kid for key in read_keys(load_settings().key_dir).published]
        print_result({"issuer_keys": kids}, as_json, ",".join(kids))
