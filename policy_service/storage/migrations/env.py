"""The script Alembic runs. It uses the connection it is given, never a settings file."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from sqlalchemy import JSON
from sqlmodel import AutoString, SQLModel

# A table is in the metadata once its module is imported.
import policy_service.storage.archive_tables
import policy_service.storage.credential_tables
import policy_service.storage.reservations
import policy_service.storage.review_tables
import policy_service.storage.slack_tables
import policy_service.storage.system_tables
import policy_service.storage.tables  # noqa: F401
from policy_service.storage.types import UtcDateTime


def render(kind: str, item: Any, _autogen: object) -> str | Literal[False]:
    """Render our own types by name; False leaves the others to Alembic."""
    if kind != "type":
        return False
    if isinstance(item, UtcDateTime):
        return "UtcDateTime()"
    if isinstance(item, AutoString):
        return f"sa.String({item.length})" if item.length else "sa.String()"
    return "Json" if isinstance(item, JSON) else False


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    render_item=render,
    render_as_batch=True,  # SQLite changes a column by rebuilding its table
    transactional_ddl=True,  # our SQLite engine begins every transaction itself
    transaction_per_migration=True,
    compare_type=True,
    compare_server_default=True,
)
with context.begin_transaction():
    context.run_migrations()
