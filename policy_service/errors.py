"""What can go wrong in the service, for two audiences.

Every error has a stable code for programs (``countersign.contract.ErrorCode``) and a sentence for people:
what happened, to which thing, what to do next. One table turns codes into HTTP statuses. The tree::

    ServiceError
      RequestError            the caller can mend it (4xx)
        UnauthenticatedError    who are you
        ForbiddenError          not you
        NotFoundError           not here
        InvalidRequestError     not like this
        QuotaError              not so much at once
        ConflictError           not now, or not any more
      WorldError              the caller did nothing wrong (5xx)
        StorageUnavailableError the change was not made, or nobody knows: ask again by the same key
        PoliciesBehindError     another replica has newer policies in force: ask again in a moment
        InternalError
      StartError              the service refuses to start; never reaches the wire

A code and a class that do not belong together are refused where the error is made: a conflict can never
leave as a 500.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

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
"""When a caller who holds too much may ask again: a stream whose reader has gone is noticed within a heartbeat."""
POLICIES_RETRY_S = 5
"""When a caller may ask a replica again that fetches policies: another one may answer at once."""

_RESERVED_MEMBERS = frozenset({"type", "title", "status", "detail", "code", "instance"})


class ServiceError(Exception):
    """An error with a code, a sentence, and members a program may read."""

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
    """The caller's to mend."""

    statuses = frozenset(status for status in _BY_STATUS if status < 500)
    default_code = "invalid_request"


class UnauthenticatedError(RequestError):
    """Nobody, or nobody we could make sure of."""

    statuses = frozenset({401})
    default_code = "unauthenticated"


class ForbiddenError(RequestError):
    """Known, and not allowed."""

    statuses = frozenset({403})
    default_code = "forbidden"


class NotFoundError(RequestError):
    """No such thing, or none this caller may know of: the answer is the same."""

    statuses = frozenset({404})
    default_code = "not_found"


class InvalidRequestError(RequestError):
    """The request itself is wrong; sending it again will not help."""

    statuses = frozenset({400, 405, 406, 413, 415, 421, 422, 429})
    default_code = "invalid_request"


class QuotaError(RequestError):
    """An agent reached a limit of its own. The problem's members say which setting it is, and when to ask again."""

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
        told = f"{detail}. An operator changes the limit by the setting {setting}"
        super().__init__(
            told, code=code, setting=setting, limit=limit, retry_after_seconds=retry_after_seconds
        )
        self.setting = setting
        self.retry_after_seconds = retry_after_seconds


class ConflictError(RequestError):
    """The thing is no longer, or not yet, in the state the request supposes."""

    statuses = frozenset({409})
    default_code = "illegal_state"


class ServerError(ServiceError):
    """The world's fault, or ours."""

    statuses = frozenset({500, 503})
    default_code = "internal"


class StorageUnavailableError(ServerError):
    """Nothing of this unit of work was acknowledged; repeat it under the same key."""

    statuses = frozenset({503})
    default_code = "storage_unavailable"


class PoliciesBehindError(ServerError):
    """Another replica has put policies in force that this one does not have yet; nothing was spent."""

    statuses = frozenset({503})
    default_code = "policies_behind"


class InternalError(ServerError):
    """A fault of the service."""


class StartError(ServiceError):
    """The service refuses to start. The sentence names the command that helps."""
