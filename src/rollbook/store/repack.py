"""Repacks a store: `local` has raw columns that can be mapped, `archive` has compressed columns. Nothing is lost.

Images are compressed in both profiles and are copied unchanged. A store that is repacked from local to archive and
back has the same files, byte for byte. Every source file is compared with the manifest as it is read: damage would
otherwise get a new, valid checksum.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, get_args

from numpy.typing import NDArray

from rollbook.digest import checksum
from rollbook.errors import ConfigurationError
from rollbook.files import write_errors
from rollbook.lazy import needs
from rollbook.store.manifest import FileSums
from rollbook.store.raw_array import (
    AppendingArrayWriter,
    RawArrayWriter,
)
from rollbook.store.raw_layout import (
    WrittenFiles,
)
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.schema import TABLES
from rollbook.store.staging import StagedStore
from rollbook.store.stored_files import StoredFiles
from rollbook.store.urls.remote import open_store
from rollbook.store.verified_array import VerifiedArray, array_paths

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
        for path in array_paths(stored):
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
        self._array = VerifiedArray(stored, path)

    def write(self) -> WrittenFiles:
        own = self._stored.below(self._path)
        if self._array.has_frames or len(own) == 1:
            # images and constant columns are the same in both profiles
            copied = _copied(self._stored, self._stage, own)
            return {name.removeprefix(f"{self._path}/"): sums for name, sums in copied.items()}
        return self._archived() if self._profile == "archive" else self._raw()

    def _raw(self) -> WrittenFiles:
        array = self._array
        options: dict[str, Any] = {"attributes": array.metadata["attributes"]}
        table = TABLES.get(self._path.partition("/")[0])
        if table is not None and table.derived:
            known = RawArrayWriter(
                self._target, array.dtype, array.shape[1:], array.shape[0], array.fill, **options
            )
            for start, block in array.blocks():
                known.write(start, block)
            return known.close()
        growing = AppendingArrayWriter(
            self._target, array.dtype, array.shape[1:], fill_value=array.fill, elide=True, **options
        )
        for _, block in array.blocks():
            growing.append(block)
        return growing.close()

    def _archived(self) -> WrittenFiles:
        with needs("the archive profile"):
            import zarr
            from zarr.codecs import BloscCodec

        array = self._array
        written = zarr.create_array(
            str(self._target),
            shape=array.shape,
            dtype=array.dtype,
            chunks=(
                min(_ARCHIVE_CHUNK_ROWS, array.shape[0]),
                *(max(1, size) for size in array.shape[1:]),
            ),
            compressors=BloscCodec(
                cname="zstd",
                clevel=3,
                shuffle="bitshuffle" if array.dtype.kind in "iub" else "shuffle",
            ),
            fill_value=array.fill[()],
            attributes=array.metadata["attributes"],
            config={"write_empty_chunks": True},
        )
        for start, block in array.blocks_of(written.chunks[0]):
            written[start : start + len(block)] = block
        files = sorted(path for path in self._target.rglob("*") if path.is_file())
        return {str(path.relative_to(self._target)): _sums(path) for path in files}


def _sums(path: Path) -> tuple[int, str]:
    data = path.read_bytes()
    return len(data), checksum(data)
