"""Replay buffers for tests, written by the library `zarr` in the layout of Diffusion Policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr

NO_CODEC = "none"


def pictures(rows: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Pictures whose brightness is their number."""
    shades = np.arange(rows, dtype=np.uint8)[:, None, None, None] * 8 % 200 + 16
    return np.broadcast_to(shades, (rows, 32, 48, 3)).copy()


def arrays(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(rows)
    return {
        "action": rng.normal(size=(rows, 2)).astype(np.float32),
        "state": rng.normal(size=(rows, 5)),
        "img": pictures(rows),
        "n_contacts": rng.integers(0, 4, (rows, 1)),
    }


def write(
    target: Path,
    data: Mapping[str, Any],
    ends: Sequence[int],
    *,
    codec: Any = None,
    chunk: int = 4,
    meta: Mapping[str, Any] | None = None,
    **options: Any,
) -> Path:
    """A folder, or a zip file if the name ends so. `codec` is Blosc unless it is given; NO_CODEC stores plain bytes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    zipped = target.suffix == ".zip"
    store: Any = zarr.storage.ZipStore(target, mode="w") if zipped else target
    root = zarr.open_group(store, mode="w", zarr_format=2)
    used = None if codec == NO_CODEC else codec or numcodecs.Blosc("zstd", clevel=5)
    group = root.create_group("data")
    for key, values in data.items():
        chunks = (chunk, *values.shape[1:])
        group.create_array(key, data=values, chunks=chunks, compressors=used, **options)
    listed = {"episode_ends": np.array(ends, np.int64), **(meta or {})}
    described = root.create_group("meta")
    for key, values in listed.items():
        array = np.asarray(values)
        described.create_array(key, data=array, chunks=array.shape, compressors=None)
    if zipped:
        store.close()
    return target


def write_small(target: Path, **options: Any) -> Path:
    return write(target, arrays(9), [4, 9], **options)
