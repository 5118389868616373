"""What the exporters share that write HDF5: attributes that a file can hold, room on the disk, and errors."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rollbook.adapters.extras import library
from rollbook.adapters.storable_text import is_storable
from rollbook.errors import RollbookError, StorageError

_ROOM = 4 << 20
"""Bytes that stay free on the disk: HDF5 keeps some of what it writes until the file is closed."""
_LARGEST_NUMBERS = 60_000
"""Bytes of numbers in an attribute. HDF5 allows 64 kB beside the other attributes of an object."""


@contextmanager
def h5_write_errors(target: Path) -> Iterator[None]:
    """Turn the exceptions of h5py, which are of many types, into StorageError."""
    try:
        yield
    except RollbookError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        detail = f"cannot be written ({getattr(error, 'strerror', None) or error})"
        raise StorageError(path=str(target), detail=detail) from error


def check_room(group: Any, shape: Sequence[int], itemsize: int) -> None:
    """Refuse a dataset that the disk has no room for. HDF5 cannot close a file that it could not write: it ends the
    process."""
    folder = Path(group.file.filename).parent
    needed, free = math.prod(shape) * itemsize, shutil.disk_usage(folder).free
    if needed + _ROOM > free:
        detail = f"no space left: {needed + _ROOM:,} bytes are needed, {free:,} are free"
        raise StorageError(path=str(folder), detail=detail)


def storable_attribute(value: Any) -> Any:
    """The value as an attribute takes it; None for what it cannot hold."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, str):
        return value if is_storable(value) else None
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        return None
    if array.dtype.kind == "U" and all(map(is_storable, array.ravel().tolist())):
        return array.astype(library("h5py").string_dtype())
    fits = array.dtype.kind in "biuf" and array.nbytes <= _LARGEST_NUMBERS
    return array if fits else None
