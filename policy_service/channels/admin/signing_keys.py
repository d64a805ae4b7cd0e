"""The service's signing keys for the operator: which ones agents may pin, and the change to the next one."""

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
        typer.Option(
            "--compromised", help="Make every key and secret afresh, and publish no old one any more."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Sign with another key from the next start on; with several replicas copy the keys folder to all of them."""
    with report_errors():
        settings = load_settings()
        kid = rotate_keys(settings.key_dir, now=time.time(), compromised=compromised)
        print_result(
            {"current": kid}, as_json, f"the key {kid} signs once the service has been started again"
        )


def issuer_keys(as_json: AsJson = False) -> None:
    """Print the thumbprints of the current, next and previous signing key, for agents to pin."""
    with report_errors():
        kids = [key.kid for key in read_keys(load_settings().key_dir).published]
        print_result({"issuer_keys": kids}, as_json, ",".join(kids))
