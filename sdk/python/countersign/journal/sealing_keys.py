"""The keys under which a journal seals what is secret: a file of its owner's, which is no part of the journal.

Rules: one key on each line, the last one seals, all of them open; a key's id is a hash of it, so it cannot be claimed
for another. The file is 0600 or it is refused. Beside a journal file it is made when it is first needed, whole or not
at all; a file that somebody named is never made in passing, for a second host would then seal under a key of its own.
Another line makes another key (`countersign journal new-key FILE`); whoever takes one away can no longer open what was
sealed under it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from countersign.contract.keys import decode_base64url, encode_base64url
from countersign.errors import JournalSealed, MisuseError

KEY_BYTES: Final = 32
MAX_KEYS: Final = 64
_DOMAIN: Final = b"countersign/journal-key/v1\n"
_ID_CHARACTERS: Final = 16
_MAX_BYTES: Final = 16_384
_MODE: Final = 0o600
_HEAD: Final = (
    b"# Keys of a Countersign journal, one on each line: the last one seals, all open. Lose none of them.\n"
)


@dataclass(frozen=True, slots=True)
class SealingKey:
    """One key; its id may be shown."""

    raw: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> SealingKey:
        """A new key from the operating system's randomness."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @property
    def id(self) -> str:
        """The name a sealed value has it under."""
        return hashlib.sha256(_DOMAIN + self.raw).hexdigest()[:_ID_CHARACTERS]


class SealingKeys(Protocol):
    """What opens and seals one journal."""

    def newest(self) -> SealingKey | None:
        """The key that seals; None where there is none yet and one may be made."""
        ...

    def make(self) -> SealingKey:
        """The first key of a journal."""
        ...

    def find(self, key_id: str) -> SealingKey:
        """The key of that id."""
        ...

    def ids(self) -> tuple[str, ...]:
        """The ids of all of them."""
        ...


class InMemoryKey:
    """The key of a journal that nothing survives: it is in no file either."""

    def __init__(self) -> None:
        self._key = SealingKey.generate()

    def newest(self) -> SealingKey:
        """The only one."""
        return self._key

    def make(self) -> SealingKey:
        """The only one."""
        return self._key

    def find(self, key_id: str) -> SealingKey:
        """The only one; nothing else could have sealed."""
        return self._key

    def ids(self) -> tuple[str, ...]:
        """Its id."""
        return (self._key.id,)


class KeyFile:
    """The keys of one file. It is read when a key is needed, and again where one is asked for that it did not hold.

    `named`: somebody named it. None: nobody did, and there is no place where one could be made.
    """

    def __init__(self, path: Path | None, *, named: bool) -> None:
        self._path = path
        self._named = named
        self._keys: tuple[SealingKey, ...] = ()

    def newest(self) -> SealingKey | None:
        """The last key of the file; None where there is no file and one may be made.

        Raises:
            JournalSealed: there is none and none may be made, or the file cannot be used.
        """
        keys = self._keys or self._read()
        if keys:
            return keys[-1]
        if self._path is None:
            raise JournalSealed(
                "this journal is shared, and what is secret cannot be sealed without a key of all its hosts"
            )
        if self._named:
            raise JournalSealed(
                f"the key file {str(self._path)!r} is not there; `countersign journal new-key` makes one"
            )
        return None

    def make(self) -> SealingKey:
        """Make the file with one key, or take what another process made meanwhile.

        Raises:
            JournalSealed: it cannot be written, or may not be made.
        """
        if self._path is None or self._named:
            raise AssertionError("newest() has refused")
        try:
            _create_file(self._path, _HEAD + _line(SealingKey.generate()))
        except OSError as error:
            raise JournalSealed(
                f"the key file {str(self._path)!r} cannot be made ({error.strerror})"
            ) from error
        made = self._read()
        if not made:
            raise JournalSealed(f"the key file {str(self._path)!r} was taken away again")
        return made[-1]

    def find(self, key_id: str) -> SealingKey:
        """The key of that id.

        Raises:
            JournalSealed: it is not in the file, or there is no file.
        """
        for keys in (self._keys, self._read()):
            for key in keys:
                if key.id == key_id:
                    return key
        where = "no key file is named" if self._path is None else f"{str(self._path)!r} does not hold it"
        raise JournalSealed(f"it is sealed under the key {key_id}, and {where}", key_id)

    def ids(self) -> tuple[str, ...]:
        """The ids of all keys at hand."""
        return tuple(key.id for key in self._keys or self._read())

    def _read(self) -> tuple[SealingKey, ...]:
        """What the file holds now; nothing where it is not there."""
        self._keys = () if self._path is None else read_keys(self._path)
        return self._keys


def read_keys(path: Path) -> tuple[SealingKey, ...]:
    """The keys of a file, oldest first; none where it is not there.

    Raises:
        JournalSealed: it is open to others, cannot be read, or holds something else.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            raw = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise JournalSealed(f"the key file {str(path)!r} cannot be read ({error.strerror})") from error
    if mode & 0o077:
        raise JournalSealed(
            f"the key file {str(path)!r} is open to others (mode {mode:04o}); run: chmod 600 {path}"
        )
    lines = [line for line in raw.splitlines() if line.strip() and not line.startswith(b"#")]
    if not lines or len(lines) > MAX_KEYS or len(raw) > _MAX_BYTES:
        raise JournalSealed(
            f"the key file {str(path)!r} holds {len(lines)} keys; it holds 1 to {MAX_KEYS}, one on each line"
        )
    return tuple(_key(line, number, path) for number, line in enumerate(lines, start=1))


def add_key(path: Path) -> SealingKey:
    """Put a new key at the end of a file, or make the file with it; it seals from now on.

    Raises:
        JournalSealed: the file cannot be used as it is.
        MisuseError: it cannot be written, or is full.
    """
    before = read_keys(path)
    if len(before) >= MAX_KEYS:
        raise MisuseError(
            f"{str(path)!r} holds {MAX_KEYS} keys, which is all it may; take out those that open nothing"
        )
    key = SealingKey.generate()
    try:
        if before:
            _replace_file(path, _HEAD + b"".join(map(_line, (*before, key))))
        else:
            _create_file(path, _HEAD + _line(key))
    except OSError as error:
        raise MisuseError(f"the key file {str(path)!r} cannot be written ({error.strerror})") from error
    if read_keys(path)[-1] != key:
        raise MisuseError(
            f"{str(path)!r} was made by another process at the same moment; run it again for one key more"
        )
    return key


def _line(key: SealingKey) -> bytes:
    return encode_base64url(key.raw).encode() + b"\n"


def _key(line: bytes, number: int, path: Path) -> SealingKey:
    """One line. What it holds is never told: it may be a key with a slip of the pen."""
    try:
        raw = decode_base64url(line.strip().decode("ascii"))
    except ValueError:
        raw = b""
    if len(raw) != KEY_BYTES:
        raise JournalSealed(
            f"line {number} of the key file {str(path)!r} (comments not counted) is no key: it is {KEY_BYTES} bytes "
            "in base64url"
        )
    return SealingKey(raw)


def _create_file(path: Path, content: bytes) -> None:
    """A new file, whole or not at all. Where another process made it first, that one stays."""
    beside = _write_temporary(path, content)
    try:
        os.link(beside, path)
    except FileExistsError:
        return
    finally:
        beside.unlink()
    _sync_folder(path.parent)


def _replace_file(path: Path, content: bytes) -> None:
    _write_temporary(path, content).replace(path)
    _sync_folder(path.parent)


def _write_temporary(path: Path, content: bytes) -> Path:
    """The content on the disk, under another name of the same folder."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    return beside


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
