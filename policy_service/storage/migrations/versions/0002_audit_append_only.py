"""the audit log is append-only

Rows are inserted without an index, get one once, and change in no other way. None is ever deleted. The service never
tries; these triggers catch a mistake in a later release.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_FROZEN = ("audit_id", "kind", "actor", "txn", "effect_id", "rev", "agent", "body", "at")

_SQLITE = (
    """
    CREATE TRIGGER audit_never_deleted BEFORE DELETE ON audit
    BEGIN SELECT RAISE(ABORT, 'audit rows are never deleted'); END
    """,
    """
    CREATE TRIGGER audit_indexed_once BEFORE UPDATE ON audit
    WHEN OLD.idx IS NOT NULL OR NEW.idx IS NULL OR {changed}
    BEGIN SELECT RAISE(ABORT, 'audit rows change only by getting their index, once'); END
    """.format(changed=" OR ".join(f"NEW.{name} IS NOT OLD.{name}" for name in _FROZEN)),
    """
    CREATE TRIGGER audit_written_without_index BEFORE INSERT ON audit
    WHEN NEW.idx IS NOT NULL
    BEGIN SELECT RAISE(ABORT, 'the sequencer gives audit rows their index'); END
    """,
)

_POSTGRESQL = (
    """
    CREATE FUNCTION audit_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP IN ('DELETE', 'TRUNCATE') THEN
            RAISE EXCEPTION 'audit rows are never deleted' USING ERRCODE = 'restrict_violation';
        ELSIF TG_OP = 'INSERT' AND NEW.idx IS NOT NULL THEN
            RAISE EXCEPTION 'the sequencer gives audit rows their index' USING ERRCODE = 'restrict_violation';
        ELSIF TG_OP = 'UPDATE' AND (OLD.idx IS NOT NULL OR NEW.idx IS NULL OR {changed}) THEN
            RAISE EXCEPTION 'audit rows change only by getting their index, once'
                USING ERRCODE = 'restrict_violation';
        END IF;
        RETURN NEW;
    END $$
    """.format(changed=" OR ".join(f"NEW.{name} IS DISTINCT FROM OLD.{name}" for name in _FROZEN)),
    """
    CREATE TRIGGER audit_append_only BEFORE INSERT OR UPDATE OR DELETE ON audit
    FOR EACH ROW EXECUTE FUNCTION audit_append_only()
    """,
    """
    CREATE TRIGGER audit_never_truncated BEFORE TRUNCATE ON audit
    FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only()
    """,
)


def upgrade() -> None:
    """Forward only: to go back, restore a backup."""
    for statement in _SQLITE if op.get_bind().dialect.name == "sqlite" else _POSTGRESQL:
        op.execute(statement)
