"""Repacks a store: `local` has raw columns that can be mapped, `archive` has compressed columns. Nothing is lost.

Images are compressed in both profiles and are copied unchanged. A store that is repacked from local to archive and
back has the same files, byte for byte. Every source file is compared with the manifest as it is read: damage would
otherwise get a new, valid checksum.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rollbook.digest import checksum
from rollbook.errors import ConfigurationError, NotRawArray
from rollbook.files import write_errors
from rollbook.lazy import needs
from rollbook.store.manifest import FileSums
from rollbook.store.rasters import blosc
from rollbook.store.raw_array import (
    AppendingArrayWriter,
    RawArrayWriter,
)
from rollbook.store.raw_layout import (
    METADATA_FILE,
    WrittenFiles,
    decode_fill,
    rest_of_key,
)
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.remote import open_store
from rollbook.store.schema import TABLES
from rollbook.store.staging import StagedStore
from rollbook.store.stored_files import StoredFiles

Profile = Literal["local", "archive"]
Array = NDArray[Any]
_ARCHIVE_CHUNK_ROWS = 1 << 16


def repack_store(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    profile: Profile,
    *,
    replace: bool = False,
) -> Path:
    """Write the same store in another profile. A source file that is lost or damaged is refused by name."""
    if profile not in get_args(Profile):
        raise ConfigurationError(message=f"profile is {profile!r}, expected local or archive")
    reader = open_store(source)
    with StagedStore(Path(destination), replace=replace) as stage:
        stored = _fetched_files(reader)
        files: dict[str, tuple[int, str]] = {}
        for path in _arrays(stored):
            written = _Repacked(stored, stage.folder, path, profile).write()
            files |= {f"{path}/{name}": sums for name, sums in written.items()}
        groups = [path for path in stored.listed if path.count("/") == 1]
        files |= _copied(stored, stage.folder, groups)
        manifest = reader.store_manifest.payload
        attrs = {**manifest["root_attrs"], "profile": profile}
        stage.finish({**manifest, "root_attrs": attrs}, files)
    return stage.final


def _fetched_files(reader: RolloutZarrStoreReader) -> StoredFiles:
    """All files, on this disk. One that is lost or cut off is refused before anything is written."""
    reader.local("")
    return reader.files


def _arrays(stored: StoredFiles) -> list[str]:
    """The folder of every array: each has a zarr.json two levels below the root."""
    ends = f"/{METADATA_FILE}"
    return [
        path.removesuffix(ends)
        for path in stored.listed
        if path.count("/") == 2 and path.endswith(ends)
    ]


def _copied(stored: StoredFiles, folder: Path, names: list[str]) -> FileSums:
    for name in names:
        data = stored.read(name)
        with write_errors(folder / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
    return {name: stored.listed[name] for name in names}


class _Repacked:
    """One array that is written in another profile."""

    def __init__(self, stored: StoredFiles, folder: Path, path: str, profile: Profile) -> None:
        self._stored = stored
        self._path = path
        self._stage = folder
        self._target = folder / path
        self._profile = profile
        self._metadata = json.loads(stored.read(f"{path}/{METADATA_FILE}"))
        self._dtype = np.dtype(self._metadata["data_type"]).newbyteorder("<")
        self._shape = tuple(self._metadata["shape"])
        self._fill = decode_fill(self._metadata["fill_value"], self._dtype)

    def write(self) -> WrittenFiles:
        own = self._stored.below(self._path)
        sharded = self._metadata["codecs"][0]["name"] == "sharding_indexed"
        if sharded or len(own) == 1:  # images and constant columns are the same in both profiles
            copied = _copied(self._stored, self._stage, own)
            return {name.removeprefix(f"{self._path}/"): sums for name, sums in copied.items()}
        return self._archived() if self._profile == "archive" else self._raw()

    def _blocks(self) -> Iterator[tuple[int, Array]]:
        """The rows of one chunk after the other, and the number of the first."""
        rows = self._metadata["chunk_grid"]["configuration"]["chunk_shape"][0]
        for index, start in enumerate(range(0, self._shape[0], rows)):
            yield start, self._chunk(index, rows)[: self._shape[0] - start]

    def _blocks_of(self, rows: int) -> Iterator[tuple[int, Array]]:
        """The rows in blocks of this size, so that a compressed chunk is written once. The block is used again."""
        block = np.empty((rows, *self._shape[1:]), self._dtype)
        first = held = 0
        for _, chunk in self._blocks():
            while len(chunk):
                taken, chunk = np.split(chunk, [rows - held])
                block[held : held + len(taken)] = taken
                held += len(taken)
                if held == rows:
                    yield first, block
                    first, held = first + rows, 0
        if held:
            yield first, block[:held]

    def _chunk(self, index: int, rows: int) -> Array:
        key = f"{self._path}/c/{index}{rest_of_key(len(self._shape))}"
        shape = (rows, *self._shape[1:])
        if key not in self._stored.listed:
            return np.full(shape, self._fill)  # as Zarr defines it
        decoded = np.frombuffer(self._decoded(self._stored.read(key)), self._dtype)
        return decoded.reshape(shape)

    def _decoded(self, data: bytes) -> Any:
        encodings = [codec["name"] for codec in self._metadata["codecs"][1:]]
        if encodings == ["blosc"]:
            return blosc(self._dtype.itemsize).decode(data)
        if encodings:
            detail = (
                f"its chunks are encoded with {', '.join(encodings)}, expected blosc or nothing"
            )
            raise NotRawArray(path=self._path, detail=detail)
        return data

    def _raw(self) -> WrittenFiles:
        options: dict[str, Any] = {"attributes": self._metadata["attributes"]}
        table = TABLES.get(self._path.partition("/")[0])
        if table is not None and table.derived:
            known = RawArrayWriter(
                self._target, self._dtype, self._shape[1:], self._shape[0], self._fill, **options
            )
            for start, block in self._blocks():
                known.write(start, block)
            return known.close()
        growing = AppendingArrayWriter(
            self._target, self._dtype, self._shape[1:], fill_value=self._fill, elide=True, **options
        )
        for _, block in self._blocks():
            growing.append(block)
        return growing.close()

    def _archived(self) -> WrittenFiles:
        with needs("the archive profile"):
            import zarr
            from zarr.codecs import BloscCodec

        array = zarr.create_array(
            str(self._target),
            shape=self._shape,
            dtype=self._dtype,
            chunks=(
                min(_ARCHIVE_CHUNK_ROWS, self._shape[0]),
                *(max(1, size) for size in self._shape[1:]),
            ),
            compressors=BloscCodec(
                cname="zstd",
                clevel=3,
                shuffle="bitshuffle" if self._dtype.kind in "iub" else "shuffle",
            ),
            fill_value=self._fill[()],
            attributes=self._metadata["attributes"],
            config={"write_empty_chunks": True},
        )
        for start, block in self._blocks_of(array.chunks[0]):
            array[start : start + len(block)] = block
        written = sorted(path for path in self._target.rglob("*") if path.is_file())
        return {str(path.relative_to(self._target)): _sums(path) for path in written}


def _sums(path: Path) -> tuple[int, str]:
    data = path.read_bytes()
    return len(data), checksum(data)
