"""The agent's proof of possession, modelled on RFC 9449: this key makes exactly this request, now.

A JWS of `typ: agent-proof+jwt` over method, path, query, digest of the raw body, time, id and the server's nonce. It is
sent in the header `Agent-Proof`; every response carries the next nonce in `Agent-Nonce`. The nonce binds the proof to
one deployment, so the proof names no host. The service looks up whose key it is and checks that `sub` is that agent.
"""

import secrets
from typing import Final

from .digests import body_digest
from .jws import TYP_PROOF, sign
from .keys import PrivateKey

_JTI_BYTES: Final = 16


def make_proof(
    key: PrivateKey,
    *,
    agent: str,
    method: str,
    url_path: str,
    query: str,
    body: bytes,
    nonce: str,
    now: int,
    jti: str | None = None,
) -> str:
    """Sign a proof for one request; `url_path` and `query` are the raw strings of the request line.

    Raises:
        ContractError: `token_too_large`.
    """
    claims = {
        "sub": agent,
        "htm": method,
        "path": url_path,
        "query": query,
        "bd": body_digest(body),
        "iat": now,
        "jti": jti or secrets.token_urlsafe(_JTI_BYTES),
        "nonce": nonce,
    }
    return sign(claims, typ=TYP_PROOF, key=key)
