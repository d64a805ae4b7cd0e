"""A key of this process alone, which the service trusts for a while by the token of a platform.

It is created here, registered with the platform's token and renewed before it expires. The token is read anew each
time, because Kubernetes, SPIFFE helpers and others replace the file while a process runs. It is sent to the policy
service only, and the key never leaves the process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from countersign.clock import Clock
from countersign.contract.keys import PrivateKey
from countersign.contract.wire import BringKeyRequest, BroughtKey, dump
from countersign.errors import SettingsError
from countersign.settings import TOKEN_VARIABLE

PATH: Final = "/v1/agent-keys"
_MAX_TOKEN_BYTES: Final = 16_384


# of the key's lifetime; the other half covers an outage of the service or the platform
_RENEW_AT: Final = 0.5


class EphemeralKeys:
    """When to register the key again, and the request for it."""

    def __init__(self, token_path: Path, key: PrivateKey, clock: Clock) -> None:
        self._token_path = token_path
        self._key = key
        self._clock = clock
        self._renew_at = 0.0  # wall time; not registered yet

    @property
    def due(self) -> bool:
        """Whether the key must be registered before anything is signed with it."""
        return self._clock.wall() >= self._renew_at

    def request(self) -> bytes:
        """The body of the request.

        Raises:
            SettingsError: the token file cannot be read or holds no token.
        """
        return dump(BringKeyRequest(token=self._token(), x=self._key.public.jwk()["x"]))

    def take(self, ephemeral: BroughtKey) -> None:
        """Schedule the next registration."""
        now = self._clock.wall()
        self._renew_at = now + (ephemeral.expires_at.timestamp() - now) * _RENEW_AT

    def _token(self) -> str:
        try:
            with self._token_path.open("rb") as file:
                raw = file.read(_MAX_TOKEN_BYTES + 1)
        except OSError as error:
            raise SettingsError(
                f"token file {str(self._token_path)!r} cannot be read ({error.strerror}); {TOKEN_VARIABLE} names it"
            ) from error
        token = raw.decode("utf-8", "replace").strip()
        if not (token and token.isascii() and token.isprintable()) or len(raw) > _MAX_TOKEN_BYTES:
            raise SettingsError(f"token file {str(self._token_path)!r} holds no token")
        return token
