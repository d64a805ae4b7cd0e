"""Sign-in of people at their provider: authorization code flow with PKCE, state, nonce and issuer identification.

In the order of the checks when a browser returns:

1. the browser has the sealed sign-in state it was given, for this provider and not older than ten minutes;
2. ``state`` matches it (RFC 6749 section 10.12);
3. ``iss`` is the provider's if present, and it is required if the provider announces it (RFC 9207). With one redirect
   address per provider this prevents one provider from answering in another's name;
4. the provider did not refuse;
5. the code is exchanged for tokens, with the stored verifier (RFC 7636);
6. the ID token is valid (OpenID Connect Core section 3.1.3.7): signature, ``iss``, ``aud``, ``azp``, times, the stored
   ``nonce``, and ``at_hash`` if present;
7. claims missing from the ID token are read from userinfo, which must be about the same ``sub`` (section 5.3.2). If
   userinfo is unusable, the ID token alone counts, and the log says what is missing;
8. the claims that the settings require are present.

A person is ``(iss, sub)``; names and addresses are for display. The sign-in state is an encrypted cookie, so a visitor
who is not signed in cannot make the service store anything.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx2
import structlog
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc import jwe
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

from countersign.contract import ErrorCode
from policy_service.errors import ForbiddenError, InvalidRequestError, NotFoundError
from policy_service.health import Health
from policy_service.http_clients import DIRECT, Route
from policy_service.identity import oauth
from policy_service.identity.claims import (
    MAX_LENGTHS,
    ListedGroups,
    display_name,
    effective_groups,
    listed_groups,
    require_member,
    verified_email,
)
from policy_service.identity.external_jwt import UntrustedTokenError, text_claim, verify_jwt
from policy_service.identity.issuer_keys import IssuerKeys, bounded_transport, issuer_client
from policy_service.identity.logout import LOGOUT_TYPES, Logout, read_logout
from policy_service.identity.oauth import UserInfo, exchange_code, printable_line, read_userinfo
from policy_service.issuers import SignInProvider

log = structlog.get_logger(__name__)

_LONGEST_NEXT = 1_024  # characters; a browser drops a cookie of more than 4,096 bytes
SIGN_IN_LIFETIME_S = 600  # seconds from redirect to return
_LABEL = b"countersign/sign-in/v1\n"
# The first is not used and `_auth_at` reads the second: their form must not invalidate a token.
_NOT_VALIDATED = frozenset({"amr", "auth_time"})


@dataclass(frozen=True, slots=True)
class Identity:
    """The person who signed in. ``groups`` is None if this provider's tokens carry none."""

    iss: str
    sub: str
    name: str
    email: str | None
    groups: frozenset[str] | None
    trust: str  # digest of the provider's settings
    sid: str | None = None  # the provider's id of its own session
    auth_at: datetime | None = None  # time of the authentication, if the provider sends `auth_time`
    groups_problem: str | None = None  # why groups are missing, shown to this person


@dataclass(frozen=True, slots=True)
class AuthorizationRedirect:
    """The redirect to the provider, and the cookie with the sealed state."""

    url: str
    note: str


@dataclass(frozen=True, slots=True, repr=False)
class _PendingSignIn:
    provider: str
    state: str
    nonce: str
    verifier: str
    next: str
    at: int


class SignIn:
    """Sign-in with every configured provider."""

    def __init__(
        self,
        providers: Mapping[str, tuple[SignInProvider, str]],
        public_url: str,
        secret: bytes,
        clock: Callable[[], datetime],
        transport: httpx2.AsyncBaseTransport | None = None,
        health: Health | None = None,
        route: Route = DIRECT,
    ) -> None:
        """``providers``: by name, each with its client secret; ``secret`` encrypts the state; ``transport`` is for
        tests.
        """
        self._providers = providers
        self._public_url = public_url
        self._clock = clock
        self._key = OctKey.import_key(hmac.digest(secret, _LABEL, hashlib.sha256))
        self._transport = bounded_transport(transport, health, route)
        self._client = issuer_client(self._transport)
        self._keys = {
            name: IssuerKeys(name, client=self._client, issuer=provider.issuer)
            for name, (provider, _) in providers.items()
        }

    @property
    def choices(self) -> list[tuple[str, str]]:
        """Name and title of each provider, in the order of the settings."""
        return [(name, provider.title) for name, (provider, _) in self._providers.items()]

    async def close(self) -> None:
        """Close the connections to the providers."""
        await self._client.aclose()

    async def begin(self, name: str, next_path: str, *, fresh: bool = False) -> AuthorizationRedirect:
        """Start a sign-in; ``fresh`` asks the provider to authenticate the person again and to send the time.

        Raises:
            NotFoundError: no such provider.
            WorldError: issuer_unavailable.
        """
        provider, _ = self._find(name)
        pending = _PendingSignIn(
            provider=name,
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            next=next_path if len(next_path) <= _LONGEST_NEXT else "/",
            at=int(self._clock().timestamp()),
        )
        endpoint = await self._endpoint(provider, "authorization_endpoint")
        asked = {} if provider.kind == "github" else {"nonce": pending.nonce}
        if fresh and asked:
            asked |= {"prompt": "login", "max_age": "0"}
        url = prepare_grant_uri(
            endpoint,
            provider.client_id,
            "code",
            redirect_uri=self._redirect_uri(name),
            scope=" ".join(provider.scopes),
            state=pending.state,
            code_challenge=create_s256_code_challenge(pending.verifier),
            code_challenge_method="S256",
            **asked,
        )
        return AuthorizationRedirect(url, self._seal(pending))

    async def finish(self, name: str, query: Mapping[str, str], sealed: str | None) -> tuple[Identity, str]:
        """The person who returned, and the page to show.

        Raises:
            NotFoundError: no such provider.
            InvalidRequestError: bad_token; another browser, too late, or a response to another sign-in.
            ForbiddenError: the provider refused, or the person may not sign in.
            WorldError: issuer_unavailable.
        """
        provider, _ = self._find(name)
        pending = self._unseal(sealed)
        if (
            pending is None
            or pending.provider != name
            or self._clock().timestamp() - pending.at > SIGN_IN_LIFETIME_S
        ):
            raise _restart_error(
                "this browser did not begin that sign-in, or it took longer than ten minutes"
            )
        if not hmac.compare_digest(query.get("state", "").encode(), pending.state.encode()):
            raise _restart_error("the provider answered another sign-in than the one this browser began")
        await self._require_issuer(provider, query)
        if "error" in query:
            error, description = (
                printable_line(query["error"]),
                printable_line(query.get("error_description", "")),
            )
            log.warning("sign_in_refused", provider=name, error=error, description=description)
            detail = f": {description}" if description else ""
            raise ForbiddenError(f"{provider.title} did not sign you in ({error}){detail}")
        if not query.get("code"):
            raise _restart_error("the provider's answer holds no code")
        try:
            identity = await self._identify(provider, query["code"], pending)
        except UntrustedTokenError as error:
            log.warning("sign_in_refused", provider=name, why=str(error))
            raise ForbiddenError(
                f"what {provider.title} answered could not be verified; the service's log says why"
            ) from error
        return identity, pending.next

    async def _identify(self, provider: SignInProvider, code: str, pending: _PendingSignIn) -> Identity:
        tokens = await self._exchange(provider, code, pending)
        claims: Mapping[str, Any]
        auth_at = None
        if provider.kind == "github":
            account = await oauth.fetch_account(self._client, provider, tokens["access_token"])
            claims = {"sub": account.sub, **account.claims}
            listed = listed_groups(provider, [account.claims])
        else:
            claims, listed, auth_at = await self._oidc_claims(provider, tokens, pending)
        require_member(provider, listed)
        sub = text_claim(claims, "sub", MAX_LENGTHS["sub"])
        sid = text_claim(claims, "sid", MAX_LENGTHS["sub"]) if "sid" in claims else None
        name, email = display_name(claims, sub), verified_email(claims)
        groups, problem = effective_groups(provider, listed)
        return Identity(provider.issuer, sub, name, email, groups, provider.trust, sid, auth_at, problem)

    async def _oidc_claims(
        self, provider: SignInProvider, tokens: Mapping[str, Any], pending: _PendingSignIn
    ) -> tuple[Mapping[str, Any], ListedGroups, datetime | None]:
        signed = await self._id_claims(provider, tokens, pending)
        keys, now = self._keys[provider.name], self._clock()
        userinfo = await read_userinfo(self._client, keys, provider, tokens["access_token"], signed, now)
        claims = {**userinfo.claims, **signed}  # signed claims take precedence
        for claim, wanted in provider.required.items():
            if claims.get(claim) != wanted or type(claims.get(claim)) is not type(wanted):
                why = f"required claim {claim!r} differs"
                log.warning("sign_in_refused", provider=provider.name, why=why)
                raise ForbiddenError(
                    f"{provider.title} knows you, but this deployment asks for {claim} = {wanted!r}"
                )
        missing = _why_no_groups(provider, userinfo, await keys.metadata())
        listed = listed_groups(provider, [signed, userinfo.claims], missing)
        return claims, listed, _auth_at(provider, signed, now)

    async def back_channel(self, name: str, token: str) -> Logout:
        """The content of a provider's logout token.

        Raises:
            NotFoundError: no such provider, or one that signs no tokens.
            UntrustedTokenError: the token is invalid.
            WorldError: issuer_unavailable.
        """
        provider, _ = self._find(name)
        if provider.kind == "github":
            raise NotFoundError(f"{name!r} sends no logout tokens")
        now = self._clock()
        seen = await verify_jwt(
            token, self._keys[name], algorithms=provider.algorithms, types=LOGOUT_TYPES, now=now
        )
        return read_logout(provider, seen.claims, now)

    async def _exchange(
        self, provider: SignInProvider, code: str, pending: _PendingSignIn
    ) -> Mapping[str, Any]:
        return await exchange_code(
            self._transport,
            provider,
            self._find(provider.name)[1],
            await self._endpoint(provider, "token_endpoint"),
            code=code,
            code_verifier=pending.verifier,
            redirect_uri=self._redirect_uri(provider.name),
        )

    async def _id_claims(
        self, provider: SignInProvider, tokens: Mapping[str, Any], pending: _PendingSignIn
    ) -> Mapping[str, Any]:
        id_token = tokens.get("id_token")
        if not isinstance(id_token, str):
            raise UntrustedTokenError("the token answer holds no ID token")
        now = self._clock()
        token = await verify_jwt(
            id_token, self._keys[provider.name], algorithms=provider.algorithms, types=("JWT",), now=now
        )
        # Authlib knows the hash of at_hash only by the older of two algorithm names (RFC 9864).
        algorithm = "EdDSA" if token.header["alg"] == "Ed25519" else token.header["alg"]
        claims = CodeIDToken(
            {name: value for name, value in token.claims.items() if name not in _NOT_VALIDATED},
            {"alg": algorithm},
            {
                "iss": {"essential": True, "value": provider.issuer},
                "aud": {"essential": True, "value": provider.client_id},
            },
            {"client_id": provider.client_id, "nonce": pending.nonce, "access_token": tokens["access_token"]},
        )
        try:
            claims.validate(now=int(now.timestamp()), leeway=60)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise UntrustedTokenError(f"the ID token is invalid: {error}") from error
        return token.claims

    async def _require_issuer(self, provider: SignInProvider, query: Mapping[str, str]) -> None:
        named = query.get("iss")
        if provider.kind == "github":
            own, always = provider.issuer + oauth.ISS_PATH, False  # older servers send no iss
        else:
            metadata = await self._keys[provider.name].metadata()
            own = provider.issuer
            always = metadata.get("authorization_response_iss_parameter_supported") is True
        if (named is None and always) or (named is not None and named != own):
            log.warning(
                "sign_in_refused", provider=provider.name, why="another issuer answered", iss=str(named)[:200]
            )
            raise _restart_error(f"the answer is not from {provider.title}")

    async def _endpoint(self, provider: SignInProvider, which: str) -> str:
        if provider.kind == "github":
            return oauth.github_endpoint(provider, which)
        keys = self._keys[provider.name]
        return keys.published(await keys.metadata(), which)

    def _redirect_uri(self, name: str) -> str:
        return f"{self._public_url}/sign-in/{name}/callback"

    def _find(self, name: str) -> tuple[SignInProvider, str]:
        if name not in self._providers:
            raise NotFoundError(f"there is no way to sign in called {name!r}")
        return self._providers[name]

    def _seal(self, pending: _PendingSignIn) -> str:
        text = json.dumps({field: getattr(pending, field) for field in _PendingSignIn.__slots__})
        return jwe.encrypt_compact({"alg": "dir", "enc": "A256GCM"}, text, self._key)

    def _unseal(self, sealed: str | None) -> _PendingSignIn | None:
        if not sealed:
            return None
        try:
            opened = jwe.decrypt_compact(sealed, self._key, algorithms=["dir", "A256GCM"])
            return _PendingSignIn(**json.loads(opened.plaintext or b""))
        except (JoseError, ValueError, TypeError):
            return None


def _auth_at(provider: SignInProvider, claims: Mapping[str, Any], now: datetime) -> datetime | None:
    """``auth_time``, capped at now: a later time would count as fresh for too long.

    It is a number, possibly with a fraction (RFC 7519 section 2, NumericDate); text is ignored.
    """
    said = claims.get("auth_time")
    if said is None:
        return None
    if isinstance(said, bool) or not isinstance(said, int | float) or said < 0:
        log.warning("auth_time_not_used", provider=provider.name, why=f"it is {said!r:.100}, no NumericDate")
        return None
    return datetime.fromtimestamp(min(said, now.timestamp()), now.tzinfo)


def _why_no_groups(provider: SignInProvider, userinfo: UserInfo, metadata: Mapping[str, Any]) -> str:
    """The known reason, if neither the ID token nor userinfo has the groups claim."""
    if userinfo.fault is not None:
        return f" in the ID token, and {userinfo.fault}"
    requested = f"requested scopes: {' '.join(provider.scopes)}"
    offered = metadata.get("scopes_supported")
    claim = provider.groups_claim
    if isinstance(offered, list) and claim in offered and claim not in provider.scopes:
        return f": its scope {claim!r} is not among the scopes of the settings ({requested})"
    return f" in the ID token or userinfo; {requested}; the provider may need another scope or a mapper"


def _restart_error(why: str) -> InvalidRequestError:
    return InvalidRequestError(f"{why}; sign in again", code=ErrorCode.BAD_TOKEN)
