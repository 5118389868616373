"""RawLayout: a Zarr v3 array whose chunk files are the plain C-order bytes of its rows.

    <folder>/zarr.json            regular grid that splits axis 0 only, `bytes` (little-endian) as the only codec
    <folder>/c/0/0, c/1/0, …      chunk files, all of one size; the last one is padded with the fill value

The size of chunk files is a multiple of the page size, so that a reader can map them one after the other as one
array. An array that fits into one chunk has no padding. An array without chunk files holds its fill value everywhere,
as Zarr defines it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from rollbook.errors import WrongColumnType

Array: TypeAlias = NDArray[Any]
WrittenFiles: TypeAlias = dict[str, tuple[int, str]]
"""Size and checksum of every file, by its path in the folder of the array."""

METADATA_FILE = "zarr.json"
PAGE = 4096
HUGE_PAGE = 2 << 20
_MIB = 1 << 20
_SMALL_ARRAY, SMALL_CHUNK, _LARGE_CHUNK = 1024 * _MIB, 4 * _MIB, 64 * _MIB
_MOST_FILES = 256
# Random reads of a large array are up to a third faster with huge pages, which need chunks of whole huge pages.
# Below this size the padding costs more than that.
_HUGE_PAGES_FROM = 64 * _MIB
_DATA_TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
_INFINITIES = {"Infinity": math.inf, "-Infinity": -math.inf}


def array_dtype(dtype: DTypeLike, column: str = "array") -> np.dtype[Any]:
    """The little-endian form of a dtype. A dtype that a raw array cannot hold is refused."""
    given = np.dtype(dtype)
    if given.name not in _DATA_TYPES:
        raise WrongColumnType(
            column=column, expected=f"one of {', '.join(_DATA_TYPES)}", actual=given.name
        )
    return little_endian(given)


def little_endian(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype is made from its name, because the result of `newbyteorder` is never marked as native."""
    return np.dtype(dtype.newbyteorder("<").str)


# ----------------------------------------------------------------------------------------- chunk sizes


def page_rows(row_bytes: int, page: int = PAGE) -> int:
    """The smallest number of rows that fills whole pages."""
    return math.lcm(page, row_bytes) // row_bytes


def chunk_rows_for(rows: int, row_bytes: int) -> int:
    """Rows per chunk file of an array with a known number of rows: one file, or several equal ones of whole pages."""
    total = rows * row_bytes
    target = SMALL_CHUNK if total <= _SMALL_ARRAY else _LARGE_CHUNK
    files = min(-(-total // target), _MOST_FILES)
    if files <= 1:
        return max(rows, 1)
    step = page_rows(row_bytes, HUGE_PAGE)
    if total < _HUGE_PAGES_FROM or step * row_bytes > target:
        step = page_rows(row_bytes)
    return min(_round_up(-(-rows // files), step), rows)


def chunk_rows_of_size(chunk_bytes: int, row_bytes: int) -> int:
    """Rows per chunk: the smallest number that fills whole pages and at least `chunk_bytes`."""
    held = max(row_bytes, 1)  # rows of 0 bytes need no files
    return _round_up(max(1, -(-chunk_bytes // held)), page_rows(held))


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


# ------------------------------------------------------------------------------------------ fill value


def fill_array(value: object, dtype: np.dtype[Any], column: str = "array") -> Array:
    """The fill value as a 0-d array. A scalar would not keep the bits of an unusual NaN."""
    if np.asarray(value).dtype.kind not in "biuf":
        raise _invalid_fill(value, dtype, column)
    try:
        fill = np.array(value, dtype=dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise _invalid_fill(value, dtype, column) from error
    if fill.shape != () or (dtype.kind != "f" and fill != value):
        raise _invalid_fill(value, dtype, column)
    return fill


def _invalid_fill(value: object, dtype: np.dtype[Any], column: str) -> WrongColumnType:
    return WrongColumnType(
        column=column, expected=dtype.name, actual=f"{value!r} as its fill value"
    )


def bits_of(values: Array) -> Array:
    return np.ascontiguousarray(values).reshape(-1).view(f"<u{values.dtype.itemsize}")


def is_plain(fill: Array) -> bool:
    """Whether every Zarr reader returns exactly these bits. Some readers change a NaN that is written in hex."""
    return not np.isnan(fill) or bool(bits_of(fill) == bits_of(np.array(np.nan, fill.dtype)))


def encode_fill(fill: Array) -> bool | int | float | str:
    if fill.dtype.kind != "f":
        plain: bool | int = fill.item()
        return plain
    if np.isnan(fill):
        return "NaN" if is_plain(fill) else f"0x{int(bits_of(fill)[0]):0{2 * fill.dtype.itemsize}x}"
    if np.isinf(fill):
        return "Infinity" if fill > 0 else "-Infinity"
    return float(fill)


def decode_fill(value: object, dtype: np.dtype[Any]) -> Array:
    """The inverse of `encode_fill`, bit by bit."""
    if dtype.kind == "f" and isinstance(value, str):
        if value.startswith("0x"):
            bits = np.array(int(value, 16), dtype=f"<u{dtype.itemsize}")
            return bits.view(dtype)
        return np.array(_INFINITIES[value] if value != "NaN" else np.nan, dtype=dtype)
    expected = {"b": (bool,), "f": (int, float)}.get(dtype.kind, (int,))
    if type(value) not in expected:
        raise ValueError(f"fill value {value!r} is not of type {dtype.name}")
    with np.errstate(over="raise"):
        return np.array(value, dtype=dtype)


# -------------------------------------------------------------------------------------------- metadata


def raw_array_metadata(
    dtype: DTypeLike,
    shape: Sequence[int],
    chunk_rows: int,
    fill_value: object = 0,
    attributes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The `zarr.json` of a raw array."""
    stored = array_dtype(dtype)
    # every dimension of a chunk must be at least 1 in Zarr, even if the array is empty
    chunk_shape = [max(length, 1) for length in (chunk_rows, *shape[1:])]
    codec: dict[str, Any] = {"name": "bytes"}
    if stored.itemsize > 1:
        codec["configuration"] = {"endian": "little"}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": stored.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": encode_fill(fill_array(fill_value, stored)),
        "codecs": [codec],
        "attributes": dict(attributes or {}),
        "storage_transformers": [],
    }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RawLayout:
    """The content of a `zarr.json` that describes a raw array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunk_rows: int
    fill: Array
    attributes: dict[str, Any]

    @property
    def row_bytes(self) -> int:
        return row_bytes(self.dtype, self.shape[1:])

    @property
    def chunk_bytes(self) -> int:
        return self.chunk_rows * self.row_bytes

    @property
    def chunks(self) -> int:
        """The number of chunk files of an array that has any."""
        return -(-self.shape[0] // self.chunk_rows) if self.row_bytes else 0

    def chunk_keys(self) -> Iterator[str]:
        rest = rest_of_key(len(self.shape))
        return (f"c/{index}{rest}" for index in range(self.chunks))


def row_bytes(dtype: np.dtype[Any], row_shape: Sequence[int]) -> int:
    return dtype.itemsize * math.prod(row_shape)


def rest_of_key(dimensions: int) -> str:
    return "/0" * (dimensions - 1)


class _Named(msgspec.Struct):
    name: str
    configuration: dict[str, Any] = {}


class _ArrayMetadata(msgspec.Struct):
    zarr_format: int
    node_type: str
    shape: list[int]
    data_type: Any
    chunk_grid: _Named
    chunk_key_encoding: _Named
    fill_value: Any
    codecs: list[_Named]
    attributes: dict[str, Any] = {}
    storage_transformers: list[Any] = []


def parse_raw_layout(text: bytes) -> RawLayout:
    """Read a `zarr.json`. Raises ValueError with the reason if the array is not raw."""
    metadata = msgspec.json.decode(text, type=_ArrayMetadata)
    if (metadata.zarr_format, metadata.node_type) != (3, "array"):
        raise ValueError("not a Zarr v3 array")
    if metadata.data_type not in _DATA_TYPES:
        raise ValueError(f"data type {metadata.data_type} is not a plain number")
    dtype = little_endian(np.dtype(metadata.data_type))
    _check_plain_bytes(metadata, dtype)
    try:
        fill = decode_fill(metadata.fill_value, dtype)
    except (ValueError, KeyError, ArithmeticError) as error:
        raise ValueError(f"fill value {metadata.fill_value!r} is not {dtype.name}") from error
    return RawLayout(
        dtype=dtype,
        shape=tuple(metadata.shape),
        chunk_rows=_checked_chunk_rows(metadata),
        fill=fill,
        attributes=metadata.attributes,
    )


def _check_plain_bytes(metadata: _ArrayMetadata, dtype: np.dtype[Any]) -> None:
    names = [codec.name for codec in metadata.codecs]
    if names != ["bytes"] or metadata.storage_transformers:
        raise ValueError(f"chunks are encoded ({', '.join(names) or 'no codec'})")
    endian = metadata.codecs[0].configuration.get("endian")
    if dtype.itemsize > 1 and endian != "little":
        raise ValueError(f"bytes are {endian}-endian")
    keys = metadata.chunk_key_encoding
    if keys.name != "default" or keys.configuration.get("separator", "/") != "/":
        raise ValueError(f"chunk keys are not the default ones ({keys.name})")


def _checked_chunk_rows(metadata: _ArrayMetadata) -> int:
    shape, chunk_shape = metadata.shape, metadata.chunk_grid.configuration.get("chunk_shape")
    if metadata.chunk_grid.name != "regular" or not isinstance(chunk_shape, list):
        raise ValueError(f"chunk grid {metadata.chunk_grid.name} is not regular")
    if not shape or len(chunk_shape) != len(shape) or min(shape) < 0:
        raise ValueError(f"shape {shape} with chunks {chunk_shape} has no rows to map")
    if any(type(length) is not int or length < 1 for length in chunk_shape):
        raise ValueError(f"chunk shape {chunk_shape} is not valid")
    if any(
        length not in (0, chunk) for length, chunk in zip(shape[1:], chunk_shape[1:], strict=True)
    ):
        raise ValueError(f"chunks {chunk_shape} cut or pad the rows of shape {shape}")
    return int(chunk_shape[0])
