"""A passkey in software: makes credentials and signs, as a browser would post it, and lies where a test wants it to."""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass, field
from typing import Any

import cbor2
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from webauthn.helpers import bytes_to_base64url

UP, UV, ATTESTED = 0x01, 0x04, 0x40
_RAW = 32


def _int(number: int, size: int = _RAW) -> bytes:
    return number.to_bytes(size)


@dataclass
class Passkey:
    """One credential on one device."""

    rp_id: str = "localhost"
    origin: str = "http://localhost:8420"
    kind: str = "ES256"
    flags: int = UP | UV
    count: int = 0
    step: int = 1
    credential_id: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    client: dict[str, Any] = field(default_factory=dict)  # members of clientDataJSON to say instead
    key: Any = None

    def __post_init__(self) -> None:
        if self.key is None:
            self.key = {
                "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
                "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
                "EdDSA": ed25519.Ed25519PrivateKey.generate,
                "RS256": lambda: rsa.generate_private_key(65537, 2048),
                "RS1024": lambda: rsa.generate_private_key(65537, 1024),
            }[self.kind]()

    @property
    def id(self) -> str:
        return bytes_to_base64url(self.credential_id)

    @property
    def public_key(self) -> bytes:
        """COSE."""
        public = self.key.public_key()
        if self.kind == "EdDSA":
            return cbor2.dumps({1: 1, 3: -8, -1: 6, -2: public.public_bytes_raw()})
        if self.kind in {"ES256", "ES384"}:
            numbers, size = public.public_numbers(), public.key_size // 8
            alg, curve = (-7, 1) if self.kind == "ES256" else (-35, 2)
            x, y = _int(numbers.x, size), _int(numbers.y, size)
            return cbor2.dumps({1: 2, 3: alg, -1: curve, -2: x, -3: y})
        numbers = public.public_numbers()
        return cbor2.dumps({1: 3, 3: -257, -1: _int(numbers.n, public.key_size // 8), -2: _int(numbers.e, 3)})

    def create(self, options: str) -> str:
        """As navigator.credentials.create answers."""
        client = self._client("webauthn.create", json.loads(options)["challenge"])
        attested = bytes(16) + len(self.credential_id).to_bytes(2) + self.credential_id + self.public_key
        data = self._authenticator_data(ATTESTED) + attested
        attestation = cbor2.dumps({"fmt": "none", "attStmt": {}, "authData": data})
        return self._answer(clientDataJSON=client, attestationObject=attestation)

    def get(self, options: str) -> str:
        """As navigator.credentials.get answers."""
        self.count += self.step
        client = self._client("webauthn.get", json.loads(options)["challenge"])
        data = self._authenticator_data(0)
        signature = self._sign(data + hashlib.sha256(client).digest())
        return self._answer(clientDataJSON=client, authenticatorData=data, signature=signature)

    def _client(self, kind: str, challenge: str) -> bytes:
        said = {"type": kind, "challenge": challenge, "origin": self.origin, "crossOrigin": False}
        return json.dumps(said | self.client).encode()

    def _authenticator_data(self, more: int) -> bytes:
        rp = hashlib.sha256(self.rp_id.encode()).digest()
        return rp + bytes([self.flags | more]) + self.count.to_bytes(4)

    def _sign(self, data: bytes) -> bytes:
        if self.kind == "EdDSA":
            signature: bytes = self.key.sign(data)
        elif self.kind in {"ES256", "ES384"}:
            digest = hashes.SHA256() if self.kind == "ES256" else hashes.SHA384()
            signature = self.key.sign(data, ec.ECDSA(digest))
        else:
            signature = self.key.sign(data, padding.PKCS1v15(), hashes.SHA256())
        return signature

    def _answer(self, **said: bytes) -> str:
        response = {name: bytes_to_base64url(value) for name, value in said.items()}
        return json.dumps({"id": self.id, "rawId": self.id, "type": "public-key", "response": response})
