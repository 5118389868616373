"""Differences: how far the actions of a replay are from those of its baseline, step by step, as tracks.

There is one channel for every key that both have: the Euclidean distance between the two rows. Steps are paired by
their number if both recordings run at the same rate, and else by time: a row of the baseline is compared with the last
row of the replay that was there by then. Where the replay has ended there is no value.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollbook.scoring.actions import policy_key
from rollbook.server.context import Caller, ServerContext
from rollbook.server.queries import EpisodeRow
from rollbook.server.recordings.columns import ColumnBounds, column_starts
from rollbook.server.recordings.layout import ChannelArray, layout_of
from rollbook.server.recordings.recording_file import RecordingFile, read_recording
from rollbook.server.recordings.tracks import VERSION, TracksQuery, folded, kept_samples, packed

Pairing: TypeAlias = Literal["step", "clock"]
Actions: TypeAlias = "dict[str, tuple[ChannelArray, NDArray[np.float32]]]"
"""By the key as policies see it."""

_SAME_RATE = 0.01
"""Rates that differ by a smaller share are the same."""
_LATE_STEPS = 1.5
"""A replay whose last row is older than this many of its steps has ended."""


async def action_differences(
    context: ServerContext,
    caller: Caller,
    baseline: EpisodeRow,
    replay: EpisodeRow,
    asked: TracksQuery,
) -> bytes:
    """The same format as `tracks_of`. Times are those of the baseline. Both episodes are the caller's to read."""
    one, other = [
        await read_recording(context, caller, each, partial(_actions, episode=each))
        for each in (baseline, replay)
    ]
    return await asyncio.to_thread(_tracks, one, other, asked)


def _actions(
    files: Sequence[RecordingFile], missing: Mapping[str, str], episode: EpisodeRow
) -> tuple[Actions, list[tuple[str, str]], float]:
    layout = layout_of(files, missing, episode)
    file = next((each for each in files if each.kind == "actions"), None)
    found: Actions = {}
    skipped = [each for each in layout.skipped if file is None]
    for array in layout.arrays if file is not None else ():
        if array.artifact == "actions" and file is not None:
            samples = kept_samples(file, array)
            if samples is None:
                skipped.append((array.topic, "it is too large to be compared"))
            else:
                found[policy_key(array.key)] = array, samples
    return found, skipped, layout.duration


def _tracks(
    one: tuple[Actions, list[tuple[str, str]], float],
    other: tuple[Actions, list[tuple[str, str]], float],
    asked: TracksQuery,
) -> bytes:
    baseline, skipped, duration = one
    replay = other[0]
    begin = 0.0 if asked.begin is None else asked.begin
    end = duration if asked.end is None else asked.end
    skipped = [*skipped, *other[1]]
    heads: list[dict[str, Any]] = []
    blocks = []
    for key, (array, values) in baseline.items():
        name = difference_name(array.topic)
        if asked.names and name not in asked.names:
            continue
        if key not in replay:
            skipped.append((array.topic, "the replay has no such action"))
            continue
        pair, others = replay[key]
        if len(values) != len(others):
            why = f"the baseline has {len(values)} values in a row, the replay {len(others)}"
            skipped.append((array.topic, why))
            continue
        distance, pairing = step_distance(array.clock.seconds, values, pair.clock.seconds, others)
        finite = distance[np.isfinite(distance)]
        heads.append(
            {
                "name": name,
                "topic": name,
                "label": f"difference by {pairing}",
                "kind": "action",
                "unit": array.unit,
                "lo": 0.0,
                "hi": float(finite.max()) if finite.size else None,
                "samples": array.rows,
                "rate": array.rate,
                "gaps": array.gaps,
            }
        )
        if asked.columns and end > begin:
            starts = column_starts(array.clock.seconds, begin, end, asked.columns)
            bounds = ColumnBounds(starts, 1)
            bounds.add(0, distance[None])
            blocks.append(bounds.pairs())
    new = [array.topic for key, (array, _) in replay.items() if key not in baseline]
    skipped += [(topic, "the baseline has no such action") for topic in new]
    head = {
        "version": VERSION,
        "from": begin,
        "to": end,
        "duration": duration,
        "columns": asked.columns if end > begin else 0,
        "clock": "recorded",
        "channels": heads,
        "more": [],
        "images": [],
        "skipped": folded(skipped),
    }
    return packed(head, blocks)


def difference_name(topic: str) -> str:
    """Another name than those of the actions: a page shows both."""
    return f"Action difference, {topic}"


def step_distance(
    seconds: NDArray[np.float64],
    values: NDArray[np.float32],
    other_seconds: NDArray[np.float64],
    others: NDArray[np.float32],
) -> tuple[NDArray[np.float32], Pairing]:
    """For every row of the first recording, its distance to the paired row of the other; NaN without one.

    Values are [channel, row].
    """
    rows, pairing = _paired_rows(seconds, other_seconds)
    distance = np.full(len(seconds), np.nan, np.float32)
    there = rows >= 0
    with np.errstate(all="ignore"):
        gap = values[:, there].astype(np.float64) - others[:, rows[there]]
        distance[there] = np.sqrt(np.square(gap).sum(axis=0))
    return distance, pairing


def _paired_rows(
    seconds: NDArray[np.float64], other_seconds: NDArray[np.float64]
) -> tuple[NDArray[np.int64], Pairing]:
    """The row of the other recording for each row; -1 where there is none."""
    steps = [_mean_step(each) for each in (seconds, other_seconds)]
    mine, theirs = steps
    if mine is None or theirs is None or abs(mine - theirs) <= _SAME_RATE * mine:
        rows = np.arange(len(seconds))
        rows[len(other_seconds) :] = -1
        return rows, "step"
    rows = np.searchsorted(other_seconds, seconds, "right") - 1
    rows[seconds > other_seconds[-1] + _LATE_STEPS * theirs] = -1
    return rows.astype(np.int64), "clock"


def _mean_step(seconds: NDArray[np.float64]) -> float | None:
    if len(seconds) < 2 or seconds[-1] <= seconds[0]:
        return None
    return float(seconds[-1] - seconds[0]) / (len(seconds) - 1)
