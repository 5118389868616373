"""NPZ: what goes in comes out, and nothing that is not plain arrays gets past the reader."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from rollbook.contracts.npz import NpzArchive, NpzLimits, inspect_npz, read_npz, write_npz
from rollbook.errors import InvalidValue


def written(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    write_npz(stream, arrays)
    return stream.getvalue()


def npy(array: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def header(text: str, data: bytes = b"", version: int = 1) -> bytes:
    """An array whose header says `text`."""
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode() + data


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return stream.getvalue()


def refused(data: bytes, limits: NpzLimits | None = None) -> str:
    with pytest.raises(InvalidValue) as found:
        read_npz(data, limits=limits)
    return str(found.value)


# --------------------------------------------------------------------------------------- round trip

DTYPES = (
    hnp.boolean_dtypes()
    | hnp.integer_dtypes(endianness="?")
    | hnp.floating_dtypes(endianness="?")
    | hnp.complex_number_dtypes()
    | hnp.datetime64_dtypes()
    | hnp.timedelta64_dtypes()
    | hnp.byte_string_dtypes(min_len=1)
)
ARRAYS = DTYPES.flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0))
)
KEYS = st.text(st.characters(categories=["L", "N"], include_characters="/_. -"), min_size=1).filter(
    lambda key: ".." not in key.split("/") and key.isprintable()
)


@settings(deadline=None)
@given(st.dictionaries(KEYS, ARRAYS, max_size=4))
def test_arrays_come_back_as_they_were(arrays: dict[str, NDArray[Any]]) -> None:
    back = read_npz(_written(arrays))
    assert list(back) == list(arrays)
    for key, array in arrays.items():
        assert back[key].shape == array.shape
        assert back[key].dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(back[key], array)


def _written(arrays: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    write_npz(stream, arrays)
    return stream.getvalue()


@settings(deadline=None)
@given(st.lists(st.text().filter(lambda text: not text.endswith("\0")), min_size=1))
def test_text_comes_back_as_it_was_without_pickle(texts: list[str]) -> None:
    for given_as in (texts, np.array(texts, object), np.array(texts, np.dtypes.StringDType())):
        data = written(**{"log/value": given_as})
        assert read_npz(data)["log/value"].tolist() == texts
        assert np.load(io.BytesIO(data), allow_pickle=False)["log/value"].tolist() == texts


@settings(deadline=None)
@given(st.dictionaries(KEYS, ARRAYS, max_size=3))
def test_numpy_reads_what_we_write_and_we_read_what_numpy_writes(
    arrays: dict[str, NDArray[Any]],
) -> None:
    theirs = np.load(io.BytesIO(_written(arrays)), allow_pickle=False)
    assert sorted(theirs.files) == sorted(arrays)
    for save in (np.savez, np.savez_compressed):
        stream = io.BytesIO()
        named: dict[str, Any] = {f"k{i}": array for i, array in enumerate(arrays.values())}
        save(stream, **named)
        back = read_npz(stream.getvalue())
        for i, array in enumerate(arrays.values()):
            np.testing.assert_array_equal(back[f"k{i}"], array)


def test_the_same_arrays_always_give_the_same_bytes() -> None:
    arrays = {"/joint/position": np.arange(6.0).reshape(3, 2), "note": ["a", "ü", "日本"]}
    assert written(**arrays) == written(**arrays)


def test_columns_first_arrays_keep_their_values() -> None:
    array = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    np.testing.assert_array_equal(read_npz(written(a=array))["a"], array)


def test_a_file_is_read_from_a_path_from_bytes_and_from_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "sensors.npz"
    write_npz(path, {"a/value": np.arange(3)})
    data = path.read_bytes()
    with open(path, "rb") as stream:
        for source in (path, str(path), data, bytearray(data), memoryview(data), stream):
            assert read_npz(source)["a/value"].tolist() == [0, 1, 2]
        assert not stream.closed


def test_shapes_are_known_without_reading_the_arrays(tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz", {"a/value": np.zeros((7, 3), np.float32), "b/value": [1, 2]})
    with NpzArchive(tmp_path / "a.npz") as archive:
        assert archive.keys == ("a/value", "b/value")
        assert archive.facts("a/value").shape == (7, 3)
        assert archive.facts("a/value").dtype == np.float32
        assert archive.read("b/value").tolist() == [1, 2]
        with pytest.raises(InvalidValue, match="one that is there: a/value, b/value"):
            archive.read("c/value")


def test_an_archive_larger_than_32_bits_can_say_is_read(tmp_path: Path) -> None:
    """Its directory has the zip64 form; the file itself is mostly a hole."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.npy", npy(np.arange(3)))
    plain = stream.getvalue()
    end = plain.index(b"PK\x05\x06")
    count, size, start = struct.unpack("<HLL", plain[end + 10 : end + 20])
    large = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, size, start)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, end, 1)
    last = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 2**32 - 1, 2**32 - 1, 0)
    assert read_npz(plain[:end] + large + locator + last)["a"].tolist() == [0, 1, 2]
    assert "not in one piece" in refused(
        plain[:end]
        + large.replace(struct.pack("<Q", start), struct.pack("<Q", start + 1))
        + locator
        + last
    )
    assert "zip64 end" in refused(plain[:end] + b"\0" * 56 + locator + last)


# ---------------------------------------------------------------------------------- what is refused


class Marker:
    """Would write a file if it were ever unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.write_text, (self.path, "unpickled")


def test_a_pickle_is_never_run_wherever_it_hides(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    objects = np.array([Marker(marker)], object)
    as_objects = npy(objects)
    payload = as_objects[as_objects.index(b"\n") + 1 :]
    assert "of type" in refused(zipped(("a.npy", as_objects)))
    assert "not an array" in refused(zipped(("a.npy", payload)))
    refused(payload)
    fields = "{'descr': [('x', 'O')], 'fortran_order': False, 'shape': (1,)}"
    assert "of type" in refused(zipped(("a.npy", header(fields, payload))))
    assert not marker.exists()


@pytest.mark.parametrize(
    "value",
    [
        np.array([{"a": 1}], object),
        np.array([("a", 1)], object),
        np.zeros(2, [("x", "f8")]),
        np.array([None, "a"], object),
        [[1, 2], [3]],
        np.ma.masked_array([1, 2], [True, False]),
        ["ends in nul\0"],
    ],
)
def test_what_would_need_pickle_or_lose_something_is_not_written(value: Any) -> None:
    with pytest.raises(InvalidValue):
        written(a=value)


@pytest.mark.parametrize("key", ["", "..", "a/../b", "a\\b", "a\nb", "a\0b", "x" * 600])
def test_names_that_are_paths_or_tricks_are_refused_both_ways(key: str) -> None:
    with pytest.raises(InvalidValue):
        written(**{key: [1]})
    if key and "\0" not in key:
        assert "key" in refused(zipped((f"{key}.npy", npy(np.arange(2)))))


def test_a_topic_may_begin_with_a_slash() -> None:
    data = written(**{"/joint_states/position": np.zeros((2, 3))})
    assert list(read_npz(data)) == ["/joint_states/position"]


def test_a_hidden_end_of_a_name_is_seen() -> None:
    data = zipped(("good.npy#bad.npy", npy(np.arange(2)))).replace(b"#", b"\0")
    assert "member" in refused(data)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_stands_twice_is_refused() -> None:
    assert "there twice" in refused(
        zipped(("a.npy", npy(np.arange(2))), ("a.npy", npy(np.ones(1))))
    )


def test_a_member_that_is_no_array_is_refused() -> None:
    assert "member" in refused(zipped(("readme.txt", b"hello")))
    assert "not an array" in refused(zipped(("a.npy", b"hello, I am text")))
    assert "not an array" in refused(zipped(("a.npy", b"")))


def test_encrypted_and_exotic_members_are_refused() -> None:
    plain = zipped(("a.npy", npy(np.arange(2))))
    directory = plain.index(b"PK\x01\x02")
    for flag in (0x1, 0x40, 0x20):
        changed = bytearray(plain)
        changed[directory + 8] |= flag
        assert "encrypted" in refused(bytes(changed))
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        assert "method" in refused(zipped(("a.npy", npy(np.zeros(99))), method=method))


def test_bytes_that_are_no_archive_are_refused() -> None:
    whole = written(a=np.arange(9))
    for data in (b"", b"PK", b"\x80\x04]", b"\0" * 100, whole + b"x", b"x" + whole, whole[:-1]):
        refused(data)


def test_more_than_the_limits_allow_is_refused_before_it_is_unpacked() -> None:
    data = zipped(*((f"{i}.npy", npy(np.arange(2))) for i in range(5)))
    assert "5 members" in refused(data, NpzLimits(members=4))
    assert "bytes unpacked" in refused(data, NpzLimits(total_bytes=500, ratio=0.5))
    assert "a name of 1 to 3 bytes" in refused(
        zipped(("four.npy", npy(np.arange(2)))), NpzLimits(name_bytes=3)
    )
    assert "a header of" in refused(data, NpzLimits(header_bytes=50))


def test_an_archive_may_unpack_to_the_bound_in_bytes_however_well_it_was_packed() -> None:
    packed = zipped(("a.npy", npy(np.zeros(1 << 20))), method=zipfile.ZIP_DEFLATED)
    unpacked = len(npy(np.zeros(1 << 20)))
    assert unpacked > 500 * len(packed)
    assert read_npz(packed, limits=NpzLimits(total_bytes=unpacked))["a"].size == 1 << 20
    assert f"{unpacked} bytes unpacked" in refused(packed, NpzLimits(total_bytes=unpacked - 1))
    assert NpzLimits().total_bytes == 4 << 30


def test_a_large_archive_may_unpack_to_a_few_times_its_own_size() -> None:
    """Arrays that are stored as they are can be no bomb, whatever their size."""
    assert read_npz(written(a=np.zeros(1000)), limits=NpzLimits(total_bytes=10))["a"].size == 1000


# --------------------------------------------------------------------- what is said without reading

_RULE = NpzLimits(total_bytes=1 << 20)
_OBJECTS = npy(np.array([{"a": 1}], object))
_CONTENTS = (
    ARRAYS.map(npy)
    | st.sampled_from(
        (
            npy(np.zeros(100_000)),
            npy(np.zeros(300_000)),  # above the bound: refused when it is deflated
            npy(np.zeros((0, 7), np.float32)),
            npy(np.array(["x", "yz"])),
            npy(np.array("one text")),
            _OBJECTS,
            _OBJECTS[128:],
            b"",
            b"<html><body>502 Bad Gateway</body></html>",
            header(
                "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 140737488355327, 140737488355327)}"
            ),
            header("{'descr': '<U0', 'fortran_order': False, 'shape': (3,)}"),
            header("{'descr': '<f8', 'fortran_order': True, 'shape': (2, 1)}", bytes(16)),
            header("{'descr': '<f8', 'fortran_order': False, 'shape': (3,)}", bytes(16)),
        )
    )
)
_MEMBERS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b/value", "/joint/position", "../up", "c"]),
        _CONTENTS,
        st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
        st.booleans(),
    ),
    max_size=4,
)


def _archive(members: list[tuple[str, bytes, int, bool]]) -> bytes:
    """The last of a member says whether it has the zip64 form."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for key, content, method, large in members:
            info = zipfile.ZipInfo(f"{key}.npy")
            info.compress_type = method
            with archive.open(info, "w", force_zip64=large) as out:
                out.write(content)
    return stream.getvalue()


@st.composite
def archives(draw: st.DrawFn) -> bytes:
    """Whole archives, and ones that were cut, extended, or whose directory names some bytes twice."""
    data = _archive(draw(_MEMBERS))
    change = draw(st.sampled_from(["none", "none", "none", "cut", "longer", "before", "overlap"]))
    if change == "cut":
        return data[: draw(st.integers(0, len(data) - 1))]
    if change == "longer":
        return data + draw(st.binary(min_size=1, max_size=9))
    if change == "before":
        return draw(st.binary(min_size=1, max_size=9)) + data
    entry = data.rfind(b"PK\x01\x02")
    if change == "overlap" and entry > 0:
        return data[: entry + 42] + struct.pack("<L", draw(st.integers(0, 99))) + data[entry + 46 :]
    return data


@pytest.mark.filterwarnings("ignore:Duplicate name")
@settings(max_examples=250, deadline=None)
@given(archives())
def test_what_an_inspection_calls_readable_is_read_and_nothing_else(data: bytes) -> None:
    """Server and SDK use this pair: what the one promises, the other keeps."""
    found = inspect_npz(data, limits=_RULE)
    if found.problem is not None:
        assert refused(data, _RULE) == found.problem
        assert found.arrays == {}
        return
    arrays = read_npz(data, limits=_RULE)
    assert {key: each.shape for key, each in found.arrays.items()} == {
        key: array.shape for key, array in arrays.items()
    }
    for key, array in arrays.items():
        assert found.arrays[key].dtype.newbyteorder("=") == array.dtype or array.size == 0


class _Counting(io.BytesIO):
    """Counts the bytes that are read."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_inspection_reads_the_directory_and_the_headers_only(save: Callable[..., None]) -> None:
    noise = np.random.default_rng(0).integers(0, 255, 3_000_000, np.uint8)
    stream = _Counting()
    save(stream, a=noise, b=noise[::-1])
    stream.count = 0
    positions: list[int] = []
    found = inspect_npz(stream, prepare=positions.extend)
    assert {key: each.shape for key, each in found.arrays.items()} == {
        "a": (3_000_000,),
        "b": (3_000_000,),
    }
    assert stream.count < 50_000
    assert len(positions) == 2
    assert positions[0] == 0


def test_an_inspection_names_the_archive_as_it_is_told() -> None:
    assert inspect_npz(b"", record="sensors.npz").problem == (
        "sensors.npz: archive is 0 bytes, expected a zip archive (.npz)"
    )


def test_nothing_is_written_that_could_not_be_read() -> None:
    many = {f"a{number}": [0] for number in range(NpzLimits().members + 1)}
    for arrays in (many, {"a": np.array(["NaT"], "M8")}, {"a": np.zeros((1,) * 33)}):
        with pytest.raises(InvalidValue):
            _written(arrays)


def test_members_over_the_same_bytes_are_refused() -> None:
    """The directory names one member's bytes twice: no member is large, all together are."""
    plain = zipped(("a.npy", npy(np.arange(2))), ("b.npy", npy(np.arange(2))))
    second = plain.index(b"PK\x01\x02", plain.index(b"PK\x01\x02") + 1)
    changed = bytearray(plain)
    changed[second + 42 : second + 46] = struct.pack("<L", 0)
    assert "overlapping" in refused(bytes(changed))
    with pytest.raises(InvalidValue, match="overlapping"):
        NpzArchive(bytes(changed))  # before a member is read


def overlapping(large: bytes, *, method: int, padding: int = 0) -> bytes:
    """Two members. By the directory they lie one after the other; the first one's own header moves its bytes over the
    second one with an extra field, so that both have the bytes of the second."""
    inner = zipped(("b.npy", large), method=method)
    data_size = inner.index(b"PK\x01\x02") - 30 - len("b.npy")
    quoted = (
        30 + len("b.npy") + padding
    )  # the header of the second member is the extra field of the first
    first = struct.pack(
        "<4s2B4HL2L2H",
        *(b"PK\x03\x04", 20, 0, 0, method, 0, 33, zlib.crc32(large), data_size, len(large)),
        *(len("a.npy"), quoted),
    )
    members = first + b"a.npy" + bytes(padding) + inner[: 30 + len("b.npy") + data_size]
    second_at = len(first) + len("a.npy") + padding
    directory = b"".join(
        struct.pack(
            "<4s4B4HL2L5H2L",
            *(b"PK\x01\x02", 20, 3, 20, 0, 0, method, 0, 33, zlib.crc32(large)),
            *(data_size, len(large), len(name), 0, 0, 0, 0, 0, place),
        )
        + name
        for name, place in ((b"a.npy", 0), (b"b.npy", second_at))
    )
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 2, 2, len(directory), len(members), 0)
    return members + directory + end


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("rows", [4, 300_000], ids=["small", "large"])
@pytest.mark.parametrize("form", ["bytes", "file", "facts"])
def test_members_that_overlap_by_their_own_headers_are_refused(
    method: int, rows: int, form: str, tmp_path: Path
) -> None:
    """The directory alone looks right if the first member is said to end before the second one begins."""
    array = npy(np.zeros(rows, np.uint8) if method == zipfile.ZIP_DEFLATED else np.arange(rows))
    packed = len(zipped(("b.npy", array), method=method))
    attack = overlapping(array, method=method, padding=min(packed, 60_000))
    source: Any = attack
    if form == "file":
        source = tmp_path / "attack.npz"
        source.write_bytes(attack)
    if form == "facts":
        problem = inspect_npz(source).problem
    else:
        with pytest.raises(InvalidValue) as found:
            read_npz(source)
        problem = str(found.value)
    assert problem is not None
    assert "overlapping" in problem


def test_a_member_that_begins_before_another_and_ends_inside_it_is_refused(tmp_path: Path) -> None:
    """Its own header moves its bytes into the gap before the next member, and they reach into that member."""
    large = npy(np.arange(500))
    attack = bytearray(overlapping(large, method=zipfile.ZIP_STORED, padding=5000))
    attack[28:30] = struct.pack("<H", 4000)
    path = tmp_path / "attack.npz"
    path.write_bytes(attack)
    for source in (bytes(attack), path):
        with pytest.raises(InvalidValue, match="overlapping another"):
            read_npz(source)


def test_a_member_that_lies_about_its_size_is_refused() -> None:
    packed = zipped(("a.npy", npy(np.zeros(1000))), method=zipfile.ZIP_DEFLATED)
    directory = packed.index(b"PK\x01\x02")
    for claimed in (200, 8000):
        changed = bytearray(packed)
        changed[directory + 24 : directory + 28] = struct.pack("<L", claimed)
        refused(bytes(changed))


def test_every_damaged_byte_is_noticed_or_harmless() -> None:
    """Flipping any one byte gives a refusal, or exactly the arrays that were written."""
    arrays = {"a": np.arange(5.0), "text": np.array(["x", "yz"])}
    whole = _written(arrays)
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x55
        try:
            back = read_npz(bytes(damaged))
        except InvalidValue:
            continue
        assert sorted(map(str, (value.tolist() for value in back.values()))) == sorted(
            str(value.tolist()) for value in arrays.values()
        ), f"byte {position}"


def test_every_truncation_is_noticed() -> None:
    whole = written(a=np.arange(5.0))
    for length in range(len(whole)):
        refused(whole[:length])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 600), st.integers(0, 200))
def test_noise_in_an_archive_never_gives_anything_but_arrays_or_a_refusal(
    noise: bytes, at: int, over: int
) -> None:
    whole = written(a=np.arange(20), b=["x", "yy"])
    damaged = whole[:at] + noise + whole[at + over :]
    try:
        back = read_npz(damaged)
    except InvalidValue:
        return
    assert not any(array.dtype.hasobject for array in back.values())


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (4,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (10**99,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': [2]}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (True, 2)}",
        "{'descr': '<f8', 'fortran_order': False}",
        "{'descr': 'f8,f8', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '(2,)<f8', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '|V8', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<f3', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<M8[lightyears]', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,)}",
        "__import__('os').system('true')",
        "(" * 900,
        "",
    ],
)
def test_a_header_that_asks_for_something_else_is_refused(text: str) -> None:
    refused(zipped(("a.npy", header(text, b"\0" * 16))))


def test_a_header_of_version_2_is_read_and_one_of_version_3_is_not() -> None:
    text = "{'descr': '<i8', 'fortran_order': False, 'shape': (2,)}"
    data = np.arange(2).tobytes()
    assert read_npz(zipped(("a.npy", header(text, data, 2))))["a"].tolist() == [0, 1]
    assert "version 1 or 2" in refused(zipped(("a.npy", header(text, data, 3))))


def test_truth_values_and_characters_are_made_sound() -> None:
    flags = header("{'descr': '|b1', 'fortran_order': False, 'shape': (3,)}", b"\x00\x07\x01")
    read = read_npz(zipped(("a.npy", flags)))["a"]
    assert read.tolist() == [False, True, True]
    assert read.view(np.uint8).tolist() == [0, 1, 1]
    beyond = struct.pack("<L", 0x110000)
    text = header("{'descr': '<U1', 'fortran_order': False, 'shape': (1,)}", beyond)
    assert "0x110000" in refused(zipped(("a.npy", text)))


def test_a_checksum_that_does_not_fit_is_noticed_also_without_rows() -> None:
    for array in (np.arange(3), np.empty(0)):
        data = zipped(("a.npy", npy(array)))
        crc = struct.pack("<L", zlib.crc32(npy(array)))
        assert "damaged" in refused(data.replace(crc, b"\1\2\3\4"))


def test_threads_read_at_the_same_time() -> None:
    """Python's own parser of literals cannot: CPython 3.11 gives a SystemError now and then."""
    stream = io.BytesIO()
    arrays = {f"/s{i}/value": np.arange(3.0 * i).reshape(3, i) for i in range(40)}
    write_npz(stream, arrays)
    data = stream.getvalue()
    with ThreadPoolExecutor(8) as pool:
        for read in pool.map(read_npz, [data] * 64):
            assert {key: array.shape for key, array in read.items()} == {
                key: array.shape for key, array in arrays.items()
            }


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2)}",
        "{'descr': '<f8', 'fortran_order': False}",
        "{'descr': '<f8', 'descr': '<f8', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '<f8', 'fortran_order': 0, 'shape': (2,)}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': [2]}",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2,)} + {}",
        "{'descr': [('x', '<f8')], 'fortran_order': False, 'shape': (2,)}",
        "__import__('os').getcwd()",
    ],
)
def test_a_header_that_is_not_quite_one_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        read_npz(zipped(("x.npy", header(text, bytes(16)))))


def test_a_header_may_have_its_fields_in_any_order() -> None:
    text = '{"shape":(2,),"descr":"<f8","fortran_order":False}'
    assert read_npz(zipped(("x.npy", header(text, bytes(16)))))["x"].tolist() == [0.0, 0.0]
