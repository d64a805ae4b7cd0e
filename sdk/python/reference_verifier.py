"""A release token of Countersign against an effect, checked without Countersign: forty lines, `verify`.

Needs the standard library and `cryptography`. Written to be read and to be translated: the numbers are those
of `countersign.contract.STEPS`, the inputs those of `tests/vectors/tokens`, and it accepts and refuses every
one of them rightly. It looks less closely at the form of claims (step 10) and of deep JSON (step 4) where a
later step refuses them anyway, and it refuses args that hold floats, whose text needs RFC 8785 section
3.2.2.3.

    python reference_verifier.py tests/vectors/tokens/good/reviewed.json

A token it accepts may be *redeemed*. Only the redemption makes it single use; never fire on a token alone.
"""

import base64
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

CLAIMS: dict[str, type] = {
    **dict.fromkeys(("iss", "aud", "sub", "jti", "txn", "txn_digest", "kind"), str),
    **dict.fromkeys(("iat", "nbf", "exp", "epoch"), int),
    "cnf": object,
    "authorization_details": list,
    "decision": dict,
}
DETAIL: dict[str, type] = {
    **dict.fromkeys(
        ("type", "effect_id", "tool", "tool_digest", "args_digest", "effect_digest", "call_key"), str
    ),
    "seq": int,
    "resource": dict,
}
DECISION: dict[str, type] = {
    **dict.fromkeys(("id", "mode", "commit", "bundle", "assurance"), str),
    "policies": list,
    "votes": list,
    "rev": int,
}
MODES, ASSURANCES = {"auto", "review", "grant", "break_glass"}, {"oidc", "dev", "none"}


class RefusedError(Exception):
    """The token is refused; `args[0]` is the number of the step."""


def require(step: int, held: object) -> None:
    if not held:
        raise RefusedError(step)


def unbase64(text: str) -> bytes:
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != text:
        raise ValueError("another text of the same bytes")
    return raw


def strict(raw: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("a key twice")
        return dict(pairs)

    def whole(digits: str) -> int:
        if len(digits) > 17 or abs(int(digits)) >= 2**53:
            raise ValueError("an integer readers round")
        return int(digits)

    def refuse(_: str) -> None:
        raise ValueError("not a whole number")

    value = json.loads(
        raw.decode(), object_pairs_hook=once, parse_int=whole, parse_float=refuse, parse_constant=refuse
    )
    jcs(value)  # a lone surrogate has no bytes
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def jcs(value: object) -> bytes:
    """RFC 8785 for values without floats."""

    def ordered(node: object) -> object:
        if isinstance(node, float):
            raise ValueError("floats are left to a full implementation")
        if isinstance(node, dict):
            return {key: ordered(node[key]) for key in sorted(node, key=lambda k: k.encode("utf-16-be"))}
        return [ordered(item) for item in node] if isinstance(node, list) else node

    return json.dumps(ordered(value), ensure_ascii=False, separators=(",", ":")).encode()


def digest(label: str, value: object) -> str:
    return hashlib.sha256(f"countersign/{label}/v1\n".encode() + jcs(value)).hexdigest()


def shaped(value: Any, members: dict[str, type], *optional: str) -> bool:
    """Exactly these members (and perhaps the optional ones), each of its type; True is no integer."""
    if not isinstance(value, dict) or not members.keys() <= value.keys() <= {*members, *optional}:
        return False
    return all(
        kind is object or (type(value[key]) is kind and value[key] != "") for key, kind in members.items()
    )


def verify(token: str, want: dict[str, Any]) -> dict[str, Any]:
    """Return the claims of a token that passes every step, or raise RefusedError(step)."""
    require(1, len(token) <= 8192)
    require(2, re.fullmatch(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{86}", token))
    try:
        header, payload, signature = (unbase64(part) for part in token.split("."))
    except ValueError:
        raise RefusedError(3) from None
    try:
        head, claims = strict(header), strict(payload)
    except (ValueError, RecursionError):
        raise RefusedError(4) from None
    require(
        5,
        head.keys() == {"alg", "typ", "kid"} and isinstance(head["kid"], str) and 0 < len(head["kid"]) <= 64,
    )
    require(6, head["alg"] == "Ed25519")
    require(7, head["typ"] == "effect-release+jwt")
    keys = {key["kid"]: unbase64(key["x"]) for key in want["jwks"]["keys"]}
    require(8, head["kid"] in keys)
    try:
        signed = token.rpartition(".")[0].encode()
        Ed25519PublicKey.from_public_bytes(keys[head["kid"]]).verify(signature, signed)
    except InvalidSignature:
        raise RefusedError(9) from None
    require(10, shaped(claims, CLAIMS, "compensates") and len(claims["authorization_details"]) == 1)
    detail, decision = claims["authorization_details"][0], claims["decision"]
    require(10, shaped(detail, DETAIL) and detail["type"] == "urn:countersign:effect:1")
    require(10, shaped(decision, DECISION, "more", "grant") and decision["mode"] in MODES)
    require(10, decision["assurance"] in ASSURANCES and len(decision["votes"]) <= 20 and decision["rev"] >= 1)
    require(10, decision.get("more", 1) > 0 and decision.get("grant") != "" and len(claims["jti"]) >= 16)
    effect, latest = want["effect"], want["now"] + want["leeway"]
    require(11, claims["iss"] == want["iss"])
    require(12, claims["aud"] == want["aud"])
    require(13, claims["iat"] <= latest and claims["nbf"] <= latest)
    require(14, want["now"] < claims["exp"])
    require(15, max(claims["iat"], claims["nbf"]) < claims["exp"] <= claims["iat"] + 300)
    require(16, claims["kind"] == want["kind"])
    require(17, claims.get("compensates") == want["compensates"])
    require(18, claims["sub"] == effect["agent"])
    require(19, claims["txn"] == effect["txn"])
    require(20, claims["txn_digest"] == want["txn_digest"])
    require(21, claims["epoch"] >= want["epoch_at_least"])
    for step, member in enumerate(("effect_id", "seq", "tool", "tool_digest", "resource", "call_key"), 22):
        require(step, detail[member] == effect[member])
    require(28, detail["args_digest"] == digest("args", effect["args"]))
    require(29, detail["effect_digest"] == digest("effect", effect))
    require(30, claims["cnf"] == ({"jkt": want["my_key_jkt"]} if want["my_key_jkt"] else "none"))
    require(31, decision["assurance"] != "dev" or want["allow_dev"])
    people = decision["votes"] and decision["assurance"] != "none"
    require(32, people or decision["mode"] not in {"review", "break_glass"})
    return claims


if __name__ == "__main__":
    vector = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        print("accepted:", verify(vector["token"], vector["expectation"])["jti"])
    except RefusedError as refused:
        sys.exit(f"refused at step {refused.args[0]}")
