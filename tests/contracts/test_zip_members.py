"""The checks of a zip's table of contents, and the short way to members that are stored unpacked."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.contracts.zip_members import NpzLimits, check_place, open_members, stored_member
from rollbook.errors import InvalidValue

NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N"]), min_size=1, max_size=8)


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return stream.getvalue()


def opened(data: bytes) -> tuple[zipfile.ZipFile, dict[str, int]]:
    archive, ends = open_members(io.BytesIO(data), NpzLimits(), "zip")
    return archive, dict(ends)


def fast(data: bytes, name: str) -> memoryview | None:
    archive, ends = opened(data)
    member = archive.getinfo(f"{name}.npy")
    return stored_member(memoryview(data), member, ends[member.filename])


def with_zip64_end(data: bytes) -> bytes:
    """The same archive with the end that an archive of more than 4 GiB has."""
    *_, count, directory_size, directory_at, _ = struct.unpack("<4s4H2LH", data[-22:])
    end = struct.pack(
        "<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, directory_size, directory_at
    )
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, len(data) - 22, 1)
    short = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return data[:-22] + end + locator + short


@given(st.dictionaries(NAMES, st.binary(max_size=64), max_size=4))
def test_every_stored_member_is_found_in_place_without_a_copy(members: dict[str, bytes]) -> None:
    whole = zipped(members)
    archive, ends = opened(whole)
    with memoryview(whole) as view:
        for name, data in members.items():
            member = archive.getinfo(f"{name}.npy")
            check_place(archive, member, ends[member.filename], "zip")
            found = stored_member(view, member, ends[member.filename])
            assert found is not None
            assert found.obj is whole
            assert bytes(found) == data


def test_a_deflated_member_is_left_to_zipfile() -> None:
    assert fast(zipped({"a": bytes(99)}, zipfile.ZIP_DEFLATED), "a") is None


@pytest.mark.parametrize(
    ("at", "what"), [(0, "signature"), (30, "name"), (35, "bytes"), (28, "extra size")]
)
def test_a_member_that_is_not_what_the_directory_says_is_left_to_zipfile(
    at: int, what: str
) -> None:
    whole = bytearray(zipped({"a": b"data", "b": b"more"}))
    whole[at] ^= 1
    archive, ends = opened(bytes(whole))
    member = archive.getinfo("a.npy")
    assert stored_member(memoryview(whole), member, ends["a.npy"]) is None, what


def test_a_member_that_ends_where_the_archive_does_may_be_empty() -> None:
    """Its header fits exactly into what is there."""
    whole = zipped({"": b""})
    member = zipfile.ZipFile(io.BytesIO(whole)).getinfo(".npy")
    header = memoryview(whole)[: 30 + len(".npy")]
    assert stored_member(header, member, len(header)) == memoryview(b"")
    assert stored_member(header[:29], member, 29) is None


def test_a_header_at_the_very_end_of_the_archive_is_read() -> None:
    member = zipfile.ZipInfo("")
    member.header_offset, member.CRC, member.file_size = 0, zlib.crc32(b""), 0
    header = struct.pack("<4s2B4HL2L2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    assert stored_member(memoryview(header), member, len(header)) == memoryview(b"")


@pytest.mark.parametrize("members", [{}, {"a": b"data"}, {"a": b"data", "b": b"more"}])
def test_an_archive_with_a_zip64_end_is_read(members: dict[str, bytes]) -> None:
    whole = with_zip64_end(zipped(members))
    archive, _ = opened(whole)
    assert [each.filename for each in archive.infolist()] == [f"{name}.npy" for name in members]
    assert all(fast(whole, name) == memoryview(data) for name, data in members.items())


def test_a_zip64_end_that_is_lost_or_of_several_disks_is_refused() -> None:
    whole = with_zip64_end(zipped({"a": b"data"}))
    end_at = len(whole) - 22 - 20 - 56
    for at in (end_at, end_at + 16, end_at + 20):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        with pytest.raises(InvalidValue, match=r"zip64 end|in one piece"):
            opened(bytes(damaged))
    with pytest.raises(InvalidValue, match="zip64 end"):
        opened(whole[-42:])


def test_a_member_may_end_where_the_next_begins_and_not_one_byte_later() -> None:
    archive, ends = opened(zipped({"a": b"data", "b": b"more"}))
    member = archive.getinfo("a.npy")
    assert ends["a.npy"] == archive.getinfo("b.npy").header_offset == 30 + 5 + 4
    check_place(archive, member, ends["a.npy"], "zip")
    with pytest.raises(InvalidValue, match="overlapping another"):
        check_place(archive, member, ends["a.npy"] - 1, "zip")


def test_the_extra_field_of_its_own_header_moves_a_member() -> None:
    whole = bytearray(zipped({"a": b"data", "b": b"more"}))
    whole[28] = 1
    archive, ends = opened(bytes(whole))
    with pytest.raises(InvalidValue, match="overlapping another"):
        check_place(archive, archive.getinfo("a.npy"), ends["a.npy"], "zip")


def test_members_that_share_bytes_by_the_directory_are_refused() -> None:
    whole = bytearray(zipped({"a": b"data", "b": b"more"}))
    directory = whole.index(b"PK\1\2")
    second = whole.index(b"PK\1\2", directory + 1)
    struct.pack_into("<L", whole, second + 42, 30 + 5 + 3)
    with pytest.raises(InvalidValue, match="overlapping another"):
        opened(bytes(whole))
