"""Tracks: the channels of a recording as columns of minimum and maximum, for a picture.

The answer is a JSON head and a block of 32-bit floats, in one body: a uint32 with the length of the head, the head
padded with spaces to a multiple of four bytes, then [channel][column][minimum, maximum], all little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import InvalidValue
from rollbook.server.http.responses import json_bytes
from rollbook.server.queries import EpisodeRow
from rollbook.server.recordings.columns import ColumnBounds, as_samples, column_starts
from rollbook.server.recordings.layout import Channel, ChannelArray, Layout, PictureArray, layout_of
from rollbook.server.recordings.recording_file import MOST_KEPT_OF_ONE, RecordingFile, reason_of

Ranges: TypeAlias = "tuple[NDArray[np.float32], NDArray[np.float32]]"
"""The least and the greatest value of every channel."""
Some: TypeAlias = "list[tuple[ChannelArray, list[Channel]]]"
"""Arrays, each with some of its channels."""

VERSION = 1
MOST_COLUMNS = 4096
MOST_DRAWN = 128
"""Channels in one answer."""
_MOST_TIMES = 10_000
_MOST_ALIKE = 4
"""Names that are listed with one reason; of more, the first ones and how many there are."""
_RANGE_BYTES = 1000


@dataclass(frozen=True, slots=True)
class TracksQuery:
    begin: float | None = None
    """Seconds; None: the start of the episode."""
    end: float | None = None
    columns: int = 0
    """0: the head alone."""
    names: tuple[str, ...] = ()
    """Channels; empty: the first ones."""


def tracks_of(
    files: Sequence[RecordingFile],
    missing: Mapping[str, str],
    episode: EpisodeRow,
    asked: TracksQuery,
) -> bytes:
    """Runs in a thread."""
    layout = layout_of(files, missing, episode)
    begin = 0.0 if asked.begin is None else asked.begin
    end = layout.duration if asked.end is None else asked.end
    chosen, others, skipped = _chosen(layout, asked)
    by_kind = {each.kind: each for each in files}
    heads: list[dict[str, Any]] = []
    blocks: list[NDArray[np.float32]] = []
    for array, channels in chosen:
        drawn = None
        ranges: Ranges | None = by_kind[array.artifact].kept("range", array.key)
        if asked.columns and end > begin:
            try:
                drawn, found = _columns(by_kind[array.artifact], array, begin, end, asked.columns)
                ranges = ranges or found
            except InvalidValue as error:
                skipped.append((array.topic, reason_of(error)))
                continue
        heads += [_head_of(array, *each, ranges) for each in _placed(array, channels)]
        if drawn is not None:
            blocks.append(drawn[[place for _, place in _placed(array, channels)]])
    head = {
        "version": VERSION,
        "from": begin,
        "to": end,
        "duration": layout.duration,
        "columns": asked.columns if end > begin else 0,
        "clock": layout.clock,
        "channels": heads,
        "more": [
            _head_of(array, *each, None) for array, some in others for each in _placed(array, some)
        ],
        "images": [_picture_head(each) for each in layout.pictures],
        "skipped": folded(skipped),
    }
    return packed(head, blocks)


def packed(head: Mapping[str, Any], blocks: Sequence[NDArray[Any]]) -> bytes:
    """The numbers of the blocks have 32 bits."""
    text = json_bytes(head)
    text += b" " * (-len(text) % 4)
    data = (block.astype(block.dtype.newbyteorder("<"), "C").tobytes() for block in blocks)
    return b"".join((struct.pack("<I", len(text)), text, *data))


def _chosen(layout: Layout, asked: TracksQuery) -> tuple[Some, Some, list[tuple[str, str]]]:
    """What is drawn; what can be asked for by name in another answer; what is left out, and why."""
    skipped = list(layout.skipped)
    wanted = set(asked.names)
    found: Some = []
    others: Some = []
    left = MOST_DRAWN if asked.columns else sum(len(each.channels) for each in layout.arrays)
    for array in layout.arrays:
        here = [each for each in array.channels if not wanted or each.name in wanted]
        if some := here[:left]:
            found.append((array, some))
        if rest := here[left:]:
            others.append((array, rest))
        left -= len(some)
    if wanted and others:
        why = f"only {MOST_DRAWN} channels are drawn at once; choose fewer"
        skipped += [(array.topic, why) for array, _ in others]
        others = []
    known = {each.name for array in layout.arrays for each in array.channels}
    skipped += [(name, "there is no such channel") for name in asked.names if name not in known]
    return found, others, skipped


def _placed(array: ChannelArray, some: Sequence[Channel]) -> list[tuple[Channel, int]]:
    """Each with its place in the array."""
    places = {each.name: place for place, each in enumerate(array.channels)}
    return [(each, places[each.name]) for each in some]


def folded(skipped: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """A recording can have thousands of arrays that are left out for the same reason: those are one line."""
    by_reason: dict[str, list[str]] = {}
    for name, why in skipped:
        by_reason.setdefault(why, []).append(name)
    return [
        {"name": name, "why": why}
        for why, names in by_reason.items()
        for name in (names if len(names) <= _MOST_ALIKE else [_first_of(names)])
    ]


def _first_of(names: Sequence[str]) -> str:
    return f"{', '.join(names[: _MOST_ALIKE - 1])} and {len(names) - _MOST_ALIKE + 1:,} more"


def _columns(
    file: RecordingFile, array: ChannelArray, begin: float, end: float, columns: int
) -> tuple[NDArray[np.float32], Ranges | None]:
    """[channel, column, 2] for all channels of the array, and their ranges if all samples were seen."""
    starts = column_starts(array.clock.seconds, begin, end, columns)
    bounds = ColumnBounds(starts, len(array.channels))
    samples = kept_samples(file, array)
    if samples is not None:
        bounds.add(0, samples)
        return bounds.pairs(), _kept_ranges(file, array, samples)
    first, stop = int(starts[0]), int(starts[-1])
    row = first
    for piece in file.rows(array.key, first, stop):
        bounds.add(row, as_samples(piece))
        row += len(piece)
    if (first, stop) != (0, array.rows):
        return bounds.pairs(), None
    extremes = np.concatenate((bounds.low, bounds.high), axis=1)
    return bounds.pairs(), _kept_ranges(file, array, extremes)


def _kept_ranges(file: RecordingFile, array: ChannelArray, samples: NDArray[np.float32]) -> Ranges:
    ranges: Ranges | None = file.kept("range", array.key)
    if ranges is None:
        ranges = _finite_range(samples)
        file.keep("range", array.key, ranges, _RANGE_BYTES)
    return ranges


def kept_samples(file: RecordingFile, array: ChannelArray) -> NDArray[np.float32] | None:
    """[channel, row]: the whole array. None if it is too large to stay in memory."""
    size = array.rows * len(array.channels) * 4
    if size > MOST_KEPT_OF_ONE:
        return None
    kept: NDArray[np.float32] | None = file.kept("samples", array.key)
    if kept is None:
        kept = np.empty((len(array.channels), array.rows), np.float32)
        row = 0
        for piece in file.rows(array.key, 0, array.rows):
            kept[:, row : row + len(piece)] = as_samples(piece)
            row += len(piece)
        file.keep("samples", array.key, kept, size)
    return kept


def _finite_range(samples: NDArray[np.float32]) -> Ranges:
    """The least and the greatest finite value of each channel; NaN where there is none."""
    lows, highs = np.fmin.reduce(samples, axis=1), np.fmax.reduce(samples, axis=1)
    for channel in np.flatnonzero(~np.isfinite(lows) | ~np.isfinite(highs)):
        finite = samples[channel][np.isfinite(samples[channel])]
        lows[channel], highs[channel] = (
            (finite.min(), finite.max()) if finite.size else (np.nan, np.nan)
        )
    return lows, highs


def _head_of(
    array: ChannelArray, channel: Channel, place: int, ranges: Ranges | None
) -> dict[str, Any]:
    """The range is unknown until the array was drawn once."""
    low, high = (None, None) if ranges is None else (_number(each[place]) for each in ranges)
    return {
        "name": channel.name,
        "topic": array.topic,
        "label": channel.label,
        "kind": array.kind,
        "unit": array.unit,
        "lo": low,
        "hi": high,
        "samples": array.rows,
        "rate": array.rate,
        "gaps": array.gaps,
    }


def _number(value: np.float32) -> float | None:
    return float(value) if np.isfinite(value) else None


def _picture_head(picture: PictureArray) -> dict[str, Any]:
    """With the time of every frame, unless the rate says it."""
    seconds = picture.clock.seconds
    is_even = picture.clock.kind in ("rate", "rows") or picture.frames > _MOST_TIMES
    times = {"rate": picture.rate or 1.0} if is_even else {"times": seconds.round(6).tolist()}
    return {
        "name": picture.name,
        "frames": picture.frames,
        "width": picture.width,
        "height": picture.height,
        **times,
    }
