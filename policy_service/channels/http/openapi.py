"""What OpenAPI says of a route: bodies are read raw by us, so their schemas are named here.

Every route lists each status it can answer with; a test drives the document against the running service.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from countersign.contract.wire import Problem, WireModel
from policy_service.channels.http.bodies import PROBLEM_TYPE

_REF = "#/components/schemas/{model}"

_DESCRIPTIONS = {
    400: "The request is wrong; `code` and `detail` say how.",
    401: "No proof, a bad one, or a nonce that is over; the answer carries the next nonce.",
    403: "Known, and not allowed.",
    404: "No such thing, or none this caller may know of.",
    405: "The path exists, this method does not.",
    409: "Not in the state the request supposes.",
    413: "Too large.",
    415: "Not JSON.",
    421: "The request names another host than the public one.",
    422: "A body that cannot be: mixed audience, or an idempotency key used for another one.",
    429: "More than one caller may have; `Retry-After` says when to ask again, `setting` what limits it.",
    503: "Nothing was acknowledged; repeat it under the same key.",
}


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route, as FastAPI's ``responses``: any may find a header twice (400), and one that reads a body
    may have to drop it (429).
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
    """``openapi_extra`` with parameters beside what it holds."""
    return {**extra, "parameters": [*extra.get("parameters", []), *parameters]}


def install_openapi(app: FastAPI, models: Iterable[type[WireModel]]) -> None:
    """Make ``app.openapi`` include the bodies' models, which FastAPI never sees, and the ways to sign in."""
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
    """The headers every answer carries, those of the API, and the one a 401 adds."""
    for path, operations in document["paths"].items():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                headers = _COMMON_HEADERS | (_API_HEADERS if path.startswith("/v1/") else {})
                headers = headers | (_UNAUTHENTICATED_HEADERS if status == "401" else {})
                response["headers"] = headers | response.get("headers", {})


def _drop_undocumented_defaults(document: dict[str, Any]) -> None:
    """FastAPI adds a 422 of its own to every route with parameters; ours answers those with 400."""
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
LOCATION_HEADER = {
    "Location": {"description": "Where the transaction is seen.", "required": True, "schema": _TEXT}
}

AGENT_SECURITY: list[dict[str, list[str]]] = [{"AgentProof": []}, {"ApiKey": []}]
PERSON_SECURITY: list[dict[str, list[str]]] = [{"Session": []}]

_SCHEMES = {
    "AgentProof": {
        "type": "apiKey",
        "in": "header",
        "name": "Agent-Proof",
        "description": "A JWS of typ agent-proof+jwt over method, path, query, body digest and nonce, signed by an "
        "enrolled key. Every answer to an agent carries the next nonce in `Agent-Nonce`.",
    },
    "ApiKey": {"type": "http", "scheme": "bearer", "description": "For trials on loopback only."},
    "Session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "countersign_dev",
        "description": "A signed-in person; writes also need X-CSRF-Token and the Origin of the public URL. "
        "On https the cookie is __Host-countersign.",
    },
}
