"""Agents' proofs: good ones, and one file for each fault (`countersign.contract.PROOF_STEPS`)."""

from collections.abc import Iterator
from typing import Any

from countersign.contract import KeySet, body_digest

from . import world
from .faults import gate_faults
from .world import AGENT_KEY, JTI, NOW, header, token

TYP = "agent-proof+jwt"
Claims = dict[str, Any]
BODY = '{"run_key":"ticket-4711","effects":[]}'
NONCE = "bm9uY2U.1"


def claims(**changed: Any) -> Claims:
    """Good claims of a proof."""
    request = {"htm": "POST", "path": "/v1/transactions", "query": "", "bd": body_digest(BODY.encode())}
    value = {"sub": world.AGENT, "iat": NOW, "jti": JTI, "nonce": NONCE} | request | changed
    return {name: item for name, item in value.items() if item is not ...}


def expectation(**changed: Any) -> Claims:
    """The request as the service received it."""
    jwks = KeySet([AGENT_KEY.public, world.OTHER_AGENT_KEY.public]).to_jwks()
    request = {"method": "POST", "url_path": "/v1/transactions", "query": "", "body": BODY}
    state = {"accepted_nonces": [NONCE], "now": NOW, "max_age": 60, "leeway": world.LEEWAY}
    return {"jwks": jwks} | request | state | changed


def good() -> Iterator[tuple[str, str, Claims]]:
    """(name, token, expectation) of proofs the service accepts."""
    get = {"method": "GET", "url_path": "/v1/transactions/ab", "query": "wait=30&x=%20a", "body": ""}
    got = {"htm": "GET", "path": get["url_path"], "query": get["query"], "bd": body_digest(b"")}
    yield "post", _sign(claims()), expectation()
    yield "get_with_query", _sign(claims(**got)), expectation(**get)
    yield "oldest", _sign(claims(iat=NOW - 60)), expectation()
    yield "at_the_leeway", _sign(claims(iat=NOW + 5)), expectation()
    yield "body_not_ascii", _sign(claims(bd=body_digest("Zoë".encode()))), expectation(body="Zoë")


def bad() -> Iterator[tuple[str, str, Claims, int, str]]:
    """(name, token, expectation, step, code) of proofs the service refuses."""
    others = {
        "release": token(header("effect-release+jwt", AGENT_KEY), world.release(), AGENT_KEY),
        "receipt": token(header("effect-receipt+jwt", AGENT_KEY), world.receipt(), AGENT_KEY),
    }
    long = "/" + "x" * 6000
    yield "oversize", _sign(claims(path=long)), expectation(url_path=long), 1, "too_large"
    for name, text, step, code in gate_faults(TYP, claims(), AGENT_KEY, others):
        yield name, text, expectation(), step, code
    for name in claims():
        yield f"missing_{name}", _sign(claims(**{name: ...})), expectation(), 10, "missing_claim"
    for name, changed, step, code in _claims():
        yield name, _sign(claims(**changed)), expectation(), step, code
    yield "body_changed_on_the_way", _sign(claims()), expectation(body=BODY + " "), 14, "wrong_body"
    yield "nonce_of_no_deployment", _sign(claims()), expectation(accepted_nonces=[]), 16, "use_nonce"


def _sign(value: Claims) -> str:
    return token(header(TYP, AGENT_KEY), value, AGENT_KEY)


def _claims() -> Iterator[tuple[str, Claims, int, str]]:
    yield "unknown_claim", {"htu": "https://countersign.example/v1/transactions"}, 10, "unknown_claim"
    yield "iat_text", {"iat": str(NOW)}, 10, "bad_claim"
    yield "iat_bool", {"iat": True}, 10, "bad_claim"
    yield "sub_empty", {"sub": ""}, 10, "bad_claim"
    yield "query_null", {"query": None}, 10, "bad_claim"
    yield "jti_short", {"jti": "1"}, 10, "bad_claim"
    yield "method_other", {"htm": "GET"}, 11, "wrong_method"
    yield "method_case", {"htm": "post"}, 11, "wrong_method"
    yield "path_other", {"path": "/v1/redemptions"}, 12, "wrong_path"
    yield "path_trailing_slash", {"path": "/v1/transactions/"}, 12, "wrong_path"
    yield "path_encoded", {"path": "/v1/%74ransactions"}, 12, "wrong_path"
    yield "query_other", {"query": "wait=30"}, 13, "wrong_query"
    yield "body_other", {"bd": body_digest(b"{}")}, 14, "wrong_body"
    yield "body_padded_digest", {"bd": body_digest(BODY.encode()) + "="}, 14, "wrong_body"
    yield "stale", {"iat": NOW - 61}, 15, "stale"
    yield "iat_in_the_future", {"iat": NOW + 6}, 15, "issued_in_future"
    yield "nonce_old", {"nonce": "bm9uY2U.0"}, 16, "use_nonce"
    yield "nonce_empty", {"nonce": ""}, 16, "use_nonce"
