"""effects.reads

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: to go back, restore a backup. Existing effects count as writes."""
    op.add_column("effects", sa.Column("reads", sa.Boolean(), nullable=False, server_default=sa.false()))
