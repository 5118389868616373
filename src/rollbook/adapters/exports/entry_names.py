"""Names of the entries of vectors, and what they tell: which streams are poses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollbook.adapters.exports.stream_rows import StreamRows

_PAIRS = (("position", "orientation"), ("translation", "rotation"))
"""Fields of a pose in two vectors."""
_SEVEN = (
    ("x", "y", "z", "qx", "qy", "qz", "qw"),
    (
        *("position.x", "position.y", "position.z"),
        *("orientation.x", "orientation.y", "orientation.z", "orientation.w"),
    ),
)
"""Names of the entries of a pose in one vector, in any order."""


@dataclass(frozen=True, slots=True)
class EntryNames:
    by_stream: Mapping[str, Sequence[str]]
    """By namespace, or by `<namespace>/<field>`."""

    @classmethod
    def in_metadata(cls, metadata: Mapping[str, Any]) -> EntryNames:
        """From `channels` of the episode. What is not a list of names is ignored."""
        channels = metadata.get("channels")
        if not isinstance(channels, Mapping):
            return cls({})
        return cls(
            {
                str(name): list(value)
                for name, value in channels.items()
                if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
            }
        )

    def of(self, stream: StreamRows, field: str) -> Sequence[str]:
        names = self.by_stream
        return names.get(f"{stream.namespace}/{field}") or names.get(stream.namespace) or ()


@dataclass(frozen=True, slots=True)
class PoseColumns:
    """Where a stream holds x, y, z and the quaternion x, y, z, w: seven fields and columns."""

    sources: Sequence[tuple[str, int]]
    several: bool
    """Whether a row holds a list of poses."""


def pose_columns(stream: StreamRows, names: EntryNames) -> PoseColumns | None:
    """None where the stream is not a pose, or has other fields too."""
    if any(facts.dtype.str[1:] not in ("f8", "f4") for facts in stream.fields.values()):
        return None
    for position, orientation in _PAIRS:
        if stream.fields.keys() == {position, orientation}:
            shape = stream.row_shape(position)
            is_pose = shape[-1:] == (3,) and stream.row_shape(orientation) == (*shape[:-1], 4)
            if not is_pose or len(shape) > 2 or shape[0] == 0:
                return None
            sources = [(position, i) for i in range(3)] + [(orientation, i) for i in range(4)]
            return PoseColumns(sources, len(shape) == 2)
    if len(stream.fields) == 1:
        [field] = stream.fields
        entries = [name.lower() for name in names.of(stream, field)]
        for seven in _SEVEN:
            if stream.row_shape(field) == (7,) and sorted(entries) == sorted(seven):
                return PoseColumns([(field, entries.index(name)) for name in seven], False)
    return None
