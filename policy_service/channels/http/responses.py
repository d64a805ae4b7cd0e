"""JSON responses of the API, and every error as RFC 9457 problem details with a stable code."""

from __future__ import annotations

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import Scope

from countersign.contract import PROBLEM_TYPE_PREFIX, ErrorCode
from countersign.contract.wire import WireModel, dump
from policy_service import metrics
from policy_service.channels.requests import JSON_TYPE
from policy_service.errors import (
    POLICIES_RETRY_S,
    RETRY_AFTER_S,
    InvalidRequestError,
    QuotaError,
    ServiceError,
    StorageUnavailableError,
)
from policy_service.pap.bundle import NoActiveBundleError

log = structlog.get_logger(__name__)

PROBLEM_TYPE = "application/problem+json"
_BY_STATUS = {
    404: ErrorCode.NOT_FOUND,
    405: ErrorCode.METHOD_NOT_ALLOWED,
    415: ErrorCode.UNSUPPORTED_MEDIA_TYPE,
    406: ErrorCode.NOT_ACCEPTABLE,
}


def json_response(model: WireModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A wire model as a response that must not be cached."""
    return Response(
        dump(model), status, {"Cache-Control": "no-store", **(headers or {})}, media_type=JSON_TYPE
    )


def install_error_handlers(app: FastAPI) -> None:
    """Answer every exception of the application with problem details."""
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid_parameters)
    app.add_exception_handler(NoActiveBundleError, _no_bundle)


def problem_response(error: ServiceError, request: Request) -> Response:
    """One service error as a response."""
    metrics.REFUSALS.labels(error.code.value).inc()
    headers = {"Cache-Control": "no-store"}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Agent-Proof"
    if error.status == 429:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if isinstance(error, QuotaError):
        headers["Retry-After"] = str(error.retry_after_seconds)
        metrics.QUOTA_REFUSALS.labels(error.setting).inc()
    if error.code is ErrorCode.POLICIES_BEHIND:
        headers["Retry-After"] = str(POLICIES_RETRY_S)
    return JSONResponse(error.to_problem(request.url.path), error.status, headers, media_type=PROBLEM_TYPE)


async def _service_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, ServiceError):
        raise error
    if error.status >= 500:
        log.error(
            "request_failed", route=route_template(request.scope), code=error.code.value, exc_info=error
        )
    return problem_response(error, request)


async def _http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    code = _BY_STATUS.get(error.status_code, ErrorCode.INVALID_REQUEST)
    metrics.REFUSALS.labels(code.value).inc()
    body = {
        "type": PROBLEM_TYPE_PREFIX + code.value,
        "title": code.value.replace("_", " "),
        "status": error.status_code,
        "detail": f"{request.method} {request.url.path}: {error.detail}",
        "code": code.value,
        "instance": request.url.path,
    }
    headers = {"Cache-Control": "no-store", **(error.headers or {})}
    return JSONResponse(body, error.status_code, headers, media_type=PROBLEM_TYPE)


async def _invalid_parameters(request: Request, error: Exception) -> Response:
    """An invalid path or query parameter. FastAPI never validates bodies here: `read_model` does."""
    if not isinstance(error, RequestValidationError):
        raise error
    detail = "; ".join(f"{'/'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
    return problem_response(InvalidRequestError(detail), request)


async def _no_bundle(request: Request, error: Exception) -> Response:
    return problem_response(
        StorageUnavailableError("no valid policies are loaded, so nothing can be decided; try again later"),
        request,
    )


def route_template(scope: Scope) -> str:
    """The template of the matched route; never the path, which the caller controls."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else "(none)"
