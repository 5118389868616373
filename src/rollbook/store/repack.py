"""Repacks a store: `local` has raw columns that can be mapped, `archive` has compressed columns. Nothing is lost.

Images are compressed in both profiles and are copied unchanged. A store that is repacked from local to archive and
back has the same files, byte for byte.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rollbook.digest import checksum
from rollbook.errors import ConfigurationError
from rollbook.store.manifest import FileSums, StoreManifest
from rollbook.store.raw_array import (
    AppendingArrayWriter,
    RawArrayWriter,
)
from rollbook.store.raw_layout import (
    METADATA_FILE,
    WrittenFiles,
    decode_fill,
)
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.remote import open_store
from rollbook.store.schema import TABLES
from rollbook.store.staging import StagedStore

Profile = Literal["local", "archive"]
Array = NDArray[Any]
_BLOCK_BYTES = 32 << 20
_ARCHIVE_CHUNK_ROWS = 1 << 16


def repack_store(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    profile: Profile,
    *,
    replace: bool = False,
) -> Path:
    """Write the same store in another profile."""
    if profile not in get_args(Profile):
        raise ConfigurationError(message=f"profile is {profile!r}, expected local or archive")
    reader = open_store(source)
    with StagedStore(Path(destination), replace=replace) as stage:
        files: dict[str, tuple[int, str]] = {}
        for path in _arrays(reader.store_manifest):
            written = _Repacked(reader, stage.folder, path, profile).write()
            files |= {f"{path}/{name}": sums for name, sums in written.items()}
        files |= _copy_groups(reader, stage.folder)
        manifest = reader.store_manifest.payload
        attrs = {**manifest["root_attrs"], "profile": profile}
        stage.finish({**manifest, "root_attrs": attrs}, files)
    return stage.final


def _arrays(manifest: StoreManifest) -> list[str]:
    """The folder of every array: each has a zarr.json two levels below the root."""
    ends = f"/{METADATA_FILE}"
    return [
        path.removesuffix(ends)
        for path in manifest.files
        if path.count("/") == 2 and path.endswith(ends)
    ]


def _copy_groups(reader: RolloutZarrStoreReader, folder: Path) -> FileSums:
    groups = [path for path in reader.store_manifest.files if path.count("/") == 1]
    for path in groups:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(reader.local(path), folder / path)
    return {path: reader.store_manifest.files[path] for path in groups}


class _Repacked:
    """One array that is written in another profile."""

    def __init__(
        self, reader: RolloutZarrStoreReader, folder: Path, path: str, profile: Profile
    ) -> None:
        self._reader = reader
        self._path = path
        self._target = folder / path
        self._profile = profile
        self._metadata = json.loads((reader.local(path) / METADATA_FILE).read_bytes())
        self._dtype = np.dtype(self._metadata["data_type"]).newbyteorder("<")
        self._shape = tuple(self._metadata["shape"])

    def write(self) -> WrittenFiles:
        own = [
            name for name in self._reader.store_manifest.files if name.startswith(f"{self._path}/")
        ]
        sharded = self._metadata["codecs"][0]["name"] == "sharding_indexed"
        if sharded or len(own) == 1:  # images and constant columns are the same in both profiles
            return self._copied(own)
        return self._archived() if self._profile == "archive" else self._raw()

    def _copied(self, names: list[str]) -> WrittenFiles:
        for name in names:
            place = self._target / name.removeprefix(f"{self._path}/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._reader.local(name), place)
        sums = self._reader.store_manifest.files
        return {name.removeprefix(f"{self._path}/"): sums[name] for name in names}

    def _blocks(self) -> Iterator[tuple[int, Array]]:
        values = self._reader.array(self._path)
        rows = max(1, _BLOCK_BYTES // max(1, values[:1].nbytes))
        for start in range(0, self._shape[0], rows):
            yield start, values[start : start + rows]

    def _raw(self) -> WrittenFiles:
        fill = decode_fill(self._metadata["fill_value"], self._dtype)
        options: dict[str, Any] = {"attributes": self._metadata["attributes"]}
        table = TABLES.get(self._path.partition("/")[0])
        if table is not None and table.derived:
            known = RawArrayWriter(
                self._target, self._dtype, self._shape[1:], self._shape[0], fill, **options
            )
            for start, block in self._blocks():
                known.write(start, block)
            return known.close()
        growing = AppendingArrayWriter(
            self._target, self._dtype, self._shape[1:], fill_value=fill, elide=True, **options
        )
        for _, block in self._blocks():
            growing.append(block)
        return growing.close()

    def _archived(self) -> WrittenFiles:
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
            fill_value=decode_fill(self._metadata["fill_value"], self._dtype)[()],
            attributes=self._metadata["attributes"],
            config={"write_empty_chunks": True},
        )
        for start, block in self._blocks():
            array[start : start + len(block)] = block
        written = sorted(path for path in self._target.rglob("*") if path.is_file())
        return {str(path.relative_to(self._target)): _sums(path) for path in written}


def _sums(path: Path) -> tuple[int, str]:
    data = path.read_bytes()
    return len(data), checksum(data)
