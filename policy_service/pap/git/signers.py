"""Who may sign the policies: a file in the format of OpenSSH's ``allowed_signers``, outside the repository.

Rules kept here: a file that cannot be read in full trusts nobody, so that a slip of the pen is noticed at once; an
entry counts for git unless its namespaces say otherwise; its validity is asked of this host's time, because the time in
a commit is its author's word. Certificate authorities are not taken.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from policy_service.pap.git.signatures import NAMESPACE, SignatureError, signature_of, verify

_OPTION: Final = re.compile(r'([a-zA-Z-]+)(?:="([^"]*)")?(,|\s+)')
_TIMES: Final = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_KINDS: Final = re.compile(r"(?:sk-)?(?:ssh-|ecdsa-|rsa-)")
_MAX_BYTES: Final = 1_048_576


class SignersError(Exception):
    """The file of signers cannot be used; one sentence with its line."""


@dataclass(frozen=True, slots=True)
class Signer:
    """One line: who, with which key, for what and when."""

    principals: str
    key: bytes
    namespaces: tuple[str, ...] = ()
    valid_after: datetime | None = None
    valid_before: datetime | None = None

    def may_sign(self, key: bytes, now: datetime) -> bool:
        """Whether this line trusts a key for commits now."""
        for_git = not self.namespaces or any(fnmatchcase(NAMESPACE, pattern) for pattern in self.namespaces)
        begun = self.valid_after is None or now >= self.valid_after
        return (
            key == self.key and for_git and begun and (self.valid_before is None or now < self.valid_before)
        )


def read_signers(file: Path) -> tuple[Signer, ...]:
    """Everybody the file trusts.

    Raises:
        SignersError: it cannot be read, or one of its lines cannot.
    """
    try:
        with file.open("rb") as opened:
            lines = opened.read(_MAX_BYTES).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SignersError(f"policies_allowed_signers {str(file)!r} cannot be read: {error}") from error
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                found.append(_signer(line.strip()))
            except ValueError as error:
                raise SignersError(f"policies_allowed_signers {file}:{number}: {error}") from error
    return tuple(found)


def require_signed(commit: bytes, signers: tuple[Signer, ...], now: datetime) -> str:
    """Make sure that a commit was signed by somebody who may; who that is.

    Raises:
        SignatureError: it was not.
    """
    signed = signature_of(commit)
    verify(signed)
    for signer in signers:
        if signer.may_sign(signed.key, now):
            return signer.principals
    raise SignatureError(
        f"its signer, the key {signed.fingerprint}, is not among policies_allowed_signers, or not now or not for git"
    )


def _signer(line: str) -> Signer:
    principals, rest = _principals(line)
    options: dict[str, str | None] = {}
    if not _KINDS.match(rest):
        options, rest = _options(rest)
    parts = rest.split(None, 2)
    if len(parts) < 2:
        raise ValueError("write PRINCIPALS [OPTIONS] KEYTYPE KEY, as ssh-keygen(1) has it")
    try:
        key = base64.b64decode(parts[1], validate=True)
    except binascii.Error:
        raise ValueError("the key is no base64") from None
    kind = parts[0].encode()
    if key[4 : 4 + len(kind)] != kind:
        raise ValueError(f"the key is not of the kind {parts[0]!r} it is said to be")
    return Signer(
        principals,
        key,
        tuple(filter(None, (options.get("namespaces") or "").split(","))),
        _time(options.get("valid-after")),
        _time(options.get("valid-before")),
    )


def _principals(line: str) -> tuple[str, str]:
    if line.startswith('"'):
        found, _, rest = line[1:].partition('"')
    else:
        found, _, rest = line.partition(" ")
    return found, rest.strip()


def _options(text: str) -> tuple[dict[str, str | None], str]:
    found: dict[str, str | None] = {}
    at = 0
    while match := _OPTION.match(text, at):
        name = match[1].lower()
        if name not in {"namespaces", "valid-after", "valid-before"}:
            raise ValueError(f"the option {match[1]!r} is not taken; name each key by a line of its own")
        found[name] = match[2]
        at = match.end()
        if match[3] != ",":
            return found, text[at:]
    raise ValueError(
        "its options cannot be read; write PRINCIPALS [OPTIONS] KEYTYPE KEY, as ssh-keygen(1) has it"
    )


def _time(text: str | None) -> datetime | None:
    """A time as ssh-keygen reads it; without a Z it is this host's local time there, and UTC here."""
    if text is None:
        return None
    bare = text.removesuffix("Z")
    if len(bare) not in _TIMES:
        raise ValueError(f"{text!r} is no time; write YYYYMMDD or YYYYMMDDHHMM[SS], with a Z")
    return datetime.strptime(bare, _TIMES[len(bare)]).replace(tzinfo=UTC)
