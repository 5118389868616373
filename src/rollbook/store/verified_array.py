"""VerifiedArray: one array of a finished store, read chunk by chunk. Every byte is compared with the manifest.

For what copies or converts a store: damage would otherwise get a new, valid checksum.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import NotRawArray
from rollbook.store.rasters import blosc, frames_of_shard, shard_key
from rollbook.store.raw_layout import METADATA_FILE, decode_fill, rest_of_key
from rollbook.store.stored_files import StoredFiles

Array = NDArray[Any]


def array_paths(stored: StoredFiles) -> list[str]:
    """The folder of every array: each has a zarr.json two levels below the root."""
    ends = f"/{METADATA_FILE}"
    return [
        path.removesuffix(ends)
        for path in stored.listed
        if path.count("/") == 2 and path.endswith(ends)
    ]


class VerifiedArray:
    def __init__(self, stored: StoredFiles, path: str) -> None:
        self._stored = stored
        self.path = path
        self.metadata = json.loads(stored.read(f"{path}/{METADATA_FILE}"))
        self.dtype = np.dtype(self.metadata["data_type"]).newbyteorder("<")
        self.shape: tuple[int, ...] = tuple(self.metadata["shape"])
        self.fill = decode_fill(self.metadata["fill_value"], self.dtype)

    @property
    def has_frames(self) -> bool:
        """Whether it holds images, each compressed by itself."""
        return bool(self.metadata["codecs"][0]["name"] == "sharding_indexed")

    @property
    def _chunk_rows(self) -> int:
        return int(self.metadata["chunk_grid"]["configuration"]["chunk_shape"][0])

    def blocks(self) -> Iterator[tuple[int, Array]]:
        """The rows of one chunk after the other, and the number of the first."""
        rows = self._chunk_rows
        for index, start in enumerate(range(0, self.shape[0], rows)):
            yield start, self._chunk(index, rows)[: self.shape[0] - start]

    def blocks_of(self, rows: int) -> Iterator[tuple[int, Array]]:
        """The rows in blocks of this size, so that a compressed chunk is written once. The block is used again."""
        block = np.empty((rows, *self.shape[1:]), self.dtype)
        first = held = 0
        for _, chunk in self.blocks():
            while len(chunk):
                taken, chunk = np.split(chunk, [rows - held])
                block[held : held + len(taken)] = taken
                held += len(taken)
                if held == rows:
                    yield first, block
                    first, held = first + rows, 0
        if held:
            yield first, block[:held]

    def encoded_frames(self) -> Iterator[bytes]:
        """The images as they are stored."""
        per_shard = self._chunk_rows
        for shard in range(-(-self.shape[0] // per_shard)):
            data = self._stored.read(f"{self.path}/{shard_key(shard)}")
            yield from frames_of_shard(data, per_shard)

    def _chunk(self, index: int, rows: int) -> Array:
        key = f"{self.path}/c/{index}{rest_of_key(len(self.shape))}"
        shape = (rows, *self.shape[1:])
        if key not in self._stored.listed:
            return np.full(shape, self.fill)  # as Zarr defines it
        decoded = np.frombuffer(self._decoded(self._stored.read(key)), self.dtype)
        return decoded.reshape(shape)

    def _decoded(self, data: bytes) -> Any:
        encodings = [codec["name"] for codec in self.metadata["codecs"][1:]]
        if encodings == ["blosc"]:
            return blosc(self.dtype.itemsize).decode(data)
        if encodings:
            detail = (
                f"its chunks are encoded with {', '.join(encodings)}, expected blosc or nothing"
            )
            raise NotRawArray(path=self.path, detail=detail)
        return data
