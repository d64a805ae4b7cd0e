"""A browser that signs in with the provider in memory."""

from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any, Self

import pytest
from structlog.testing import capture_logs

from policy_service.errors import ServiceError
from policy_service.identity.oidc import Identity, SignIn
from policy_service.issuers import SignInProvider
from tests.fakes.identity_provider import CLIENT, ISSUER, SECRET, Provider

NOW = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)


HERE = "https://countersign.example"
DISCOVERY = "/.well-known/openid-configuration"
TABLE = {"name": "acme", "title": "Acme", "issuer": ISSUER, "client_id": CLIENT, "client_secret": SECRET}


class Browser:
    """One browser, one deployment, one provider."""

    def __init__(self, **configured: Any) -> None:
        self.now = NOW
        self.provider = Provider(int(NOW.timestamp()))
        self.table = SignInProvider(**TABLE | configured)
        others = self.table.model_copy(update={"name": "other", "issuer": "https://other.example"})
        providers = {"acme": (self.table, configured.get("client_secret", SECRET)), "other": (others, SECRET)}
        self.sign_in = SignIn(providers, HERE, b"x" * 32, lambda: self.now, self.provider.transport)
        self.keys = self.sign_in._keys["acme"]
        self.note: str | None = None

    def but(self, **faults: Any) -> Self:
        """The same, with the provider's attributes changed."""
        for name, value in faults.items():
            setattr(self.provider, name, value)
        return self

    def failing(self, path: str, how: str) -> Self:
        """The same, with a provider that is down at this path, or answers there in another way than it should."""
        return self.but(down={path}) if how == "down" else self.but(odd={path: how})

    def wait(self, seconds: float) -> None:
        """Let the time pass that the keys and the metadata are cached by."""
        now = self.keys._monotonic()
        self.keys._monotonic = lambda: now + seconds

    async def leave(self) -> dict[str, str]:
        """Begin, and sign in over there: what the provider sends the browser back with."""
        departure = await self.sign_in.begin("acme", "/reviews/rev_1")
        self.note = departure.note
        return self.provider.authorize(departure.url)

    async def come_back(self, answer: dict[str, str]) -> Identity:
        identity, next_path = await self.sign_in.finish("acme", answer, self.note)
        assert next_path == "/reviews/rev_1"
        return identity

    async def through(self) -> Identity:
        return await self.come_back(await self.leave())


async def refusal(happens: Awaitable[object]) -> str:
    with pytest.raises(ServiceError) as caught:
        await happens
    return f"{caught.value.code.value}: {caught.value.detail}"


async def refused_because(happens: Awaitable[object]) -> str:
    """The reason in the log for which a sign-in is refused."""
    with capture_logs() as logged:
        await refusal(happens)
    return next(line["why"] for line in logged if line["event"] == "sign_in_refused")
