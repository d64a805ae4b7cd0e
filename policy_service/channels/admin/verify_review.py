"""``verify-review``: what an exported review proves, and what it asks to be believed. It needs no service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from countersign.contract import ContractError, KeySet, load
from policy_service.channels.admin.output import AsJson, escape_unprintable, print_result
from policy_service.workflow.review_export.verification import VerificationInput, VerificationReport, verify

_LARGEST = 64 * 1024 * 1024  # bytes; a review with the largest args has about a megabyte

File = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, help="The file, as GET /v1/reviews/ID/export gave it.")
]
Pin = Annotated[
    list[str] | None,
    typer.Option(help="ISSUER|SUBJECT=KEY: this person uses this key (sha-256, hex); may come often."),
]
Origin = Annotated[
    str | None, typer.Option(help="Where people decide, for example https://sign.example.com.")
]
Jwks = Annotated[
    Path | None,
    typer.Option(exists=True, help="The deployment's /.well-known/jwks.json, got by another way."),
]


def verify_review(
    file: File, pin: Pin = None, origin: Origin = None, jwks: Jwks = None, as_json: AsJson = False
) -> None:
    """Verify an exported review offline; 0 only where nothing is wrong."""
    if file.stat().st_size > _LARGEST:
        raise typer.BadParameter(f"{file} is larger than any review")
    keys = _keys(jwks)
    report = verify(file.read_bytes(), VerificationInput(_pins(pin or []), origin, keys))
    told = {"holds": report.holds, "anchored": keys is not None, **vars(report)}
    print_result(told, as_json, _text(report, anchored=keys is not None))
    if not report.holds:
        raise typer.Exit(1)


def _text(report: VerificationReport, *, anchored: bool) -> str:
    parts = (("PROVEN", report.proven), ("BELIEVED", report.trusted), ("WRONG", report.faults))
    lines = [f"{head:9} {escape_unprintable(line)}" for head, found in parts for line in found]
    verdict = "THIS REVIEW DOES NOT HOLD"
    if report.holds:
        verdict = (
            "this review holds" if anchored else "this review holds in itself; anybody could have sealed it"
        )
    return "\n".join([*lines, verdict])


def _pins(given: list[str]) -> dict[str, frozenset[str]]:
    pins: dict[str, frozenset[str]] = {}
    for one in given:
        person, equals, key = one.rpartition("=")
        if not equals or "|" not in person or len(key) != 64:
            raise typer.BadParameter(
                f"{one!r} is no pin; write 'ISSUER|SUBJECT=KEY', with the key's SHA-256 in hex"
            )
        pins[person] = pins.get(person, frozenset()) | {key.lower()}
    return pins


def _keys(file: Path | None) -> KeySet | None:
    if file is None:
        return None
    try:
        return KeySet.from_jwks(load(file.read_bytes()))
    except (ContractError, TypeError, ValueError) as error:
        raise typer.BadParameter(f"{file} is no key set of ours: {error}") from error
