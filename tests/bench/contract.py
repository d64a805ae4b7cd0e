"""V1, C1: what the contract adds to the primitives below it: verifying a release, naming arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from countersign.contract import Expectation, args_digest, canonicalize, verify_release
from countersign.contract.jws import TYP_RELEASE
from countersign.contract.keys import decode_base64url
from tests.bench.measuring import TIME, BenchError, Case, Group, Row, cpu_case
from tests.vectors.make import world

ARGS: dict[str, Any] = {
    "customer": "cus_1001", "to": "ada@example.com", "subject": "Your order", "amount_cents": 124_000,
    "lines": [{"sku": f"sku-{n}", "count": n, "gift": n % 2 == 0} for n in range(12)], "note": "shipped " * 50,
}  # fmt: skip

ROWS = (
    Row("V1", "verify a release, every step \N{DIVISION SIGN} one Ed25519 verify", "verify release", "Ed25519 verify",
        TIME, "\N{LESS-THAN OR EQUAL TO} 1.15"),
    Row("C1", "canonicalise and name 1 KB \N{DIVISION SIGN} rfc8785 and SHA-256", "name 1 KB", "rfc8785, SHA-256",
        TIME, "\N{LESS-THAN OR EQUAL TO} 0.15"),
)  # fmt: skip


@contextmanager
def cases(folder: Path) -> Iterator[list[Case]]:
    """A release of the vectors' world, and arguments of one kilobyte without floats."""
    del folder
    head = canonicalize(world.header(TYP_RELEASE))
    token = world.signed(head, canonicalize(world.release()))
    expected = Expectation(
        iss=world.ISS, aud=world.AGENT, keys=world.KEYS, effect=world.REFUND, txn_digest=world.TXN_DIGEST,
        epoch_at_least=world.EPOCH, now=world.NOW, my_key_jkt=world.AGENT_KEY.public.kid,
    )  # fmt: skip
    signed, _, signature = token.rpartition(".")
    raw_key = Ed25519PublicKey.from_public_bytes(world.SERVICE.public.raw)
    raw_signature, raw_bytes = decode_base64url(signature), signed.encode()
    if not 900 < len(canonicalize(ARGS)) < 1_150 or canonicalize(ARGS) != rfc8785.dumps(ARGS):
        raise BenchError(f"the arguments have {len(canonicalize(ARGS))} bytes, or other ones than rfc8785's")
    yield [
        cpu_case("verify release", lambda: verify_release(token, expected)),
        cpu_case("Ed25519 verify", lambda: raw_key.verify(raw_signature, raw_bytes)),
        cpu_case("name 1 KB", lambda: args_digest(args=ARGS)),
        cpu_case("rfc8785, SHA-256", lambda: hashlib.sha256(rfc8785.dumps(ARGS)).hexdigest()),
    ]


GROUP = Group(ROWS, cases)
