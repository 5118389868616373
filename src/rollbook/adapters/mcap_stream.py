"""McapStream: what a channel of an exported MCAP file says about the stream of an episode that it holds.

The exporter writes it into the metadata of the channel. An importer that finds it there gives back the stream under its
own names, types and shapes, instead of the names that the schema of the messages has.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.episode import EPISODE_SOURCES, ArtifactKind, EpisodeSource
from rollbook.contracts.lineage import ROLLOUT_METADATA
from rollbook.contracts.source_file import SOURCE_FILE_KEY
from rollbook.contracts.typed_metadata import plain_metadata

SLOT_KEY = "rollbook.slot"
NAMESPACE_KEY = "rollbook.namespace"
FIELDS_KEY = "rollbook.fields"
_TYPE = re.compile(r"[<>|=](?:[biufcSU]\d{1,9}|[mM]8\[\d{0,9}[A-Za-z]{1,2}\])", re.ASCII)

_TEXTS = ("name", "robot", "env_version", "policy_version", "git_sha")
_KEPT: Mapping[str, type] = {
    "tasks": list,
    "outcome": dict,
    "channels": dict,
    "steps": int,
    "timestamps_assumed": bool,
}
_ORIGINS = (ROLLOUT_METADATA, SOURCE_FILE_KEY)
"""Where the exported episode came from. What is imported now comes from this file, and lineage must not follow what the
file says about itself."""
_MOST_ROW = 1 << 31
"""Bytes."""


@dataclass(frozen=True, slots=True)
class McapField:
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    """Of one row."""
    path: str
    """Where the values are in the message, such as `joints[].position`. Several places, with commas between them, are
    the entries of the last axis."""

    @property
    def columns(self) -> list[str]:
        """The names of its values in messages that were taken apart into columns."""
        return self.path.replace("[]", "").split(",")


@dataclass(frozen=True, slots=True)
class McapStream:
    slot: ArtifactKind
    """`sensors` or `actions`."""
    namespace: str
    fields: tuple[McapField, ...]

    def to_metadata(self) -> dict[str, str]:
        fields = [
            {
                "name": each.name,
                "dtype": each.dtype.newbyteorder("=").str,
                "shape": list(each.shape),
                "path": each.path,
            }
            for each in self.fields
        ]
        return {
            SLOT_KEY: str(self.slot),
            NAMESPACE_KEY: self.namespace,
            FIELDS_KEY: json.dumps(fields),
        }

    @classmethod
    def in_metadata(cls, metadata: Mapping[str, str]) -> McapStream | None:
        """None where the channel has no such description, or one that somebody else wrote with another meaning."""
        slot, namespace = metadata.get(SLOT_KEY), metadata.get(NAMESPACE_KEY)
        if slot not in ("sensors", "actions") or not isinstance(namespace, str):
            return None
        try:
            described = json.loads(metadata.get(FIELDS_KEY, ""))
            fields = tuple(_field(each) for each in described)
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        return cls("sensors" if slot == "sensors" else "actions", namespace, fields)

    def restored(
        self, columns: Mapping[str, NDArray[Any]], rows: int
    ) -> dict[str, NDArray[Any]] | None:
        """The fields of the stream from the columns of its messages; None where the columns are not those of it."""
        found: dict[str, NDArray[Any]] = {}
        for each in self.fields:
            array = _restored(each, columns, rows)
            if array is None:
                return None
            found[each.name] = array
        return found


def _field(value: Mapping[str, Any]) -> McapField:
    name, dtype, shape, path = (value[key] for key in ("name", "dtype", "shape", "path"))
    texts = all(isinstance(each, str) for each in (name, dtype, path))
    lengths = [each for each in shape if type(each) is int and 0 <= each < 2**31]
    if not texts or not _TYPE.fullmatch(dtype) or len(lengths) != len(shape) or len(shape) > 31:
        raise ValueError("not the description of a field")
    known = np.dtype(dtype)
    if math.prod(max(1, each) for each in lengths) * known.itemsize > _MOST_ROW:
        raise ValueError("a row that no message can hold")
    return McapField(name, known, tuple(lengths), path)


def _restored(
    field: McapField, columns: Mapping[str, NDArray[Any]], rows: int
) -> NDArray[Any] | None:
    """Nothing is allocated that the columns do not fill: the description may claim any size."""
    if 0 in field.shape:  # protobuf does not write an empty list
        return np.empty((rows, *field.shape), field.dtype)
    parts = [columns.get(name) for name in field.columns]
    known = [part for part in parts if part is not None and len(part) == rows]
    if len(known) != len(parts) or len({(part.shape, part.dtype) for part in known}) != 1:
        return None
    array = known[0] if len(known) == 1 else np.stack(known, axis=-1)
    if array.dtype == np.uint8 and field.dtype != np.uint8:
        return _from_bytes(field, array, rows)
    if array.size != rows * math.prod(field.shape):
        return None
    shaped = array.reshape(rows, *field.shape)
    if field.dtype.kind == "U" or array.dtype.kind == "U":
        return shaped if field.dtype.kind == array.dtype.kind else None
    if field.dtype.kind in "mM":
        return shaped.view(field.dtype) if array.dtype == np.int64 else None
    if field.dtype.kind not in "biuf" or array.dtype.kind not in "biuf":
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        return shaped.astype(field.dtype)


def _from_bytes(field: McapField, array: NDArray[Any], rows: int) -> NDArray[Any] | None:
    if array.size != rows * math.prod(field.shape) * field.dtype.itemsize:
        return None
    data = np.ascontiguousarray(array.reshape(rows, -1))
    return data.view(field.dtype).reshape(rows, *field.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFacts:
    """Facts of the episode that an exported file holds. None where it does not say."""

    name: str | None = None
    source: EpisodeSource | None = None
    robot: str | None = None
    seed: int | None = None
    env_version: str | None = None
    policy_version: str | None = None
    git_sha: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kept(self) -> dict[str, Any]:
        """Metadata that the messages do not tell, so that an import of the file takes it from the records."""
        return {key: self.metadata[key] for key in _KEPT if key in self.metadata}


def facts_in_records(records: Mapping[str, Mapping[str, str]]) -> RecordedFacts:
    """From the metadata records of the file. What somebody else wrote with another meaning is ignored."""
    told = records.get("rollbook.episode", {})
    texts = {key: told[key] for key in _TEXTS if isinstance(told.get(key), str)}
    source = told.get("source")
    seed = told.get("seed", "")
    try:
        metadata = json.loads(records.get("rollbook.metadata", {}).get("json", "{}"))
        checked = {
            key: value
            for key, value in plain_metadata(metadata).items()
            if key not in _ORIGINS and isinstance(value, _KEPT.get(key, object))
        }
    except (ValueError, TypeError, RecursionError):
        checked = {}
    return RecordedFacts(
        **texts,
        source=next((each for each in EPISODE_SOURCES if each == source), None),
        seed=int(seed) if re.fullmatch(r"-?\d{1,40}", seed, re.ASCII) else None,
        metadata=checked,
    )
