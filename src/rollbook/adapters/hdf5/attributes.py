"""Attributes: the small values that HDF5 keeps beside groups and datasets, as JSON; long ones as arrays."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.adapters.extras import library
from rollbook.adapters.recording import Skipped
from rollbook.adapters.steps.h5_file import h5_errors
from rollbook.contracts.zip_members import NpzLimits, check_key
from rollbook.errors import InvalidValue

LONGEST_TEXT = 16_384
"""Bytes of a text that is kept in the metadata. A longer one becomes an array in sensors.npz."""
MOST_NUMBERS = 1024
_LARGEST = 16 << 20
"""Bytes of an attribute that is read at all."""
_BUDGET = 48 << 10
"""Bytes of all attributes in the metadata of one episode: lists of episodes show at most 64 kB of it."""
_MOST = 512
"""Attributes of one object."""


@dataclass(slots=True)
class Attributes:
    """Attributes of several objects, by object and name."""

    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    long: dict[tuple[str, str], NDArray[Any]] = field(default_factory=dict)
    """Those that are too long for the metadata, as one row."""
    skipped: list[Skipped] = field(default_factory=list)
    _spent: int = 0

    def read(self, owner: str, object_id: Any, path: Path) -> None:
        """Add the attributes of a group or dataset, which is called `owner` here."""
        h5a = library("h5py.h5a")
        with h5_errors(path, f"the attributes of {owner} cannot be read"):
            number = h5a.get_num_attrs(object_id)
        if not number:
            return
        with h5_errors(path, f"the attributes of {owner} cannot be read"):
            for index in range(min(number, _MOST)):
                attribute = h5a.open(object_id, index=index)
                name = attribute.name.decode("utf-8", "backslashreplace")
                self._add(owner, name, _value(attribute))
        if number > _MOST:
            self.skipped.append(Skipped(owner, f"{number - _MOST} of its {number} attributes"))

    def get(self, owner: str, name: str) -> Any:
        return self.values.get(owner, {}).get(name)

    def parsed(self, owner: str, name: str) -> dict[str, Any]:
        """An attribute that holds a JSON object; empty where it does not."""
        text = self.get(owner, name)
        if (owner, name) in self.long:
            text = self.long[owner, name][0]
        if not isinstance(text, str | bytes):
            return {}
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _add(self, owner: str, name: str, value: Any) -> None:
        if isinstance(value, _Unreadable):
            self.skipped.append(Skipped(f"{owner}@{name}", value.reason))
            return
        size = len(json.dumps([name, value])) if not isinstance(value, np.ndarray) else 0
        fits = size <= LONGEST_TEXT and self._spent + size <= _BUDGET
        if isinstance(value, np.ndarray):
            self._add_long(owner, name, value[None])
        elif fits:
            self._spent += size
            self.values.setdefault(owner, {})[name] = value
        elif isinstance(value, str):
            self._add_long(owner, name, np.array([value.encode()], np.bytes_))
        elif isinstance(value, list) and any(isinstance(each, str) for each in value):
            reason = "it is a list of texts that is too long for the metadata"
            self.skipped.append(Skipped(f"{owner}@{name}", reason))
        else:
            self._add_long(owner, name, np.array([value]))

    def _add_long(self, owner: str, name: str, row: NDArray[Any]) -> None:
        try:
            check_key(f"hdf5_attributes/{owner}/{name}/value", NpzLimits(), "npz")
        except InvalidValue as error:
            reason = f"its name cannot be the name of an array: {error.expected}"
            self.skipped.append(Skipped(f"{owner}@{name}", reason))
            return
        self.long[owner, name] = row


@dataclass(frozen=True, slots=True)
class _Unreadable:
    reason: str


def _value(attribute: Any) -> Any:
    """Text, a number, a truth value, a list of them, an array that is too long for JSON, or why it is left out."""
    h5s, h5t = library("h5py.h5s"), library("h5py.h5t")
    type_id, space = attribute.get_type(), attribute.get_space()
    if space.get_simple_extent_type() == h5s.NULL:
        return _Unreadable("it has no value")
    shape, number = attribute.shape, type_id.get_class()
    if math.prod(shape) * type_id.get_size() > _LARGEST:
        return _Unreadable(f"it has more than {_LARGEST} bytes")
    if number == h5t.STRING:
        return _text(_read(attribute, type_id), shape)
    if number not in (h5t.INTEGER, h5t.FLOAT, h5t.ENUM):
        return _Unreadable("it is neither a number nor text")
    try:
        dtype = np.dtype(type_id.dtype)
    except (TypeError, ValueError):
        return _Unreadable("its numbers are of a type that NumPy does not have")
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        return _Unreadable(f"its type {dtype} cannot be kept")
    numbers = _read(attribute, type_id).astype(dtype.newbyteorder("="))
    if numbers.size > MOST_NUMBERS or not np.isfinite(numbers).all():
        return numbers
    return numbers.tolist()


def _read(attribute: Any, type_id: Any) -> NDArray[Any]:
    values = np.empty(attribute.shape, type_id.dtype)
    attribute.read(values)
    return values


def _text(values: NDArray[Any], shape: tuple[int, ...]) -> Any:
    texts = []
    for value in values.ravel().tolist():
        text = _decoded(value)
        if text is None:
            return _Unreadable("its bytes are not text in UTF-8")
        texts.append(text)
    if not shape:
        return texts[0]
    if len(texts) > MOST_NUMBERS or sum(map(len, texts)) > LONGEST_TEXT:
        return _Unreadable("it is a list of texts that is too long for the metadata")
    return texts


def _decoded(value: Any) -> str | None:
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    try:
        text = bytes(value).decode("utf-8")
    except (UnicodeDecodeError, TypeError):
        return None
    return None if "\0" in text else text
