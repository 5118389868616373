"""Heaps of an HDF5 file, in which text and arrays of varying length lie.

The HDF5 library walks through a heap from object to object. A damaged heap, in which an object has no size, keeps it
there forever. So heaps are walked through here first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rollbook.errors import DamagedRecording
from rollbook.files import unreadable

_SIGNATURE = b"GCOL\x01\0\0\0"
_OBJECT = struct.Struct("<HHIQ")
_WINDOW = 1 << 20
_LARGEST = 1 << 28


def check_heaps(path: Path) -> None:
    """Refuse a file with a heap that does not end. The whole file is read once."""
    try:
        with open(path, "rb") as file:
            for at in _heaps(file):
                problem = _problem(file, at)
                if problem is not None:
                    detail = f"the heap at byte {at} {problem}"
                    raise DamagedRecording(path=str(path), detail=detail)
    except OSError as error:
        raise unreadable(path, error) from error


def _heaps(file: BinaryIO) -> Iterator[int]:
    overlap, before, position = len(_SIGNATURE) - 1, b"", 0
    while window := file.read(_WINDOW):
        data = before + window
        begins_at = position - len(before)
        position += len(window)
        found = data.find(_SIGNATURE)
        while found >= 0:
            yield begins_at + found
            file.seek(position)
            found = data.find(_SIGNATURE, found + 1)
        before = data[-overlap:]


def _problem(file: BinaryIO, at: int) -> str | None:
    """What is wrong with the heap, if anything is."""
    file.seek(at + 8)
    header = file.read(8)
    size = int.from_bytes(header, "little")
    if len(header) < 8 or not 16 <= size <= _LARGEST:
        return f"has a size of {size} bytes"
    data = file.read(size - 16)
    position = 0
    while position + _OBJECT.size <= len(data):
        index, _, _, length = _OBJECT.unpack_from(data, position)
        # object 0 is the free space, whose size counts its own header
        step = length if index == 0 else _OBJECT.size + (length + 7) // 8 * 8
        if step < _OBJECT.size or step > size:
            return f"has an object of {length} bytes"
        position += step
    return None
