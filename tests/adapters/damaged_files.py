"""Files that are cut off or changed by chance: an importer reads them, or refuses them with an error of Rollbook."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from rollbook.adapters.recording import Importer
from rollbook.errors import RollbookError


def cut_off(data: bytes, times: int = 12) -> Iterator[bytes]:
    for part in np.linspace(0, len(data) - 1, times, dtype=int):
        yield data[:part]


def changed(data: bytes, times: int = 40, seed: int = 1) -> Iterator[bytes]:
    """One to eight bytes are others."""
    rng = np.random.default_rng(seed)
    for _ in range(times if data else 0):
        copy = bytearray(data)
        for at in rng.integers(0, len(data), rng.integers(1, 9)):
            copy[at] = rng.integers(0, 256)
        yield bytes(copy)


def outcomes_of_damage(
    make: Callable[[Path], Path], importer: Importer, folder: Path, most: int = 52
) -> dict[str, int]:
    """Every file of a recording is damaged in turn. Anything but a RollbookError is raised. Counts what happened."""
    recording = make(folder / "whole")
    files = [recording] if recording.is_file() else sorted(recording.rglob("*"))
    counts = {"read": 0, "refused": 0, "damage said": 0}
    for file in (each for each in files if each.is_file()):
        data = file.read_bytes()
        variants = [*cut_off(data), *changed(data)][: most if len(data) > 64 else 8]
        for variant in variants:
            file.write_bytes(variant)
            _try(importer, recording, folder / "out", counts)
        file.write_bytes(data)
    before = counts["read"]
    _try(importer, recording, folder / "out", counts)
    assert counts["read"] > before, "the files are whole again"
    return counts


def _try(importer: Importer, path: Path, out: Path, counts: dict[str, int]) -> None:
    try:
        recording = importer.scan(path)
        for episode in recording.episodes:
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir(parents=True)
            encoded = importer.encode(recording, episode.index, out)
            counts["damage said" if "damage" in encoded.metadata else "read"] += 1
    except RollbookError:
        counts["refused"] += 1
