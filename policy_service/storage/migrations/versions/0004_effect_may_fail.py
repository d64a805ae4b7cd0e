"""effects.may_fail

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: to go back, restore a backup. Existing effects may not fail."""
    op.add_column("effects", sa.Column("may_fail", sa.Boolean(), nullable=False, server_default=sa.false()))
