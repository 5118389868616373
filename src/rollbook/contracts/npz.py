"""NPZ without pickle: arrays in a zip file. Files may come from anybody, so everything is checked before it is used.

Arrays hold numbers, truth values, times or text. Text is NumPy's fixed-width Unicode, which `numpy.load` reads too. An
object array is never read, because reading one runs code. It is written only if it holds nothing but text.
docs/decisions/0017-pictures-by-pillow.md says why `numpy.load` is not enough.
"""

from __future__ import annotations

import io
import math
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.contracts.zip_members import (
    NpzLimits,
    check_key,
    check_place,
    data_begins_at,
    open_members,
    refusal,
    stored_member,
    zip_errors,
)
from rollbook.errors import InvalidValue
from rollbook.files import atomic_write

__all__ = [
    "ArrayFacts",
    "ArrayInPieces",
    "NpzArchive",
    "NpzContent",
    "NpzLimits",
    "inspect_npz",
    "read_npz",
    "storable_array",
    "write_npz",
]

Source: TypeAlias = "bytes | bytearray | memoryview | str | os.PathLike[str] | BinaryIO"
AnyArray: TypeAlias = "NDArray[Any]"

_PIECE = 1 << 20
_ROWS_PIECE = 4 << 20
"""Bytes of rows that are read at once: for an object store, this is one request."""
_HEADERS_AT_ONCE = 128
_GREATEST_ARRAY = 2**63 - 1
"""Bytes. NumPy refuses a greater shape even if one of its lengths is 0."""
_MOST_DIMENSIONS = 32
_GREATEST_CODE_POINT = 0x10FFFF
_MAGIC = b"\x93NUMPY"
_PLAIN_TYPE = re.compile(r"[<>|=](?:[biufcSU]\d{1,9}|[mM]8\[\d{0,9}[A-Za-z]{1,2}\])", re.ASCII)
_PLAIN_KINDS = frozenset("biufcSUMm")
_FIELD = re.compile(
    r"""\s*(?P<quote>['"])(?P<name>descr|fortran_order|shape)(?P=quote)\s*:\s*(?P<value>
        '[^'\\]*' | "[^"\\]*"                        # a type
      | \[[^{}]*\]                                    # a type of many fields, to be refused by name
      | True | False
      | \(\s*(?:-?\d{1,20}\s*,\s*)*(?:-?\d{1,20}\s*)?\)
    )\s*(?P<end>,|\Z)""",
    re.ASCII | re.VERBOSE,
)
_NUMBER = re.compile(r"-?\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class ArrayFacts:
    """Type and shape of an array, known without reading the array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NpzContent:
    """What an archive contains. It can be read if there is no problem."""

    arrays: Mapping[str, ArrayFacts]
    problem: str | None = None
    """Why it cannot be read."""


def inspect_npz(
    source: Source,
    *,
    record: str | None = None,
    limits: NpzLimits | None = None,
    prepare: Callable[[Sequence[int]], object] | None = None,
) -> NpzContent:
    """What `read_npz` would return, from the table of contents and the headers alone: an array is never unpacked.

    An archive without a problem is one that `read_npz` reads, unless the bytes inside an array are damaged: only
    unpacking shows that. `record` names the archive in the problem. `prepare` is called with positions in the file
    that are read next, so that a source that is far away can fetch them together.
    """
    arrays: dict[str, ArrayFacts] = {}
    try:
        with NpzArchive(source, record=record, limits=limits) as archive:
            keys = archive.keys
            for start in range(0, len(keys), _HEADERS_AT_ONCE):
                some = keys[start : start + _HEADERS_AT_ONCE]
                if prepare is not None:
                    prepare(archive.positions(some))
                arrays.update((key, archive.facts(key)) for key in some)
    except InvalidValue as error:
        return NpzContent({}, str(error))
    return NpzContent(arrays)


def read_npz(source: Source, *, limits: NpzLimits | None = None) -> dict[str, AnyArray]:
    """Every array by its key. Bytes that are wrong raise InvalidValue before much memory is used."""
    with NpzArchive(source, limits=limits) as archive:
        return {key: archive.read(key) for key in archive.keys}


class NpzArchive:
    """Reads some of the arrays, or only their shapes. Opening checks the table of contents."""

    def __init__(
        self, source: Source, *, record: str | None = None, limits: NpzLimits | None = None
    ) -> None:
        """`record` names the archive in error messages."""
        self._limits = limits or NpzLimits()
        name, self._stream, self._ours = _open_source(source)
        self._record = record or name
        try:
            self._archive, self._ends = open_members(self._stream, self._limits, self._record)
        except BaseException:
            self.close()
            raise

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(name.removesuffix(".npy") for name in self._archive.namelist())

    def positions(self, keys: Iterable[str]) -> list[int]:
        """Where the members begin in the file."""
        return [self._info(key).header_offset for key in keys]

    def facts(self, key: str) -> ArrayFacts:
        info = self._info(key)
        with zip_errors(self._record, key), self._open(info) as member:
            return self._header(key, info, member)[0]

    def is_packed(self, key: str) -> bool:
        """Whether its rows can be reached only by unpacking all rows before them."""
        return self._info(key).compress_type != zipfile.ZIP_STORED

    def read(self, key: str) -> AnyArray:
        info = self._info(key)
        with zip_errors(self._record, key), self._member(info) as member:
            facts, fortran_order = self._header(key, info, member)
            data = np.empty(math.prod(facts.shape) * facts.dtype.itemsize, np.uint8)
            _fill(data.data, member)
            return _shaped(self._record, key, data, facts, fortran_order)

    def rows(self, key: str, start: int, stop: int) -> Iterator[AnyArray]:
        """The rows from `start` up to `stop`, in pieces of a few megabytes.

        Of a member that is stored unpacked, only these rows are read; their checksum is not compared then. A packed
        member is unpacked up to `stop`, and never whole in memory.
        """
        info = self._info(key)
        with zip_errors(self._record, key), self._open(info) as member:
            facts, fortran_order = self._header(key, info, member)
            if not facts.shape or not 0 <= start <= stop <= facts.shape[0]:
                raise refusal(self._record, key, f"rows {start} to {stop}", f"within {facts.shape}")
            if fortran_order and len(facts.shape) > 1:  # its rows lie scattered
                yield self.read(key)[start:stop]
                return
            row_bytes = facts.dtype.itemsize * math.prod(facts.shape[1:])
            at_once = max(1, _ROWS_PIECE // max(1, row_bytes))
            is_stored = info.compress_type == zipfile.ZIP_STORED
            first_row_at = self._end_of(info) - facts.shape[0] * row_bytes
            if not is_stored:
                _skip(member, start * row_bytes)
            for first in range(start, stop, at_once):
                count = min(at_once, stop - first)
                data = np.empty(count * row_bytes, np.uint8)
                if is_stored:
                    self._stream.seek(first_row_at + first * row_bytes)
                _fill(data.data, self._stream if is_stored else member, _ROWS_PIECE)
                piece = ArrayFacts(facts.dtype, (count, *facts.shape[1:]))
                yield _shaped(self._record, key, data, piece, False)

    def close(self) -> None:
        if self._ours:
            self._stream.close()

    def __enter__(self) -> NpzArchive:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _info(self, key: str) -> zipfile.ZipInfo:
        try:
            return self._archive.getinfo(f"{key}.npy")
        except KeyError:
            known = ", ".join(self.keys[:20]) or "nothing"
            raise refusal(self._record, "key", repr(key), f"one that is there: {known}") from None

    def _member(self, info: zipfile.ZipInfo) -> IO[bytes]:
        """A small member of an archive in memory is read directly, because zipfile needs more time to open it than to
        read it."""
        if not isinstance(self._stream, io.BytesIO) or info.file_size > _PIECE:
            return self._open(info)
        data = stored_member(self._stream.getbuffer(), info, self._ends[info.filename])
        return self._open(info) if data is None else io.BytesIO(data)

    def _open(self, info: zipfile.ZipInfo) -> IO[bytes]:
        check_place(self._archive, info, self._ends[info.filename], self._record)
        return self._archive.open(info)

    def _end_of(self, info: zipfile.ZipInfo) -> int:
        """Where the bytes of a stored member end."""
        return data_begins_at(self._archive, info) + info.compress_size

    def _header(self, key: str, info: zipfile.ZipInfo, member: Any) -> tuple[ArrayFacts, bool]:
        """Type, shape and whether the order is Fortran's. They must account for every byte of the member."""
        start = member.read(8)
        if start[:6] != _MAGIC or start[6:] not in (b"\x01\x00", b"\x02\x00"):
            raise refusal(self._record, key, "not an array of version 1 or 2", "a .npy member")
        width = 2 if start[6] == 1 else 4
        length = int.from_bytes(member.read(width), "little")
        if length > self._limits.header_bytes:
            most = f"at most {self._limits.header_bytes} bytes"
            raise refusal(self._record, key, f"a header of {length} bytes", most)
        facts, fortran_order = _parse_header(self._record, key, member.read(length))
        _check_size(self._record, key, facts)
        expected = info.file_size - len(start) - width - length
        if math.prod(facts.shape) * facts.dtype.itemsize != expected:
            detail = f"{facts.dtype} of shape {facts.shape} in {expected} bytes"
            raise refusal(self._record, key, detail, "as many bytes as type and shape need")
        return facts, fortran_order


@dataclass(frozen=True, slots=True)
class ArrayInPieces:
    """An array that is too large for the memory: its type and shape, and its rows piece by piece."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[AnyArray]]
    """The rows in their order. Their number is the first length of the shape."""


def write_npz(
    target: str | os.PathLike[str] | BinaryIO, arrays: Mapping[str, ArrayLike | ArrayInPieces]
) -> None:
    """Write arrays. The same arrays always give the same bytes. A path is written atomically.

    The arrays are not compressed, as with `numpy.savez`: sensor data hardly shrinks, and reading is faster.
    """
    plain = {
        key: array if isinstance(array, ArrayInPieces) else storable_array(key, array)
        for key, array in arrays.items()
    }
    limits = NpzLimits()
    if len(plain) > limits.members:
        raise refusal("npz", "arrays", f"{len(plain)} arrays", f"at most {limits.members}")
    for key in plain:
        check_key(key, limits, "npz")
    if isinstance(target, str | os.PathLike):
        with atomic_write(target) as stream:
            _write(stream, plain)
    else:
        _write(target, plain)


def storable_array(key: str, value: ArrayLike) -> AnyArray:
    """The value as an array that needs no pickle. Objects that are all text become text; other objects are refused."""
    if isinstance(value, np.ma.MaskedArray):
        raise refusal(
            "npz", key, "a masked array", "an array: fill masked values, for example with NaN"
        )
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise refusal("npz", key, f"ragged ({error})", "rows of one length") from error
    if array.ndim > _MOST_DIMENSIONS:
        raise refusal("npz", key, f"of {array.ndim} lengths", f"at most {_MOST_DIMENSIONS}")
    if array.dtype.kind in "OT":
        return _as_text(key, array)
    if array.dtype.kind not in _PLAIN_KINDS:
        raise refusal("npz", key, f"of type {array.dtype}", "numbers, truth values, times or text")
    if not _PLAIN_TYPE.fullmatch(array.dtype.str):
        raise refusal("npz", key, f"of type {array.dtype}", "times with a unit, such as M8[ns]")
    if array.dtype.kind in "US" and not isinstance(value, np.ndarray):
        _refuse_trailing_nul(key, np.asarray(value, object).ravel())
    return array


# ---------------------------------------------------------------------------------------- reading


def _open_source(source: Source) -> tuple[str, BinaryIO, bool]:
    """A name for messages, the stream, and whether this module has to close it."""
    if isinstance(source, bytes | bytearray | memoryview):
        return "npz", io.BytesIO(source), True
    if isinstance(source, str | os.PathLike):
        return Path(source).name, open(source, "rb"), True
    return str(getattr(source, "name", "npz")), source, False


def _parse_header(record: str, key: str, header: bytes) -> tuple[ArrayFacts, bool]:
    fields = _fields(header.decode("latin-1"))
    if fields is None:
        raise refusal(record, key, "an invalid header", "type and shape")
    descr, order, shape = fields["descr"], fields["fortran_order"], fields["shape"]
    facts = ArrayFacts(_dtype(record, key, descr), _shape(record, key, shape))
    return facts, order == "True"


def _fields(header: str) -> dict[str, str] | None:
    """The fields of a header, which is one Python literal. The parser of Python is slow and not safe in threads."""
    text = header.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return None
    inside, at, found = text[1:-1].rstrip(), 0, dict[str, str]()
    while at < len(inside):
        field = _FIELD.match(inside, at)
        if field is None or field["name"] in found:
            return None
        found[field["name"]] = field["value"]
        at = field.end()
    complete = (
        found.keys() == {"descr", "fortran_order", "shape"}
        and found["descr"][0] in "'\"["
        and found["fortran_order"] in ("True", "False")
        and found["shape"][0] == "("
    )
    return found if complete else None


def _dtype(record: str, key: str, descr: str) -> np.dtype[Any]:
    name, expected = descr[1:-1], "numbers, truth values, times or text"
    if descr[0] == "[" or not _PLAIN_TYPE.fullmatch(name):
        raise refusal(record, key, f"of type {name[:80]!r}", expected)
    try:
        return np.dtype(name)
    except (TypeError, ValueError) as error:
        raise refusal(record, key, f"of type {name!r}", expected) from error


def _shape(record: str, key: str, shape: str) -> tuple[int, ...]:
    lengths = tuple(map(int, _NUMBER.findall(shape)))
    is_tuple = len(lengths) != 1 or "," in shape
    fits = len(lengths) <= _MOST_DIMENSIONS and all(0 <= each < 2**48 for each in lengths)
    if not (is_tuple and fits):
        most = f"at most {_MOST_DIMENSIONS} lengths of 0 or more"
        raise refusal(record, key, f"of shape {shape[:80]}", most)
    return lengths


def _check_size(record: str, key: str, facts: ArrayFacts) -> None:
    if facts.dtype.itemsize == 0 and math.prod(facts.shape) > 0:
        raise refusal(record, key, "text of width 0", "at least one character")
    lengths = (length for length in (*facts.shape, facts.dtype.itemsize) if length)
    if math.prod(lengths) > _GREATEST_ARRAY:
        raise refusal(record, key, f"of shape {facts.shape}", f"at most {_GREATEST_ARRAY} bytes")


def _skip(member: Any, count: int) -> None:
    while count > 0:
        piece = member.read(min(_PIECE, count))
        if not piece:
            raise EOFError("it ends too early")
        count -= len(piece)


def _fill(view: memoryview, member: Any, at_once: int = _PIECE) -> None:
    filled = 0
    while filled < len(view):
        piece = member.read(min(at_once, len(view) - filled))
        if not piece:
            raise EOFError("it ends too early")
        view[filled : filled + len(piece)] = piece
        filled += len(piece)


def _shaped(
    record: str, key: str, data: NDArray[np.uint8], facts: ArrayFacts, fortran_order: bool
) -> AnyArray:
    if facts.dtype.itemsize == 0:
        return np.empty(facts.shape, facts.dtype)
    array: AnyArray = data.view(facts.dtype)
    if facts.dtype.kind == "b":
        array = data != 0  # a byte of 7 is a true value, but not every part of NumPy treats it so
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if facts.dtype.kind == "U" and array.size:
        greatest = int(array.view(np.uint32).max())
        if greatest > _GREATEST_CODE_POINT:
            raise refusal(record, key, f"text with character {greatest:#x}", "Unicode")
    return array.reshape(facts.shape, order="F" if fortran_order else "C")


# ---------------------------------------------------------------------------------------- writing


def _write(stream: BinaryIO, arrays: Mapping[str, AnyArray | ArrayInPieces]) -> None:
    if isinstance(stream, io.BytesIO) or sum(map(_size, arrays.values())) > _PIECE:
        _write_archive(stream, arrays)
        return
    # zipfile goes back to the header of each member, for which a file has to write out its buffer
    whole = io.BytesIO()
    _write_archive(whole, arrays)
    stream.write(whole.getbuffer())


def _size(array: AnyArray | ArrayInPieces) -> int:
    return math.prod(array.shape) * array.dtype.itemsize


def _write_archive(stream: BinaryIO, arrays: Mapping[str, AnyArray | ArrayInPieces]) -> None:
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for key, array in arrays.items():
            member = zipfile.ZipInfo(
                f"{key}.npy"
            )  # the date is always 1980, so that the bytes do not change
            with archive.open(member, "w", force_zip64=True) as out:
                if isinstance(array, ArrayInPieces):
                    _write_pieces(out, array)
                else:
                    np.lib.format.write_array(out, array, allow_pickle=False)


def _write_pieces(out: IO[bytes], array: ArrayInPieces) -> None:
    """The same bytes as those of the whole array."""
    out.write(_array_header(array.dtype, array.shape))
    for piece in array.pieces():
        out.write(piece.tobytes())


@lru_cache(maxsize=256)
def _array_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The episodes of a recording often have arrays of the same types and shapes."""
    descr = np.lib.format.dtype_to_descr(dtype)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return header.getvalue()


def _as_text(key: str, array: AnyArray) -> AnyArray:
    items = array.astype(object).ravel()
    if not all(isinstance(item, str) for item in items):
        other = next(type(item).__name__ for item in items if not isinstance(item, str))
        raise refusal("npz", key, f"objects ({other})", "numbers or text: they need no pickle")
    _refuse_trailing_nul(key, items)
    return np.array(items.tolist(), np.str_).reshape(array.shape)


def _refuse_trailing_nul(key: str, items: Iterable[Any]) -> None:
    """NumPy pads short texts with NUL, so a text that ends in NUL would be shorter when it is read."""
    for item in items:
        if isinstance(item, str | bytes) and item[-1:] in ("\0", b"\0"):
            raise refusal("npz", key, "text that ends in NUL", "text without it, or uint8")
