"""The keys under which a journal seals secrets: a file of its owner's, separate from the journal.

Rules: one key on each line; the last one seals, all of them open. A key's id is its hash, so no other key can claim it.
The file must be 0600. Next to a journal file it is created when first needed, atomically. A file named explicitly is
never created implicitly, because a second host would then seal under a key of its own. A new line adds a key
(`countersign journal new-key FILE`). Without a removed key, values sealed under it can no longer be opened.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

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
        """The id that sealed values name it by."""
        return hashlib.sha256(_DOMAIN + self.raw).hexdigest()[:_ID_CHARACTERS]


class InMemoryKey:
    """The key of an in-memory journal; it is in no file either."""

    def __init__(self) -> None:
        self._key = SealingKey.generate()

    def newest(self) -> SealingKey:
        return self._key

    def make(self) -> SealingKey:
        return self._key

    def find(self, key_id: str) -> SealingKey:
        """The only key; no other one could have sealed."""
        return self._key

    def ids(self) -> tuple[str, ...]:
        return (self._key.id,)


class KeyFile:
    """The keys of one file. It is read when a key is needed, and again for an unknown key id. `named`: the path was
    given explicitly. A path of None: there is no place to create a file.
    """

    def __init__(self, path: Path | None, *, named: bool) -> None:
        self._path = path
        self._named = named
        self._keys: tuple[SealingKey, ...] = ()

    def newest(self) -> SealingKey | None:
        """The last key of the file. None if there is no file and one may be created.

        Raises:
            JournalSealed: there is none and none may be created, or the file cannot be used.
        """
        keys = self._keys or self._read()
        if keys:
            return keys[-1]
        if self._path is None:
            raise JournalSealed(
                "this journal is shared, and secrets cannot be sealed without a key that all its hosts have"
            )
        if self._named:
            raise JournalSealed(
                f"the key file {str(self._path)!r} is not there; `countersign journal new-key` makes one"
            )
        return None

    def make(self) -> SealingKey:
        """Create the file with one key, or use the one another process created meanwhile.

        Raises:
            JournalSealed: it cannot be written, or may not be created.
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
            raise JournalSealed(f"the key file {str(self._path)!r} was removed again")
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
        return tuple(key.id for key in self._keys or self._read())

    def _read(self) -> tuple[SealingKey, ...]:
        """The keys in the file now; empty if it does not exist."""
        self._keys = () if self._path is None else read_keys(self._path)
        return self._keys


SealingKeys = InMemoryKey | KeyFile


def read_keys(path: Path) -> tuple[SealingKey, ...]:
    """The keys of a file, oldest first; empty if it does not exist.

    Raises:
        JournalSealed: its mode is too open, it cannot be read, or it holds something else.
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
    """Append a new key to a file, or create the file with it. It seals from now on.

    Raises:
        JournalSealed: the file cannot be used as it is.
        MisuseError: it cannot be written, or is full.
    """
    before = read_keys(path)
    if len(before) >= MAX_KEYS:
        raise MisuseError(
            f"{str(path)!r} holds {MAX_KEYS} keys, which is the maximum; remove those that open nothing"
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
            f"{str(path)!r} was made by another process at the same moment; run it again to add another key"
        )
    return key


def _line(key: SealingKey) -> bytes:
    return encode_base64url(key.raw).encode() + b"\n"


def _key(line: bytes, number: int, path: Path) -> SealingKey:
    """Parse one line. Its content is never shown: it may be a mistyped key."""
    try:
        raw = decode_base64url(line.strip().decode("ascii"))
    except ValueError:
        raw = b""
    if len(raw) != KEY_BYTES:
        raise JournalSealed(
            f"line {number} of the key file {str(path)!r} (comments not counted) is not a key: a key is "
            f"{KEY_BYTES} bytes "
            "in base64url"
        )
    return SealingKey(raw)


def _create_file(path: Path, content: bytes) -> None:
    """Create a file atomically. A file that another process created first is kept."""
    temporary = _write_temporary(path, content)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return
    finally:
        temporary.unlink()
    _sync_folder(path.parent)


def _replace_file(path: Path, content: bytes) -> None:
    _write_temporary(path, content).replace(path)
    _sync_folder(path.parent)


def _write_temporary(path: Path, content: bytes) -> Path:
    """Write the content to disk under another name in the same folder."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    return temporary


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
