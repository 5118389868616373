"""Checks the table of contents of an untrusted zip file before any byte of it is unpacked.

The checks are strict: no bytes before the first member or between the directory and the end, no comment, no
overlapping members. Every archive that NumPy writes passes them; other archives are damaged or an attack.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from rollbook.errors import InvalidValue

_END = struct.Struct("<4s4H2LH")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR_64 = struct.Struct("<4sLQL")
_LOCAL = struct.Struct("<4s2B4HL2L2H")
_LOCAL_HEADER_SIZE = _LOCAL.size
_DIRECTORY_ENTRY_SIZE = 46
_MOST_EXTRA = 1024
_ENCRYPTED = 0x1 | 0x40
_PATCHED = 0x20
_UTF_8 = 0x800


@dataclass(frozen=True, slots=True, kw_only=True)
class NpzLimits:
    """How large an archive may be."""

    members: int = 4096
    name_bytes: int = 512
    header_bytes: int = 10_000
    """Length of the header of one array, which states its type and shape."""
    total_bytes: int = 4 << 30
    """Size of all arrays together, unpacked. An archive may unpack to this size however well it was packed."""
    ratio: float = 10.0
    """An archive may unpack to more than `total_bytes` if that is at most this many times its own size."""


def refusal(record: str, field: str, value: object, expected: str) -> InvalidValue:
    return InvalidValue(record=record, field=field, value=str(value), expected=expected)


@contextmanager
def zip_errors(record: str, field: str) -> Iterator[None]:
    """Turn the many exceptions of zipfile and zlib for damaged bytes into one refusal."""
    try:
        yield
    except InvalidValue:
        raise
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        NotImplementedError,
        OverflowError,
        RuntimeError,
        ValueError,
    ) as error:
        raise refusal(record, field, f"damaged ({error})", "a whole archive") from error


def open_members(
    stream: BinaryIO, limits: NpzLimits, record: str
) -> tuple[zipfile.ZipFile, Mapping[str, int]]:
    """Open the archive after checking that sizes, names, places and methods of all members are within the limits.

    Also returns where each member has to end, by name. `check_place` compares this with the member's own header, when
    the member is read: a source that is far away is not asked for every header at once.
    """
    size = stream.seek(0, 2)
    count, directory_at = _check_end(stream, size, limits, record)
    with zip_errors(record, "archive"):
        archive = zipfile.ZipFile(stream)
    members = archive.infolist()
    if len(members) != count:
        raise refusal(record, "archive", f"{len(members)} members", f"{count}, as its end says")
    for member in members:
        _check_member(member, limits, record)
    ends = _check_apart(members, directory_at, record)
    _check_sizes(members, size, limits, record)
    return archive, ends


def check_place(archive: zipfile.ZipFile, member: zipfile.ZipInfo, end: int, record: str) -> None:
    """Refuse a member whose own header moves its bytes over those of another member, with a long extra field.

    Python before 3.11.8 does not look.
    """
    if data_begins_at(archive, member) + member.compress_size > end:
        raise _overlapping(member, record)


def data_begins_at(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """Where the bytes of the member begin, after its own header."""
    stream = archive.fp
    assert stream is not None
    with archive._lock:  # type: ignore[attr-defined] # other threads read from the same stream
        stream.seek(member.header_offset)
        header = stream.read(_LOCAL.size)
    *_, name_size, extra_size = _LOCAL.unpack(header)
    return int(member.header_offset + _LOCAL.size + name_size + extra_size)


def _overlapping(member: zipfile.ZipInfo, record: str) -> InvalidValue:
    return refusal(record, member.filename, "overlapping another", "bytes of its own")


def stored_member(archive: memoryview, member: zipfile.ZipInfo, end: int) -> memoryview | None:
    """The bytes of a member that is stored unpacked, ends by `end`, and whose header and checksum match the directory.

    None for any other member: zipfile then unpacks it or reports what is wrong.
    """
    at = member.header_offset
    if member.compress_type != zipfile.ZIP_STORED or at + _LOCAL.size > len(archive):
        return None
    signature, *_, flags, _, _, _, _, _, _, name_size, extra_size = _LOCAL.unpack_from(archive, at)
    name = bytes(archive[at + _LOCAL.size :][:name_size])
    encoding = "utf-8" if flags & _UTF_8 else "cp437"
    if signature != b"PK\x03\x04" or name != member.orig_filename.encode(encoding, "replace"):
        return None
    begins_at = at + _LOCAL.size + name_size + extra_size
    data = archive[begins_at : min(begins_at + member.file_size, end)]
    return data if len(data) == member.file_size and zlib.crc32(data) == member.CRC else None


def check_key(key: str, limits: NpzLimits, record: str) -> None:
    """A key may begin with a slash, like a ROS topic. It must not be usable as a path that leaves a folder."""
    if not key or len(key.encode("utf-8", "surrogatepass")) > limits.name_bytes:
        raise refusal(record, "key", repr(key[:80]), f"a name of 1 to {limits.name_bytes} bytes")
    if "\\" in key or ".." in key.split("/") or not key.isprintable():
        raise refusal(
            record, "key", repr(key), "printable characters, no backslash, no '..' between slashes"
        )


def _check_end(stream: BinaryIO, size: int, limits: NpzLimits, record: str) -> tuple[int, int]:
    """The number of members and the start of the directory, from the last bytes of the file."""
    if size < _END.size:
        raise refusal(record, "archive", f"{size} bytes", "a zip archive (.npz)")
    end_at = size - _END.size
    fields = _END.unpack(_at(stream, end_at, _END.size))
    if fields[0] != b"PK\x05\x06" or fields[7] != 0:
        expected = "an .npz file without a comment or more bytes"
        raise refusal(record, "archive", "not a whole zip archive", expected)
    disks, count, directory_size, directory_at = fields[1:3], fields[4], fields[5], fields[6]
    ends_at = end_at
    locator_at = end_at - _LOCATOR_64.size
    if locator_at >= 0 and _at(stream, locator_at, 4) == b"PK\x06\x07":
        ends_at = locator_at - _END_64.size
        large = _END_64.unpack(_at(stream, ends_at, _END_64.size)) if ends_at >= 0 else (b"",)
        if large[0] != b"PK\x06\x06":
            raise refusal(record, "archive", "without its zip64 end", "a whole .npz")
        disks, count, directory_size, directory_at = large[4:6], large[7], large[8], large[9]
    if any(disks) or directory_at + directory_size != ends_at:
        raise refusal(record, "archive", "not in one piece", "a whole .npz and nothing around it")
    most = limits.members * (_DIRECTORY_ENTRY_SIZE + limits.name_bytes + _MOST_EXTRA)
    if count > limits.members or directory_size > most:
        raise refusal(record, "archive", f"{count} members", f"at most {limits.members}")
    return count, directory_at


def _at(stream: BinaryIO, position: int, length: int) -> bytes:
    stream.seek(position)
    return stream.read(length)


def _check_member(member: zipfile.ZipInfo, limits: NpzLimits, record: str) -> None:
    name = member.orig_filename
    if not name.endswith(".npy") or name != member.filename:
        raise refusal(record, "member", repr(name[:80]), "an array (a name that ends in .npy)")
    check_key(name.removesuffix(".npy"), limits, record)
    if member.flag_bits & (_ENCRYPTED | _PATCHED):
        raise refusal(record, name, "encrypted", "an array that can be read without a password")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise refusal(record, name, f"method {member.compress_type}", "stored or deflated")
    if member.compress_type == zipfile.ZIP_STORED and member.file_size != member.compress_size:
        raise refusal(record, name, "two sizes", "one size, as it is stored unpacked")


def _check_apart(
    members: Sequence[zipfile.ZipInfo], directory_at: int, record: str
) -> dict[str, int]:
    """Refuse members that share bytes: that is how a zip bomb makes a small file unpack to a large one.

    Returns where each member has to end: where the next one begins.
    """
    ends: dict[str, int] = {}
    previous: str | None = None
    free_from = 0
    for member in sorted(members, key=lambda each: each.header_offset):
        if member.filename in ends:
            raise refusal(record, member.filename, "there twice", "every name once")
        if member.header_offset < free_from:
            raise _overlapping(member, record)
        if previous is not None:
            ends[previous] = member.header_offset
        previous = member.filename
        ends[previous] = directory_at
        name_size = len(member.filename.encode("utf-8" if member.flag_bits & _UTF_8 else "cp437"))
        free_from = member.header_offset + _LOCAL_HEADER_SIZE + name_size + member.compress_size
    if free_from > directory_at:
        raise refusal(record, "archive", "cut short", "all bytes its directory promises")
    return ends


def _check_sizes(
    members: Sequence[zipfile.ZipInfo], size: int, limits: NpzLimits, record: str
) -> None:
    total = sum(member.file_size for member in members)
    most = max(limits.total_bytes, int(limits.ratio * size))
    if total > most:
        value, expected = f"{total} bytes unpacked", f"at most {most} for a file of {size} bytes"
        raise refusal(record, "archive", value, expected)
