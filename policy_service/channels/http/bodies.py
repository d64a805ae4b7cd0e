"""Bodies in and out: raw bytes first, because the proof covers exactly these bytes, and strict admission before any
model sees them."""

from __future__ import annotations

from typing import TypeVar

from fastapi import Request, Response

from countersign.contract import ContractError, ErrorCode, Limits
from countersign.contract.wire import WireModel, dump, parse
from countersign.contract.wire.base import BODY_LIMITS
from policy_service.errors import InvalidRequestError, RequestError

Model = TypeVar("Model", bound=WireModel)

JSON_TYPE = "application/json"
PROBLEM_TYPE = "application/problem+json"


def require_json(request: Request) -> None:
    """Refuse a body that does not say it is JSON, or that would have to be unpacked: a small one may be huge then.

    Raises:
        InvalidRequestError: unsupported_media_type.
    """
    packed = request.headers.get("content-encoding", "identity")
    if packed.strip().lower() != "identity":
        raise InvalidRequestError(
            f"send the body as it is, not as {packed[:50]!r}", code=ErrorCode.UNSUPPORTED_MEDIA_TYPE
        )
    given = request.headers.get("content-type", "")
    kind, _, parameters = given.partition(";")
    charset = parameters.strip().lower()
    if kind.strip().lower() != JSON_TYPE or charset not in {"", "charset=utf-8"}:
        raise InvalidRequestError(
            f"send {JSON_TYPE} in UTF-8, not {given!r}", code=ErrorCode.UNSUPPORTED_MEDIA_TYPE
        )


def read_model(model: type[Model], body: bytes, limits: Limits = BODY_LIMITS) -> Model:
    """Admit and validate a body.

    Raises:
        RequestError: an admission code, unknown_field, or invalid_request; the sentence names every problem.
    """
    try:
        return parse(model, body, limits)
    except ContractError as error:
        raise RequestError(str(error), code=error.code) from error


def json_response(model: WireModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A wire model as a response nobody may cache."""
    return Response(
        dump(model), status, {"Cache-Control": "no-store", **(headers or {})}, media_type=JSON_TYPE
    )
