"""Calls to a sign-in provider: the code exchange (RFC 6749 section 4.1.3), userinfo, and GitHub's API.

Userinfo (OpenID Connect Core section 5.3) adds claims to a sign-in that the ID token has proved. If it cannot be used,
the sign-in continues without it and the reason is kept. Userinfo about another subject refuses the sign-in (5.3.4).

GitHub and GitHub Enterprise Server are plain OAuth2: the API, not a signed token, identifies the account. The subject
is the account's number, because a login can be renamed and reused. Teams are ``org/team``, limited to
those the token may see (scope ``read:org``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote_plus

import httpx2
import structlog
from authlib.common.errors import AuthlibBaseError

from policy_service.errors import ForbiddenError, ServerError
from policy_service.http_clients import oauth_client
from policy_service.identity.claims import claim_at
from policy_service.identity.external_jwt import UntrustedTokenError, audiences, verify_jwt
from policy_service.identity.issuer_keys import (
    TIMEOUT_S,
    TOTAL_TIMEOUT_S,
    IssuerKeys,
    get_json_document,
    get_response,
    issuer_unavailable,
)
from policy_service.issuers import SignInProvider

log = structlog.get_logger(__name__)

_MAX_QUOTED = 300  # characters of a provider's text
_ADVICE = {  # RFC 6749 section 5.2
    "invalid_client": "an operator has to look at client_id, the client secret and token_auth in the settings",
    "unauthorized_client": "an operator has to let this client use the authorization code grant there",
    "invalid_grant": "the sign-in took too long or was finished before; sign in again",
}


async def exchange_code(
    transport: httpx2.AsyncBaseTransport,
    provider: SignInProvider,
    secret: str,
    endpoint: str,
    *,
    code: str,
    code_verifier: str,
    redirect_uri: str,
) -> Mapping[str, Any]:
    """The provider's tokens for a code, with an access token among them.

    Raises:
        ForbiddenError: the provider refuses. Its own text is in the log, for the operator.
        UntrustedTokenError: the response has no access token.
        WorldError: issuer_unavailable.
    """
    client = oauth_client(  # it shares a transport, so it is never closed
        transport,
        timeout=TIMEOUT_S,
        client_id=provider.client_id,
        client_secret=secret,
        token_endpoint_auth_method=provider.token_auth,
        scope=" ".join(provider.scopes),
        redirect_uri=redirect_uri,
    )
    try:
        async with asyncio.timeout(TOTAL_TIMEOUT_S):
            tokens = await client.fetch_token(
                endpoint, code=code, code_verifier=code_verifier, auth=_basic(provider, secret)
            )
    except AuthlibBaseError as error:
        raise _exchange_refused(provider, error) from error
    except (httpx2.HTTPError, ValueError, TypeError, KeyError, RecursionError, TimeoutError) as error:
        raise issuer_unavailable(
            f"{provider.title} does not answer as it should ({type(error).__name__})"
        ) from error
    if not isinstance(tokens, Mapping) or not isinstance(tokens.get("access_token"), str):
        raise UntrustedTokenError("the token answer holds no access token")
    return tokens


def printable_line(words: object) -> str:
    """A provider's text for a log or a page: one line of printable characters, limited in length."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(words)[: 4 * _MAX_QUOTED]).split())
    return line if len(line) <= _MAX_QUOTED else f"{line[:_MAX_QUOTED]}…"


def _basic(provider: SignInProvider, secret: str) -> httpx2.BasicAuth | None:
    """Id and secret, each form-encoded (RFC 6749 section 2.3.1), which Authlib omits."""
    if provider.token_auth != "client_secret_basic":  # noqa: S105
        return None
    return httpx2.BasicAuth(quote_plus(provider.client_id), quote_plus(secret))


def _exchange_refused(provider: SignInProvider, error: AuthlibBaseError) -> ForbiddenError:
    code, description = printable_line(error.error), printable_line(error.description or "")
    why = "the provider refused the code"
    log.warning("sign_in_refused", provider=provider.name, why=why, error=code, description=description)
    advice = _ADVICE.get(code, "the service's log has its words")
    return ForbiddenError(f"{provider.title} did not finish the sign-in ({code}); {advice}")


@dataclass(frozen=True, slots=True)
class UserInfo:
    """The claims of userinfo, or the reason it could not be used."""

    claims: Mapping[str, Any] = field(default_factory=dict)
    fault: str | None = None


async def read_userinfo(
    client: httpx2.AsyncClient,
    keys: IssuerKeys,
    provider: SignInProvider,
    access_token: str,
    signed: Mapping[str, Any],
    now: datetime,
) -> UserInfo:
    """The claims userinfo adds to the ID token; none if that has them all, or there is no userinfo.

    Raises:
        UntrustedTokenError: userinfo names another subject than the ID token.
        WorldError: issuer_unavailable; the provider's discovery names an address that is not permitted.
    """
    wanted = ["name", "email", *([provider.groups_claim] if provider.groups_claim else [])]
    metadata = await keys.metadata()
    if all(claim_at(signed, name) is not None for name in wanted) or not metadata.get("userinfo_endpoint"):
        return UserInfo()
    url = keys.published(metadata, "userinfo_endpoint")
    what = f"userinfo of {provider.title}"
    try:
        answer = await get_response(client, url, what, Authorization=f"Bearer {access_token}")
        found = await _claims(answer, keys, provider, now)
        if not isinstance(found, Mapping) or not isinstance(found.get("sub"), str):
            raise UntrustedTokenError("it names no subject")
    except (ServerError, UntrustedTokenError) as error:
        why = str(error) if isinstance(error, ServerError) else f"{what} cannot be used: {error}"
        log.warning("userinfo_not_used", provider=provider.name, why=why)
        return UserInfo(fault=why)
    if found["sub"] != signed.get("sub"):
        raise UntrustedTokenError("userinfo is about another subject")
    return UserInfo(found)


async def _claims(answer: httpx2.Response, keys: IssuerKeys, provider: SignInProvider, now: datetime) -> Any:
    """The claims: JSON, or a JWT signed by the provider (section 5.3.2), which need not expire."""
    if answer.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/jwt":
        try:
            return json.loads(answer.content)
        except (ValueError, RecursionError) as error:
            raise UntrustedTokenError("it is no JSON, and its content type is not application/jwt") from error
    token = answer.content.decode("latin-1").strip()
    algorithms = provider.algorithms
    seen = await verify_jwt(token, keys, algorithms=algorithms, types=("JWT",), now=now, must_expire=False)
    if seen.claims.get("iss", provider.issuer) != provider.issuer:
        raise UntrustedTokenError("it is another issuer's")
    if "aud" in seen.claims and provider.client_id not in audiences(seen.claims):
        raise UntrustedTokenError("it is for another client")
    return seen.claims


_PATHS = {
    "authorization_endpoint": "/login/oauth/authorize",
    "token_endpoint": "/login/oauth/access_token",
}
ISS_PATH = "/login/oauth"  # iss of an authorization response (RFC 9207), below its address
_PER_PAGE = 100
_MOST_PAGES = 6  # one more than can count, so that a person with more teams gets a warning


@dataclass(frozen=True, slots=True)
class GithubAccount:
    """An account, with what an ID token would have claimed."""

    sub: str
    claims: Mapping[str, Any]


def github_endpoint(provider: SignInProvider, which: str) -> str:
    """GitHub has no discovery document; its addresses are fixed."""
    return provider.issuer + _PATHS[which]


async def fetch_account(
    client: httpx2.AsyncClient, provider: SignInProvider, access_token: str
) -> GithubAccount:
    """The account of an access token.

    Raises:
        UntrustedTokenError: the API names no account.
        WorldError: issuer_unavailable.
    """
    user = await _api_get(client, provider, "/user", access_token)
    number = user.get("id") if isinstance(user, dict) else None
    if not isinstance(number, int) or isinstance(number, bool) or number <= 0:
        raise UntrustedTokenError("GitHub named no account")
    claims = {"name": user.get("name"), "preferred_username": user.get("login")}
    if provider.groups_claim is not None:
        claims[provider.groups_claim] = await _teams(client, provider, access_token)
    return GithubAccount(str(number), claims)


async def _teams(client: httpx2.AsyncClient, provider: SignInProvider, access_token: str) -> list[str | None]:
    """The names of all teams, with None for an entry that names none."""
    names: list[str | None] = []
    for page in range(1, _MOST_PAGES + 1):
        found = await _api_get(
            client, provider, f"/user/teams?per_page={_PER_PAGE}&page={page}", access_token
        )
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


async def _api_get(client: httpx2.AsyncClient, provider: SignInProvider, path: str, token: str) -> Any:
    return await get_json_document(
        client, provider.api + path, f"the API of {provider.title}", Authorization=f"Bearer {token}"
    )
