"""WebAuthn: options for the browser and verification of its responses, by py_webauthn with our own limits.

Pure functions. For registration and authentication: the RP id is the public URL's host and the origin is exactly that
URL; user presence and verification are required; the page was not framed by another site; only ES256, EdDSA and RS256
are accepted. A step-up signs a challenge made of everything the vote contains, so its response fits nothing else. The
caller compares the sign counter, which needs the stored row. The package is imported on first use: most deployments
have no passkeys, and it takes seven megabytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from countersign.contract import canonicalize
from countersign.contract.digests import labelled_digest

if TYPE_CHECKING:
    from webauthn.helpers.cose import COSEAlgorithmIdentifier
    from webauthn.helpers.structs import PublicKeyCredentialDescriptor

STEP_UP_LABEL: Final = b"countersign/step-up/v1\n"
STEP_UP_MEMBERS: Final = (
    "review", "rev", "txn_digest", "effect_digest", "view_digest", "person", "verdict", "nonce",
)  # fmt: skip
"""The members of a step-up's challenge, exactly these."""

_ALGORITHMS: Final = (-7, -8, -257)  # COSE: ES256, EdDSA, RS256
_MALFORMED: Final = (ValueError, LookupError, TypeError)
_MAX_RESPONSE = 16_384  # characters; a real one has about 1,500
_MIN_RSA_BYTES = 256  # 2,048 bits


class WebAuthnVerificationError(Exception):
    """The response is invalid; the message says why."""


@dataclass(frozen=True, slots=True)
class RelyingParty:
    """The deployment that passkeys are bound to."""

    rp_id: str
    origin: str


@dataclass(frozen=True, slots=True)
class RegisteredCredential:
    """A new credential."""

    credential_id: str
    public_key: bytes
    sign_count: int


@dataclass(frozen=True, slots=True)
class Assertion:
    """A parsed passkey response."""

    credential_id: str
    authenticator_data: bytes
    client_data: bytes
    signature: bytes


def step_up_challenge(signed: Mapping[str, Any]) -> bytes:
    """The 32 bytes that a vote's passkey signs.

    Raises:
        ValueError: a member is missing or unknown.
    """
    if signed.keys() != set(STEP_UP_MEMBERS):
        raise ValueError(
            f"a step-up signs {', '.join(STEP_UP_MEMBERS)}; here are {', '.join(sorted(signed))}"
        )
    return bytes.fromhex(labelled_digest(STEP_UP_LABEL, canonicalize(dict(signed))))


def registration_options(
    party: RelyingParty, challenge: bytes, *, handle: bytes, name: str, known: Sequence[str], timeout_s: int
) -> str:
    """The options for ``navigator.credentials.create``, in JSON. ``handle`` identifies a person without revealing
    anything.
    """
    from webauthn import generate_registration_options, options_to_json
    from webauthn.helpers.structs import (
        AttestationConveyancePreference,
        AuthenticatorSelectionCriteria,
        ResidentKeyRequirement,
        UserVerificationRequirement,
    )

    options = generate_registration_options(
        rp_id=party.rp_id,
        rp_name="Countersign",
        user_name=name,
        user_display_name=name,
        user_id=handle,
        challenge=challenge,
        timeout=timeout_s * 1000,
        attestation=AttestationConveyancePreference.NONE,
        authenticator_selection=AuthenticatorSelectionCriteria(
            resident_key=ResidentKeyRequirement.PREFERRED,
            user_verification=UserVerificationRequirement.REQUIRED,
        ),
        exclude_credentials=_descriptors(known),
        supported_pub_key_algs=_accepted_algorithms(),
    )
    return options_to_json(options)


def authentication_options(
    party: RelyingParty, challenge: bytes, *, known: Sequence[str], timeout_s: int
) -> str:
    """The options for ``navigator.credentials.get``, in JSON."""
    from webauthn import generate_authentication_options, options_to_json
    from webauthn.helpers.structs import UserVerificationRequirement

    options = generate_authentication_options(
        rp_id=party.rp_id,
        challenge=challenge,
        timeout=timeout_s * 1000,
        allow_credentials=_descriptors(known),
        user_verification=UserVerificationRequirement.REQUIRED,
    )
    return options_to_json(options)


def _accepted_algorithms() -> list[COSEAlgorithmIdentifier]:
    from webauthn.helpers.cose import COSEAlgorithmIdentifier

    return [COSEAlgorithmIdentifier(one) for one in _ALGORITHMS]


def _descriptors(known: Sequence[str]) -> list[PublicKeyCredentialDescriptor]:
    from webauthn.helpers import base64url_to_bytes
    from webauthn.helpers.structs import PublicKeyCredentialDescriptor

    return [PublicKeyCredentialDescriptor(id=base64url_to_bytes(one)) for one in known]


def verify_registration(party: RelyingParty, challenge: bytes, answer: str) -> RegisteredCredential:
    """The credential that was created for this challenge.

    Raises:
        WebAuthnVerificationError: the response is invalid, or the credential is not accepted.
    """
    from webauthn import verify_registration_response
    from webauthn.helpers import base64url_to_bytes, bytes_to_base64url, decode_credential_public_key
    from webauthn.helpers.decode_credential_public_key import DecodedRSAPublicKey
    from webauthn.helpers.exceptions import WebAuthnException

    read = _parse_response(answer)
    try:
        verified = verify_registration_response(
            credential=read,
            expected_challenge=challenge,
            expected_rp_id=party.rp_id,
            expected_origin=party.origin,
            require_user_verification=True,
            supported_pub_key_algs=_accepted_algorithms(),
        )
        key = decode_credential_public_key(verified.credential_public_key)
        _require_own_frame(base64url_to_bytes(read["response"]["clientDataJSON"]))
    except (WebAuthnException, *_MALFORMED) as error:
        raise WebAuthnVerificationError(f"the new passkey is invalid: {error}") from error
    if isinstance(key, DecodedRSAPublicKey) and len(key.n) < _MIN_RSA_BYTES:
        raise WebAuthnVerificationError("the new passkey's RSA key is shorter than 2,048 bits")
    return RegisteredCredential(
        bytes_to_base64url(verified.credential_id), verified.credential_public_key, verified.sign_count
    )


def read_assertion(answer: str) -> Assertion:
    """Parse a response to ``authentication_options``, without verifying it.

    Raises:
        WebAuthnVerificationError: it is malformed.
    """
    from webauthn.helpers import base64url_to_bytes

    read = _parse_response(answer)
    try:
        response = read["response"]
        if read["type"] != "public-key" or read["id"] != read["rawId"]:
            raise WebAuthnVerificationError("the passkey's answer has two different ids")
        return Assertion(
            str(read["id"]),
            base64url_to_bytes(response["authenticatorData"]),
            base64url_to_bytes(response["clientDataJSON"]),
            base64url_to_bytes(response["signature"]),
        )
    except _MALFORMED as error:
        raise WebAuthnVerificationError(f"this is no passkey's answer: {error}") from error


def verify_assertion(party: RelyingParty, challenge: bytes, assertion: Assertion, public_key: bytes) -> int:
    """Verify that the holder of this key signed exactly this challenge here. Returns the authenticator's counter.

    Raises:
        WebAuthnVerificationError: they did not.
    """
    from webauthn import verify_authentication_response
    from webauthn.helpers import bytes_to_base64url, decode_credential_public_key
    from webauthn.helpers.exceptions import WebAuthnException

    credential = {
        "id": assertion.credential_id,
        "rawId": assertion.credential_id,
        "type": "public-key",
        "response": {
            "authenticatorData": bytes_to_base64url(assertion.authenticator_data),
            "clientDataJSON": bytes_to_base64url(assertion.client_data),
            "signature": bytes_to_base64url(assertion.signature),
        },
    }
    try:
        if decode_credential_public_key(public_key).alg not in _ALGORITHMS:
            raise WebAuthnVerificationError("the public key's algorithm is not accepted")
        _require_own_frame(assertion.client_data)
        verified = verify_authentication_response(
            credential=credential,
            expected_challenge=challenge,
            expected_rp_id=party.rp_id,
            expected_origin=party.origin,
            credential_public_key=public_key,
            credential_current_sign_count=0,  # compared by the caller, to distinguish a regression from a forgery
            require_user_verification=True,
        )
    except (WebAuthnException, *_MALFORMED) as error:
        raise WebAuthnVerificationError(f"the passkey's answer is invalid: {error}") from error
    return verified.new_sign_count


def key_digest(public_key: bytes) -> str:
    """The id of a public key: SHA-256 of its COSE bytes, in lower-case hex."""
    return hashlib.sha256(public_key).hexdigest()


def _require_own_frame(client_data: bytes) -> None:
    """A page framed by another site signs nothing (WebAuthn section 13.4.9)."""
    client = json.loads(client_data)
    if not isinstance(client, dict) or client.get("crossOrigin", False) is not False or "topOrigin" in client:
        raise WebAuthnVerificationError("the passkey was used on a page framed by another site")


def _parse_response(answer: str) -> dict[str, Any]:
    if len(answer) > _MAX_RESPONSE:
        raise WebAuthnVerificationError("the passkey's answer is too long to be one")
    try:
        read = json.loads(answer)
    except ValueError as error:
        raise WebAuthnVerificationError("the passkey's answer is no JSON") from error
    if not isinstance(read, dict):
        raise WebAuthnVerificationError("the passkey's answer is no object")
    return read
