"""Tracks of 20 channels with 100,000 samples: the first look and every later one, against loading the whole file."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.stores import scratch, turns
from benchmarks.timing import Claim, best
from rollbook.contracts.npz import write_npz
from rollbook.server.blobs.file_blobs import LocalBlobs
from rollbook.server.blobs.files import info_of
from rollbook.server.kept_values import KeptValues
from rollbook.server.queries import EpisodeRow
from rollbook.server.recordings.recording_file import RecordingFile
from rollbook.server.recordings.tracks import TracksQuery, tracks_of

_CHANNELS = 20
_ROWS = 100_000
_COLUMNS = 1200
_KEY = "episodes/org/episode/sensors.npz"


def main(scale: float = 1.0) -> list[Claim]:
    rows = max(2000, int(_ROWS * scale))
    with scratch() as name:
        path = Path(name) / "objects" / _KEY
        path.parent.mkdir(parents=True)
        write_npz(path, _recording(rows))
        blobs = LocalBlobs(Path(name), b"secret")
        try:
            return _measured(blobs, path, rows, turns(scale))
        finally:
            asyncio.run(blobs.close())


def _recording(rows: int) -> dict[str, Any]:
    seconds = np.arange(rows) / 1000
    arrays: dict[str, Any] = {"/arm/_t_ns": (seconds * 1e9).astype(np.int64)}
    random = np.random.default_rng(0)
    for channel in range(_CHANNELS):
        arrays[f"/arm/q{channel}"] = np.sin(seconds + channel) + random.normal(0, 0.01, rows)
    return arrays


def _measured(blobs: LocalBlobs, path: Path, rows: int, repeats: int) -> list[Claim]:
    about: dict[str, Any] = {**dict.fromkeys(EpisodeRow.__slots__), "metadata": {}, "artifacts": ()}
    episode = EpisodeRow(**about)
    info = info_of(_KEY, path.stat())
    loop = asyncio.new_event_loop()  # only S3 needs it
    kept = KeptValues(128 << 20)

    def look(keeper: KeptValues, asked: TracksQuery) -> bytes:
        file = RecordingFile(blobs, keeper, loop, "sensors", info)
        try:
            return tracks_of([file], {}, episode, asked)
        finally:
            file.close()

    whole = TracksQuery(columns=_COLUMNS)
    end = rows / 1000
    zoom = TracksQuery(0.3 * end, 0.4 * end, _COLUMNS)
    look(kept, whole)
    seconds = best(
        {
            "np.load of everything": lambda: [array for _, array in np.load(path).items()],
            "the disk's limit: reading the file": path.read_bytes,
            "head, first look": lambda: look(KeptValues(128 << 20), TracksQuery()),
            "columns, first look": lambda: look(KeptValues(128 << 20), whole),
            "columns, later": lambda: look(kept, whole),
            "a tenth, later": lambda: look(kept, zoom),
        },
        repeats=repeats,
        clock=time.perf_counter,
    )
    loop.close()
    size = len(look(kept, whole))
    print(f"tracks of {_CHANNELS} channels x {rows:,} samples, {path.stat().st_size / 1e6:.1f} MB:")
    for name, spent in seconds.items():
        print(f"  {name:36} {1000 * spent:8.2f} ms")
    print(f"  an answer of {_COLUMNS} columns has {size / 1e3:.0f} kB")
    load = seconds["np.load of everything"]
    return [
        Claim(
            "tracks: head, of the time of np.load",
            seconds["head, first look"] / load,
            0.5,
            "x",
            True,
        ),
        Claim(
            "tracks: first columns, of np.load",
            seconds["columns, first look"] / load,
            3.0,
            "x",
            True,
        ),
        Claim("tracks: later columns", 1000 * seconds["columns, later"], 20.0, "ms", True),
        Claim("tracks: later zoom", 1000 * seconds["a tenth, later"], 10.0, "ms", True),
    ]
