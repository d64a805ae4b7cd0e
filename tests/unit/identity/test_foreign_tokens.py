"""What can be read in two ways is read in none."""

from __future__ import annotations

from base64 import urlsafe_b64encode

import pytest

from policy_service.identity.foreign_tokens import UntrustedTokenError, peek


def token(header: bytes, claims: bytes) -> str:
    return ".".join(urlsafe_b64encode(part).rstrip(b"=").decode() for part in (header, claims, b"signature"))


def test_a_token_says_who_might_have_signed_it() -> None:
    seen = peek(token(b'{"alg": "RS256", "kid": "k"}', b'{"iss": "https://a.example"}'))
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
        peek(token(header, claims))
