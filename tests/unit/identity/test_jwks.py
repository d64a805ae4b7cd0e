"""Key sets: an unusable entry is refused by name and does not affect the others."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from joserfc.jwk import ECKey, OKPKey, RSAKey
from structlog.testing import capture_logs

from policy_service.errors import StartError
from policy_service.identity.issuer_keys import IssuerKeys, parse_jwks
from tests.fakes.identity_provider import ABSENT, Provider
from tests.unit.identity.signing_in import Browser, refusal, refused_because

RSA = RSAKey.generate_key(2048).as_dict(private=False)
SHORT = {"kty": "RSA", "e": "AQAB", "n": "_" * 170 + "w"}
EC = ECKey.generate_key("P-256")
PUBLIC, NOT_ON_ITS_CURVE = EC.as_dict(private=False), {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}
KINDS: tuple[Any, ...] = (None, ["RSA"], "AKP", "oct")
X25519 = OKPKey.generate_key("X25519").as_dict(private=False)
ODD: list[tuple[Any, str]] = [
    *((RSA | {"kty": kind, "k": "c2VjcmV0"}, f"its kty {kind!r}") for kind in KINDS),
    (SHORT, "it is an RSA key of 1024 bits"),
    *((RSA | {"use": "enc"}, "its use is 'enc'"), (PUBLIC | {"use": "x509-svid"}, "its use is 'x509-svid'")),
    *((RSA | {"key_ops": ops}, "its key_ops leave out verify") for ops in (["encrypt"], "verify")),
    *((RSA | {"alg": alg}, f"its alg {alg!r} is not accepted") for alg in ("RSA-OAEP", "HS256")),
    *(
        (key | {"alg": alg}, f"its alg {alg!r} does not fit")
        for key, alg in ((RSA, "ES256"), (PUBLIC, "ES384"))
    ),
    *((NOT_ON_ITS_CURVE | {"crv": "BP-256"}, "its crv 'BP-256'"), (X25519, "its crv 'X25519'")),
    *((key, "it publishes the private ") for key in (EC.as_dict(private=True), RSA | {"p": "AQAB"})),
    (RSA | {"kid": 7}, "its kid is no text"),
    (RSA | {"use": ["sig"]}, "it is no key (TypeError)"),
    ({"kty": "RSA", "e": "AQAB"}, "it is no key (KeyError)"),
    *((key, "it is no key") for key in ({"kty": "OKP", "x": "AA"}, NOT_ON_ITS_CURVE | {"crv": ["P-256"]})),
    *(({"kty": "RSA", "e": "AQAB", "n": modulus}, "") for modulus in (2**2050, "é!")),
    *((NOT_ON_ITS_CURVE, ""), ({"kty": "RSA", "n": RSA["n"]}, "")),
    *((entry, "it is no object") for entry in ("x", None)),
]


@pytest.mark.parametrize(("odd", "why"), ODD)
def test_an_entry_that_cannot_be_used_is_left_out_by_pointer(odd: Any, why: str) -> None:
    sound = [RSA | {"kid": "before"}, EC.as_dict(private=False) | {"kid": "after"}]
    published = parse_jwks({"keys": [sound[0], odd, sound[1]]})
    assert [key.kid for key in published.usable] == ["before", "after"]
    (refused,) = published.refused
    assert refused.pointer == "/keys/1"
    assert refused.why.startswith(why)
    assert len(refused.why) <= 200


SOUND: dict[str, Any] = {
    "certificates that cannot be read": RSA | {"x5u": "no URL", "x5c": 7, "x5t": []},
    "unknown members": RSA | {"issuer": {"a": [1]}, "exp": 1.5},
    "members that are null": RSA | {"kid": None, "use": None, "alg": None, "key_ops": None},
    "a token key of SPIFFE": EC.as_dict(private=False) | {"use": "jwt-svid"},
    "an Edwards curve": OKPKey.generate_key("Ed25519").as_dict(private=False) | {"alg": "Ed25519"},
    "no id": RSA,
}


@pytest.mark.parametrize("entry", SOUND.values(), ids=SOUND.keys())
def test_unused_members_do_not_refuse_a_key(entry: Any) -> None:
    published = parse_jwks({"keys": [entry]})
    assert (len(published.usable), published.refused) == (1, ())


async def test_the_log_names_each_entry_that_is_left_out() -> None:
    browser = Browser().but(more_keys=[SHORT | {"kid": "old"}, {"kty": "oct", "kid": 7}])
    with capture_logs() as logged:
        await browser.through()
    refused = [line for line in logged if line["event"] == "issuer_key_refused"]
    found = [(line["issuer"], line["key"], line["kid"]) for line in refused]
    assert found == [("acme", "/keys/1", "'old'"), ("acme", "/keys/2", "7")]


async def test_a_token_of_a_refused_key_is_refused_for_that_keys_fault() -> None:
    browser = Browser().but(signed_with="k2", more_keys=[SHORT | {"kid": "k2"}])
    why = "the key 'k2' of 'acme' is refused (/keys/1): it is an RSA key of 1024 bits; 2048 is the least"
    assert await refused_because(browser.through()) == why


@pytest.mark.parametrize("order", [("k1", "k2", "ec"), ("ec", "k2", "k1")])
async def test_keys_that_share_an_id_are_each_tried(order: tuple[str, ...]) -> None:
    browser = Browser().but(published=(), more_keys=[Provider.key(kid) | {"kid": "one"} for kid in order])
    for signer, alg in (("k1", "RS256"), ("k2", "RS256"), ("k2", "PS256"), ("ec", "ES256")):
        browser.but(signed_with=signer, header={"kid": "one", "alg": alg})
        assert (await browser.through()).sub == "248"


async def test_a_key_that_shares_an_id_is_tried_for_its_own_algorithm_alone() -> None:
    keys = [Provider.key("k1") | {"kid": "one", "alg": "PS256"}, Provider.key("k2") | {"kid": "one"}]
    browser = Browser().but(published=(), more_keys=keys, header={"kid": "one"})  # RS256
    assert (await refused_because(browser.through())).startswith("its signature is invalid")


async def test_a_token_without_a_key_id_is_tried_under_every_key() -> None:
    keys = [SHORT, Provider.key("k1")]
    browser = Browser().but(published=("k2", "ec"), more_keys=keys, header={"kid": ABSENT})
    assert (await browser.through()).sub == "248"


async def test_a_set_of_which_nothing_can_be_used_is_unavailable() -> None:
    message = await refusal(Browser().but(published=(), more_keys=[SHORT]).through())
    assert message.startswith("issuer_unavailable: the keys of 'acme' hold none that verifies a signature")


def test_a_file_of_keys_is_read_by_the_same_rule(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [SHORT, RSA | {"kid": "k"}, RSA | {"kid": "k"}]}))
    IssuerKeys("mesh", client=httpx2.AsyncClient(), jwks_file=file)
    file.write_text(json.dumps({"keys": [SHORT]}))
    with pytest.raises(StartError, match="/keys/0: it is an RSA key of 1024 bits"):
        IssuerKeys("mesh", client=httpx2.AsyncClient(), jwks_file=file)
