"""Shared by the identity tests: settings, and audit lines."""

from pathlib import Path
from typing import Any

from sqlalchemy import select

from countersign.contract import load
from policy_service.settings import Settings
from policy_service.storage.core import table
from policy_service.storage.database import Database
from policy_service.storage.system_tables import AuditRow
from tests.unit.storage.databases import START, Clock

__all__ = ["START", "Clock", "lines", "settings"]

AUDIT = table(AuditRow)


def settings(folder: Path, **given: Any) -> Settings:
    """The defaults, with everything in a folder of the test."""
    return Settings(data_dir=folder, **given)


def lines(db: Database) -> list[tuple[str, str, Any]]:
    """(kind, actor, body) of the log, as it was written."""
    query = select(AUDIT.c.kind, AUDIT.c.actor, AUDIT.c.body).order_by(AUDIT.c.audit_id)
    found = db.read_sync(lambda conn: conn.execute(query).all())
    return [(kind, actor, load(body)) for kind, actor, body in found]
