"""``policy-service verify-review``: verify an exported or archived review, and list what it proves and what it assumes.

Neither the service nor its database is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from countersign.contract import ContractError, KeySet, load
from policy_service.channels.admin.output import AsJson, escape_unprintable, print_result, report_errors
from policy_service.errors import StartError
from policy_service.settings import load_settings
from policy_service.storage.archive_files import archive_files, find_export
from policy_service.workflow.review_export.verification import VerificationInput, VerificationReport, verify

_LARGEST = 64 * 1024 * 1024  # bytes; a review with the largest args has about a megabyte

File = Annotated[
    Path | None,
    typer.Argument(
        exists=True,
        help="The file from GET /v1/reviews/ID/export; with --review, a file or the folder of the archive.",
    ),
]
Review = Annotated[
    str | None,
    typer.Option(
        help="The id of an archived review, read from FILE, or else from the archive_dir of the settings."
    ),
]
Pin = Annotated[
    list[str] | None,
    typer.Option(help="ISSUER|SUBJECT=KEY: this person's key (SHA-256, hex). May be repeated."),
]
Origin = Annotated[
    str | None, typer.Option(help="The service's public URL, for example https://sign.example.com.")
]
Jwks = Annotated[
    Path | None,
    typer.Option(exists=True, help="The deployment's /.well-known/jwks.json, obtained independently."),
]


def verify_review(
    file: File = None,
    review: Review = None,
    pin: Pin = None,
    origin: Origin = None,
    jwks: Jwks = None,
    as_json: AsJson = False,
) -> None:
    """Verify an exported or archived review offline. Exits 0 only if it is valid."""
    keys = _keys(jwks)
    raw, trusted = _exported(file) if review is None else _archived(file, review)
    report = verify(raw, VerificationInput(_pins(pin or []), origin, keys))
    report.trusted += trusted
    result = {"holds": report.holds, "anchored": keys is not None, **vars(report)}
    print_result(result, as_json, _text(report, anchored=keys is not None))
    if not report.holds:
        raise typer.Exit(1)


def _exported(file: Path | None) -> tuple[bytes, list[str]]:
    if file is None or not file.is_file():
        raise typer.BadParameter("name the file of one review, or an archived review with --review")
    if file.stat().st_size > _LARGEST:
        raise typer.BadParameter(f"{file} is larger than any review")
    return file.read_bytes(), []


def _archived(path: Path | None, review_id: str) -> tuple[bytes, list[str]]:
    """The sealed export in the archive, and what it leaves to be compared."""
    with report_errors():
        path = path or load_settings().archive_dir
        if (found := find_export(archive_files(path), review_id)) is None:
            raise StartError(f"no complete line in {path} has the review {review_id!r}")
    raw, digest = found
    return raw, [f"that the audit log's row rows_archived of its transaction has the digest {digest}"]


def _text(report: VerificationReport, *, anchored: bool) -> str:
    parts = (("PROVEN", report.proven), ("BELIEVED", report.trusted), ("WRONG", report.faults))
    lines = [f"{head:9} {escape_unprintable(line)}" for head, found in parts for line in found]
    if not report.holds:
        verdict = "THIS REVIEW IS NOT VALID"
    elif anchored:
        verdict = "this review is valid"
    else:
        verdict = "this review is consistent, but anyone could have created it; add --jwks"
    return "\n".join([*lines, verdict])


def _pins(given: list[str]) -> dict[str, frozenset[str]]:
    pins: dict[str, frozenset[str]] = {}
    for one in given:
        person, equals, key = one.rpartition("=")
        if not equals or "|" not in person or len(key) != 64:
            raise typer.BadParameter(
                f"{one!r} is not a pin; write 'ISSUER|SUBJECT=KEY', with the key's SHA-256 in hex"
            )
        pins[person] = pins.get(person, frozenset()) | {key.lower()}
    return pins


def _keys(file: Path | None) -> KeySet | None:
    if file is None:
        return None
    try:
        return KeySet.from_jwks(load(file.read_bytes()))
    except (ContractError, TypeError, ValueError) as error:
        raise typer.BadParameter(f"{file} is not a key set of this service: {error}") from error
