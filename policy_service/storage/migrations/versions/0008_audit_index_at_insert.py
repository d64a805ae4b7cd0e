"""SQLite gives an audit row its index when it is inserted

It has one writer, so the next index is known there. PostgreSQL keeps the sequencer: its units run concurrently.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: to go back, restore a backup."""
    if op.get_bind().dialect.name != "sqlite":
        return
    # Rows that the service was stopped before it numbered, in the order of writing.
    op.execute(
        """
        UPDATE audit SET idx = waiting.next FROM (
            SELECT line.rowid AS id, highest + row_number() OVER (ORDER BY line.rowid) AS next
            FROM audit AS line, (SELECT coalesce(max(idx), 0) AS highest FROM audit) WHERE line.idx IS NULL
        ) AS waiting WHERE audit.rowid = waiting.id
        """
    )
    op.execute("DROP TRIGGER audit_written_without_index")
    # NULL is for a line above a gap, which a restored backup leaves: it gets its index by an UPDATE.
    op.execute(
        """
        CREATE TRIGGER audit_indexed_without_gap BEFORE INSERT ON audit
        WHEN NEW.idx <> (SELECT coalesce(max(idx), 0) + 1 FROM audit)
        BEGIN SELECT RAISE(ABORT, 'an audit row gets the next index'); END
        """
    )
