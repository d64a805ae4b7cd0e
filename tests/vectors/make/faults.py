"""Faults that any of our tokens can have before its claims are looked at: steps 1 to 9 of every verification.

Each fault is (name, token, step, code). The same list is made for releases, receipts and proofs.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from typing import Any

from countersign.contract import PrivateKey, canonicalize
from countersign.contract.jws import max_token_bytes
from countersign.contract.keys import encode_base64url

from .world import STRANGER, header, signed, token

Fault = tuple[str, str, int, str]

_L = 2**252 + 27742317777372353535851937790883648493  # order of the base point (RFC 8032 section 5.1)
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
FOREIGN = {"jku": "https://attacker.example/jwks.json", "jwk": STRANGER.public.jwk()}
FOREIGN |= {"x5u": "https://attacker.example/cert.pem", "x5c": ["MIIB"], "x5t": "AAAA"}
FOREIGN |= {"crit": ["exp"], "b64": False, "zip": "DEF", "cty": "JWT"}


def gate_faults(typ: str, claims: dict[str, Any], signer: PrivateKey, other_types: Any) -> Iterator[Fault]:
    """Every fault of steps 1 to 9; `other_types` are good tokens of the other kinds."""
    good = token(header(typ, signer), claims, signer)
    yield from _form(typ, good)
    yield from _encoding(typ, claims, signer, good)
    yield from _json(typ, claims, signer)
    yield from _header(typ, claims, signer)
    yield from _alg(typ, claims, signer)
    yield from _typ(typ, claims, signer, other_types)
    yield from _key(typ, claims, signer)
    yield from _signature(typ, claims, signer, good)


def _form(typ: str, good: str) -> Iterator[Fault]:
    head, payload, signature = good.split(".")
    yield "oversize_garbage", "A" * (max_token_bytes(typ) + 1), 1, "too_large"
    for name, text in {
        "empty": "",
        "two_parts": f"{head}.{payload}",
        "four_parts": f"{good}.AAAA",
        "five_parts_like_jwe": f"{head}.AAAA.AAAA.{payload}.AAAA",
        "empty_signature": f"{head}.{payload}.",
        "short_signature": f"{head}.{payload}.{signature[:-1]}",
        "long_signature": f"{head}.{payload}.{signature}A",
        "padding": good + "==",
        "padding_in_the_middle": f"{head}=.{payload}.{signature}",
        "leading_space": " " + good,
        "trailing_newline": good + "\n",
        "newline_inside": f"{head}.\n{payload}.{signature}",
        "fragment": good + "#x",
        "standard_alphabet": f"{head}.{payload[:-1]}+.{signature}",
        "not_ascii": f"{head}.{payload}é.{signature}",
        "json_serialization": json.dumps({"protected": head, "payload": payload, "signature": signature}),
    }.items():
        yield name, text, 2, "not_compact"


def _encoding(typ: str, claims: dict[str, Any], signer: PrivateKey, good: str) -> Iterator[Fault]:
    head, payload, signature = good.split(".")
    code = "not_canonical_base64url"
    yield "trailing_bits_in_signature", f"{head}.{payload}.{_spoil(signature)}", 3, code
    spare = canonicalize(claims)
    if len(spare) % 3 == 0:  # no spare bits: one more character makes some
        longer = "jti" in claims
        spare = canonicalize({**claims, "jti": claims["jti"] + "A"}) if longer else spare[:-1] + b" }"
    segment = _spoil(encode_base64url(spare))
    yield "trailing_bits_in_payload", _sign_text(f"{head}.{segment}", signer), 3, code
    yield "impossible_length", _sign_text(f"{head}.{'A' * 5}", signer), 3, code


def _spoil(segment: str) -> str:
    """Set a spare bit of the last character: another text of the same bytes."""
    return segment[:-1] + _ALPHABET[_ALPHABET.index(segment[-1]) | 1]


def _sign_text(signing_input: str, signer: PrivateKey) -> str:
    return f"{signing_input}.{encode_base64url(signer.sign(signing_input.encode()))}"


def _json(typ: str, claims: dict[str, Any], signer: PrivateKey) -> Iterator[Fault]:
    head, body = canonicalize(header(typ, signer)), canonicalize(claims)
    time_claim = "exp" if "exp" in claims else "iat"
    moment = str(claims[time_claim]).encode()
    plain = b'"' + time_claim.encode() + b'":' + moment
    escaped = f'"\\u00{ord(time_claim[0]):02x}{time_claim[1:]}":'.encode() + moment
    alg_twice = head.replace(b'{"alg":"Ed25519"', b'{"alg":"none","alg":"Ed25519"')
    for name, changed_head, changed_body, code in (
        ("duplicate_claim", head, b"{" + plain.replace(moment, b"1") + b"," + body[1:], "duplicate_key"),
        ("duplicate_claim_escaped", head, b"{" + escaped + b"," + body[1:], "duplicate_key"),
        ("duplicate_alg", alg_twice, body, "duplicate_key"),
        ("payload_not_json", head, body[:-1], "not_json"),
        ("payload_single_quotes", head, body.replace(b'"', b"'"), "not_json"),
        ("payload_array", head, b"[" + body + b"]", "not_an_object"),
        ("header_array", b"[" + head + b"]", body, "not_an_object"),
        ("payload_bom", head, b"\xef\xbb\xbf" + body, "bom"),
        ("payload_not_utf8", head, body[:-1] + b',"x":"\xff"}', "not_utf8"),
        ("payload_lone_surrogate", head, body[:-1] + b',"x":"\\ud800"}', "lone_surrogate"),
        ("payload_too_deep", head, body[:-1] + b',"x":' + b"[" * 20 + b"]" * 20 + b"}", "too_deep"),
        ("time_float", head, body.replace(plain, plain + b".0"), "float_refused"),
        ("time_fraction", head, body.replace(plain, plain + b".5"), "float_refused"),
        ("time_exponent", head, body.replace(plain, plain[: -len(moment)] + b"18e8"), "float_refused"),
        ("time_nan", head, body.replace(plain, plain[: -len(moment)] + b"NaN"), "not_finite"),
        ("time_huge", head, body.replace(plain, plain + b"0" * 20), "integer_out_of_range"),
    ):
        yield name, signed(changed_head, changed_body, signer), 4, code


def _header(typ: str, claims: dict[str, Any], signer: PrivateKey) -> Iterator[Fault]:
    for member, value in FOREIGN.items():
        more = token(header(typ, signer, **{member: value}), claims, signer)
        yield f"header_{member}", more, 5, "header_members"
    for member in ("alg", "typ", "kid"):
        missing = token(header(typ, signer, **{member: ...}), claims, signer)
        yield f"header_without_{member}", missing, 5, "header_members"
    for name, kid in {"kid_number": 7, "kid_empty": "", "kid_long": "k" * 65, "kid_null": None}.items():
        yield name, token(header(typ, signer, kid=kid), claims, signer), 5, "bad_kid"


def _alg(typ: str, claims: dict[str, Any], signer: PrivateKey) -> Iterator[Fault]:
    algs: dict[str, Any] = {"none": "none", "none_capital": "None", "none_mixed": "nOnE", "eddsa": "EdDSA"}
    algs |= {"lower": "ed25519", "es256": "ES256", "rs256": "RS256", "list": ["Ed25519"], "null": None}
    for name, alg in algs.items():
        yield f"alg_{name}", token(header(typ, signer, alg=alg), claims, signer), 6, "wrong_alg"
    spki = base64.b64encode(_SPKI + signer.public.raw)
    pem = b"-----BEGIN PUBLIC KEY-----\n" + spki + b"\n-----END PUBLIC KEY-----\n"
    jwk = canonicalize(signer.public.jwk())
    for name, secret in {"raw": signer.public.raw, "pem": pem, "jwk": jwk}.items():
        head = canonicalize(header(typ, signer, alg="HS512"))
        yield f"alg_hs512_with_public_key_{name}", _mac(head, canonicalize(claims), secret), 6, "wrong_alg"


_SPKI = bytes.fromhex("302a300506032b6570032100")


def _mac(head: bytes, body: bytes, secret: bytes) -> str:
    """HMAC keyed with public bytes: the oldest JWT trick. HS512 has the length of our signatures."""
    signing_input = f"{encode_base64url(head)}.{encode_base64url(body)}"
    return f"{signing_input}.{encode_base64url(hmac.digest(secret, signing_input.encode(), hashlib.sha512))}"


def _typ(typ: str, claims: dict[str, Any], signer: PrivateKey, others: dict[str, str]) -> Iterator[Fault]:
    typs: dict[str, Any] = {"jwt": "JWT", "access_token": "at+jwt", "capitals": typ.upper(), "null": None}
    for name, other in (typs | {"media_type": f"application/{typ}"}).items():
        yield f"typ_{name}", token(header(typ, signer, typ=other), claims, signer), 7, "wrong_typ"
    for name, text in others.items():
        yield f"good_{name}_instead", text, 7, "wrong_typ"
        label = f"agent-{name}+jwt" if name == "proof" else f"effect-{name}+jwt"
        yield f"typ_of_{name}", token(header(label, signer), claims, signer), 7, "wrong_typ"


def _key(typ: str, claims: dict[str, Any], signer: PrivateKey) -> Iterator[Fault]:
    kids = {"unknown": STRANGER.public.kid, "of_64_characters": "k" * 64, "path": "../../../../dev/null"}
    kids |= {"sql": "x' UNION SELECT 'key' --", "url": "https://attacker.example/key"}
    for name, kid in kids.items():
        yield f"kid_{name}", token(header(typ, signer, kid=kid), claims, signer), 8, "unknown_kid"


def _signature(typ: str, claims: dict[str, Any], signer: PrivateKey, good: str) -> Iterator[Fault]:
    head, payload, signature = good.split(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    s = int.from_bytes(raw[32:], "little")
    malleable = raw[:32] + (s + _L).to_bytes(32, "little")
    flipped = raw[:10] + bytes([raw[10] ^ 1]) + raw[11:]
    for name, changed in {"zero": bytes(64), "flipped": flipped, "malleable": malleable}.items():
        yield f"signature_{name}", f"{head}.{payload}.{encode_base64url(changed)}", 9, "bad_signature"
    swapped = token(header(typ, signer), {**claims, "iat": claims["iat"] - 1}, signer).split(".")[1]
    yield "payload_of_another_token", f"{head}.{swapped}.{signature}", 9, "bad_signature"
    by_stranger = token(header(typ, signer), claims, STRANGER)
    yield "signed_by_a_stranger_with_our_kid", by_stranger, 9, "bad_signature"
