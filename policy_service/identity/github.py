"""GitHub and GitHub Enterprise Server: plain OAuth2, so who somebody is comes from the API, not from a signed token.

The subject is the account's number: a login can be renamed and taken by somebody else. Teams are ``org/team``, and
only those the token may see (scope ``read:org``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from policy_service.identity.foreign_tokens import UntrustedTokenError
from policy_service.identity.issuer_keys import get_json
from policy_service.issuers import SignInProvider

_PATHS = {
    "authorization_endpoint": "/login/oauth/authorize",
    "token_endpoint": "/login/oauth/access_token",
}
ISS_PATH = (
    "/login/oauth"  # what it calls itself in an authorization response (RFC 9207) is this below its address
)
_PER_PAGE = 100
_MOST_PAGES = 6  # one more than can count, so that somebody with more teams reads so


@dataclass(frozen=True, slots=True)
class Account:
    """An account, with what an ID token would have claimed."""

    sub: str
    claims: Mapping[str, Any]


def endpoint(provider: SignInProvider, which: str) -> str:
    """GitHub publishes no discovery; its addresses have been these since it has OAuth."""
    return provider.issuer + _PATHS[which]


async def identify(client: httpx2.AsyncClient, provider: SignInProvider, access_token: str) -> Account:
    """The account behind an access token.

    Raises:
        UntrustedTokenError: the API names no account.
        WorldError: issuer_unavailable.
    """
    user = await _ask(client, provider, "/user", access_token)
    number = user.get("id") if isinstance(user, dict) else None
    if not isinstance(number, int) or isinstance(number, bool) or number <= 0:
        raise UntrustedTokenError("GitHub named no account")
    claims = {"name": user.get("name"), "preferred_username": user.get("login")}
    if provider.groups_claim is not None:
        claims[provider.groups_claim] = await _teams(client, provider, access_token)
    return Account(str(number), claims)


async def _teams(client: httpx2.AsyncClient, provider: SignInProvider, access_token: str) -> list[str | None]:
    """The names of all teams, with None for an entry that names none."""
    names: list[str | None] = []
    for page in range(1, _MOST_PAGES + 1):
        found = await _ask(client, provider, f"/user/teams?per_page={_PER_PAGE}&page={page}", access_token)
        if not isinstance(found, list):
            raise UntrustedTokenError("GitHub listed no teams")
        names += [_team_name(team) for team in found]
        if len(found) < _PER_PAGE:
            break
    return names


def _team_name(team: Any) -> str | None:
    try:
        login, slug = team["organization"]["login"], team["slug"]
    except (TypeError, KeyError):
        return None
    return f"{login}/{slug}" if isinstance(login, str) and isinstance(slug, str) else None


async def _ask(client: httpx2.AsyncClient, provider: SignInProvider, path: str, token: str) -> Any:
    return await get_json(
        client, provider.api + path, f"the API of {provider.title}", Authorization=f"Bearer {token}"
    )
