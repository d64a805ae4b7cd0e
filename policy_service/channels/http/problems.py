"""Every error of the API as RFC 9457 problem details, with a stable code."""

from __future__ import annotations

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from countersign.contract import PROBLEM_TYPE_PREFIX, ErrorCode
from policy_service import metrics
from policy_service.channels.http.bodies import PROBLEM_TYPE
from policy_service.errors import (
    POLICIES_RETRY_S,
    RETRY_AFTER_S,
    InternalError,
    InvalidRequestError,
    QuotaError,
    ServiceError,
    StorageUnavailableError,
)
from policy_service.pap.active_bundle import NoActiveBundleError

log = structlog.get_logger(__name__)

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BY_STATUS = {
    404: ErrorCode.NOT_FOUND,
    405: ErrorCode.METHOD_NOT_ALLOWED,
    415: ErrorCode.UNSUPPORTED_MEDIA_TYPE,
    406: ErrorCode.NOT_ACCEPTABLE,
}


def install_error_handlers(app: FastAPI) -> None:
    """Answer every exception of the application in one shape."""
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
    """A path or query parameter that cannot be; bodies never come here, they are read by us."""
    if not isinstance(error, RequestValidationError):
        raise error
    told = "; ".join(f"{'/'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
    return problem_response(InvalidRequestError(told), request)


async def _no_bundle(request: Request, error: Exception) -> Response:
    return problem_response(
        StorageUnavailableError("no valid policies are loaded, so nothing can be decided; ask again later"),
        request,
    )


class UnhandledErrors:
    """A fault of ours: the log gets the place, the caller a sentence that quotes nothing, the server above nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except ClientDisconnect:
            return  # the client hung up in the middle of its body: no fault of ours, and no answer is read
        except Exception:
            log.exception("fault", route=route_template(scope), method=known_method(scope))
            # half an answer has left: the connection must break, and the server above must not quote why
            if begun:
                raise ConnectionAbortedError("the service failed in the middle of an answer") from None
            told = problem_response(
                InternalError("the service failed; nothing of this request was released"), Request(scope)
            )
            await told(scope, receive, send)


def route_template(scope: Scope) -> str:
    """The template of the route that answered; never the path, in which anybody may write anything."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else "(none)"


def known_method(scope: Scope) -> str:
    """The method, if it is one."""
    return scope["method"] if scope["method"] in _METHODS else "(other)"
