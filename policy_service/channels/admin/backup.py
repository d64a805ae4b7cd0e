"""``policy-service backup FILE`` and ``policy-service restored``: back up the embedded database; resume a restored one.

A backup never contains the keys and is refused inside the keys folder: both together could sign effects that were never
decided.

`restored` refuses a database that is not behind its epoch mark (without --even-so), one that another process of the
service is connected to, a mark older than the database, and keys without a mark. It first writes the mark, so that no
service can start with the old epoch. Then it marks the open transactions one by one, then writes the new epoch with an
audit row that says what is lost. After an interruption it is repeated from the start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy import make_url

from policy_service.channels.admin.output import AsJson, print_result, report_errors
from policy_service.channels.admin.socket import existing_database, is_embedded
from policy_service.errors import StartError
from policy_service.settings import Settings, load_settings
from policy_service.storage.database import Database
from policy_service.storage.sqlite import backup_to
from policy_service.storage.types import time_text
from policy_service.tokens.epoch import Mark, is_behind, read_mark, write_mark
from policy_service.workflow.revocation.restore import (
    RestoreStatus,
    begin_restored_epoch,
    mark_transaction_unknown,
    restore_status,
)


def backup(
    file: Annotated[Path, typer.Argument(help="The new file; it must not exist.")],
    as_json: AsJson = False,
) -> None:
    """Copy the embedded database to a file, as one snapshot. The service may be running."""
    with report_errors():
        settings = load_settings()
        backup_to(_database(settings), _require_outside_keys(settings, file))
        print_result(
            {"file": str(file), "bytes": file.stat().st_size}, as_json, f"copied the database to {file}"
        )


def _database(settings: Settings) -> Path:
    url = make_url(settings.database_url)
    if not is_embedded(settings) or not url.database:
        raise StartError(
            "this database is on a server: use pg_dump or a base backup, see docs/how-to/backup.md"
        )
    path = Path(url.database)
    if not path.is_file():
        raise StartError(f"there is no database {path} yet; run: policy-service init")
    return path


def _require_outside_keys(settings: Settings, file: Path) -> Path:
    keys = settings.key_dir.resolve()
    if keys in file.resolve().parents:
        raise StartError(
            f"{file} is in the keys folder: with both, effects could be signed that were never decided; back up the "
            "keys to another place"
        )
    return file


_TO_CHECK = (
    "agents and keys enrolled since are unknown, and keys revoked since are valid again: policy-service agent list",
    "freezes since are lost, and freezes ended since are active again: policy-service freeze, unfreeze",
    "approvers revoked since can decide again: policy-service people, policy-service revoke approver",
    "commits revoked since may have decided open effects: policy-service revoke commit",
    "API keys revoked since are valid again: policy-service agent api-key NAME --revoke",
    "everyone has to sign in again",
)
_NEXT = (
    "start the service, run `countersign resume --tools MODULE` on every agent's host (it reports what was redeemed), "
    "settle the remaining tasks, then run: policy-service unfreeze everything"
)

Reason = Annotated[str, typer.Option(help="The reason; it is recorded in the audit log.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would change, and change nothing.")]
AcceptUnmarked = Annotated[
    bool,
    typer.Option(
        "--even-so",
        help="Proceed although it is not behind its mark: it lost commits that the mark had not recorded.",
    ),
]


def restored(
    reason: Reason = "", dry_run: DryRun = False, even_so: AcceptUnmarked = False, as_json: AsJson = False
) -> None:
    """Resume a restored database: begin a new epoch, and open a task for every effect that may have fired since."""
    with report_errors():
        settings = load_settings()
        with existing_database(settings) as db:
            mark, was = _require_restored(settings, db, even_so)
            summary = _summary(mark, was)
            if not dry_run:
                _require_no_other_process(db)
                if not reason.strip():
                    raise StartError(
                        f"{_loss_text(summary)}; give the reason with --reason, or use --dry-run"
                    )
                summary |= _restore(settings, db, mark, was, reason)
        print_result(summary | {"dry_run": dry_run}, as_json, _text(summary, dry_run=dry_run))


def _require_restored(settings: Settings, db: Database, even_so: bool) -> tuple[Mark, RestoreStatus]:
    mark, was = read_mark(settings.key_dir), db.read_sync(restore_status)
    if mark is None:
        raise StartError(
            f"there is no epoch.json in {settings.key_dir}, so it is unknown what this database may have lost; copy "
            "the newest one there (from the host that ran, another replica, or the keys' backup)"
        )
    if was.epoch > mark.epoch and not even_so:
        raise StartError(
            f"this database is in epoch {was.epoch} already, the mark in {settings.key_dir} in epoch {mark.epoch}: it "
            "was declared restored from another host; copy epoch.json from there"
        )
    if not is_behind(mark, was.highest_index, was.epoch) and not even_so:
        raise StartError(
            f"this database ends at audit index {was.highest_index}, and its mark is at {mark.highest_index}: nothing "
            f"that the mark recorded is lost, and {len(was.open_ones)} open transactions would become tasks without "
            "need. If the database was restored or lost commits nevertheless, add --even-so"
        )
    return mark, was


def _require_no_other_process(db: Database) -> None:
    if others := db.count_other_connections():
        raise StartError(
            f"{others} connections of other processes of policy-service are open; stop every replica first"
        )


def _restore(settings: Settings, db: Database, mark: Mark, was: RestoreStatus, reason: str) -> dict[str, Any]:
    epoch = max(mark.epoch, was.epoch) + 1
    write_mark(settings.key_dir, Mark(epoch, mark.highest_index))
    for txn, rev in was.open_ones:
        db.write_sync(lambda tx, txn=txn, rev=rev: mark_transaction_unknown(tx, txn, rev, reason))  # type: ignore[misc]
    index = db.write_sync(lambda tx: begin_restored_epoch(tx, was, epoch, mark.highest_index, reason))
    write_mark(settings.key_dir, Mark(epoch, index))
    return {"epoch": epoch, "goes_on_at": index}


def _summary(mark: Mark, was: RestoreStatus) -> dict[str, Any]:
    return {
        "was_epoch": was.epoch,
        "known_to": was.highest_index,
        "marked": mark.highest_index,
        "lost_after": time_text(was.lost_after),
        "in_doubt": [txn for txn, _ in was.open_ones],
        "redeemed": was.redeemed,
        "check": list(_TO_CHECK),
        "next": _NEXT,
    }


def _loss_text(summary: dict[str, Any]) -> str:
    lost = max(summary["marked"] - summary["known_to"], 0)
    return (
        f"this database has nothing after {summary['lost_after']}: by its mark, {lost} audit rows are lost; "
        f"{len(summary['in_doubt'])} open transactions become unknown, with one task for each effect"
    )


def _text(summary: dict[str, Any], *, dry_run: bool) -> str:
    begun = (
        "nothing was changed"
        if dry_run
        else f"epoch {summary['epoch']} has begun, everything is frozen, the log continues at {summary['goes_on_at']}"
    )
    lines = [
        _loss_text(summary),
        f"{summary['redeemed']} effects were redeemed and not reported: agents report again, or they become tasks",
        begun,
        "check these changes since then, and repeat what is needed:",
        *(f"  - {line}" for line in _TO_CHECK),
        f"next: {_NEXT}",
    ]
    return "\n".join(lines)
