"""Depth images in a store: every frame is compressed by itself, and many frames share a shard file.

A frame is one inner chunk of Zarr's sharding codec. Reading one frame takes one read and one decode, and zarr-python
can read the array too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.digest import checksum
from rollbook.errors import StorageError
from rollbook.files import write_errors
from rollbook.lazy import needs
from rollbook.store.raw_layout import (
    METADATA_FILE,
    WrittenFiles,
    encode_fill,
)
from rollbook.store.stored_tables import StoredTables

Array = NDArray[Any]
CODEC_LABEL = "blosc:zstd:clevel=3:shuffle"
_LEVEL = 3
_INDEX = np.dtype("<u8")
_ABSENT = np.iinfo(_INDEX).max
"""Place and size of a frame that the last shard does not have."""


def blosc(typesize: int) -> Any:
    """The codec of one frame. It is installed with zarr."""
    with needs("reading depth images"):
        from numcodecs.blosc import Blosc
    shuffle = Blosc.BITSHUFFLE if typesize == 1 else Blosc.SHUFFLE
    return Blosc(cname="zstd", clevel=_LEVEL, shuffle=shuffle)


def stored_depth(depth_m: Array, valid_mask: NDArray[np.bool_]) -> Array:
    """The depth image as it is stored: half floats, 0 where depth is unknown."""
    with np.errstate(over="ignore"):  # only where depth is unknown
        half = depth_m.astype(np.float16)
    np.copyto(half, 0, where=~valid_mask)
    return half


def shard_key(shard: int) -> str:
    """The file name of a shard. Dots instead of slashes, so that a shard needs no folders."""
    return f"c.{shard}.0.0"


def frames_of_shard(data: bytes, frames_per_shard: int) -> Iterator[bytes]:
    """The encoded frames of a shard file, in order."""
    index = np.frombuffer(data[-16 * frames_per_shard :], _INDEX).reshape(frames_per_shard, 2)
    for offset, size in index[index[:, 1] != _ABSENT].tolist():
        yield data[offset : offset + size]


class FrameWriter:
    """Appends frames to a sharded array. Each shard holds `frames_per_shard` frames.

    The pool makes and encodes frames while the caller continues. At most two shards are in memory. A writer that only
    gets encoded frames needs no pool.
    """

    def __init__(
        self,
        folder: Path,
        dtype: np.dtype[Any],
        frame_shape: tuple[int, ...],
        fill: Any,
        frames_per_shard: int,
        pool: Executor | None = None,
    ) -> None:
        self._pool = pool
        self._folder = folder
        self._dtype = dtype
        self._frame_shape = frame_shape
        self._fill = np.array(fill, dtype)
        self._per_shard = frames_per_shard
        self._codec = blosc(dtype.itemsize)
        self._pending: list[Future[bytes]] = []
        self._encoding: list[Future[bytes]] = []
        self._frames = 0
        self._files: WrittenFiles = {}

    def append(self, frame: Callable[[], Array]) -> None:
        """Add a frame. The pool calls `frame` to make it."""
        assert self._pool is not None
        self._add(self._pool.submit(self._encoded, frame))

    def append_encoded(self, frame: bytes) -> None:
        """Add a frame that was encoded with `codecs`."""
        encoded: Future[bytes] = Future()
        encoded.set_result(frame)
        self._add(encoded)

    def _add(self, frame: Future[bytes]) -> None:
        self._pending.append(frame)
        self._frames += 1
        if len(self._pending) == self._per_shard:
            self._write_shard()
            self._encoding, self._pending = self._pending, []

    def _encoded(self, frame: Callable[[], Array]) -> bytes:
        # the codec takes the item size from the array, and refuses an array of bool
        words = np.ascontiguousarray(frame()).view(f"u{self._dtype.itemsize}")
        encoded: bytes = self._codec.encode(words)
        return encoded

    def _write_shard(self) -> None:
        """Write the shard before the one that the pool is encoding now."""
        if not self._encoding:
            return
        frames = [each.result() for each in self._encoding]
        sizes = np.array([len(frame) for frame in frames], _INDEX)
        index = np.full((self._per_shard, 2), _ABSENT, _INDEX)
        index[: len(sizes), 0] = np.cumsum(sizes) - sizes
        index[: len(sizes), 1] = sizes
        data = b"".join([*frames, index.tobytes()])
        key = shard_key(len(self._files))
        self._put(key, data)
        self._files[key] = (len(data), checksum(data))
        self._encoding = []

    def _put(self, key: str, data: bytes) -> None:
        path = self._folder / key
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def close(self) -> WrittenFiles:
        self._write_shard()
        self._encoding, self._pending = self._pending, []
        self._write_shard()
        text = json.dumps(self._metadata(), indent=2, allow_nan=False).encode()
        self._put(METADATA_FILE, text)
        return {METADATA_FILE: (len(text), checksum(text)), **self._files}

    @property
    def codecs(self) -> list[dict[str, Any]]:
        """How frames are encoded, as in the metadata of the array."""
        plain = {"name": "bytes", "configuration": {"endian": "little"}}
        inner = {
            "name": "blosc",
            "configuration": {
                "cname": "zstd",
                "clevel": _LEVEL,
                "shuffle": "bitshuffle" if self._dtype.itemsize == 1 else "shuffle",
                "typesize": self._dtype.itemsize,
                "blocksize": 0,
            },
        }
        sharding = {
            "chunk_shape": [1, *self._frame_shape],
            "codecs": [plain if self._dtype.itemsize > 1 else {"name": "bytes"}, inner],
            "index_codecs": [plain],
            "index_location": "end",
        }
        return [{"name": "sharding_indexed", "configuration": sharding}]

    def _metadata(self) -> dict[str, Any]:
        frame = list(self._frame_shape)
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [self._frames, *frame],
            "data_type": self._dtype.name,
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": [self._per_shard, *frame]},
            },
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "fill_value": encode_fill(self._fill),
            "codecs": self.codecs,
            "attributes": {},
            "storage_transformers": [],
        }


class FrameReader:
    """Reads single frames of an array that FrameWriter wrote. The index of a shard is read once."""

    def __init__(self, folder: Path) -> None:
        metadata = json.loads((folder / METADATA_FILE).read_bytes())
        self._folder = folder
        self.shape = tuple(metadata["shape"])
        self._dtype = np.dtype(metadata["data_type"]).newbyteorder("<")
        self._per_shard = int(metadata["chunk_grid"]["configuration"]["chunk_shape"][0])
        self._codec = blosc(self._dtype.itemsize)
        self._indices: dict[int, NDArray[np.uint64]] = {}

    def shard_of(self, row: int) -> int:
        return row // self._per_shard

    def frame(self, row: int) -> Array:
        shard, place = divmod(row, self._per_shard)
        path = self._folder / shard_key(shard)
        try:
            with open(path, "rb") as file:
                offset, size = self._index(shard, file)[place].tolist()
                if offset + size > file.seek(0, os.SEEK_END):
                    raise StorageError(
                        path=str(path), detail="cannot be read (its index is damaged)"
                    )
                file.seek(offset)
                data = file.read(size)
        except OSError as error:
            raise StorageError(
                path=str(path), detail=f"cannot be read ({error.strerror})"
            ) from error
        decoded = np.frombuffer(self._codec.decode(data), self._dtype)
        return decoded.reshape(self.shape[1:])

    def _index(self, shard: int, file: Any) -> NDArray[np.uint64]:
        if shard not in self._indices:
            file.seek(-self._per_shard * 16, 2)
            index = np.frombuffer(file.read(), _INDEX).reshape(self._per_shard, 2)
            self._indices[shard] = index
        return self._indices[shard]


def _frame_of_row(store: StoredTables, path: str, row: int) -> Array:
    """One frame. Only its shard is fetched and checked: images are most of the bytes of a store."""
    frames = FrameReader(store.local(f"{path}/{METADATA_FILE}").parent)
    store.local(f"{path}/{shard_key(frames.shard_of(row))}")
    return frames.frame(row)


def depth_of_step(store: StoredTables, step_row_id: int) -> dict[str, Array] | None:
    if not store.has("selected_depth/depth_m"):
        return None
    rows = np.flatnonzero(store.array("selected_depth/step_row_id") == step_row_id)
    if not len(rows):
        return None
    row = int(rows[0])
    small = store.table(
        "selected_depth",
        ("step_row_id", "candidate_row_id", "focal_px", "principal_point_px", "image_size_hw"),
        slice(row, row + 1),
    )
    own = {name: values[0] for name, values in small.items()}
    frames = {
        name: _frame_of_row(store, f"selected_depth/{name}", row)
        for name in ("depth_m", "valid_mask")
    }
    return {**own, **frames}
