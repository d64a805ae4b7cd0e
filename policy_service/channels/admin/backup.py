"""`policy-service backup FILE` and `policy-service restored`: copy the embedded database; take over one that came back.

The keys are never in a backup, and it is refused where the keys are: both together can sign what was never decided.

`restored` refuses a database that has forgotten nothing its mark knows of (unless told that it did), one that another
process of ours is connected to, a mark that is older than the database, keys without a mark. Order: the mark outside
first, so that no service starts on the old epoch any more; then the open transactions one by one; then the epoch in the
database, with the line that says what is lost. Stopped anywhere, it is repeated whole.
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
    file: Annotated[Path, typer.Argument(help="Where to; there must be no such file yet.")],
    as_json: AsJson = False,
) -> None:
    """Copy the embedded database to a file, as one snapshot; the service may run meanwhile."""
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
            "this database is a server's: use pg_dump or a base backup, as docs/how-to/backup.md says"
        )
    path = Path(url.database)
    if not path.is_file():
        raise StartError(f"there is no database {path} yet; run: policy-service init")
    return path


def _require_outside_keys(settings: Settings, file: Path) -> Path:
    keys = settings.key_dir.resolve()
    if keys in file.resolve().parents:
        raise StartError(
            f"{file} lies in the folder of the keys: whoever holds both can sign what was never decided; back up the "
            "keys to another place"
        )
    return file


_TO_CHECK = (
    "agents and keys enrolled since are unknown, and keys revoked since prove things again: policy-service agent list",
    "freezes of agents and tools since are gone, and freezes ended since hold again: policy-service freeze, unfreeze",
    "approvers revoked since decide again: policy-service people, policy-service revoke approver",
    "commits revoked since may have decided what is open: policy-service revoke commit",
    "API keys ended since work again: policy-service agent api-key NAME --revoke",
    "everybody has to sign in again",
)
_NEXT = (
    "start the service, let every agent's host run `countersign resume --tools MODULE` (it tells what it redeemed), "
    "look at the tasks that are left, then run: policy-service unfreeze everything"
)

Reason = Annotated[str, typer.Option(help="Why, in your words; it stays in the log.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")]
AcceptUnmarked = Annotated[
    bool,
    typer.Option(
        "--even-so",
        help="Although it is not behind its mark: it lost commits which the mark had not reached yet.",
    ),
]


def restored(
    reason: Reason = "", dry_run: DryRun = False, even_so: AcceptUnmarked = False, as_json: AsJson = False
) -> None:
    """Take over a restored database: begin another epoch, and make a task of all that may have fired since."""
    with report_errors():
        settings = load_settings()
        with existing_database(settings) as db:
            mark, was = _require_restored(settings, db, even_so)
            told = _summary(mark, was)
            if not dry_run:
                _require_no_other_process(db)
                if not reason.strip():
                    raise StartError(
                        f"{_loss_text(told)}; say why with --reason, or only look with --dry-run"
                    )
                told |= _restore(settings, db, mark, was, reason)
        print_result(told | {"dry_run": dry_run}, as_json, _text(told, dry_run=dry_run))


def _require_restored(settings: Settings, db: Database, even_so: bool) -> tuple[Mark, RestoreStatus]:
    mark, was = read_mark(settings.key_dir), db.read_sync(restore_status)
    if mark is None:
        raise StartError(
            f"there is no epoch.json in {settings.key_dir}: nothing says what this database may have forgotten; copy "
            "the newest one there (of the host that ran, of another replica, of the keys' backup)"
        )
    if was.epoch > mark.epoch and not even_so:
        raise StartError(
            f"this database is in epoch {was.epoch} already, the mark in {settings.key_dir} in epoch {mark.epoch}: it "
            "was declared restored from another host; copy epoch.json from there"
        )
    if not is_behind(mark, was.highest_index, was.epoch) and not even_so:
        raise StartError(
            f"this database ends at audit index {was.highest_index}, and its mark has seen {mark.highest_index}: it "
            f"has forgotten nothing that the mark knows of, and {len(was.open_ones)} open transactions would become "
            "tasks for nothing. If it was restored or lost commits all the same, add --even-so"
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


def _loss_text(told: dict[str, Any]) -> str:
    lost = max(told["marked"] - told["known_to"], 0)
    return (
        f"this database knows nothing after {told['lost_after']}: {lost} lines of its log are lost, as far as the mark "
        f"knows; {len(told['in_doubt'])} open transactions become unknown, a task each effect"
    )


def _text(told: dict[str, Any], *, dry_run: bool) -> str:
    begun = (
        "nothing was changed"
        if dry_run
        else f"epoch {told['epoch']} has begun, everything is frozen, the log goes on at index {told['goes_on_at']}"
    )
    lines = [
        _loss_text(told),
        f"{told['redeemed']} effects were redeemed and not reported: their agents report again, or time makes a task",
        begun,
        "check what was done since then, and do again what must hold:",
        *(f"  - {line}" for line in _TO_CHECK),
        f"next: {_NEXT}",
    ]
    return "\n".join(lines)
