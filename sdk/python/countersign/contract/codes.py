"""Stable error codes for programs: problems of the HTTP API and reasons of a denial. Never renamed or reused."""

from enum import StrEnum


class ErrorCode(StrEnum):
    """The `code` of problem details (RFC 9457); the `type` is `urn:countersign:problem:` followed by it."""

    # admission (design section 6)
    BOM = "bom"
    DUPLICATE_KEY = "duplicate_key"
    FLOAT_REFUSED = "float_refused"
    INTEGER_OUT_OF_RANGE = "integer_out_of_range"
    LONE_SURROGATE = "lone_surrogate"
    NOT_A_JSON_VALUE = "not_a_json_value"
    NOT_FINITE = "not_finite"
    NOT_JSON = "not_json"
    NOT_UTF8 = "not_utf8"
    NUMBER_NOT_EXACT = "number_not_exact"
    RESERVED_KEY = "reserved_key"
    TOO_DEEP = "too_deep"
    TOO_LARGE = "too_large"
    TOO_MANY_NODES = "too_many_nodes"
    # authentication and authorization
    BAD_PROOF = "bad_proof"
    CSRF = "csrf"
    FORBIDDEN = "forbidden"
    MISDIRECTED_HOST = "misdirected_host"
    NOT_REDEEMER = "not_redeemer"
    UNAUTHENTICATED = "unauthenticated"
    USE_NONCE = "use_nonce"
    # request validation
    CALL_KEY_MISMATCH = "call_key_mismatch"
    IDEMPOTENCY_IN_FLIGHT = "idempotency_in_flight"
    IDEMPOTENCY_KEY_REQUIRED = "idempotency_key_required"
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused"
    INVALID_REQUEST = "invalid_request"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    MIXED_AUDIENCE = "mixed_audience"
    NOT_ACCEPTABLE = "not_acceptable"
    NOT_FOUND = "not_found"
    RESOURCE_MISMATCH = "resource_mismatch"
    UNKNOWN_FIELD = "unknown_field"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    # transactions and reviews
    ALREADY_ANSWERED = "already_answered"
    ILLEGAL_STATE = "illegal_state"
    NOT_ELIGIBLE = "not_eligible"
    NOT_READY = "not_ready"
    PROPOSAL_CLOSED = "proposal_closed"
    REASON_REQUIRED = "reason_required"
    REVIEW_CLOSED = "review_closed"
    STALE_REVIEW = "stale_review"
    STEP_UP_REQUIRED = "step_up_required"
    SUPERSEDED = "superseded"
    VIEW_INCOMPLETE = "view_incomplete"
    # tasks
    STALE_TASK = "stale_task"
    TASK_SETTLED = "task_settled"
    WRONG_ANSWER = "wrong_answer"
    # releases, redemptions, outcomes
    ALREADY_REDEEMED = "already_redeemed"
    ALREADY_REPORTED = "already_reported"
    BAD_TOKEN = "bad_token"  # noqa: S105 - a code, not a secret
    EXPIRED_TOKEN = "expired_token"  # noqa: S105 - a code, not a secret
    FIRE_BY_PASSED = "fire_by_passed"
    OTHER_EPOCH = "other_epoch"
    OUTCOME_CONFLICT = "outcome_conflict"
    UNKNOWN_ATTEMPT = "unknown_attempt"
    # the service itself
    FROZEN = "frozen"
    INTERNAL = "internal"
    RATE_LIMITED = "rate_limited"
    TOO_MANY_OPEN = "too_many_open"
    ISSUER_UNAVAILABLE = "issuer_unavailable"
    POLICIES_BEHIND = "policies_behind"
    STORAGE_UNAVAILABLE = "storage_unavailable"


class DenyCode(StrEnum):
    """Why an effect was denied or did not proceed."""

    NO_PERMIT = "no_permit"
    FORBIDDEN_BY_POLICY = "forbidden_by_policy"
    POLICY_ERROR = "policy_error"
    UNKNOWN_TOOL = "unknown_tool"
    TOOL_CHANGED = "tool_changed"
    INVALID_ARGS = "invalid_args"
    FACTS_UNAVAILABLE = "facts_unavailable"
    DENIED_BY_PERSON = "denied_by_person"
    EXPIRED = "expired"
    SIBLING = "sibling"
    SUPERSEDED = "superseded"
    WITHDRAWN = "withdrawn"


PROBLEM_TYPE_PREFIX = "urn:countersign:problem:"
"""A problem type is this prefix followed by an `ErrorCode`."""
