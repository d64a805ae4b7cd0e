"""The OpenAPI document. Routes read raw bodies, so FastAPI does not know their models and they are declared here.

Every route lists each status it can return; a test compares the document with the running service.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from countersign.contract.wire import Problem, WireModel
from policy_service.channels.http.responses import PROBLEM_TYPE

_REF = "#/components/schemas/{model}"

_DESCRIPTIONS = {
    400: "The request is invalid; `code` and `detail` say why.",
    401: "No proof, an invalid one, or an expired nonce; the response carries the next nonce.",
    403: "Authenticated, but not allowed.",
    404: "It does not exist, or this caller may not see it.",
    405: "The path exists, this method does not.",
    409: "The resource is not in the state that the request expects.",
    413: "Too large.",
    415: "Not JSON.",
    421: "The request names another host than the public one.",
    422: "Effects of several audiences, or an idempotency key that was used with another body.",
    429: "A limit of this caller is reached; `Retry-After` says when to retry, `setting` which limit it is.",
    503: "Nothing was acknowledged; retry with the same key.",
}


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route, as FastAPI's ``responses``. Every route may refuse a duplicate header (400), and
    one that reads a body may have to drop it (429).
    """
    statuses = (*statuses, 400, *((429,) if 413 in statuses else ()))
    content = {PROBLEM_TYPE: {"schema": {"$ref": _REF.format(model=Problem.__name__)}}}
    return {
        status: {"description": _DESCRIPTIONS[status], "content": content} for status in sorted({*statuses})
    }


def request_body(model: type[WireModel]) -> dict[str, Any]:
    """The request body of a route, as ``openapi_extra``."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def header_parameter(
    name: str, description: str, *, required: bool = False, schema: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One header parameter."""
    return {
        "name": name,
        "in": "header",
        "required": required,
        "description": description,
        "schema": schema or {"type": "string"},
    }


def with_parameters(extra: dict[str, Any], *parameters: dict[str, Any]) -> dict[str, Any]:
    """``openapi_extra`` with more parameters."""
    return {**extra, "parameters": [*extra.get("parameters", []), *parameters]}


def install_openapi(app: FastAPI, models: Iterable[type[WireModel]]) -> None:
    """Add the bodies' models, which FastAPI does not see, and the security schemes to ``app.openapi``."""
    models = [*models, Problem]

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            _add_models(document, models)
            _drop_undocumented_defaults(document)
            document["components"]["securitySchemes"] = _SCHEMES
            _add_headers(document)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _add_models(document: dict[str, Any], models: Iterable[type[WireModel]]) -> None:
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for model in models:
        schema = model.model_json_schema(ref_template=_REF)
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema


def _add_headers(document: dict[str, Any]) -> None:
    """Document the headers of every response, those of the API, and the one a 401 adds."""
    for path, operations in document["paths"].items():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                headers = _COMMON_HEADERS | (_API_HEADERS if path.startswith("/v1/") else {})
                headers = headers | (_UNAUTHENTICATED_HEADERS if status == "401" else {})
                response["headers"] = headers | response.get("headers", {})


def _drop_undocumented_defaults(document: dict[str, Any]) -> None:
    """Remove the 422 that FastAPI adds to every route with parameters: this service returns 400 for those."""
    for path in document["paths"].values():
        for operation in path.values():
            found = operation.get("responses", {}).get("422")
            if found is not None and "HTTPValidationError" in str(found):
                del operation["responses"]["422"]
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)


_TEXT = {"type": "string"}
_COMMON_HEADERS = {
    "X-Content-Type-Options": {"description": "`nosniff`.", "required": True, "schema": _TEXT},
}
_API_HEADERS = {
    "Agent-Nonce": {"description": "The nonce of the next proof.", "required": True, "schema": _TEXT},
}
_UNAUTHENTICATED_HEADERS = {
    "WWW-Authenticate": {"description": "`Agent-Proof`.", "required": True, "schema": _TEXT}
}
LOCATION_HEADER = {"Location": {"description": "URL of the transaction.", "required": True, "schema": _TEXT}}

AGENT_SECURITY: list[dict[str, list[str]]] = [{"AgentProof": []}, {"ApiKey": []}]
PERSON_SECURITY: list[dict[str, list[str]]] = [{"Session": []}]

_SCHEMES = {
    "AgentProof": {
        "type": "apiKey",
        "in": "header",
        "name": "Agent-Proof",
        "description": "A JWS of typ agent-proof+jwt over method, path, query, body digest and nonce, signed by an "
        "enrolled key. Every response to an agent carries the next nonce in `Agent-Nonce`.",
    },
    "ApiKey": {"type": "http", "scheme": "bearer", "description": "For development on loopback only."},
    "Session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "countersign_dev",
        "description": "A signed-in person; writes also require X-CSRF-Token and the Origin of the public URL. "
        "On https the cookie is __Host-countersign.",
    },
}
