"""What API routes share: the services behind them, rate limits, and routers that authenticate and document each route.

A handler declared with :class:`ApiRoutes` receives the `Api`, the `Caller` or `Session`, the body's model if it has
one, and its path and query parameters. Its annotations are the models of the OpenAPI document, its docstring the
summary.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter, Signature, getdoc, signature
from typing import Any

from fastapi import APIRouter, Query, Request, Response

from countersign.contract.wire import EffectView, TransactionView, WireModel
from policy_service.channels.http import openapi
from policy_service.channels.http.authentication import Authentication
from policy_service.channels.http.responses import json_response
from policy_service.channels.requests import read_model
from policy_service.channels.streams import EventStreams
from policy_service.errors import RETRY_AFTER_S, QuotaError
from policy_service.health import Finding
from policy_service.identity.external_jwt import TrustedIssuers
from policy_service.identity.oidc import SignIn
from policy_service.queries import repository
from policy_service.queries.context import Context
from policy_service.queries.repository import Snapshot
from policy_service.queries.transaction_views import effect_view, transaction_view
from policy_service.settings import Settings
from policy_service.storage.tables import AgentRow, EffectRow

_MINUTE_S = 60.0


class RateLimits:
    """Limits of each agent in this process: a token bucket of one minute's submissions, and its waiting requests.

    Without them one agent in a loop would delay all others. Both count authenticated agents, so no agent uses up
    another's limit. They hold per process: each replica allows as much again. The number of open reviews of an agent is
    counted in the database instead (`workflow/effects/revisions.py`).
    """

    def __init__(self, settings: Settings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = settings.submissions_per_minute
        self._max_waits = settings.waits_per_agent
        self._monotonic = monotonic
        # by agent: how much of the bucket was spent, and when
        self._spent: dict[str, tuple[float, float]] = {}
        self._waits: Counter[str] = Counter()

    def submit(self, agent: str) -> None:
        """Count one submission or dry run.

        Raises:
            QuotaError: rate_limited, with the seconds until the next one fits.
        """
        now = self._monotonic()
        spent = self._current_spend(agent, now) + 1
        if spent > self._per_minute:
            seconds = math.ceil((spent - self._per_minute) * _MINUTE_S / self._per_minute)
            raise QuotaError(
                f"{agent!r} submits more than {self._per_minute} times a minute; retry in {seconds} s",
                setting="submissions_per_minute",
                limit=self._per_minute,
                retry_after_seconds=seconds,
            )
        self._spent[agent] = (spent, now)

    @contextmanager
    def wait(self, agent: str, seconds: int) -> Iterator[None]:
        """Count one waiting request for the duration of the block. Zero seconds count nothing.

        Raises:
            QuotaError: rate_limited, the agent has reached its limit.
        """
        if not seconds:
            yield
            return
        if not self.can_wait(agent):
            raise QuotaError(
                f"{agent!r} already has {self._max_waits} waiting requests; retry without `Prefer: wait`, or later",
                setting="waits_per_agent",
                limit=self._max_waits,
                retry_after_seconds=RETRY_AFTER_S,
            )
        self._waits[agent] += 1
        try:
            yield
        finally:
            self._waits[agent] -= 1
            if not self._waits[agent]:
                del self._waits[agent]

    def can_wait(self, agent: str) -> bool:
        """Whether the agent is below its limit of waiting requests."""
        return self._waits[agent] < self._max_waits

    def _current_spend(self, agent: str, now: float) -> float:
        """How much of the bucket is spent and not yet refilled."""
        spent, then = self._spent.get(agent, (0.0, now))
        return max(0.0, spent - (now - then) * self._per_minute / _MINUTE_S)


class TransactionPresenter:
    """Builds wire models of transactions for agents."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def transaction(
        self,
        snapshot: Snapshot,
        *,
        releases: Sequence[str] = (),
        receipt: str | None = None,
    ) -> TransactionView:
        """A transaction, with tokens only where requested."""
        agent = await self._agent(snapshot)
        return transaction_view(self._ctx, agent, snapshot, releases=releases, receipt=receipt)

    async def effect(self, snapshot: Snapshot, effect: EffectRow) -> EffectView:
        agent = await self._agent(snapshot)
        return effect_view(self._ctx, agent, snapshot, effect)

    async def _agent(self, snapshot: Snapshot) -> AgentRow:
        """The agent row, which counting votes needs; read only if there are reviews."""
        name, agent = snapshot.transaction.agent, None
        if snapshot.reviews:
            agent = await self._ctx.db.read(lambda conn: repository.agent_of(conn, name))
        return agent or AgentRow(name=name, enrolled_at=snapshot.transaction.submitted_at)


@dataclass(frozen=True)
class Api:
    """The service behind the routes.

    ``webhook_secret``: verifies incoming webhooks; None refuses them all. ``findings``: the failing health checks.
    ``metrics_token``: the bearer token of /metrics.
    """

    ctx: Context
    authentication: Authentication
    issuers: TrustedIssuers
    sign_in: SignIn
    webhook_secret: bytes | None
    findings: Callable[[], Sequence[Finding]]
    metrics_token: bytes | None
    streams: EventStreams = field(default_factory=EventStreams)

    @cached_property
    def rate_limits(self) -> RateLimits:
        """The limits of each agent in this process."""
        return RateLimits(self.ctx.settings)

    @cached_property
    def presenter(self) -> TransactionPresenter:
        """Presents transactions and effects as wire models."""
        return TransactionPresenter(self.ctx)


def api_of(request: Request) -> Api:
    """The services of the application that received this request."""
    api: Api = request.app.state.api
    return api


Cursor = Query(default=None, max_length=200, description="`next` of the previous page.")
Limit = Query(default=None, ge=1, le=1000, description="Rows per page; the service has a maximum.")

Handler = Callable[..., Awaitable[WireModel]]
RouteDecorator = Callable[[Handler], Handler]
_Identify = Callable[[Api, Request, bool], Awaitable[tuple[object, bytes]]]

_CSRF = openapi.header_parameter("X-CSRF-Token", "The session's form token.", required=True)
_ORIGIN = openapi.header_parameter("Origin", "The public URL.", required=True)


class ApiRoutes(APIRouter):
    """A router for routes of agents and of signed-in people.

    A route is declared as in ``agent("POST /redemptions", 404)``: method, path, and the error statuses besides those
    that every such route has.
    """

    def agent(self, route: str, *refuses: int, header: dict[str, Any] | None = None) -> RouteDecorator:
        """A route of agents and executors."""
        headers = [] if header is None else [header]
        return self._declare(
            _authenticate_agent, openapi.AGENT_SECURITY, route, (403, 413, *refuses), headers, (415,), []
        )

    def person(self, route: str, *refuses: int, status: int = 200) -> RouteDecorator:
        """A route of signed-in people's programs. A route with a body changes state and requires the form token."""
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
                # FastAPI would read a body declared in any other way, before the sender is identified.
                raise TypeError(f"{route}: a body's model is the third parameter, and only a GET has none")
            own = [*declared.parameters.values()][2 if body is None else 3 :]
            with_request = any(one.name == "request" for one in own)

            async def endpoint(request: Request, **named: Any) -> Response:
                api = api_of(request)
                caller, raw = await identify(api, request, body is not None)
                model = () if body is None else (read_model(body, raw),)
                passed = {"request": request} if with_request else {}
                return json_response(await handle(api, caller, *model, **passed, **named), status)

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
    return await api.authentication.agent(request)


async def _authenticate_person(api: Api, request: Request, writes: bool) -> tuple[object, bytes]:
    if writes:
        return await api.authentication.person_for_write(request)
    return await api.authentication.person(request), b""
