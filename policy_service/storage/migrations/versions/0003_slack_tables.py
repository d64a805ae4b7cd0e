"""Slack tables

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
    """Forward only: to go back, restore a backup."""
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
    op.create_index("ix_slack_cards_digest", "slack_cards", ["digest_id"])
    op.create_index("ix_slack_cards_effect", "slack_cards", ["effect_id"])
    op.create_index("ix_slack_cards_place", "slack_cards", ["place", "kind", "card_id"])

    op.create_table(
        "slack_deliveries",
        sa.Column("delivery", sa.String(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("delivery"),
    )
    op.create_index("ix_slack_deliveries_at", "slack_deliveries", ["at"])

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
    op.create_index("ix_slack_invitations_over", "slack_invitations", ["expires_at"])

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
    op.create_index("ix_slack_links_person", "slack_links", ["iss", "sub"])

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
