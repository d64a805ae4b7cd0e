"""The service's errors, for programs and for people.

Every error has a stable code for programs (``countersign.contract.ErrorCode``) and a sentence for people: what
happened, to which object, what to do next. One table maps codes to HTTP statuses. The classes::

    ServiceError
      RequestError            the caller can correct it (4xx)
        UnauthenticatedError    the sender is unknown
        ForbiddenError          the caller may not do this
        NotFoundError           it does not exist, or the caller may not see it
        InvalidRequestError     the request is invalid
        QuotaError              a limit of the agent is reached
        ConflictError           the object is in another state
      ServerError             not the caller's fault (5xx)
        StorageUnavailableError the change was not made, or is unknown: retry with the same key
        PoliciesBehindError     another replica has activated newer policies: retry in a moment
        InternalError
      StartError              the service refuses to start; never reaches the wire

An error with a code of another class is refused when it is created: a conflict can never become a 500.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final

from countersign.contract import PROBLEM_TYPE_PREFIX, ErrorCode

_BY_STATUS: dict[int, tuple[str, ...]] = {
    400: (
        "invalid_request", "unknown_field", "idempotency_key_required", "call_key_mismatch",
        "resource_mismatch", "reason_required", "view_incomplete", "wrong_answer", "bad_token", "expired_token",
        "bom", "duplicate_key", "float_refused", "integer_out_of_range", "lone_surrogate", "not_a_json_value",
        "not_finite", "not_json", "not_utf8", "number_not_exact", "reserved_key", "too_deep", "too_many_nodes",
    ),
    401: ("unauthenticated", "use_nonce", "bad_proof"),
    403: ("forbidden", "not_eligible", "not_redeemer", "step_up_required", "csrf", "frozen"),
    404: ("not_found", "unknown_attempt"),
    405: ("method_not_allowed",),
    406: ("not_acceptable",),
    409: (
        "idempotency_in_flight", "already_redeemed", "not_ready", "superseded", "stale_review",
        "review_closed", "proposal_closed", "outcome_conflict", "already_reported", "fire_by_passed",
        "illegal_state", "other_epoch", "stale_task", "task_settled", "already_answered",
    ),
    413: ("too_large",),
    415: ("unsupported_media_type",),
    421: ("misdirected_host",),
    422: ("mixed_audience", "idempotency_key_reused"),
    429: ("rate_limited", "too_many_open"),
    500: ("internal",),
    503: ("storage_unavailable", "issuer_unavailable", "policies_behind"),
}  # fmt: skip

HTTP_STATUS: Mapping[ErrorCode, int] = MappingProxyType(
    {ErrorCode(code): status for status, codes in _BY_STATUS.items() for code in codes}
)

RETRY_AFTER_S = 15
"""Retry-After of a caller at a limit. A stream whose reader disconnected is detected within one heartbeat of 15 s."""
POLICIES_RETRY_S = 5
"""Retry-After while a replica fetches newer policies. Another replica may respond at once."""

_RESERVED_MEMBERS = frozenset({"type", "title", "status", "detail", "code", "instance"})


class ServiceError(Exception):
    """An error with a code, a sentence, and further members for programs."""

    statuses: ClassVar[frozenset[int]] = frozenset(_BY_STATUS)
    default_code: ClassVar[str] = "internal"

    def __init__(self, detail: str, *, code: ErrorCode | str | None = None, **extras: Any) -> None:
        super().__init__(detail)
        self.code = ErrorCode(code if code is not None else self.default_code)
        self.detail = detail
        self.extras = extras
        self.status = HTTP_STATUS[self.code]
        if self.status not in self.statuses:
            raise ValueError(f"{type(self).__name__} cannot carry the code {self.code.value!r}")
        if clash := _RESERVED_MEMBERS & extras.keys():
            raise ValueError(f"a problem's own members cannot be extras: {sorted(clash)}")

    def to_problem(self, instance: str | None = None) -> dict[str, Any]:
        """The RFC 9457 body."""
        code = self.code.value
        problem: dict[str, Any] = {
            "type": PROBLEM_TYPE_PREFIX + code,
            "title": code.replace("_", " "),
            "status": self.status,
            "detail": self.detail,
            "code": code,
        }
        if instance is not None:
            problem["instance"] = instance
        return problem | self.extras


class RequestError(ServiceError):
    """An error that the caller can correct."""

    statuses = frozenset(status for status in _BY_STATUS if status < 500)
    default_code = "invalid_request"


class UnauthenticatedError(RequestError):
    """The sender is not authenticated."""

    statuses = frozenset({401})
    default_code = "unauthenticated"


class ForbiddenError(RequestError):
    """The caller is authenticated, but not allowed."""

    statuses = frozenset({403})
    default_code = "forbidden"


class NotFoundError(RequestError):
    """It does not exist, or this caller may not see it. Both look the same to the caller."""

    statuses = frozenset({404})
    default_code = "not_found"


class InvalidRequestError(RequestError):
    """The request is invalid. Repeating it does not help."""

    statuses = frozenset({400, 405, 406, 413, 415, 421, 422, 429})
    default_code = "invalid_request"


class QuotaError(RequestError):
    """An agent reached one of its limits. The problem's members name the setting and when to retry."""

    statuses = frozenset({429})
    default_code = "rate_limited"

    def __init__(
        self,
        detail: str,
        *,
        setting: str,
        limit: int,
        retry_after_seconds: int,
        code: ErrorCode | None = None,
    ) -> None:
        text = f"{detail}. An operator changes the limit by the setting {setting}"
        super().__init__(
            text, code=code, setting=setting, limit=limit, retry_after_seconds=retry_after_seconds
        )
        self.setting = setting
        self.retry_after_seconds = retry_after_seconds


class ConflictError(RequestError):
    """The object is no longer, or not yet, in the state that the request expects."""

    statuses = frozenset({409})
    default_code = "illegal_state"


class ServerError(ServiceError):
    """An error of the service or of a system it depends on."""

    statuses = frozenset({500, 503})
    default_code = "internal"


class StorageUnavailableError(ServerError):
    """Nothing of this unit of work was acknowledged. Retry with the same key."""

    statuses = frozenset({503})
    default_code = "storage_unavailable"


class PoliciesBehindError(ServerError):
    """Another replica has activated policies that this one does not have yet. Nothing was redeemed."""

    statuses = frozenset({503})
    default_code = "policies_behind"


# One text for programs and pages: after a fault it is not known what was committed.
UNHANDLED: Final = "the service failed; repeat the request: what was done already is not done again"


class InternalError(ServerError):
    """An unexpected error of the service."""


class StartError(ServiceError):
    """The service or a command cannot start. The sentence names the next step."""
