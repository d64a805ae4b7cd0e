"""shorter index of denied effects

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """PostgreSQL refuses an index row above 2,704 bytes, so a denied effect with a longer resource id could not be
    stored.
    """
    op.drop_index("ix_effects_denied", "effects")
    op.create_index(
        "ix_effects_denied",
        "effects",
        ["agent", "tool", "resource_key", "changed_at"],
        sqlite_where=sa.text("state = 'denied'"),
        postgresql_where=sa.text("state = 'denied'"),
    )
