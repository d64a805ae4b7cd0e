"""What the routes of the API work with: one value for each application, so that the routes themselves are made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fastapi import Request

from policy_service.channels.http.authentication import Authentication
from policy_service.channels.streams import EventStreams
from policy_service.health import Finding
from policy_service.identity.external_jwt import TrustedIssuers
from policy_service.identity.oidc import SignIn
from policy_service.queries.context import Context
from policy_service.queries.transactions import TransactionPresenter


@dataclass(frozen=True)
class Api:
    """The service behind the routes.

    ``webhook_secret``: what a webhook has to know; None refuses them all. ``findings``: what is wrong now.
    ``metrics_token``: what who reads metrics must send.
    """

    gate: Authentication
    issuers: TrustedIssuers
    sign_in: SignIn
    webhook_secret: bytes | None
    findings: Callable[[], Sequence[Finding]]
    metrics_token: bytes | None
    streams: EventStreams = field(default_factory=EventStreams)

    @property
    def ctx(self) -> Context:
        """What every verb is called with."""
        return self.gate.ctx

    @cached_property
    def telling(self) -> TransactionPresenter:
        """Transactions and effects as the wire shows them."""
        return TransactionPresenter(self.ctx)


def api_of(request: Request) -> Api:
    """The service that a request has come to."""
    api: Api = request.app.state.api
    return api
