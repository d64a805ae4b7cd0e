"""people.groups_problem

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: to go back, restore a backup. The next sign-in fills it."""
    op.add_column("people", sa.Column("groups_problem", sa.String(), nullable=True))
