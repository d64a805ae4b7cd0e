"""Tokens of external issuers: ambiguous ones are refused, unused members ignored, each reason named."""

from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Any

import pytest

from policy_service.identity.external_jwt import UntrustedTokenError, decode_unverified
from tests.fakes.identity_provider import ABSENT
from tests.unit.identity.signing_in import Browser, refused_because

ELSEWHERE = "https://evil.example/keys"
OWN = "its header brings a key or a content type of its own: "


def token(header: bytes, claims: bytes) -> str:
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in (header, claims, b"signature"))


def test_a_token_says_who_might_have_signed_it() -> None:
    seen = decode_unverified(token(b'{"alg": "RS256", "kid": "k"}', b'{"iss": "https://a.example"}'))
    assert (seen.header["kid"], seen.claims) == ("k", {"iss": "https://a.example"})


TWO_READINGS = {
    "a claim twice": (b"{}", b'{"sub": "a", "sub": "b"}'),
    "a claim twice, deeper down": (b"{}", b'{"cnf": {"jkt": "a", "jkt": "b"}}'),
    "a header twice": (b'{"kid": "a", "kid": "b"}', b"{}"),
    "another encoding": (b"{}", '{"sub": "a"}'.encode("utf-16")),
    "a mark of an encoding": (b"{}", b'\xef\xbb\xbf{"sub": "a"}'),
    "bytes that are no text": (b"{}", b'{"sub": "\xff"}'),
    "no object": (b"{}", b'["sub"]'),
    "a key id that is none": (b'{"kid": ["k"]}', b"{}"),
    "depth without end": (b"{}", b'{"a":' * 2_000 + b"1" + b"}" * 2_000),
}


@pytest.mark.parametrize(("header", "claims"), TWO_READINGS.values(), ids=TWO_READINGS.keys())
def test_a_token_with_two_readings_is_none(header: bytes, claims: bytes) -> None:
    with pytest.raises(UntrustedTokenError):
        decode_unverified(token(header, claims))


IGNORED = {
    "of Azure": {"app_id": "3f", "client_id": "countersign"},
    "of Ping": {"pi.atm": "1", "pi.sri": "x"},
    "of odd types": {"a": None, "b": 7, "c": [1], "d": {"e": {}}, "": True, "zip": 1.5},
    "a certificate's thumbprint": {"x5t": "dGh1bWI", "x5t#S256": "dGh1bWI"},
    "a thumbprint that is none": {"x5t": 7},
    "a long one": {"note": "n" * 6_000},
    "a nonce of Microsoft's": {"nonce": "AQAB"},
    "the usual encoding, said": {"b64": True},
    "another spelling of the type": {"typ": "jwt"},
    "the type in full": {"typ": "application/JWT"},
    "no type": {"typ": ABSENT},
}


@pytest.mark.anyio
@pytest.mark.parametrize("header", IGNORED.values(), ids=IGNORED.keys())
async def test_an_unknown_header_member_is_ignored(header: dict[str, Any]) -> None:
    assert (await Browser().but(header=header).through()).sub == "248"


CAUSES: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown extension": ({"crit": ["exp2"], "exp2": 1}, "its crit ['exp2'] is malformed, or"),
    "a known one": ({"crit": ["b64"], "b64": False}, "its crit ['b64'] is malformed, or"),
    "an extension that is not there": ({"crit": ["x"]}, "its crit ['x'] is malformed, or"),
    "a registered name as an extension": ({"crit": ["alg"]}, "its crit ['alg'] is malformed, or"),
    "no extension": ({"crit": []}, "its crit [] is malformed, or"),
    "an extension that is a text": ({"crit": "x", "x": 1}, "its crit 'x' is malformed, or"),
    "an extension that is null": ({"crit": None}, "its crit None is malformed, or"),
    "an extension of an odd type": ({"crit": {"x": 1}, "x": 1}, "its crit {'x': 1} is malformed, or"),
    "an unencoded payload without crit": ({"b64": False}, "malformed: its b64"),
    "no signature": ({"alg": "none"}, "its alg is 'none', not one of RS256"),
    "no signature, in capitals": ({"alg": "NONE"}, "its alg is 'NONE', not one of RS256"),
    "the public key as a secret": ({"alg": "HS256"}, "its alg is 'HS256', not one of RS256"),
    "an algorithm that is no text": ({"alg": 7}, "malformed: its alg is no text"),
    "a key id that is no text": ({"kid": 7}, "malformed: its kid is no text"),
    "a type that is no text": ({"typ": None}, "malformed: its typ is no text"),
    "another type": ({"typ": "at+jwt"}, "its typ is 'at+jwt', not one of JWT"),
    "keys elsewhere": ({"jku": ELSEWHERE}, OWN + "jku"),
    "a key of its own": ({"jwk": {"kty": "oct"}}, OWN + "jwk"),
    "a certificate elsewhere": ({"x5u": ELSEWHERE}, OWN + "x5u"),
    "a certificate of its own": ({"x5c": ["MII"]}, OWN + "x5c"),
    "a content type of its own": ({"cty": "JWT"}, OWN + "cty"),
    "a key id that breaks lines": ({"kid": "a\nb\ud800"}, "'acme' publishes no key with kid 'a\\nb\\ud800'"),
}
SIGNERS: dict[str, tuple[dict[str, Any], str]] = {
    "an unpublished key id": ({}, "'acme' publishes no key with kid 'k2'"),
    "another key under the id": ({"kid": "k1"}, "its signature is invalid (issuer 'acme', kid 'k1')"),
    "a key for another use": ({"kid": "k1", "alg": "ES256"}, "no key of 'acme' with kid 'k1' is for ES256"),
}


@pytest.mark.anyio
@pytest.mark.parametrize(("header", "why"), CAUSES.values(), ids=CAUSES.keys())
async def test_the_log_names_the_cause(header: dict[str, Any], why: str) -> None:
    browser = Browser().but(header=header)
    assert (await refused_because(browser.through())).startswith(why)
    assert set(browser.provider.asked) <= {"/.well-known/openid-configuration", "/token", "/keys"}, "followed"


@pytest.mark.anyio
@pytest.mark.parametrize(("header", "why"), SIGNERS.values(), ids=SIGNERS.keys())
async def test_the_log_names_the_key_that_did_not_sign(header: dict[str, Any], why: str) -> None:
    signer = "ec" if "alg" in header else "k2"
    assert await refused_because(Browser().but(signed_with=signer, header=header).through()) == why


def cut(token: str) -> str:
    """The token without its signature."""
    return token.rpartition(".")[0]


INVALID_SIGNATURE, MALFORMED = "its signature is invalid", "malformed: it is no signed token"
NO_BASE64 = "malformed: its signature is no base64url"
DAMAGES: list[tuple[Callable[[str], str], str]] = [
    (lambda token: token[:-4] + ("AAAA" if token[-4:] != "AAAA" else "BBBB"), INVALID_SIGNATURE),
    (lambda token: cut(token) + ".", INVALID_SIGNATURE),
    (lambda token: cut(token) + ".!", NO_BASE64),
    (lambda token: token + "=", NO_BASE64),
    (cut, MALFORMED),
    (lambda token: token + ".x.y", "it is encrypted, which is not supported"),
    (lambda token: "ImFsZyBiNjQi." + token.partition(".")[2], MALFORMED),
    (lambda token: "é" + token, "malformed: it is no signed token, or too long a one"),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("damage", "why"), DAMAGES)
async def test_the_log_names_what_a_damaged_token_lacks(damage: Callable[[str], str], why: str) -> None:
    browser = Browser()
    whole = browser.provider.token
    browser.but(token=lambda nonce, access_token: damage(whole(nonce, access_token)))
    assert (await refused_because(browser.through())).startswith(why)
