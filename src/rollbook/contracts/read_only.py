"""Read-only arrays: what lies beside a digest must not change afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]


def is_read_only(array: AnyArray) -> bool:
    """Whether the array and everything that it is a view of are read-only.

    The flag of the array alone says little: a read-only view shows every change of a writable array below it. An owner
    that cannot be asked counts as writable.
    """
    owner: object = array
    while owner is not None:
        if isinstance(owner, np.ndarray):
            if owner.flags.writeable:
                return False
            owner = owner.base
            continue
        try:
            buffer = memoryview(owner)  # type: ignore[arg-type]
        except TypeError:
            return False
        if not buffer.readonly:
            return False
        owner = None if buffer.obj is owner else buffer.obj
    return True


def read_only(array: AnyArray, dtype: np.dtype[Any] | None = None) -> AnyArray:
    """A contiguous array that nobody can change: the array itself if it is one, otherwise a copy.

    With `dtype`, numbers are converted. A float that does not fit raises FloatingPointError. A whole number that does
    not fit wraps, so the caller compares it with what was given.
    """
    if dtype is not None and array.dtype != dtype:
        if array.dtype.kind in "iub":  # never raises
            copied = array.astype(dtype, order="C")
        else:
            with np.errstate(over="raise", under="ignore", invalid="ignore"):
                copied = array.astype(dtype, order="C")
    elif is_read_only(array) and array.flags.c_contiguous:
        return array
    else:
        copied = np.array(array, order="C")
    copied.flags.writeable = False
    return copied
