"""An OpenID provider in memory, honest by default: every fault a hostile or broken one could show.

The real ones are in `tests/counterparts`; what they will not do wrong, this one does.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlsplit

import httpx2
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

ISSUER = "https://login.example"
CLIENT = "countersign"
SECRET = "the-clients-secret"
_KEYS: dict[str, Key] = {kid: RSAKey.generate_key(2048, {"kid": kid}) for kid in ("k1", "k2")}
_KEYS["ec"] = ECKey.generate_key("P-256", {"kid": "ec"})
_KEYS["ed"] = OKPKey.generate_key("Ed25519", {"kid": "ed"})
ABSENT: Any = object()
_ELSEWHERE = {"status_code": 302, "headers": {"location": f"{ISSUER}/elsewhere"}}
_ODD: dict[str, dict[str, Any]] = {"redirect": _ELSEWHERE, "500": {"status_code": 500, "json": {}}}
_ODD["no JSON"] = {"status_code": 200, "content": b"<html>"}


@dataclass
class Provider:
    """Answers as `transport`. `authorize` is the person's part: it returns what the browser is sent back with."""

    now: int
    claims: dict[str, Any] = field(default_factory=lambda: {"sub": "248", "name": "Maya Okafor"})
    userinfo: dict[str, Any] | None = None
    signs_userinfo: bool = False  # with `signed_with` and `header`, and without times
    secret: str = SECRET
    refuses_codes: dict[str, Any] | None = None  # what the token endpoint answers instead
    metadata: dict[str, Any] = field(default_factory=dict)  # laid over the honest discovery
    id_token: dict[str, Any] = field(default_factory=dict)  # laid over the honest claims; None drops one
    header: dict[str, Any] = field(default_factory=dict)
    signed_with: str = "k1"
    published: tuple[str, ...] = ("k1",)
    more_keys: Any = field(default_factory=list)  # in addition to the published ones; or what replaces them
    leaks: bool = False  # its key set holds the private keys
    odd: dict[str, str] = field(default_factory=dict)  # path: how it answers instead
    access_token: str = "opaque"
    down: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def transport(self) -> httpx2.MockTransport:
        return httpx2.MockTransport(self._answer)

    def authorize(self, url: str) -> dict[str, str]:
        """Sign somebody in: the query of the redirect back."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        code = f"code-{len(self._codes)}"
        self._codes[code] = asked
        return {"code": code, "state": asked["state"], "iss": ISSUER}

    def token(self, nonce: str | None, access_token: str) -> str:
        half = hashlib.sha256(access_token.encode()).digest()[:16]
        times = {"iat": self.now, "exp": self.now + 300}
        own = {"iss": ISSUER, "aud": CLIENT, "nonce": nonce, "at_hash": _b64(half).decode()}
        claims: dict[str, Any] = {**own, **times, **self.claims, **self.id_token}
        claims = {name: value for name, value in claims.items() if value is not None}
        return _sign({"typ": "JWT", **self.header}, claims, self.signed_with)

    @staticmethod
    def key(kid: str) -> dict[str, Any]:
        """One of its public keys: k1, k2 (RSA), ec or ed."""
        return dict(_KEYS[kid].as_dict(private=False))

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        self.asked.append(path)
        if path in self.down:
            raise httpx2.ConnectError("connection refused")
        if self.odd.get(path) == "never":
            await asyncio.sleep(3_600)
        if path in self.odd or path == "/elsewhere":
            how = self.odd.get(path, "no JSON")
            return (
                httpx2.Response(200, content=_endless()) if how == "endless" else httpx2.Response(**_ODD[how])
            )
        handlers = {"/keys": self._jwks, "/token": self._token, "/userinfo": self._userinfo}
        handlers["/.well-known/openid-configuration"] = self._discovery
        return handlers[path](request)

    def _discovery(self, request: httpx2.Request) -> httpx2.Response:
        ends = {"authorization": "authorize", "token": "token", "userinfo": "userinfo"}
        document: dict[str, Any] = {f"{name}_endpoint": f"{ISSUER}/{path}" for name, path in ends.items()}
        document |= {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/keys"}
        document |= {"authorization_response_iss_parameter_supported": True} | self.metadata
        return httpx2.Response(200, json=document)

    def _jwks(self, request: httpx2.Request) -> httpx2.Response:
        if not self.published:
            return httpx2.Response(200, json={"keys": self.more_keys})
        ours = [_KEYS[kid].as_dict(private=self.leaks) for kid in self.published]
        return httpx2.Response(200, json={"keys": [*ours, *self.more_keys]})

    def _token(self, request: httpx2.Request) -> httpx2.Response:
        form = {name: values[0] for name, values in parse_qs(request.content.decode()).items()}
        begun = self._codes.pop(form["code"], None)
        challenge = _b64(hashlib.sha256(form["code_verifier"].encode()).digest()).decode()
        kind, _, encoded = request.headers.get("authorization", "").partition(" ")
        name, _, secret = base64.b64decode(encoded).decode().partition(":")
        if self.refuses_codes is not None:
            return httpx2.Response(400, json=self.refuses_codes)
        if (
            begun is None
            or begun["code_challenge"] != challenge
            or (kind, unquote_plus(name), unquote_plus(secret)) != ("Basic", CLIENT, self.secret)
            or form["redirect_uri"] != begun["redirect_uri"]
        ):
            return httpx2.Response(400, json={"error": "invalid_grant"})
        id_token = self.token(begun["nonce"], self.access_token)
        return httpx2.Response(
            200, json={"access_token": self.access_token, "token_type": "Bearer", "id_token": id_token}
        )

    def _userinfo(self, request: httpx2.Request) -> httpx2.Response:
        assert request.headers["authorization"] == f"Bearer {self.access_token}"
        said = self.userinfo if self.userinfo is not None else self.claims
        if self.signs_userinfo:
            signed = _sign(self.header, said, self.signed_with)
            kind = {"content-type": "application/jwt; charset=utf-8"}
            return httpx2.Response(200, text=signed, headers=kind)
        return httpx2.Response(200, json=said)


async def _endless() -> AsyncIterator[bytes]:
    """JSON that would be sound, were it not so long."""
    yield b'{"issuer": "https://login.example", "sub": "248", "x": "'
    for _ in range(200):
        yield b"x" * 10_000
    yield b'"}'


def _sign(header: dict[str, Any], claims: dict[str, Any], kid: str) -> str:
    """A JWT with any header, which a library would refuse to write; ABSENT leaves a member out."""
    whole = {"alg": "RS256", "kid": kid} | header
    whole = {name: value for name, value in whole.items() if value is not ABSENT}
    signed = b".".join(_b64(json.dumps(part).encode()) for part in (whole, claims))
    if whole.get("alg") == "HS256":  # the published public key taken for a shared secret
        signature = hmac.digest(_KEYS["k1"].as_pem(private=False), signed, "sha256")
    else:
        named = JWSRegistry.algorithms.get(str(whole.get("alg")), JWSRegistry.algorithms["RS256"])
        signature = named.sign(signed, _KEYS[kid])
    return (signed + b"." + _b64(signature)).decode()


def _b64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")
