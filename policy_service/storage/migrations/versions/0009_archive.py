"""the narrow rows of archived transactions

Archiving deletes the redemptions of a transaction, whose unique key prevents a second one. From then on the trigger
prevents it: no transaction can have an archived id.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from policy_service.storage.types import UtcDateTime

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_SQLITE = (
    """
    CREATE TRIGGER archived_transaction_never_returns BEFORE INSERT ON transactions
    WHEN EXISTS (SELECT 1 FROM archived_transactions WHERE txn = NEW.txn)
    BEGIN SELECT RAISE(ABORT, 'this transaction is archived'); END
    """,
)
_POSTGRESQL = (
    """
    CREATE FUNCTION archived_transaction_never_returns() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF EXISTS (SELECT 1 FROM archived_transactions WHERE txn = NEW.txn) THEN
            RAISE EXCEPTION 'this transaction is archived' USING ERRCODE = 'restrict_violation';
        END IF;
        RETURN NEW;
    END $$
    """,
    """
    CREATE TRIGGER archived_transaction_never_returns BEFORE INSERT ON transactions
    FOR EACH ROW EXECUTE FUNCTION archived_transaction_never_returns()
    """,
)
_OVER = sa.text("state || '' IN ('settled', 'ended')")


def upgrade() -> None:
    """Forward only: to go back, restore a backup."""
    op.create_table(
        "archived_transactions",
        sa.Column("txn", sa.String(64), nullable=False),
        sa.Column("rev", sa.Integer(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("aud", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("file", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("archived_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("txn"),
    )
    op.create_table(
        "spent_effects",
        sa.Column("effect_id", sa.String(64), nullable=False),
        sa.Column("txn", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("redeemer", sa.String(), nullable=True),
        sa.Column("attempt_id", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["txn"], ["archived_transactions.txn"]),
        sa.PrimaryKeyConstraint("effect_id"),
    )
    op.create_index("ix_spent_effects_txn", "spent_effects", ["txn"])
    op.create_index("ix_spent_effects_attempt", "spent_effects", ["redeemer", "attempt_id"])
    op.create_index(
        "ix_transactions_over",
        "transactions",
        ["submitted_at", "txn"],
        sqlite_where=_OVER,
        postgresql_where=_OVER,
    )
    for statement in _SQLITE if op.get_bind().dialect.name == "sqlite" else _POSTGRESQL:
        op.execute(statement)
