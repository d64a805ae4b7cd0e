"""Read git objects, each bounded by its header before it is read and verified against its name afterwards.

Only objects are read: no work tree, no index, no hook, no filter. An object larger than its kind allows is refused by
its declared size, a delta also by the sizes of its bases. Bytes that do not hash to their name are refused. A pack from
the network is scanned once before it is indexed. It is refused when one object, the result of a delta, or all objects
together are too large.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from dulwich.errors import NotGitRepository
from dulwich.object_store import DiskObjectStore, PackBasedObjectStore
from dulwich.objects import ObjectID, RawObjectID
from dulwich.pack import Pack
from dulwich.repo import Repo

from policy_service.pap.problems import invalid_bundle

BASE_BY_OFFSET, BASE_BY_NAME = 6, 7
MAX_PACK_BYTES: Final = 256 * 1_048_576  # a repository of policies and all its history
MAX_OBJECT_BYTES: Final = 64 * 1_048_576
MAX_UNPACKED_BYTES: Final = 4 * 1_024 * 1_048_576
MAX_OBJECTS: Final = 2_000_000
_PIECE: Final = 65_536


class PackError(Exception):
    """A pack that is damaged or too large; one sentence."""


@dataclass(frozen=True, slots=True)
class PackedHeader:
    """One packed object: kind, size of its data, size of the result, offset of its data, and a delta's base."""

    kind: int
    size: int
    result: int
    begins: int
    base_offset: int = 0
    base_name: bytes = b""


def read_object_header(file: BinaryIO, offset: int, width: int) -> PackedHeader:
    """The header of the object at ``offset``; ``width`` is the length of an object's name in bytes.

    Raises:
        PackError: there is no valid header.
    """
    file.seek(offset)
    start = file.read(_PIECE)
    try:
        kind, size, at = _kind_and_size(start)
        base_offset, base_name = 0, b""
        if kind == BASE_BY_OFFSET:
            base_offset, at = _offset(start, at)
            if not 0 < base_offset <= offset:
                raise PackError("the pack is damaged: an object is made from one that is not there")
        elif kind == BASE_BY_NAME:
            base_name, at = start[at : at + width], at + width
        elif kind not in {1, 2, 3, 4}:
            raise PackError(f"the pack is damaged: there is no kind {kind} of object")
        result = size if not (base_offset or base_name) else _result_of_delta(start[at:])
    except (IndexError, zlib.error) as error:
        raise PackError("the pack is damaged: a header cannot be read") from error
    return PackedHeader(kind, size, result, offset + at, base_offset, base_name)


def require_bounded(file: BinaryIO, width: int) -> None:
    """Scan a whole pack and refuse one that would unpack to more than the limits.

    Raises:
        PackError: it is damaged or too large.
    """
    file.seek(0)
    start = file.read(12)
    if len(start) < 12 or start[:4] != b"PACK":
        raise PackError("the pack is damaged: it does not begin as one")
    count, offset, total = int.from_bytes(start[8:12], "big"), 12, 0
    if count > MAX_OBJECTS:
        raise PackError(f"{count} objects; {MAX_OBJECTS} is the limit")
    for _ in range(count):
        header = read_object_header(file, offset, width)
        largest = max(header.size, header.result)
        if largest > MAX_OBJECT_BYTES:
            raise PackError(f"an object of {largest} bytes; {MAX_OBJECT_BYTES} is the limit")
        total += largest
        if total > MAX_UNPACKED_BYTES:
            raise PackError(f"its objects are more than {MAX_UNPACKED_BYTES} bytes")
        offset = _end_of(file, header)


def _kind_and_size(start: bytes) -> tuple[int, int, int]:
    byte, at, shift = start[0], 1, 4
    kind, size = byte >> 4 & 7, byte & 15
    while byte & 0x80:
        byte = start[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return kind, size, at


def _offset(start: bytes, at: int) -> tuple[int, int]:
    byte = start[at]
    found, at = byte & 0x7F, at + 1
    while byte & 0x80:
        byte = start[at]
        found, at = (found + 1 << 7) | byte & 0x7F, at + 1
    return found, at


def _result_of_delta(data: bytes) -> int:
    """The size of a delta's result: the second of the two sizes at its start."""
    start = zlib.decompressobj().decompress(data, 32)
    at, size = 0, 0
    for _ in range(2):
        size, shift = 0, 0
        while True:
            byte = start[at]
            size |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if not byte & 0x80:
                break
    return size


def _end_of(file: BinaryIO, header: PackedHeader) -> int:
    """The offset of the next object, found by unpacking this one in pieces and discarding them."""
    file.seek(header.begins)
    unpacker, made = zlib.decompressobj(), 0
    fed = b""
    while not unpacker.eof:
        fed = unpacker.unconsumed_tail or file.read(_PIECE)
        if not fed:
            raise PackError("the pack is damaged: it ends in the middle of an object")
        try:
            made += len(unpacker.decompress(fed, _PIECE))
        except zlib.error as error:
            raise PackError("the pack is damaged: an object cannot be unpacked") from error
        if made > header.size:
            raise PackError("the pack is damaged: an object is larger than it says")
    return file.tell() - len(unpacker.unused_data)


COMMIT, TREE, BLOB, TAG = 1, 2, 3, 4
OBJECT_KINDS: Final = {COMMIT: b"commit", TREE: b"tree", BLOB: b"blob", TAG: b"tag"}
MAX_COMMIT_BYTES: Final = 1_048_576
MAX_TREE_BYTES: Final = 4 * 1_048_576  # about 100,000 entries in one folder
MAX_BASE_BYTES: Final = 64 * 1_048_576  # base of a delta: an older version may have been larger
_MAX_CHAIN: Final = 4_096
_HEADER_BYTES: Final = 64
_HASHES: Final = {40: hashlib.sha1, 64: hashlib.sha256}  # git's two formats, by the length of a name


class ObjectError(Exception):
    """An object that is missing, too large, of another kind, or does not match its name; one sentence."""


class MissingObjectError(ObjectError):
    """The repository does not hold it."""


def open_repository(path: Path) -> Repo:
    """Open a repository, bare or not.

    Raises:
        BundleError: there is no readable repository.
    """
    try:
        return Repo(str(path))
    except (NotGitRepository, OSError, ValueError, KeyError) as error:
        raise invalid_bundle(
            str(path), f"this is no git repository that can be read ({type(error).__name__})"
        ) from error


class Objects:
    """The objects of one repository."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self._store = repo.object_store

    def holds(self, name: str) -> bool:
        try:
            self.size(name)
        except MissingObjectError:
            return False
        return True

    def size(self, name: str) -> tuple[int, int]:
        """Kind and size of an object from its header, without unpacking it.

        Raises:
            ObjectError: it is missing, or a base of its delta is larger than MAX_BASE_BYTES.
        """
        for store in _stores(self._store):
            if (found := _size_in(store, name)) is not None:
                return found
        raise MissingObjectError(f"the repository holds no object {name}")

    def read(self, name: str, kind: int, limit: int) -> bytes:
        """The bytes of an object.

        Raises:
            ObjectError: it is missing, of another kind, larger than ``limit``, or damaged.
        """
        found, size = self.size(name)
        if found != kind:
            raise ObjectError(f"{name} is a {_word(found)}, not a {_word(kind)}")
        if size > limit:
            raise ObjectError(f"{name} is larger than {limit} bytes")
        raw = self._raw(name, size)
        if _HASHES[len(name)](b"%s %d\0" % (OBJECT_KINDS[kind], len(raw)) + raw).hexdigest() != name:
            raise ObjectError(f"the bytes of {name} do not match its name: the repository is damaged")
        return raw

    def _raw(self, name: str, size: int) -> bytes:
        for store in _stores(self._store):
            try:
                loose = _loose(store, name, size + _HEADER_BYTES)
                if loose is not None:
                    return loose.partition(b"\0")[2]
                return bytes(store.get_raw(ObjectID(name.encode()))[1])
            except KeyError:
                continue
            except (zlib.error, OSError, ValueError, AssertionError) as error:
                raise ObjectError(f"{name} cannot be unpacked: the repository is damaged") from error
        raise MissingObjectError(f"the repository holds no object {name}")


def _word(kind: int) -> str:
    return OBJECT_KINDS.get(kind, b"thing").decode()


def _stores(store: object) -> Iterator[DiskObjectStore]:
    """A store and its alternates."""
    if isinstance(store, DiskObjectStore):
        yield store
        for other in store.alternates:
            yield from _stores(other)


def _size_in(store: DiskObjectStore, name: str) -> tuple[int, int] | None:
    loose = _loose(store, name, _HEADER_BYTES)
    if loose is not None:
        word, _, size = loose.partition(b"\0")[0].partition(b" ")
        kinds = {text: kind for kind, text in OBJECT_KINDS.items()}
        if word not in kinds or not size.isdigit():
            raise ObjectError(f"{name} cannot be unpacked: the repository is damaged")
        return kinds[word], int(size)
    return _packed_size(store, name)


def _loose(store: DiskObjectStore, name: str, limit: int) -> bytes | None:
    """The first ``limit`` bytes of a loose object, header included."""
    try:
        with (Path(store.path) / name[:2] / name[2:]).open("rb") as file:
            return zlib.decompressobj().decompress(file.read(), limit)
    except FileNotFoundError:
        return None
    except (OSError, zlib.error) as error:
        raise ObjectError(f"{name} cannot be unpacked: the repository is damaged") from error


def _packed_size(store: PackBasedObjectStore, name: str) -> tuple[int, int] | None:
    raw = bytes.fromhex(name)
    for pack in store.packs:
        try:
            offset = pack.index.object_offset(RawObjectID(raw))
        except KeyError:
            continue
        return _along_the_chain(pack, offset, len(raw))
    return None


def _along_the_chain(pack: Pack, offset: int, width: int) -> tuple[int, int]:
    """Kind and size of the result of a delta chain, after checking the size of every base."""
    sizes: list[int] = []
    try:
        with Path(pack.data.path).open("rb") as file:
            while len(sizes) < _MAX_CHAIN:
                header = read_object_header(file, offset, width)
                sizes.append(header.result)
                if len(sizes) > 1 and header.result > MAX_BASE_BYTES:
                    raise ObjectError(f"the base of a delta is larger than {MAX_BASE_BYTES} bytes")
                if header.kind in OBJECT_KINDS:
                    return header.kind, sizes[0]
                offset = _base_of(pack, header, offset)
    except (PackError, KeyError, ValueError, OSError) as error:
        raise ObjectError(f"a pack cannot be read: the repository is damaged ({error})") from error
    raise ObjectError(f"a chain of more than {_MAX_CHAIN} deltas")


def _base_of(pack: Pack, header: PackedHeader, offset: int) -> int:
    if header.kind == BASE_BY_OFFSET:
        return offset - header.base_offset
    return pack.index.object_offset(RawObjectID(header.base_name))
