"""TFRecord files: records with a checksum for their length and one for their bytes. Both are compared, always.

A record is a u64 length, the checksum of the length, the bytes, and the checksum of the bytes. A checksum is CRC-32C,
turned and shifted by a constant, so that a checksum over checksums stays useful.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rollbook.adapters.extras import library
from rollbook.errors import DamagedRecording, TruncatedFile
from rollbook.files import unreadable

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
_MASK = 0xA282EAD8
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Record:
    """Where a record lies in its file. Its bytes have not been read yet."""

    path: Path
    number: int
    begins_at: int
    size: int

    def data(self) -> memoryview:
        """The bytes of the record, mapped into memory, after their checksum was compared."""
        try:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self.begins_at + self.size + _FOOTER.size:
                    detail = f"record {self.number} was cut off after it was found"
                    raise TruncatedFile(path=str(self.path), detail=detail)
                mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise unreadable(self.path, error) from error
        end = self.begins_at + self.size
        data = mapped[self.begins_at : end]
        (expected,) = _FOOTER.unpack(mapped[end : end + _FOOTER.size])
        if _checksum_of(data) != expected:
            detail = f"the bytes of record {self.number} do not have its checksum"
            raise DamagedRecording(path=str(self.path), detail=detail)
        return data


@dataclass(frozen=True, slots=True)
class Shard:
    path: Path
    records: tuple[Record, ...]
    """All whole records."""
    cut: str | None = None
    """What is known of the record in which the file ends; None for a file that ends after a record."""


def read_shard(path: Path) -> Shard:
    """Find the records by their lengths. A length with a wrong checksum is an error: nothing behind it can be found."""
    records: list[Record] = []
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            at = 0
            while at < size:
                length = _length(file, path, len(records), at, size)
                end = None if length is None else at + _HEADER.size + length + _FOOTER.size
                if length is None or end is None or end > size:
                    cut = f"the file ends at byte {size}, in record {len(records)}, which begins at byte {at}"
                    return Shard(path, tuple(records), cut)
                records.append(Record(path, len(records), at + _HEADER.size, length))
                at = end
    except OSError as error:
        raise unreadable(path, error) from error
    return Shard(path, tuple(records))


def _length(file: BinaryIO, path: Path, number: int, at: int, size: int) -> int | None:
    """The length of the record at this place; None where the file ends before it."""
    if at + _HEADER.size > size:
        return None
    file.seek(at)
    header = file.read(_HEADER.size)
    length, expected = _HEADER.unpack(header)
    if masked(library("google_crc32c").value(header[:8])) != expected:
        detail = f"the length of record {number}, at byte {at}, does not have its checksum"
        raise DamagedRecording(path=str(path), detail=detail)
    return int(length)


def masked(checksum: int) -> int:
    """The form in which a TFRecord file keeps a CRC-32C."""
    turned = (checksum >> 15 | checksum << 17) & 0xFFFFFFFF
    return (turned + _MASK) & 0xFFFFFFFF


def _checksum_of(data: memoryview) -> int:
    crc32c = library("google_crc32c")
    checksum = 0
    for first in range(0, len(data), _PIECE):
        checksum = crc32c.extend(checksum, data[first : first + _PIECE].tobytes())
    return masked(checksum)
