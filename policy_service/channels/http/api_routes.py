"""Routes of the API that one kind of caller uses: who is calling, the body's model, the refusals, the answer.

A handler is called with the `Api`, the `Caller` or `Session`, the body where it has one, and its path and query
parameters. The models of body and answer are its annotations, the summary in the OpenAPI document is its docstring.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import Parameter, Signature, getdoc, signature
from typing import Any

from fastapi import APIRouter, Request, Response

from countersign.contract.wire import WireModel
from policy_service.channels.http import openapi
from policy_service.channels.http.api import Api, api_of
from policy_service.channels.http.bodies import json_response, read_model

Handler = Callable[..., Awaitable[WireModel]]
RouteDecorator = Callable[[Handler], Handler]
_Identify = Callable[[Api, Request, bool], Awaitable[tuple[object, bytes]]]

_CSRF = openapi.header_parameter("X-CSRF-Token", "The session's form token.", required=True)
_ORIGIN = openapi.header_parameter("Origin", "The public URL.", required=True)


class ApiRoutes(APIRouter):
    """A router that also declares routes of agents and of signed-in people, as in ``agent("POST /redemptions", 404)``:
    method, path, and the refusals beside those that every such route has.
    """

    def agent(self, route: str, *refuses: int, header: dict[str, Any] | None = None) -> RouteDecorator:
        """A route of agents and executors."""
        headers = [] if header is None else [header]
        return self._declare(
            _authenticate_agent, openapi.AGENT_SECURITY, route, (403, 413, *refuses), headers, (415,), []
        )

    def person(self, route: str, *refuses: int, status: int = 200) -> RouteDecorator:
        """A route of signed-in people's programs. One with a body changes something, and takes the form token."""
        with_body, token = (403, 404, 409, 413, 415), [_CSRF, _ORIGIN]
        return self._declare(
            _authenticate_person, openapi.PERSON_SECURITY, route, refuses, [], with_body, token, status
        )

    def _declare(
        self,
        identify: _Identify,
        security: list[dict[str, list[str]]],
        route: str,
        refuses: tuple[int, ...],
        headers: list[dict[str, Any]],
        refuses_with_body: tuple[int, ...],
        headers_with_body: list[dict[str, Any]],
        status: int = 200,
    ) -> RouteDecorator:
        method, _, path = route.partition(" ")

        def declare(handle: Handler) -> Handler:
            declared = signature(handle, eval_str=True)
            third = [one.annotation for one in declared.parameters.values()][2:3]
            body = next((one for one in third if isinstance(one, type) and issubclass(one, WireModel)), None)
            if (method == "GET") is (body is not None):
                # A body declared in any other way would be FastAPI's to read: before anybody is identified.
                raise TypeError(f"{route}: a body's model is the third parameter, and only a GET has none")
            own = [*declared.parameters.values()][2 if body is None else 3 :]
            with_request = any(one.name == "request" for one in own)

            async def endpoint(request: Request, **named: Any) -> Response:
                api = api_of(request)
                caller, raw = await identify(api, request, body is not None)
                wish = () if body is None else (read_model(body, raw),)
                asked = {"request": request} if with_request else {}
                return json_response(await handle(api, caller, *wish, **asked, **named), status)

            request = Parameter("request", Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)
            signed = Signature([request, *(one for one in own if one.name != "request")])
            endpoint.__signature__ = signed  # type: ignore[attr-defined]
            refusals = (400, 401, 421, 503, *refuses, *(refuses_with_body if body else ()))
            parameters = headers + (headers_with_body if body else [])
            self.add_api_route(
                path,
                endpoint,
                methods=[method],
                name=handle.__name__,
                response_model=declared.return_annotation,
                status_code=status,
                summary=(getdoc(handle) or "").rstrip("."),
                responses=openapi.problem_responses(*refusals),
                openapi_extra={"security": security}
                | ({"parameters": parameters} if parameters else {})
                | (openapi.request_body(body) if body else {}),
            )
            return handle

        return declare


async def _authenticate_agent(api: Api, request: Request, _: bool) -> tuple[object, bytes]:
    return await api.gate.agent(request)


async def _authenticate_person(api: Api, request: Request, writes: bool) -> tuple[object, bytes]:
    return await api.gate.person_for_write(request) if writes else (await api.gate.person(request), b"")
