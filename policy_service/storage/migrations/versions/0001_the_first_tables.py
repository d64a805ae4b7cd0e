"""the first tables

Revision ID: 0001
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from policy_service.storage.types import Json, UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: what a step changes, a backup brings back."""
    op.create_table(
        "agents",
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("owner", sa.String(), nullable=True),
        sa.Column("roles", Json, nullable=False),
        sa.Column("teams", Json, nullable=False),
        sa.Column("enrolled_at", UtcDateTime(), nullable=False),
        sa.Column("frozen_at", UtcDateTime(), nullable=True),
        sa.Column("frozen_by", sa.String(), nullable=True),
        sa.Column("frozen_reason", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("name"),
    )
    with op.batch_alter_table("agents", schema=None) as batch_op:
        batch_op.create_index(
            "ix_agents_frozen",
            ["name"],
            unique=False,
            sqlite_where=sa.text("frozen_at IS NOT NULL"),
            postgresql_where=sa.text("frozen_at IS NOT NULL"),
        )

    op.create_table(
        "attempts",
        sa.Column("redeemer", sa.String(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("txn", sa.String(), nullable=False),
        sa.Column("rev", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("jkt", sa.String(), nullable=True),
        sa.Column("fire_by", UtcDateTime(), nullable=False),
        sa.Column("redeemed_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("redeemer", "attempt_id"),
    )
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_attempts_txn"), ["txn"], unique=False)

    op.create_table(
        "audit",
        sa.Column("audit_id", sa.String(), nullable=False),
        sa.Column("idx", sa.BigInteger(), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("txn", sa.String(), nullable=True),
        sa.Column("effect_id", sa.String(), nullable=True),
        sa.Column("rev", sa.Integer(), nullable=True),
        sa.Column("agent", sa.String(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("audit_id"),
    )
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.create_index("ix_audit_agent", ["agent", "audit_id"], unique=False)
        batch_op.create_index(
            "ix_audit_bundles",
            ["audit_id"],
            unique=False,
            sqlite_where=sa.text("kind IN ('bundle_activated', 'bundle_refused', 'bundle_override')"),
            postgresql_where=sa.text("kind IN ('bundle_activated', 'bundle_refused', 'bundle_override')"),
        )
        batch_op.create_index(batch_op.f("ix_audit_effect_id"), ["effect_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_audit_idx"), ["idx"], unique=True)
        batch_op.create_index("ix_audit_kind", ["kind", "audit_id"], unique=False)
        batch_op.create_index(
            "ix_audit_person",
            ["actor", "audit_id"],
            unique=False,
            sqlite_where=sa.text("substr(actor, 1, 7) = 'person:'"),
            postgresql_where=sa.text("substr(actor, 1, 7) = 'person:'"),
        )
        batch_op.create_index("ix_audit_txn", ["txn", "audit_id"], unique=False)

    op.create_table(
        "challenges",
        sa.Column("nonce_hash", sa.String(), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("iss", sa.String(), nullable=False),
        sa.Column("sub", sa.String(), nullable=False),
        sa.Column("session", sa.String(), nullable=False),
        sa.Column("about", Json, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("used_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint("purpose IN ('enrol', 'vouch', 'vote')", name="purpose_known"),
        sa.PrimaryKeyConstraint("nonce_hash"),
    )
    with op.batch_alter_table("challenges", schema=None) as batch_op:
        batch_op.create_index("ix_challenges_over", ["expires_at"], unique=False)

    op.create_table(
        "decisions",
        sa.Column("decision_id", sa.String(), nullable=False),
        sa.Column("effect_id", sa.String(), nullable=False),
        sa.Column("rev", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("cause", sa.String(), nullable=False),
        sa.Column("policies", Json, nullable=False),
        sa.Column("gates", Json, nullable=False),
        sa.Column("reasons", Json, nullable=False),
        sa.Column("unseen", Json, nullable=False),
        sa.Column("facts", Json, nullable=False),
        sa.Column("history", Json, nullable=False),
        sa.Column("bundle", sa.String(), nullable=False),
        sa.Column("commit", sa.String(), nullable=False),
        sa.Column("decided_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("decision_id"),
    )
    with op.batch_alter_table("decisions", schema=None) as batch_op:
        batch_op.create_index("ix_decisions_effect", ["effect_id", "rev"], unique=False)

    op.create_table(
        "effects",
        sa.Column("effect_id", sa.String(64), nullable=False),
        sa.Column("rev", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("compensates", sa.String(), nullable=True),
        sa.Column("txn", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("tool", sa.String(), nullable=False),
        sa.Column("tool_digest", sa.String(), nullable=False),
        sa.Column("resource_type", sa.String(), nullable=False),
        sa.Column("resource_id", sa.String(), nullable=False),
        sa.Column("resource_key", sa.String(), nullable=False),
        sa.Column("recipients_key", sa.String(), nullable=True),
        sa.Column("args", sa.LargeBinary(), nullable=False),
        sa.Column("args_digest", sa.String(), nullable=False),
        sa.Column("effect_digest", sa.String(), nullable=False),
        sa.Column("call_key", sa.String(), nullable=False),
        sa.Column("compensation", Json, nullable=True),
        sa.Column("secret", Json, nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("decision_id", sa.String(), nullable=False),
        sa.Column("gates", Json, nullable=False),
        sa.Column("valid_for_s", sa.Integer(), nullable=False),
        sa.Column("lapses_at", UtcDateTime(), nullable=True),
        sa.Column("redeemed_by", sa.String(), nullable=True),
        sa.Column("fire_by", UtcDateTime(), nullable=True),
        sa.Column("unknown_at", UtcDateTime(), nullable=True),
        sa.Column("result", sa.LargeBinary(), nullable=True),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("taken_back", sa.String(), nullable=True),
        sa.Column("settlements", Json, nullable=False),
        sa.Column("metered", sa.Boolean(), nullable=False),
        sa.Column("asked_at", UtcDateTime(), nullable=False),
        sa.Column("changed_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint("kind IN ('effect', 'compensate')", name="kind_known"),
        sa.CheckConstraint(
            "state IN ('review', 'released', 'denied', 'expired', 'withdrawn', 'revoked', 'redeemed', 'fired', 'failed', 'unknown', 'unused', 'compensating', 'compensated', 'compensation_failed')",
            name="state_known",
        ),
        sa.PrimaryKeyConstraint("effect_id", "rev"),
    )
    with op.batch_alter_table("effects", schema=None) as batch_op:
        batch_op.create_index(
            "ix_effects_denied",
            ["agent", "tool", "resource_type", "resource_id", "changed_at"],
            unique=False,
            sqlite_where=sa.text("state = 'denied'"),
            postgresql_where=sa.text("state = 'denied'"),
        )
        batch_op.create_index("ix_effects_kind", ["agent", "tool", "asked_at"], unique=False)
        batch_op.create_index("ix_effects_lapse", ["state", "lapses_at"], unique=False)
        batch_op.create_index("ix_effects_recipients", ["tool", "recipients_key", "asked_at"], unique=False)
        batch_op.create_index("ix_effects_resource", ["tool", "resource_key", "asked_at"], unique=False)
        batch_op.create_index("ix_effects_state", ["state", "unknown_at"], unique=False)
        batch_op.create_index("ix_effects_txn", ["txn", "rev", "seq"], unique=False)

    op.create_table(
        "idempotency_keys",
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("route", sa.String(), nullable=False),
        sa.Column("body_digest", sa.String(), nullable=False),
        sa.Column("resource", sa.String(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("agent", "key"),
    )
    with op.batch_alter_table("idempotency_keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_idempotency_keys_created_at"), ["created_at"], unique=False)

    op.create_table(
        "leases",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "logout_tokens",
        sa.Column("iss", sa.String(), nullable=False),
        sa.Column("jti", sa.String(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("iss", "jti"),
    )
    op.create_table(
        "meta",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "outbox",
        sa.Column("outbox_id", sa.String(), nullable=False),
        sa.Column("lane", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("payload", Json, nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", UtcDateTime(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("give_up_at", UtcDateTime(), nullable=True),
        sa.Column("last_error", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("outbox_id"),
    )
    with op.batch_alter_table("outbox", schema=None) as batch_op:
        batch_op.create_index("ix_outbox_due", ["state", "next_at"], unique=False)
        batch_op.create_index("ix_outbox_lane", ["lane", "state", "next_at"], unique=False)

    op.create_table(
        "passkeys",
        sa.Column("passkey_id", sa.String(), nullable=False),
        sa.Column("credential_id", sa.String(), nullable=False),
        sa.Column("key_digest", sa.String(), nullable=False),
        sa.Column("public_key", sa.LargeBinary(), nullable=False),
        sa.Column("iss", sa.String(), nullable=False),
        sa.Column("sub", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("sign_count", sa.Integer(), nullable=False),
        sa.Column("vouched_by", sa.String(), nullable=True),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("counts_from", UtcDateTime(), nullable=False),
        sa.Column("last_used_at", UtcDateTime(), nullable=True),
        sa.Column("removed_at", UtcDateTime(), nullable=True),
        sa.Column("removed_by", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("passkey_id"),
        sa.UniqueConstraint("credential_id"),
        sa.UniqueConstraint("key_digest"),
    )
    with op.batch_alter_table("passkeys", schema=None) as batch_op:
        batch_op.create_index("ix_passkeys_person", ["iss", "sub"], unique=False)

    op.create_table(
        "people",
        sa.Column("iss", sa.String(), nullable=False),
        sa.Column("sub", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("email", sa.String(), nullable=True),
        sa.Column("groups", Json, nullable=False),
        sa.Column("groups_at", UtcDateTime(), nullable=True),
        sa.Column("first_seen_at", UtcDateTime(), nullable=False),
        sa.Column("last_seen_at", UtcDateTime(), nullable=False),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("iss", "sub"),
    )
    op.create_table(
        "policy_heads",
        sa.Column("what", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("commit", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=True),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.CheckConstraint("what IN ('active', 'override', 'refused')", name="what_known"),
        sa.PrimaryKeyConstraint("what"),
    )
    op.create_table(
        "reservations",
        sa.Column("ordinal", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("effect_id", sa.String(), nullable=False),
        sa.Column("rev", sa.Integer(), nullable=False),
        sa.Column("field", sa.String(), nullable=False),
        sa.Column("tool", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("resource", sa.String(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("reserved_at", UtcDateTime(), nullable=False),
        sa.Column("given_back_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint("amount >= 0", name="amount_not_negative"),
        sa.PrimaryKeyConstraint("ordinal"),
        sa.UniqueConstraint("effect_id", "rev", "field", name="uq_reservations_effect"),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("reservations", schema=None) as batch_op:
        batch_op.create_index(
            "ix_reservations_agent",
            ["agent", "field", "tool", "reserved_at", "amount"],
            unique=False,
            sqlite_where=sa.text("given_back_at IS NULL"),
            postgresql_where=sa.text("given_back_at IS NULL"),
        )
        batch_op.create_index(
            "ix_reservations_resource",
            ["resource", "field", "tool", "reserved_at", "amount"],
            unique=False,
            sqlite_where=sa.text("given_back_at IS NULL"),
            postgresql_where=sa.text("given_back_at IS NULL"),
        )

    op.create_table(
        "review_groups",
        sa.Column("asked", sa.String(), nullable=False),
        sa.Column("review_id", sa.String(), nullable=False),
        sa.Column("answer_by", UtcDateTime(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("asked", "review_id"),
    )
    with op.batch_alter_table("review_groups", schema=None) as batch_op:
        batch_op.create_index("ix_review_groups_due", ["asked", "answer_by", "review_id"], unique=False)
        batch_op.create_index("ix_review_groups_review", ["review_id"], unique=False)

    op.create_table(
        "reviews",
        sa.Column("review_id", sa.String(), nullable=False),
        sa.Column("effect_id", sa.String(), nullable=False),
        sa.Column("rev", sa.Integer(), nullable=False),
        sa.Column("txn", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("tool", sa.String(), nullable=False),
        sa.Column("risk", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("edited_by", Json, nullable=False),
        sa.Column("opened_at", UtcDateTime(), nullable=False),
        sa.Column("answer_by", UtcDateTime(), nullable=False),
        sa.Column("settled_at", UtcDateTime(), nullable=True),
        sa.Column("break_glass_at", UtcDateTime(), nullable=True),
        sa.Column("remind_at", UtcDateTime(), nullable=True),
        sa.Column("reminded_at", UtcDateTime(), nullable=True),
        sa.Column("escalate_at", UtcDateTime(), nullable=True),
        sa.Column("escalates", Json, nullable=False),
        sa.Column("escalated", Json, nullable=False),
        sa.Column("unanswerable", sa.String(), nullable=True),
        sa.CheckConstraint(
            "state IN ('open', 'met', 'denied', 'expired', 'withdrawn', 'revoked')", name="review_state_known"
        ),
        sa.PrimaryKeyConstraint("review_id"),
        sa.UniqueConstraint("effect_id", "rev", name="uq_reviews_effect"),
    )
    with op.batch_alter_table("reviews", schema=None) as batch_op:
        batch_op.create_index("ix_reviews_agent", ["agent", "state", "answer_by", "review_id"], unique=False)
        batch_op.create_index(
            "ix_reviews_break_glass",
            ["break_glass_at"],
            unique=False,
            sqlite_where=sa.text("break_glass_at IS NOT NULL"),
            postgresql_where=sa.text("break_glass_at IS NOT NULL"),
        )
        batch_op.create_index("ix_reviews_due", ["state", "answer_by", "review_id"], unique=False)
        batch_op.create_index("ix_reviews_escalate", ["state", "escalate_at"], unique=False)
        batch_op.create_index("ix_reviews_newest", ["state", "review_id"], unique=False)
        batch_op.create_index("ix_reviews_remind", ["state", "remind_at"], unique=False)
        batch_op.create_index("ix_reviews_settled", ["settled_at", "review_id"], unique=False)

    op.create_table(
        "sessions",
        sa.Column("id_hash", sa.String(), nullable=False),
        sa.Column("iss", sa.String(), nullable=False),
        sa.Column("sub", sa.String(), nullable=False),
        sa.Column("assurance", sa.String(), nullable=False),
        sa.Column("trust", sa.String(), nullable=True),
        sa.Column("sid", sa.String(), nullable=True),
        sa.Column("csrf_token", sa.String(), nullable=False),
        sa.Column("auth_at", UtcDateTime(), nullable=True),
        sa.Column("told_at", UtcDateTime(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("seen_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id_hash"),
    )
    with op.batch_alter_table("sessions", schema=None) as batch_op:
        batch_op.create_index("ix_sessions_person", ["iss", "sub"], unique=False)
        batch_op.create_index("ix_sessions_sid", ["iss", "sid"], unique=False)

    op.create_table(
        "shadow_differences",
        sa.Column("candidate", sa.String(), nullable=False),
        sa.Column("effect_id", sa.String(), nullable=False),
        sa.Column("rev", sa.Integer(), nullable=False),
        sa.Column("idx", sa.BigInteger(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("way", sa.String(), nullable=False),
        sa.Column("tool", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("active", sa.String(), nullable=False),
        sa.Column("before", Json, nullable=False),
        sa.Column("after", Json, nullable=False),
        sa.PrimaryKeyConstraint("candidate", "effect_id", "rev"),
    )
    with op.batch_alter_table("shadow_differences", schema=None) as batch_op:
        batch_op.create_index("ix_shadow_differences_newest", ["candidate", "idx"], unique=False)

    op.create_table(
        "shadows",
        sa.Column("candidate", sa.String(), nullable=False),
        sa.Column("commit", sa.String(), nullable=False),
        sa.Column("since", UtcDateTime(), nullable=False),
        sa.Column("upto", sa.BigInteger(), nullable=False),
        sa.Column("compared", sa.Integer(), nullable=False),
        sa.Column("looser", sa.Integer(), nullable=False),
        sa.Column("stricter", sa.Integer(), nullable=False),
        sa.Column("other", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("candidate"),
    )
    with op.batch_alter_table("shadows", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_shadows_since"), ["since"], unique=False)

    op.create_table(
        "sign_in_links",
        sa.Column("token_hash", sa.String(), nullable=False),
        sa.Column("iss", sa.String(), nullable=False),
        sa.Column("sub", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("used_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("token_hash"),
    )
    op.create_table(
        "stops",
        sa.Column("what", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("what"),
    )
    op.create_table(
        "tasks",
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("txn", sa.String(), nullable=False),
        sa.Column("effect_id", sa.String(), nullable=False),
        sa.Column("rev", sa.Integer(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("opened_at", UtcDateTime(), nullable=False),
        sa.Column("settled_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint(
            "kind IN ('unknown', 'restored', 'compensation_failed', 'compensation_due', 'standing', 'contradiction', 'impossible_quorum', 'break_glass_review')",
            name="kind_known",
        ),
        sa.PrimaryKeyConstraint("task_id"),
    )
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.create_index("ix_tasks_effect", ["effect_id", "kind"], unique=False)
        batch_op.create_index("ix_tasks_kind", ["kind", "state", "task_id"], unique=False)
        batch_op.create_index("ix_tasks_state", ["state", "task_id"], unique=False)

    op.create_table(
        "views",
        sa.Column("view_digest", sa.String(64), nullable=False),
        sa.Column("material", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("view_digest"),
    )
    op.create_table(
        "webhooks",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("upto", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("not_before", UtcDateTime(), nullable=True),
        sa.Column("disabled_at", UtcDateTime(), nullable=True),
        sa.Column("last_error", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "agent_keys",
        sa.Column("kid", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("x", sa.String(), nullable=False),
        sa.Column("added_at", UtcDateTime(), nullable=False),
        sa.Column("issuer", sa.String(), nullable=True),
        sa.Column("trust", sa.String(), nullable=True),
        sa.Column("expires_at", UtcDateTime(), nullable=True),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["agent"],
            ["agents.name"],
        ),
        sa.PrimaryKeyConstraint("kid"),
    )
    with op.batch_alter_table("agent_keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_agent_keys_agent"), ["agent"], unique=False)

    op.create_table(
        "api_keys",
        sa.Column("key_hash", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["agent"],
            ["agents.name"],
        ),
        sa.PrimaryKeyConstraint("key_hash"),
    )
    with op.batch_alter_table("api_keys", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_api_keys_agent"), ["agent"], unique=False)

    op.create_table(
        "comments",
        sa.Column("comment_id", sa.String(), nullable=False),
        sa.Column("review_id", sa.String(), nullable=False),
        sa.Column("txn", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("iss", sa.String(), nullable=False),
        sa.Column("sub", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("assurance", sa.String(), nullable=False),
        sa.Column("for_requester", sa.Boolean(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("channel", sa.String(), nullable=False),
        sa.Column("written_at", UtcDateTime(), nullable=False),
        sa.Column("answer", sa.String(), nullable=True),
        sa.Column("answered_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint("kind IN ('comment', 'question')", name="comment_kind_known"),
        sa.ForeignKeyConstraint(
            ["review_id"],
            ["reviews.review_id"],
        ),
        sa.PrimaryKeyConstraint("comment_id"),
    )
    with op.batch_alter_table("comments", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_comments_review_id"), ["review_id"], unique=False)

    op.create_table(
        "proposals",
        sa.Column("proposal_id", sa.String(), nullable=False),
        sa.Column("review_id", sa.String(), nullable=False),
        sa.Column("txn", sa.String(), nullable=False),
        sa.Column("effect_id", sa.String(), nullable=False),
        sa.Column("rev", sa.Integer(), nullable=False),
        sa.Column("tool_digest", sa.String(), nullable=False),
        sa.Column("iss", sa.String(), nullable=False),
        sa.Column("sub", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("assurance", sa.String(), nullable=False),
        sa.Column("args", sa.LargeBinary(), nullable=False),
        sa.Column("args_digest", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("channel", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("proposed_at", UtcDateTime(), nullable=False),
        sa.Column("decided_at", UtcDateTime(), nullable=True),
        sa.Column("decided_by", sa.String(), nullable=True),
        sa.Column("answer", sa.String(), nullable=True),
        sa.Column("became_rev", sa.Integer(), nullable=True),
        sa.CheckConstraint(
            "state IN ('open', 'accepted', 'declined', 'lapsed')", name="proposal_state_known"
        ),
        sa.ForeignKeyConstraint(
            ["review_id"],
            ["reviews.review_id"],
        ),
        sa.PrimaryKeyConstraint("proposal_id"),
    )
    with op.batch_alter_table("proposals", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_proposals_review_id"), ["review_id"], unique=False)
        batch_op.create_index("ix_proposals_txn", ["txn", "state"], unique=False)
        batch_op.create_index(
            "uq_proposals_person",
            ["review_id", "iss", "sub"],
            unique=True,
            sqlite_where=sa.text("state = 'open'"),
            postgresql_where=sa.text("state = 'open'"),
        )

    op.create_table(
        "redemptions",
        sa.Column("effect_id", sa.String(), nullable=False),
        sa.Column("rev", sa.Integer(), nullable=False),
        sa.Column("redeemer", sa.String(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("jti", sa.String(), nullable=True),
        sa.Column("decision_id", sa.String(), nullable=False),
        sa.Column("redeemed_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["redeemer", "attempt_id"],
            ["attempts.redeemer", "attempts.attempt_id"],
        ),
        sa.PrimaryKeyConstraint("effect_id"),
        sa.UniqueConstraint("jti"),
    )
    with op.batch_alter_table("redemptions", schema=None) as batch_op:
        batch_op.create_index("ix_redemptions_attempt", ["redeemer", "attempt_id"], unique=False)

    op.create_table(
        "transactions",
        sa.Column("txn", sa.String(64), nullable=False),
        sa.Column("rev", sa.Integer(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("run_key", sa.String(), nullable=False),
        sa.Column("independent", sa.Boolean(), nullable=False),
        sa.Column("method", sa.String(), nullable=False),
        sa.Column("jkt", sa.String(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("txn_digest", sa.String(), nullable=False),
        sa.Column("aud", sa.String(), nullable=False),
        sa.Column("claimed", Json, nullable=False),
        sa.Column("edited_by", Json, nullable=False),
        sa.Column("submitted_at", UtcDateTime(), nullable=False),
        sa.Column("ready_at", UtcDateTime(), nullable=True),
        sa.Column("valid_until", UtcDateTime(), nullable=True),
        sa.CheckConstraint(
            "state IN ('review', 'ready', 'redeemed', 'settled', 'unsettled', 'ended')", name="state_known"
        ),
        sa.ForeignKeyConstraint(
            ["agent"],
            ["agents.name"],
        ),
        sa.PrimaryKeyConstraint("txn", "rev"),
    )
    with op.batch_alter_table("transactions", schema=None) as batch_op:
        batch_op.create_index("ix_transactions_agent", ["agent", "submitted_at"], unique=False)
        batch_op.create_index("ix_transactions_aud", ["aud", "submitted_at"], unique=False)
        batch_op.create_index("ix_transactions_due", ["state", "valid_until"], unique=False)

    op.create_table(
        "votes",
        sa.Column("vote_id", sa.String(), nullable=False),
        sa.Column("review_id", sa.String(), nullable=False),
        sa.Column("effect_id", sa.String(), nullable=False),
        sa.Column("rev", sa.Integer(), nullable=False),
        sa.Column("effect_digest", sa.String(), nullable=False),
        sa.Column("txn_digest", sa.String(), nullable=False),
        sa.Column("iss", sa.String(), nullable=False),
        sa.Column("sub", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("verdict", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("assurance", sa.String(), nullable=False),
        sa.Column("step_up", sa.String(), nullable=True),
        sa.Column("view_digest", sa.String(), nullable=True),
        sa.Column("groups", Json, nullable=False),
        sa.Column("channel", sa.String(), nullable=False),
        sa.Column("late", sa.Boolean(), nullable=False),
        sa.Column("cast_at", UtcDateTime(), nullable=False),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
        sa.CheckConstraint("verdict IN ('approve', 'deny', 'break_glass')", name="verdict_known"),
        sa.ForeignKeyConstraint(
            ["review_id"],
            ["reviews.review_id"],
        ),
        sa.PrimaryKeyConstraint("vote_id"),
    )
    with op.batch_alter_table("votes", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_votes_review_id"), ["review_id"], unique=False)
        batch_op.create_index(
            "uq_votes_person",
            ["review_id", "iss", "sub", "verdict", "late"],
            unique=True,
            sqlite_where=sa.text("revoked_at IS NULL"),
            postgresql_where=sa.text("revoked_at IS NULL"),
        )

    op.create_table(
        "assertions",
        sa.Column("vote_id", sa.String(), nullable=False),
        sa.Column("passkey_id", sa.String(), nullable=False),
        sa.Column("credential_id", sa.String(), nullable=False),
        sa.Column("public_key", sa.LargeBinary(), nullable=False),
        sa.Column("authenticator_data", sa.LargeBinary(), nullable=False),
        sa.Column("client_data", sa.LargeBinary(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.Column("signed", Json, nullable=False),
        sa.Column("made_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["passkey_id"],
            ["passkeys.passkey_id"],
        ),
        sa.ForeignKeyConstraint(
            ["vote_id"],
            ["votes.vote_id"],
        ),
        sa.PrimaryKeyConstraint("vote_id"),
    )
    with op.batch_alter_table("assertions", schema=None) as batch_op:
        batch_op.create_index("ix_assertions_passkey", ["passkey_id"], unique=False)
