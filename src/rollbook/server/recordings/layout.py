"""Layout: which arrays of a recording are channels, which are pictures, and when each row was recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.episode import FILE_NAMES, ArtifactKind
from rollbook.contracts.npz import ArrayFacts
from rollbook.contracts.streams import CLOCK_FIELD, ONLY_FIELD, split_key
from rollbook.contracts.typed_metadata import TYPE_KEY, JointState
from rollbook.errors import InvalidValue
from rollbook.scoring.actions import key_parts
from rollbook.server.queries import EpisodeRow
from rollbook.server.recordings.recording_file import (
    MOST_TIMES,
    FileContent,
    RecordingFile,
    reason_of,
)
from rollbook.server.recordings.sample_clock import (
    SampleClock,
    assumed_clock,
    clock_words,
    recorded_clock,
    start_of,
)

ChannelKind: TypeAlias = Literal["sensor", "action"]

MOST_PER_ROW = 64
"""Values of one row that become channels; an array with more is not drawn."""
_LONGEST_LABEL = 200
MOST_CHANNELS = 1024
_LEAST_PICTURE = 8
_COLOURS = (1, 3, 4)
_NUMBER_TYPES = ("bool", "int", "uint", "float")
_PICTURE_WORDS = (
    *("image", "img", "picture", "depth", "rgb", "gray", "grey", "camera", "cam", "pixel", "frame"),
    *("mask", "segment", "disparity", "thermal", "infrared", "video"),
)
_NUMBERS = "biuf"
_KINDS: Mapping[ArtifactKind, ChannelKind] = {"sensors": "sensor", "actions": "action"}
_UNITS = {
    **{"v": "V", "a": "A", "s": "s", "ms": "ms", "m": "m", "mm": "mm", "n": "N", "nm": "N·m"},
    **{"rad": "rad", "deg": "°", "hz": "Hz", "c": "°C", "pct": "%", "percent": "%"},
    **{"voltage": "V", "current": "A", "angular_velocity": "rad/s"},
    "linear_acceleration": "m/s²",
}
"""By the end of a field's name, or by the whole name where ROS defines the unit of that field."""


@dataclass(frozen=True, slots=True)
class Channel:
    name: str
    label: str


@dataclass(frozen=True, slots=True)
class ChannelArray:
    """One array of numbers: a row at each time, a channel for each value of a row."""

    artifact: ArtifactKind
    key: str
    topic: str
    unit: str | None
    clock: SampleClock
    rate: float | None
    gaps: int
    channels: tuple[Channel, ...]
    itemsize: int

    @property
    def kind(self) -> ChannelKind:
        return _KINDS[self.artifact]

    @property
    def rows(self) -> int:
        return len(self.clock.seconds)


@dataclass(frozen=True, slots=True)
class PictureArray:
    artifact: ArtifactKind
    key: str
    name: str
    clock: SampleClock
    rate: float | None
    gaps: int
    height: int
    width: int
    colours: int
    colours_first: bool
    row_bytes: int

    @property
    def frames(self) -> int:
        return len(self.clock.seconds)


@dataclass(frozen=True, slots=True)
class Layout:
    arrays: tuple[ChannelArray, ...]
    pictures: tuple[PictureArray, ...]
    skipped: tuple[tuple[str, str], ...]
    """Names of arrays and files that are not drawn, or not as they are, and why."""
    duration: float
    clock: str
    """`recorded`, `rate`, `spread` or `rows`; `mixed` where arrays differ; `none` without arrays."""


def layout_of(
    files: Sequence[RecordingFile], missing: Mapping[str, str], episode: EpisodeRow
) -> Layout:
    """Kept under the identity of the files, and under everything of the episode that it depends on."""
    names = ChannelNames.of(episode.metadata)
    if not files:
        return _with(_Builder(episode, names).build(files), missing)
    place = f"layout {episode.fps} {episode.duration_s} {names} {[each.identity for each in files]}"
    layout: Layout | None = files[0].kept(place, "")
    if layout is None:
        layout = _Builder(episode, names).build(files)
        clocks = {id(array.clock): array.clock.seconds.nbytes for array in layout.arrays}
        size = sum(clocks.values()) + 500 * sum(len(array.channels) for array in layout.arrays)
        files[0].keep(place, "", layout, size + 1000)
    return _with(layout, missing)


def _with(layout: Layout, missing: Mapping[str, str]) -> Layout:
    if not missing:
        return layout
    skipped = (*missing.items(), *layout.skipped)
    return Layout(layout.arrays, layout.pictures, skipped, layout.duration, layout.clock)


class _Builder:
    def __init__(self, episode: EpisodeRow, names: ChannelNames) -> None:
        self._fps = episode.fps if episode.fps and math.isfinite(episode.fps) else None
        self._duration = episode.duration_s or None
        self._names = names
        self._arrays: list[ChannelArray] = []
        self._pictures: list[PictureArray] = []
        self._skipped: list[tuple[str, str]] = []
        self._taken: set[str] = set()
        self._channels = 0
        self._assumed_clocks: dict[int, SampleClock] = {}

    def build(self, files: Sequence[RecordingFile]) -> Layout:
        contents: dict[ArtifactKind, FileContent] = {}
        for each in files:
            try:
                contents[each.kind] = each.content()
            except InvalidValue as error:
                self._skipped.append((FILE_NAMES[each.kind], reason_of(error)))
        start_ns = start_of(
            *(
                contents[kind].clocks.values() if kind in contents else ()
                for kind in ("sensors", "actions")
            )
        )
        for kind, content in contents.items():
            self._skipped += content.unreadable.items()
            self._add(kind, content, _clock_finder(content, start_ns))
        clocks = [each.clock for each in self._arrays] + [each.clock for each in self._pictures]
        ends = [float(clock.seconds[-1]) for clock in clocks if clock.kind != "rows"]
        duration = max([self._duration or 0.0, *ends])
        if duration <= 0:
            duration = max((float(len(clock.seconds)) for clock in clocks), default=0.0)
        return Layout(
            tuple(self._arrays),
            tuple(self._pictures),
            tuple(self._skipped),
            duration,
            clock_words(clock.kind for clock in clocks),
        )

    def _add(
        self,
        artifact: ArtifactKind,
        content: FileContent,
        clock_for: Callable[[str, int], tuple[SampleClock | None, str | None]],
    ) -> None:
        clocks: dict[int, tuple[float | None, int]] = {}
        for key, facts in content.arrays.items():
            if key_parts(key)[1] == CLOCK_FIELD:
                continue
            why = _why_not_drawn(facts)
            picture = picture_shape(key, str(facts.dtype), facts.shape)
            if why is None and picture is None:
                why = self._too_many(facts)
            if why is not None:
                self._skipped.append((key, why))
                continue
            clock, note = clock_for(key, facts.shape[0])
            if clock is None:
                clock = self._assumed(facts.shape[0])
            if clock is None:
                self._skipped.append((key, f"it has {facts.shape[0]:,} rows without a clock"))
                continue
            if note is not None:
                self._skipped.append((key, note))
            if id(clock) not in clocks:
                clocks[id(clock)] = clock.rate, clock.gaps
            rate, gaps = clocks[id(clock)]
            name = self._name(artifact, key)
            if picture is not None:
                shape, first = picture
                row_bytes = facts.dtype.itemsize * math.prod(facts.shape[1:])
                self._pictures.append(
                    PictureArray(artifact, key, name, clock, rate, gaps, *shape, first, row_bytes)
                )
            else:
                self._arrays.append(
                    ChannelArray(
                        artifact,
                        key,
                        name.removesuffix(f"/{ONLY_FIELD}"),
                        _unit(key),
                        clock,
                        rate,
                        gaps,
                        self._channels_of(name, key, facts),
                        facts.dtype.itemsize,
                    )
                )

    def _assumed(self, rows: int) -> SampleClock | None:
        """None where even a clock would fill the memory."""
        known = self._assumed_clocks.get(rows)
        if known is None and sum(self._assumed_clocks) + rows <= MOST_TIMES:
            known = assumed_clock(rows, self._fps, self._duration)
            self._assumed_clocks[rows] = known
        return known

    def _too_many(self, facts: ArrayFacts) -> str | None:
        width = math.prod(facts.shape[1:])
        if width > MOST_PER_ROW:
            return f"it has {width} values in a row; at most {MOST_PER_ROW} are drawn"
        if self._channels + width > MOST_CHANNELS:
            return f"the recording has more than {MOST_CHANNELS} channels"
        self._channels += width
        return None

    def _name(self, artifact: ArtifactKind, key: str) -> str:
        """The key. If sensors and actions use the same one, that of the actions says so."""
        name = key if key not in self._taken else f"{artifact}:{key}"
        self._taken.add(name)
        return name

    def _channels_of(self, name: str, key: str, facts: ArrayFacts) -> tuple[Channel, ...]:
        shape = facts.shape[1:]
        if not shape:
            return (Channel(name, split_key(key)[1]),)
        places = [".".join(map(str, each)) for each in np.ndindex(*shape)]
        labels = self._names.of_array(key, shape) or places
        return tuple(
            Channel(f"{name}/{place}", label) for place, label in zip(places, labels, strict=True)
        )


def _clock_finder(
    content: FileContent, start_ns: int
) -> Callable[[str, int], tuple[SampleClock | None, str | None]]:
    made: dict[str, SampleClock] = {}

    def clock_for(key: str, rows: int) -> tuple[SampleClock | None, str | None]:
        """The clock of an array, and what is to be said about it."""
        for clock_key in (
            f"{split_key(key)[0]}/{CLOCK_FIELD}",
            f"{key_parts(key)[0]}/{CLOCK_FIELD}",
        ):
            times = _times(content.clocks, clock_key)
            if times is None:
                continue
            if len(times) != rows:
                return None, f"its clock has {len(times)} times for {rows} rows, and is not used"
            if clock_key not in made:
                made[clock_key] = recorded_clock(times, start_ns)
            return made[clock_key], made[clock_key].note
        return None, None

    return clock_for


def _times(clocks: Mapping[str, NDArray[np.int64]], clock_key: str) -> NDArray[np.int64] | None:
    """A clock of an array without a namespace may stand there with and without a slash."""
    return clocks.get(clock_key, clocks.get(clock_key.removeprefix("/")))


def _why_not_drawn(facts: ArrayFacts) -> str | None:
    if not facts.shape:
        return "it is a single value"
    if 0 in facts.shape:
        return "it is empty"
    if facts.dtype.kind not in _NUMBERS:
        words = {"U": "text", "S": "text", "c": "complex numbers"}
        return f"it holds {words.get(facts.dtype.kind, 'times')}, not plain numbers"
    return None


def picture_shape(
    key: str, dtype: str, rows: Sequence[int]
) -> tuple[tuple[int, int, int], bool] | None:
    """Of an array with this key, type and shape: height, width and colours of each row, and whether the colours come
    first. None unless the rows look like pictures: bytes of that shape, or other numbers that are called pictures."""
    if 0 in rows or not dtype.startswith(_NUMBER_TYPES):
        return None
    if dtype != "uint8" and not any(word in key.lower() for word in _PICTURE_WORDS):
        return None
    shape = tuple(rows[1:])
    if len(shape) == 2 and min(shape) >= _LEAST_PICTURE:
        return (shape[0], shape[1], 1), False
    if len(shape) != 3:
        return None
    if shape[2] in _COLOURS and min(shape[:2]) >= _LEAST_PICTURE:
        return (shape[0], shape[1], shape[2]), False
    if shape[0] in _COLOURS and min(shape[1:]) >= _LEAST_PICTURE:
        return (shape[1], shape[2], shape[0]), True
    return None


def _unit(key: str) -> str | None:
    field = split_key(key)[1].lower()
    if field in _UNITS and len(field) > 3:
        return _UNITS[field]
    before, underscore, end = field.rpartition("_")
    return _UNITS.get(end) if underscore and before else None


@dataclass(frozen=True, slots=True)
class ChannelNames:
    """What the metadata of an episode calls the values of a row."""

    joints: tuple[str, ...]
    of_streams: tuple[tuple[str, tuple[str, ...]], ...]
    """By namespace, as importers write them under `channels`."""

    @classmethod
    def of(cls, metadata: Mapping[str, object]) -> ChannelNames:
        stated = metadata.get("channels")
        streams = stated.items() if isinstance(stated, Mapping) else ()
        known = [(str(name), tuple(each)) for name, each in streams if _are_names(each)]
        return cls(_joint_names(metadata), tuple(known))

    def of_array(self, key: str, shape: tuple[int, ...]) -> tuple[str, ...] | None:
        """None where the values have no names, or another number of them."""
        if len(shape) != 1:
            return None
        stated = dict(self.of_streams).get(split_key(key)[0], ())
        if len(stated) == shape[0]:
            return stated
        return self.joints if "joint" in key.lower() and len(self.joints) == shape[0] else None


def _are_names(value: object) -> TypeGuard[list[str]]:
    return (
        isinstance(value, list)
        and 0 < len(value) <= MOST_PER_ROW
        and all(isinstance(each, str) and 0 < len(each) <= _LONGEST_LABEL for each in value)
    )


def _joint_names(metadata: Mapping[str, object]) -> tuple[str, ...]:
    """The names of the joints, from the first typed joint state of the metadata that has them."""
    for value in metadata.values():
        if isinstance(value, Mapping) and value.get(TYPE_KEY) == JointState.wire_name:
            names = value.get("names")
            if isinstance(names, list) and all(isinstance(each, str) for each in names):
                return tuple(names)
    return ()
