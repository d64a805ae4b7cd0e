"""Verify signatures of incoming webhooks: GitHub, GitLab, or Standard Webhooks.

Comparisons take constant time. Without a configured secret every webhook is refused. The body is never parsed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from policy_service.errors import StartError, UnauthenticatedError

_GITHUB, _GITLAB, _STANDARD = "x-hub-signature-256", "x-gitlab-token", "webhook-signature"
_PREFIX: Final = b"whsec_"
_MIN_SECRET_BYTES: Final = 16
_MAX_SIGNATURES: Final = 8  # two during a change of the secret


def require_strong_secret(secret: bytes) -> bytes:
    """Refuse a secret that is too short, or has the prefix whsec_ and is not base64.

    Raises:
        StartError: the secret is one of these.
    """
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True) if _is_encoded(secret) else secret
    except ValueError:
        key = b""
    if len(key) < _MIN_SECRET_BYTES:
        raise StartError(
            f"the secret in policies_webhook_secret_file has fewer than {_MIN_SECRET_BYTES} bytes, or begins with "
            "whsec_ and is not base64; make one: openssl rand -hex 32"
        )
    return secret


def _is_encoded(secret: bytes) -> bool:
    return secret.startswith(_PREFIX)


def is_webhook(headers: Mapping[str, str]) -> bool:
    """Whether a request has a signature header of a webhook."""
    return any(name in headers for name in (_GITHUB, _GITLAB, _STANDARD))


def require_signed(secret: bytes | None, headers: Mapping[str, str], body: bytes) -> None:
    """Verify that the sender of a webhook knows the secret. Replays are harmless: they only trigger a refresh.

    Raises:
        UnauthenticatedError: no secret is configured, or the signature is invalid.
    """
    if not secret:
        raise UnauthenticatedError(
            "set policies_webhook_secret_file: webhooks are accepted with a secret only"
        )
    if _GITHUB in headers:
        good = _equal(headers[_GITHUB], "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest())
    elif _GITLAB in headers:
        good = _equal(headers[_GITLAB], secret.decode("utf-8", "replace"))
    else:
        good = _has_standard_signature(secret, headers, body)
    if not good:
        raise UnauthenticatedError("sign the webhook with the secret of policies_webhook_secret_file")


def _has_standard_signature(secret: bytes, headers: Mapping[str, str], body: bytes) -> bool:
    key = base64.b64decode(secret.removeprefix(_PREFIX)) if _is_encoded(secret) else secret
    signed = f"{headers.get('webhook-id', '')}.{headers.get('webhook-timestamp', '')}.".encode() + body
    wanted = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return any(_equal(one, wanted) for one in headers[_STANDARD].split()[:_MAX_SIGNATURES])


def _equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode("utf-8", "replace"))
