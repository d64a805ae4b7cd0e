"""The authorization code for tokens (RFC 6749 section 4.1.3), by Authlib, and what a provider says when it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote_plus

import httpx2
import structlog
from authlib.common.errors import AuthlibBaseError

from policy_service.errors import ForbiddenError
from policy_service.http_clients import oauth_client
from policy_service.identity.foreign_tokens import UntrustedTokenError
from policy_service.identity.issuer_keys import PATIENCE_S, TIMEOUT_S, unavailable
from policy_service.issuers import SignInProvider

log = structlog.get_logger(__name__)

_LONGEST_QUOTED = 300  # characters of a provider's own words
_ADVICE = {  # RFC 6749 section 5.2
    "invalid_client": "an operator has to look at client_id, the client secret and token_auth in the settings",
    "unauthorized_client": "an operator has to let this client use the authorization code grant there",
    "invalid_grant": "the sign-in took too long or was finished before; sign in again",
}


async def exchange(
    transport: httpx2.AsyncBaseTransport,
    provider: SignInProvider,
    secret: str,
    endpoint: str,
    *,
    code: str,
    code_verifier: str,
    redirect_uri: str,
) -> Mapping[str, Any]:
    """The provider's tokens for a code; there is an access token among them.

    Raises:
        ForbiddenError: the provider refuses. Its own words are in the log, for they are for the operator.
        UntrustedTokenError: its answer holds no access token.
        WorldError: issuer_unavailable.
    """
    client = oauth_client(  # it shares the transport of all, so it is never closed by itself
        transport,
        timeout=TIMEOUT_S,
        client_id=provider.client_id,
        client_secret=secret,
        token_endpoint_auth_method=provider.token_auth,
        scope=" ".join(provider.scopes),
        redirect_uri=redirect_uri,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            tokens = await client.fetch_token(
                endpoint, code=code, code_verifier=code_verifier, auth=_basic(provider, secret)
            )
    except AuthlibBaseError as error:
        raise _refused(provider, error) from error
    except (httpx2.HTTPError, ValueError, TypeError, KeyError, RecursionError, TimeoutError) as error:
        raise unavailable(
            f"{provider.title} does not answer as it should ({type(error).__name__})"
        ) from error
    if not isinstance(tokens, Mapping) or not isinstance(tokens.get("access_token"), str):
        raise UntrustedTokenError("the token answer holds no access token")
    return tokens


def quoted(words: object) -> str:
    """A provider's own words, for a log or a page: one line of printable characters, not too long."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(words)[: 4 * _LONGEST_QUOTED]).split())
    return line if len(line) <= _LONGEST_QUOTED else f"{line[:_LONGEST_QUOTED]}…"


def _basic(provider: SignInProvider, secret: str) -> httpx2.BasicAuth | None:
    """Id and secret, each form-encoded first (RFC 6749 section 2.3.1), which Authlib leaves out."""
    if provider.token_auth != "client_secret_basic":  # noqa: S105
        return None
    return httpx2.BasicAuth(quote_plus(provider.client_id), quote_plus(secret))


def _refused(provider: SignInProvider, error: AuthlibBaseError) -> ForbiddenError:
    code, description = quoted(error.error), quoted(error.description or "")
    why = "the code bought nothing"
    log.warning("sign_in_refused", provider=provider.name, why=why, error=code, description=description)
    advice = _ADVICE.get(code, "the service's log has its words")
    return ForbiddenError(f"{provider.title} did not finish the sign-in ({code}); {advice}")
