"""Changing a finished store by hand, as damage or a wrong writer would, to see what validation says."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.digest import checksum
from rollbook.store.checks.columns import array_of
from rollbook.store.checks.validate import validate_rollout_zarr_store
from rollbook.store.manifest import content_sha256, group_metadata, json_bytes, manifest_sha256
from rollbook.store.rasters import FrameWriter
from rollbook.store.raw_array import RawArrayWriter
from rollbook.store.reader import RolloutZarrStoreReader

Array = NDArray[Any]
Store = Callable[[str], Array]
"""Gives any column, as it was before."""


def copy_store(store: Path, place: Path) -> Path:
    """Files are shared until they are changed, so a copy costs nothing; `replace_file` changes one."""
    return Path(shutil.copytree(store, place, copy_function=os.link))


def restore_store(store: Path, original: Path) -> None:
    """Makes a changed copy a copy again: folders in which a file is new, gone or another one are copied anew."""
    ours, theirs = inodes_of(store), inodes_of(original)
    changed = {name for name, _ in ours.items() ^ theirs.items()}
    for folder in {name.split("/c/")[0].rpartition("/")[0] for name in changed if "/" in name}:
        shutil.rmtree(store / folder, ignore_errors=True)
    for name in theirs.keys() - inodes_of(store).keys() | changed & theirs.keys():
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).unlink(missing_ok=True)
        os.link(original / name, store / name)


def inodes_of(store: Path) -> dict[str, int]:
    """Every file, and which one it is on disk: a file that was written anew is another."""
    start = len(str(store)) + 1
    return {
        path[start:]: os.stat(path).st_ino
        for folder, _, names in os.walk(store)
        for path in (f"{folder}/{name}" for name in names)
    }


def replace_file(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def codes_of(store: Path, *, deep: bool = False) -> set[str]:
    return {
        violation.code for violation in validate_rollout_zarr_store(store, deep=deep).violations
    }


def rewrite(store: Path, path: str, values: Array) -> None:
    """Other values for a column, in raw files; the manifest does not know of them yet."""
    array, reader = array_of(path), RolloutZarrStoreReader(store)
    if array.columns:
        whole = reader.array(array.path).copy()
        whole[:, array.columns.index(path.split("/")[1])] = values
        values = whole
    folder = store / array.path
    metadata = json.loads((folder / "zarr.json").read_bytes())
    shutil.rmtree(folder)
    writer = RawArrayWriter(
        folder, values.dtype, values.shape[1:], len(values), attributes=metadata["attributes"]
    )
    writer.write(0, values)
    writer.close()


def rewrite_frames(store: Path, path: str, frames: Array) -> None:
    folder = store / path
    shutil.rmtree(folder)
    with ThreadPoolExecutor(1) as pool:
        writer = FrameWriter(folder, frames.dtype, frames.shape[1:], 0, 16, pool)
        for frame in frames:
            writer.append(partial(np.asarray, frame))
        writer.close()


def edit(store: Path, path: str, change: Callable[[Array, Store], Any]) -> None:
    """Changes a column in place, and signs the store as if it had been written so."""
    reader = RolloutZarrStoreReader(store)
    values = reader.array(path).copy()
    change(values, reader.array)
    (rewrite_frames if path.endswith(("depth_m", "valid_mask")) else rewrite)(store, path, values)
    sign(store)


def edit_group(store: Path, group: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes the attributes of a group, and signs the store."""
    path = store / group / "zarr.json"
    metadata = json.loads(path.read_bytes())
    change(metadata["attributes"])
    replace_file(path, json.dumps(metadata).encode())
    sign(store)


def sign(store: Path, **root_attrs: Any) -> None:
    """A manifest that fits the files as they are now, with other root attributes if given."""
    payload = json.loads((store / "manifest.json").read_bytes())
    payload["root_attrs"] |= root_attrs
    files = _files_of(store, payload["files"])
    payload["files"] = {path: list(sums) for path, sums in files.items()}
    payload["content_sha256"] = content_sha256(files)
    write_manifest(store, payload)


def write_manifest(store: Path, payload: Mapping[str, Any]) -> None:
    digest = manifest_sha256(payload)
    replace_file(store / "manifest.json", json_bytes(payload, "the manifest"))
    replace_file(
        store / "zarr.json", group_metadata({**payload["root_attrs"], "manifest_sha256": digest})
    )


def _files_of(store: Path, known: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
    """Those still shared with the store that was copied have the sums they had."""
    names = sorted(inodes_of(store).keys() - {"manifest.json", "zarr.json"})
    return {
        name: tuple(known[name])
        if name in known and os.stat(store / name).st_nlink > 1
        else _sums(store / name)
        for name in names
    }


def _sums(path: Path) -> tuple[int, str]:
    data = path.read_bytes()
    return len(data), checksum(data)


def first(mask: Array) -> int:
    """The first row of a mask; there has to be one, or the case says nothing."""
    rows = np.flatnonzero(mask)
    assert len(rows), "the store has no such row"
    return int(rows[0])


def flip_bit(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    replace_file(path, bytes(data))
