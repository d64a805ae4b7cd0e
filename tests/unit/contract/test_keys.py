"""Keys are named by their thumbprint, sets of keys are unambiguous, and no private key shows itself."""

import pickle
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, x25519

from countersign.contract import BadKeyError, KeySet, PrivateKey, PublicKey, thumbprint
from countersign.contract.keys import MAX_KEYS, decode_base64url, encode_base64url

# RFC 8037 appendix A
SEED = decode_base64url("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A")
X = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"
THUMBPRINT = "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
SIGNING_INPUT = b"eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc"
SIGNATURE = "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"


OWN = {"kty": "OKP", "crv": "Ed25519", "x": X, "kid": THUMBPRINT, "use": "sig", "alg": "Ed25519"}


def jwk(**changed: Any) -> dict[str, Any]:
    return {name: value for name, value in {**OWN, **changed}.items() if value is not ...}


def test_the_key_of_rfc8037_signs_and_is_named_as_printed_there() -> None:
    key = PrivateKey.from_seed(SEED)
    assert key.public.jwk()["x"] == X
    assert key.public.kid == thumbprint(jwk()) == THUMBPRINT
    assert encode_base64url(key.sign(SIGNING_INPUT)) == SIGNATURE
    assert key.public.verify(decode_base64url(SIGNATURE), SIGNING_INPUT)
    assert not key.public.verify(decode_base64url(SIGNATURE), SIGNING_INPUT + b"x")


def test_keys_survive_pem_and_jwks() -> None:
    key = PrivateKey.generate()
    assert PrivateKey.from_pem(key.to_pem()).public == key.public
    assert KeySet.from_jwks(KeySet([key.public]).to_jwks()).get(key.public.kid) == key.public
    assert hash(PublicKey.from_raw(key.public.raw)) == hash(key.public)
    assert len(KeySet([key.public])) == 1


def test_a_private_key_does_not_show_or_pickle_itself() -> None:
    key = PrivateKey.from_seed(SEED)
    assert repr(key) == f"PrivateKey(kid={THUMBPRINT!r})"
    assert SEED.hex() not in repr(key) + str(vars(type(key)))
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(key)
    assert repr(key.public) == f"PublicKey(kid={THUMBPRINT!r})"
    assert key.public != THUMBPRINT


NOT_OURS: list[dict[str, Any]] = [
    *({"kid": ...}, {"kty": "RSA"}, {"kty": "oct", "k": X}, {"crv": "X25519"}, {"crv": "Ed448"}),
    *({"use": "enc"}, {"alg": "EdDSA"}, {"alg": "HS256"}, {"key_ops": ["sign"]}),
    *({"key_ops": ["verify", "encrypt"]}, {"d": X}, {"x5c": ["MIIB"]}, {"x": ...}, {"x": 7}, {"x": X + "="}),
    *({"x": X[:-1]}, {"x": X[:-1] + "p"}, {"x": X.replace("_", "/")}),
]


@pytest.mark.parametrize("changed", [{"kid": "other"}, *NOT_OURS])
def test_one_key_that_is_not_ours_refuses_the_whole_set(changed: dict[str, Any]) -> None:
    good = PrivateKey.generate().public.signing_jwk()
    with pytest.raises(BadKeyError) as refused:
        KeySet.from_jwks({"keys": [good, jwk(**changed)]})
    assert refused.value.code == ("kid_mismatch" if changed == {"kid": "other"} else "bad_key")
    KeySet.from_jwks({"keys": [good, jwk()]})


NO_SETS: list[Any] = [*(None, [], "x", {}), *({"keys": keys} for keys in (None, {}, ["x"], [None], [{}]))]


@pytest.mark.parametrize("jwks", NO_SETS)
def test_what_is_not_a_key_set_is_refused(jwks: object) -> None:
    with pytest.raises(BadKeyError):
        KeySet.from_jwks(jwks)


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_seed_has_32_bytes(length: int) -> None:
    with pytest.raises(BadKeyError, match="32 bytes"):
        PrivateKey.from_seed(bytes(length))


def test_a_kid_twice_refuses_the_set() -> None:
    with pytest.raises(BadKeyError, match="same kid"):
        KeySet.from_jwks({"keys": [jwk(), jwk()]})
    assert KeySet.from_jwks({"keys": []}).get(THUMBPRINT) is None, "an empty set trusts no key"


def test_a_very_long_set_is_refused() -> None:
    keys = [PrivateKey.from_seed(bytes([n] * 32)).public for n in range(MAX_KEYS + 1)]
    with pytest.raises(BadKeyError, match="at most"):
        KeySet(keys)
    assert len(KeySet(keys[:-1])) == MAX_KEYS


@pytest.mark.parametrize("raw", [b"", b"x" * 31, b"x" * 33, bytes(32), b"\xff" * 32])
def test_raw_bytes_that_are_no_sound_key_are_refused(raw: bytes) -> None:
    with pytest.raises(BadKeyError):
        PublicKey.from_raw(raw)


def _foreign_pem(key: Any, encryption: serialization.KeySerializationEncryption) -> bytes:
    pem: bytes = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    return pem


PLAIN, SECRET = serialization.NoEncryption(), serialization.BestAvailableEncryption(b"secret")
FOREIGN = [
    *(b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"),
    *(_foreign_pem(x25519.X25519PrivateKey.generate(), encryption) for encryption in (PLAIN, SECRET)),
    _foreign_pem(ec.generate_private_key(ec.SECP256R1()), PLAIN),
]


@pytest.mark.parametrize("pem", FOREIGN)
def test_a_pem_file_of_anything_else_is_refused(pem: bytes) -> None:
    with pytest.raises(BadKeyError):
        PrivateKey.from_pem(pem)


SPELLINGS = [*"A AB = AA== AAAAA é A+AA AA/A AA.A AAAAAAAAAAB".split(), "A A", "AA\n", "A\0AA"]


@pytest.mark.parametrize("text", SPELLINGS)
def test_base64url_has_one_spelling(text: str) -> None:
    with pytest.raises(ValueError, match=r"base64url|padded|encoded"):
        decode_base64url(text)
