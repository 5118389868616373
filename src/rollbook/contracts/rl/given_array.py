"""An array as a caller gives it: a list, a numpy array or a tensor. What numpy cannot read is refused with its name."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollbook.errors import WrongColumnType

AnyArray = NDArray[Any]

_UNREADABLE = (ValueError, TypeError, OverflowError, RuntimeError)


def given_array(name: str, values: ArrayLike, expected: str) -> AnyArray:
    """The values as a numpy array of any shape and type. bfloat16 tensors become binary32, which loses nothing."""
    try:
        return _from_tensor(values) if _is_tensor(values) else np.asarray(values)
    except _UNREADABLE as error:
        ragged = _ragged_row(values)
        actual = str(error) if ragged is None else ragged
        raise WrongColumnType(column=name, expected=expected, actual=actual) from error


def _is_tensor(values: object) -> bool:
    """Whoever has a tensor has imported torch; this room never does."""
    if isinstance(values, list | np.ndarray):
        return False
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, getattr(torch, "Tensor", ()))


def _from_tensor(tensor: Any) -> AnyArray:
    if tensor.requires_grad:
        raise ValueError("a tensor that requires grad (give tensor.detach())")
    if tensor.device.type != "cpu":
        raise ValueError(f"a tensor on the device {tensor.device} (give tensor.cpu())")
    if tensor.is_floating_point() and tensor.element_size() < 4:
        tensor = tensor.float()  # numpy has no bfloat16; binary32 holds all its values
    array: AnyArray = tensor.numpy()
    return array


def _ragged_row(values: object) -> str | None:
    """The first row of a list of lists whose length differs from that of row 0."""
    if not isinstance(values, list | tuple):
        return None
    lengths = [len(row) if isinstance(row, list | tuple | np.ndarray) else None for row in values]
    for row, length in enumerate(lengths):
        if length != lengths[0]:
            return f"rows of different lengths (row 0: {lengths[0]}, row {row}: {length})"
    return None
