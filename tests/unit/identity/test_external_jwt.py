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


IGNORED: list[dict[str, Any]] = [
    {"app_id": "3f", "client_id": "countersign", "pi.atm": "1", "pi.sri": "x", "nonce": "AQAB"},  # of vendors
    {"a": None, "b": 7, "c": [1], "d": {"e": {}}, "": True, "zip": 1.5},
    *({"x5t": "dGh1bWI", "x5t#S256": "dGh1bWI"}, {"x5t": 7}, {"note": "n" * 6_000}, {"b64": True}),
    *({"typ": typ} for typ in ("jwt", "application/JWT", ABSENT)),
]


@pytest.mark.parametrize("header", IGNORED)
async def test_an_unknown_header_member_is_ignored(header: dict[str, Any]) -> None:
    assert (await Browser().but(header=header).through()).sub == "248"


CRIT: list[tuple[Any, dict[str, Any]]] = [
    *((["exp2"], {"exp2": 1}), (["b64"], {"b64": False}), ("x", {"x": 1}), ({"x": 1}, {"x": 1})),
]
CAUSES: list[tuple[dict[str, Any], str]] = [
    *(({"crit": crit}, f"its crit {crit!r} is malformed, or") for crit in (["x"], ["alg"], [], None)),
    *(({"crit": crit} | named, f"its crit {crit!r} is malformed, or") for crit, named in CRIT),
    *(({"alg": alg}, f"its alg is {alg!r}, not one of RS256") for alg in ("none", "NONE", "HS256")),
    *(
        ({name: odd}, f"malformed: its {name} is no text")
        for name, odd in (("alg", 7), ("kid", 7), ("typ", None))
    ),
    *(({name: ELSEWHERE}, OWN + name) for name in ("jku", "x5u")),
    *(({"jwk": {"kty": "oct"}}, OWN + "jwk"), ({"x5c": ["MII"]}, OWN + "x5c"), ({"cty": "JWT"}, OWN + "cty")),
    *(({"b64": False}, "malformed: its b64"), ({"typ": "at+jwt"}, "its typ is 'at+jwt', not one of JWT")),
    ({"kid": "a\nb\ud800"}, "'acme' publishes no key with kid 'a\\nb\\ud800'"),
]
SIGNERS: dict[str, tuple[dict[str, Any], str]] = {
    "an unpublished key id": ({}, "'acme' publishes no key with kid 'k2'"),
    "another key under the id": ({"kid": "k1"}, "its signature is invalid (issuer 'acme', kid 'k1')"),
    "a key for another use": ({"kid": "k1", "alg": "ES256"}, "no key of 'acme' with kid 'k1' is for ES256"),
}


@pytest.mark.parametrize(("header", "why"), CAUSES)
async def test_the_log_names_the_cause(header: dict[str, Any], why: str) -> None:
    browser = Browser().but(header=header)
    assert (await refused_because(browser.through())).startswith(why)
    assert set(browser.provider.asked) <= {"/.well-known/openid-configuration", "/token", "/keys"}, "followed"


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


@pytest.mark.parametrize(("damage", "why"), DAMAGES)
async def test_the_log_names_what_a_damaged_token_lacks(damage: Callable[[str], str], why: str) -> None:
    browser = Browser()
    whole = browser.provider.token
    browser.but(token=lambda nonce, access_token: damage(whole(nonce, access_token)))
    assert (await refused_because(browser.through())).startswith(why)
