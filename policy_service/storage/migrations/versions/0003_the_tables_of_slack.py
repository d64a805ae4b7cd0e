"""the tables of Slack

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from policy_service.storage.types import UtcDateTime

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: what a step changes, a backup brings back."""
    op.create_table(
        "slack_cards",
        sa.Column("card_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("place", sa.String(), nullable=False),
        sa.Column("review_id", sa.String(), nullable=True),
        sa.Column("effect_id", sa.String(), nullable=True),
        sa.Column("rev", sa.Integer(), nullable=True),
        sa.Column("digest_id", sa.String(), nullable=True),
        sa.Column("channel", sa.String(), nullable=True),
        sa.Column("ts", sa.String(), nullable=True),
        sa.Column("drawn", sa.String(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("posted_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint("kind IN ('card', 'digest')", name="slack_card_kind_known"),
        sa.PrimaryKeyConstraint("card_id"),
        sa.UniqueConstraint("review_id", "place", name="uq_slack_cards_review"),
    )
    with op.batch_alter_table("slack_cards", schema=None) as batch_op:
        batch_op.create_index("ix_slack_cards_digest", ["digest_id"], unique=False)
        batch_op.create_index("ix_slack_cards_effect", ["effect_id"], unique=False)
        batch_op.create_index("ix_slack_cards_place", ["place", "kind", "card_id"], unique=False)

    op.create_table(
        "slack_deliveries",
        sa.Column("delivery", sa.String(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("delivery"),
    )
    with op.batch_alter_table("slack_deliveries", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_slack_deliveries_at"), ["at"], unique=False)

    op.create_table(
        "slack_invitations",
        sa.Column("secret_hash", sa.String(), nullable=False),
        sa.Column("team_id", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("account", sa.String(), nullable=False),
        sa.Column("email", sa.String(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("used_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("secret_hash"),
    )
    with op.batch_alter_table("slack_invitations", schema=None) as batch_op:
        batch_op.create_index("ix_slack_invitations_over", ["expires_at"], unique=False)

    op.create_table(
        "slack_links",
        sa.Column("team_id", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("iss", sa.String(), nullable=False),
        sa.Column("sub", sa.String(), nullable=False),
        sa.Column("assurance", sa.String(), nullable=False),
        sa.Column("trust", sa.String(), nullable=True),
        sa.Column("account", sa.String(), nullable=False),
        sa.Column("direct", sa.Boolean(), nullable=False),
        sa.Column("linked_at", UtcDateTime(), nullable=False),
        sa.Column("linked_by", sa.String(), nullable=False),
        sa.Column("signed_out_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("team_id", "user_id"),
    )
    with op.batch_alter_table("slack_links", schema=None) as batch_op:
        batch_op.create_index("ix_slack_links_person", ["iss", "sub"], unique=False)

    op.create_table(
        "slack_places",
        sa.Column("place", sa.String(), nullable=False),
        sa.Column("channel", sa.String(), nullable=True),
        sa.Column("not_before", UtcDateTime(), nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("last_error", sa.String(), nullable=True),
        sa.Column("since", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("place"),
    )
    op.create_table(
        "slack_standing",
        sa.Column("team_id", sa.String(), nullable=False),
        sa.Column("upto", sa.BigInteger(), nullable=False),
        sa.Column("not_before", UtcDateTime(), nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("last_error", sa.String(), nullable=True),
        sa.Column("since", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("team_id"),
    )
