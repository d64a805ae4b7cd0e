"""initial tables

Revision ID: 0001
Revises:
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from policy_service.storage.types import Json, UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _partial(condition: str) -> dict[str, Any]:
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def upgrade() -> None:
    """Forward only: to go back, restore a backup."""
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
    op.create_index("ix_agents_frozen", "agents", ["name"], **_partial("frozen_at IS NOT NULL"))

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
    op.create_index("ix_attempts_txn", "attempts", ["txn"])

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
    op.create_index("ix_audit_agent", "audit", ["agent", "audit_id"])
    op.create_index(
        "ix_audit_bundles",
        "audit",
        ["audit_id"],
        **_partial("kind IN ('bundle_activated', 'bundle_refused', 'bundle_override')"),
    )
    op.create_index("ix_audit_effect_id", "audit", ["effect_id"])
    op.create_index("ix_audit_idx", "audit", ["idx"], unique=True)
    op.create_index("ix_audit_kind", "audit", ["kind", "audit_id"])
    op.create_index(
        "ix_audit_person", "audit", ["actor", "audit_id"], **_partial("substr(actor, 1, 7) = 'person:'")
    )
    op.create_index("ix_audit_txn", "audit", ["txn", "audit_id"])

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
    op.create_index("ix_challenges_over", "challenges", ["expires_at"])

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
    op.create_index("ix_decisions_effect", "decisions", ["effect_id", "rev"])

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
    op.create_index(
        "ix_effects_denied",
        "effects",
        ["agent", "tool", "resource_type", "resource_id", "changed_at"],
        **_partial("state = 'denied'"),
    )
    op.create_index("ix_effects_kind", "effects", ["agent", "tool", "asked_at"])
    op.create_index("ix_effects_lapse", "effects", ["state", "lapses_at"])
    op.create_index("ix_effects_recipients", "effects", ["tool", "recipients_key", "asked_at"])
    op.create_index("ix_effects_resource", "effects", ["tool", "resource_key", "asked_at"])
    op.create_index("ix_effects_state", "effects", ["state", "unknown_at"])
    op.create_index("ix_effects_txn", "effects", ["txn", "rev", "seq"])

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
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])

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
    op.create_index("ix_outbox_due", "outbox", ["state", "next_at"])
    op.create_index("ix_outbox_lane", "outbox", ["lane", "state", "next_at"])

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
    op.create_index("ix_passkeys_person", "passkeys", ["iss", "sub"])

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
    op.create_index(
        "ix_reservations_agent",
        "reservations",
        ["agent", "field", "tool", "reserved_at", "amount"],
        **_partial("given_back_at IS NULL"),
    )
    op.create_index(
        "ix_reservations_resource",
        "reservations",
        ["resource", "field", "tool", "reserved_at", "amount"],
        **_partial("given_back_at IS NULL"),
    )

    op.create_table(
        "review_groups",
        sa.Column("asked", sa.String(), nullable=False),
        sa.Column("review_id", sa.String(), nullable=False),
        sa.Column("answer_by", UtcDateTime(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("asked", "review_id"),
    )
    op.create_index("ix_review_groups_due", "review_groups", ["asked", "answer_by", "review_id"])
    op.create_index("ix_review_groups_review", "review_groups", ["review_id"])

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
    op.create_index("ix_reviews_agent", "reviews", ["agent", "state", "answer_by", "review_id"])
    op.create_index(
        "ix_reviews_break_glass", "reviews", ["break_glass_at"], **_partial("break_glass_at IS NOT NULL")
    )
    op.create_index("ix_reviews_due", "reviews", ["state", "answer_by", "review_id"])
    op.create_index("ix_reviews_escalate", "reviews", ["state", "escalate_at"])
    op.create_index("ix_reviews_newest", "reviews", ["state", "review_id"])
    op.create_index("ix_reviews_remind", "reviews", ["state", "remind_at"])
    op.create_index("ix_reviews_settled", "reviews", ["settled_at", "review_id"])

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
    op.create_index("ix_sessions_person", "sessions", ["iss", "sub"])
    op.create_index("ix_sessions_sid", "sessions", ["iss", "sid"])

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
    op.create_index("ix_shadow_differences_newest", "shadow_differences", ["candidate", "idx"])

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
    op.create_index("ix_shadows_since", "shadows", ["since"])

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
    op.create_index("ix_tasks_effect", "tasks", ["effect_id", "kind"])
    op.create_index("ix_tasks_kind", "tasks", ["kind", "state", "task_id"])
    op.create_index("ix_tasks_state", "tasks", ["state", "task_id"])

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
    op.create_index("ix_agent_keys_agent", "agent_keys", ["agent"])

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
    op.create_index("ix_api_keys_agent", "api_keys", ["agent"])

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
    op.create_index("ix_comments_review_id", "comments", ["review_id"])

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
    op.create_index("ix_proposals_review_id", "proposals", ["review_id"])
    op.create_index("ix_proposals_txn", "proposals", ["txn", "state"])
    op.create_index(
        "uq_proposals_person",
        "proposals",
        ["review_id", "iss", "sub"],
        unique=True,
        **_partial("state = 'open'"),
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
    op.create_index("ix_redemptions_attempt", "redemptions", ["redeemer", "attempt_id"])

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
    op.create_index("ix_transactions_agent", "transactions", ["agent", "submitted_at"])
    op.create_index("ix_transactions_aud", "transactions", ["aud", "submitted_at"])
    op.create_index("ix_transactions_due", "transactions", ["state", "valid_until"])

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
    op.create_index("ix_votes_review_id", "votes", ["review_id"])
    op.create_index(
        "uq_votes_person",
        "votes",
        ["review_id", "iss", "sub", "verdict", "late"],
        unique=True,
        **_partial("revoked_at IS NULL"),
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
    op.create_index("ix_assertions_passkey", "assertions", ["passkey_id"])
