"""Every error of the API as RFC 9457 problem details, with a stable code."""

from __future__ import annotations

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from countersign.contract import PROBLEM_TYPE_PREFIX, ErrorCode
from policy_service.channels.http.bodies import PROBLEM_TYPE
from policy_service.errors import InternalError, InvalidRequestError, ServiceError, StorageUnavailableError
from policy_service.pap.active import NoActiveBundleError

log = structlog.get_logger(__name__)

_BY_STATUS = {
    404: ErrorCode.NOT_FOUND,
    405: ErrorCode.METHOD_NOT_ALLOWED,
    415: ErrorCode.UNSUPPORTED_MEDIA_TYPE,
    406: ErrorCode.NOT_ACCEPTABLE,
}


def install(app: FastAPI) -> None:
    """Answer every exception of the application in one shape."""
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(NoActiveBundleError, _no_bundle)
    app.add_exception_handler(Exception, _fault)


def problem(error: ServiceError, request: Request) -> Response:
    """One service error as a response."""
    headers = {"Cache-Control": "no-store"}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Agent-Proof"
    return JSONResponse(error.to_problem(request.url.path), error.status, headers, media_type=PROBLEM_TYPE)


async def _service_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, ServiceError):
        raise error
    if error.status >= 500:
        log.error("request_failed", path=request.url.path, code=error.code.value, cause=repr(error.__cause__))
    return problem(error, request)


async def _http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    code = _BY_STATUS.get(error.status_code, ErrorCode.INVALID_REQUEST)
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


async def _invalid(request: Request, error: Exception) -> Response:
    """A path or query parameter that cannot be; bodies never come here, they are read by us."""
    if not isinstance(error, RequestValidationError):
        raise error
    told = "; ".join(f"{'/'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
    return problem(InvalidRequestError(told), request)


async def _no_bundle(request: Request, error: Exception) -> Response:
    return problem(
        StorageUnavailableError("no valid policies are loaded, so nothing can be decided"), request
    )


async def _fault(request: Request, error: Exception) -> Response:
    """A fault of ours: the log gets the trace, the caller a sentence that quotes nothing."""
    log.error("fault", path=request.url.path, method=request.method, exc_info=error)
    return problem(InternalError("the service failed; nothing of this request was released"), request)
