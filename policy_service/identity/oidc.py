"""People sign in at their own provider: the authorization code flow with PKCE, state, nonce and the issuer's name.

Numbered as they run when a browser comes back:

1. the browser holds the sealed note it was given when it left, for this provider and not older than ten minutes;
2. ``state`` is the note's (RFC 6749 section 10.12);
3. ``iss`` is the provider's, wherever it is sent, and it must be where the provider says that it sends it (RFC 9207):
   with one redirect address per provider this is what keeps one from answering in another's name;
4. the provider did not refuse;
5. the code buys tokens, with the verifier of the note (RFC 7636);
6. the ID token holds (OpenID Connect Core section 3.1.3.7): signature, ``iss``, ``aud``, ``azp``, times, the note's
   ``nonce``, ``at_hash`` where it is there;
7. what the ID token leaves out is asked of userinfo, which must speak of the same ``sub`` (section 5.3.2); where it
   answers nothing that can be used, the ID token alone counts, and the log says what is missing;
8. the claims that the settings require are there.

A person is ``(iss, sub)``; names and addresses are for reading. The note is an encrypted cookie, so that nobody who is
not signed in can make the service write anything.
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
    display_name,
    effective_groups,
    listed_groups,
    require_member,
    verified_email,
)
from policy_service.identity.external_jwt import UntrustedTokenError, text_claim, verify_jwt
from policy_service.identity.issuer_keys import IssuerKeys, bounded_transport, issuer_client
from policy_service.identity.oauth import UserInfo, exchange_code, printable_line, read_userinfo
from policy_service.identity.sessions import LOGOUT_TYPES, Logout, read_logout
from policy_service.issuers import SignInProvider

log = structlog.get_logger(__name__)

_LONGEST_NEXT = 1_024  # characters; a browser drops a cookie of more than 4,096 bytes
SIGN_IN_LIFETIME_S = 600  # seconds between leaving for the provider and coming back
_LABEL = b"countersign/sign-in/v1\n"
# Nothing is decided by the first, and `_auth_at` reads the second: their form must not refuse a token.
_NOT_VALIDATED = frozenset({"amr", "auth_time"})


@dataclass(frozen=True, slots=True)
class Identity:
    """Who came back. ``groups`` is None where this provider's tokens carry none."""

    iss: str
    sub: str
    name: str
    email: str | None
    groups: frozenset[str] | None
    trust: str  # the provider's settings as they are, in a digest
    sid: str | None = None  # the provider's own session
    auth_at: datetime | None = None  # when they proved who they are, where the provider says (`auth_time`)
    groups_problem: str | None = None  # why groups are missing, for this person to read


@dataclass(frozen=True, slots=True)
class AuthorizationRedirect:
    """Where the browser goes, and the cookie it takes along."""

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
    """Every provider people may sign in with."""

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
        """``providers``: by name, each with its client secret; ``secret`` seals the notes; ``transport`` for tests."""
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
        """Name and title of each, in the order of the settings."""
        return [(name, provider.title) for name, (provider, _) in self._providers.items()]

    async def close(self) -> None:
        """Close the connections to the providers."""
        await self._client.aclose()

    async def begin(self, name: str, next_path: str, *, fresh: bool = False) -> AuthorizationRedirect:
        """Send somebody to their provider; ``fresh`` asks it to make sure of them anew, and to say when it did.

        Raises:
            NotFoundError: no such provider.
            WorldError: issuer_unavailable.
        """
        provider, _ = self._find(name)
        note = _PendingSignIn(
            provider=name,
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            next=next_path if len(next_path) <= _LONGEST_NEXT else "/",
            at=int(self._clock().timestamp()),
        )
        endpoint = await self._endpoint(provider, "authorization_endpoint")
        asked = {} if provider.kind == "github" else {"nonce": note.nonce}
        if fresh and asked:
            asked |= {"prompt": "login", "max_age": "0"}
        url = prepare_grant_uri(
            endpoint,
            provider.client_id,
            "code",
            redirect_uri=self._redirect_uri(name),
            scope=" ".join(provider.scopes),
            state=note.state,
            code_challenge=create_s256_code_challenge(note.verifier),
            code_challenge_method="S256",
            **asked,
        )
        return AuthorizationRedirect(url, self._seal(note))

    async def finish(self, name: str, query: Mapping[str, str], sealed: str | None) -> tuple[Identity, str]:
        """Who came back, and the page they wanted.

        Raises:
            NotFoundError: no such provider.
            InvalidRequestError: bad_token; not the browser that left, too late, or an answer that is not for it.
            ForbiddenError: the provider refused, or vouches for nobody we accept.
            WorldError: issuer_unavailable.
        """
        provider, _ = self._find(name)
        note = self._unseal(sealed)
        if note is None or note.provider != name or self._clock().timestamp() - note.at > SIGN_IN_LIFETIME_S:
            raise _restart_error(
                "this browser did not begin that sign-in, or it took longer than ten minutes"
            )
        if not hmac.compare_digest(query.get("state", "").encode(), note.state.encode()):
            raise _restart_error("the provider answered another sign-in than the one this browser began")
        await self._require_issuer(provider, query)
        if "error" in query:
            error, description = (
                printable_line(query["error"]),
                printable_line(query.get("error_description", "")),
            )
            log.warning("sign_in_refused", provider=name, error=error, description=description)
            words = f": {description}" if description else ""
            raise ForbiddenError(f"{provider.title} did not sign you in ({error}){words}")
        if not query.get("code"):
            raise _restart_error("the provider's answer holds no code")
        try:
            identity = await self._identify(provider, query["code"], note)
        except UntrustedTokenError as error:
            log.warning("sign_in_refused", provider=name, why=str(error))
            raise ForbiddenError(
                f"what {provider.title} answered could not be verified; the service's log says why"
            ) from error
        return identity, note.next

    async def _identify(self, provider: SignInProvider, code: str, note: _PendingSignIn) -> Identity:
        tokens = await self._exchange(provider, code, note)
        if provider.kind == "github":
            who = await oauth.fetch_account(self._client, provider, tokens["access_token"])
            listed = listed_groups(provider, [who.claims])
            require_member(provider, listed)
            groups, problem = effective_groups(provider, listed)
            return Identity(
                provider.issuer,
                who.sub,
                display_name(who.claims, who.sub),
                None,
                groups,
                provider.trust,
                groups_problem=problem,
            )
        signed = await self._id_claims(provider, tokens, note)
        keys, now = self._keys[provider.name], self._clock()
        userinfo = await read_userinfo(self._client, keys, provider, tokens["access_token"], signed, now)
        claims = {**userinfo.claims, **signed}  # what was signed wins
        for claim, wanted in provider.required.items():
            if claims.get(claim) != wanted or type(claims.get(claim)) is not type(wanted):
                log.warning(
                    "sign_in_refused", provider=provider.name, why=f"required claim {claim!r} differs"
                )
                raise ForbiddenError(
                    f"{provider.title} knows you, but this deployment asks for {claim} = {wanted!r}"
                )
        missing = _why_no_groups(provider, userinfo, await keys.metadata())
        listed = listed_groups(provider, [signed, userinfo.claims], missing)
        require_member(provider, listed)
        sub = text_claim(claims, "sub", MAX_LENGTHS["sub"])
        email = verified_email(claims)
        groups, problem = effective_groups(provider, listed)
        return Identity(
            provider.issuer,
            sub,
            display_name(claims, sub),
            email,
            groups,
            provider.trust,
            text_claim(claims, "sid", MAX_LENGTHS["sub"]) if "sid" in claims else None,
            _auth_at(provider, signed, now),
            problem,
        )

    async def back_channel(self, name: str, token: str) -> Logout:
        """What a provider's logout token says.

        Raises:
            NotFoundError: no such provider, or one that signs no tokens.
            UntrustedTokenError: it proves nothing.
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

    async def _exchange(self, provider: SignInProvider, code: str, note: _PendingSignIn) -> Mapping[str, Any]:
        return await exchange_code(
            self._transport,
            provider,
            self._find(provider.name)[1],
            await self._endpoint(provider, "token_endpoint"),
            code=code,
            code_verifier=note.verifier,
            redirect_uri=self._redirect_uri(provider.name),
        )

    async def _id_claims(
        self, provider: SignInProvider, tokens: Mapping[str, Any], note: _PendingSignIn
    ) -> Mapping[str, Any]:
        id_token = tokens.get("id_token")
        if not isinstance(id_token, str):
            raise UntrustedTokenError("the token answer holds no ID token")
        now = self._clock()
        token = await verify_jwt(
            id_token, self._keys[provider.name], algorithms=provider.algorithms, types=("JWT",), now=now
        )
        # Authlib knows the hash of at_hash by the older of the two names for one algorithm (RFC 9864).
        algorithm = "EdDSA" if token.header["alg"] == "Ed25519" else token.header["alg"]
        claims = CodeIDToken(
            {name: value for name, value in token.claims.items() if name not in _NOT_VALIDATED},
            {"alg": algorithm},
            {
                "iss": {"essential": True, "value": provider.issuer},
                "aud": {"essential": True, "value": provider.client_id},
            },
            {"client_id": provider.client_id, "nonce": note.nonce, "access_token": tokens["access_token"]},
        )
        try:
            claims.validate(now=int(now.timestamp()), leeway=60)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise UntrustedTokenError(f"the ID token does not hold: {error}") from error
        return token.claims

    async def _require_issuer(self, provider: SignInProvider, query: Mapping[str, str]) -> None:
        named = query.get("iss")
        if provider.kind == "github":
            own, always = provider.issuer + oauth.ISS_PATH, False  # older servers send none
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

    def _seal(self, note: _PendingSignIn) -> str:
        text = json.dumps({field: getattr(note, field) for field in _PendingSignIn.__slots__})
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
    """``auth_time``, never later than now: what lies ahead would be fresh for longer than it may.

    It is a number, which may have a fraction (RFC 7519 section 2, NumericDate); a text is none.
    """
    said = claims.get("auth_time")
    if said is None:
        return None
    if isinstance(said, bool) or not isinstance(said, int | float) or said < 0:
        log.warning("auth_time_not_used", provider=provider.name, why=f"it is {said!r:.100}, no NumericDate")
        return None
    return datetime.fromtimestamp(min(said, now.timestamp()), now.tzinfo)


def _why_no_groups(provider: SignInProvider, userinfo: UserInfo, metadata: Mapping[str, Any]) -> str:
    """What is known of the reason, where neither the ID token nor userinfo holds the groups claim."""
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
