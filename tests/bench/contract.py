"""V1, V2, C1: what the contract adds to the primitives below it: verifying a release, naming arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from countersign.contract import (
    Expectation,
    KeySet,
    PublicKey,
    args_digest,
    canonicalize,
    verify_release,
)
from countersign.contract import keys as ed25519
from countersign.contract.jws import TYP_RELEASE
from countersign.contract.keys import Primitive, decode_base64url
from tests.bench.measuring import TIME, BenchError, Case, Group, Row, cpu_case
from tests.vectors.make import world

ARGS: dict[str, Any] = {
    "customer": "cus_1001", "to": "ada@example.com", "subject": "Your order", "amount_cents": 124_000,
    "lines": [{"sku": f"sku-{n}", "count": n, "gift": n % 2 == 0} for n in range(12)], "note": "shipped " * 50,
}  # fmt: skip

ROWS = (
    Row("V1", "verify a release, every step \N{DIVISION SIGN} one Ed25519 verify of the cryptography package",
        "verify release", "Ed25519 verify", TIME, "\N{LESS-THAN OR EQUAL TO} 1.3"),
    Row("V2", "the same with the extra `fast` (PyNaCl) \N{DIVISION SIGN} the same", "verify release, PyNaCl",
        "Ed25519 verify", TIME, "\N{LESS-THAN OR EQUAL TO} 1.2"),
    Row("V2n", "the same \N{DIVISION SIGN} one Ed25519 verify of PyNaCl", "verify release, PyNaCl",
        "Ed25519 verify, PyNaCl", TIME),
    Row("C1", "canonicalise and name 1 KB \N{DIVISION SIGN} rfc8785 and SHA-256", "name 1 KB", "rfc8785, SHA-256",
        TIME, "\N{LESS-THAN OR EQUAL TO} 0.15"),
)  # fmt: skip


def _verifying(name: str, primitive: Primitive) -> list[Case]:
    """A release, verified by every step, and its signature alone."""
    token = world.signed(canonicalize(world.header(TYP_RELEASE)), canonicalize(world.release()))
    keys = KeySet(PublicKey(None, key.raw, primitive=primitive) for key in world.KEYS)
    expected = Expectation(
        iss=world.ISS, aud=world.AGENT, keys=keys, effect=world.REFUND, txn_digest=world.TXN_DIGEST,
        epoch_at_least=world.EPOCH, now=world.NOW, my_key_jkt=world.AGENT_KEY.public.kid,
    )  # fmt: skip
    signed, _, signature = token.rpartition(".")
    raw, data = decode_base64url(signature), signed.encode()
    if primitive is ed25519.openssl:
        alone = Ed25519PublicKey.from_public_bytes(world.SERVICE.public.raw).verify
        cases = [cpu_case(f"Ed25519 verify{name}", lambda: alone(raw, data), reference=True)]
    else:
        from nacl.bindings import crypto_sign_open

        whole, key = raw + data, world.SERVICE.public.raw
        cases = [cpu_case(f"Ed25519 verify{name}", lambda: crypto_sign_open(whole, key), reference=True)]
    return [*cases, cpu_case(f"verify release{name}", lambda: verify_release(token, expected))]


@contextmanager
def cases(folder: Path, wanted: frozenset[str]) -> Iterator[list[Case]]:
    """Releases of the vectors' world, and arguments of one kilobyte without floats."""
    del folder, wanted
    if not 900 < len(canonicalize(ARGS)) < 1_150 or canonicalize(ARGS) != rfc8785.dumps(ARGS):
        raise BenchError(f"the arguments have {len(canonicalize(ARGS))} bytes, or other ones than rfc8785's")
    fast = ed25519.libsodium()
    yield [
        *_verifying("", ed25519.openssl),
        *(_verifying(", PyNaCl", fast) if fast else ()),
        cpu_case("name 1 KB", lambda: args_digest(args=ARGS)),
        cpu_case("rfc8785, SHA-256", lambda: hashlib.sha256(rfc8785.dumps(ARGS)).hexdigest(), reference=True),
    ]


GROUP = Group(ROWS, cases, {"verify release, PyNaCl": lambda: "PyNaCl is not installed"})
