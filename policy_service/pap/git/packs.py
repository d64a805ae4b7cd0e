"""Packs, as far as sizes go: what each object says of itself before anything of it is unpacked.

Rules kept here: a pack that came over a wire is walked once, object by object, and refused before it is indexed when
one of its objects, or what a delta would make, is larger than an object may be, or all together are.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import BinaryIO, Final

BASE_BY_OFFSET, BASE_BY_NAME = 6, 7
MAX_PACK_BYTES: Final = 256 * 1_048_576  # a repository of policies and all its history
MAX_OBJECT_BYTES: Final = 64 * 1_048_576
MAX_UNPACKED_BYTES: Final = 4 * 1_024 * 1_048_576
MAX_OBJECTS: Final = 2_000_000
_PIECE: Final = 65_536


class PackError(Exception):
    """A pack that is damaged or larger than it may be; one sentence."""


@dataclass(frozen=True, slots=True)
class PackedHeader:
    """One object of a pack: its kind, the size of its own data and of what it makes, and where its data begins."""

    kind: int
    size: int
    result: int
    begins: int
    base_offset: int = 0
    base_name: bytes = b""


def header_at(file: BinaryIO, offset: int, width: int) -> PackedHeader:
    """The header of the object at ``offset``; ``width``: bytes of an object's name in this repository.

    Raises:
        PackError: there is none.
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
    """Walk a whole pack and refuse one that would unpack to more than it may.

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
        header = header_at(file, offset, width)
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
    """The second of the two sizes a delta begins with."""
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
    """Where the next object begins: the data is unpacked piece by piece and thrown away."""
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
