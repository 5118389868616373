"""Importing and exporting recordings: beside the library of each format, doing the same.

An import is `scan` and `encode` of every episode: files are read, compared with what they declare, and written as
artifacts. Its peer is the library of the format, reading everything; where the library gives arrays, the peer writes
them too, with numpy.savez, one file for each episode (`recording_peers`). An export is compared with the bare writer of
its format, given the same rows or messages ready to be written. Everything is CPU time of the process, threads and
system calls included: the best of several repetitions that take turns.

The files are in memory, where the system has a folder for that: an import makes a folder with two files for each
episode, its peer one file, and on a disk the time of short episodes is that of making files. On an ext4 disk, where
making a file takes 0.4 ms, the import of 100 short episodes reaches 37 to 54 % of its peer. ROLLBOOK_BENCH_DIR names
another folder, for example on a disk.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pyarrow.parquet as pq
from rosbags.rosbag2 import StoragePlugin

from benchmarks import recording_files as files
from benchmarks import recording_peers as peers
from benchmarks.stores import scratch
from benchmarks.timing import Claim, best
from rollbook.adapters.exports.mcap import McapExporter
from rollbook.adapters.formats import IMPORTS
from rollbook.adapters.lerobot_export.exporter import LeRobotExporter
from rollbook.adapters.recording import Importer
from rollbook.adapters.steps import h5_file
from tests.adapters.exports.exported_episodes import ignore

_BAR = 50
_REPEATS = 5
Run: TypeAlias = Callable[[Path], object]
"""Writes into an empty folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    what: str
    rows: int
    """Messages or steps."""
    ours: Run
    peer_name: str
    peer: Run
    limits: Mapping[str, Run] = field(default_factory=dict)

    def measured(self, folder: Path, repeats: int) -> Claim:
        runs = {"ours": self.ours, f"peer: {self.peer_name}": self.peer}
        runs |= {f"limit: {name}": run for name, run in self.limits.items()}
        seconds = dict.fromkeys(runs, float("inf"))
        for _ in range(repeats):
            for name, run in runs.items():
                out = folder / "out"
                out.mkdir()
                spent = best({name: partial(run, out)}, repeats=1)[name]
                seconds[name] = min(seconds[name], spent)
                shutil.rmtree(out)
        print(f"{self.what}: {self.rows} rows")
        for name, spent in seconds.items():
            print(f"  {name:40} {spent * 1e3:9.1f} ms  {self.rows / spent:12,.0f} rows/s")
        share = seconds[f"peer: {self.peer_name}"] / seconds["ours"]
        return Claim(f"{self.what} vs {self.peer_name}", share * 100, _BAR, "%")


def main(scale: float = 1.0) -> list[Claim]:
    repeats = _REPEATS if scale > 0.1 else 1
    with scratch(in_memory=True) as name:
        folder = Path(name)
        cases = (_messages, _demonstrations, _datasets, _lerobot, _mcap_export)
        return [case.measured(folder, repeats) for make in cases for case in make(folder, scale)]


def _importing(kind: str, path: Path, stream: str, rows: int) -> Run:
    """Import all episodes, which have so many rows of `stream` together."""

    def run(out: Path) -> None:
        h5_file._check_heaps.cache_clear()  # as in a new process
        importer: Importer = IMPORTS[kind].made_by()()
        recording = importer.scan(path)
        read = 0
        for episode in recording.episodes:
            own = out / f"{episode.index}"
            own.mkdir()
            read += importer.encode(recording, episode.index, own).metadata["read"][stream]
        assert read == rows, f"{read} rows of {stream} were read instead of {rows}"

    return run


def _messages(folder: Path, scale: float) -> Iterator[_Case]:
    count = max(100, int(20_000 * scale))
    for storage in (StoragePlugin.SQLITE3, StoragePlugin.MCAP):
        name = storage.name.lower()
        bag = files.joint_state_bag(folder / f"{name}_bag", count, storage)
        yield _Case(
            what=f"import of ros2 JointStates, {name}",
            rows=count,
            ours=_importing("ros2", bag, "/joint_states", count),
            peer_name="rosbags Reader and deserialize_cdr",
            peer=partial(peers.rosbags_messages, bag),
        )
    path = files.foxglove_file(folder / "foxglove.mcap", count)
    yield _Case(
        what="import of Foxglove JointStates, protobuf",
        rows=count,
        ours=_importing("ros2", path, "/joints", count),
        peer_name="mcap iter_decoded_messages",
        peer=partial(peers.mcap_decoded, path),
    )


def _demonstrations(folder: Path, scale: float) -> Iterator[_Case]:
    for demos, steps in ((10, 12_000), (200, 600)):
        count = max(2, int(demos * scale))
        path = files.robomimic_file(folder / f"{steps}_steps.hdf5", count, steps)
        yield _Case(
            what=f"import of {count} hdf5 demos of {steps} steps",
            rows=count * steps,
            ours=_importing("hdf5", path, "steps", count * steps),
            peer_name="h5py and savez",
            peer=partial(peers.h5py_savez, path),
            limits={"h5py, into memory": partial(peers.h5py_read, path)},
        )


def _datasets(folder: Path, scale: float) -> Iterator[_Case]:
    episodes, steps = max(2, int(100 * scale)), 1000
    rows = episodes * steps
    path = files.minari_dataset(folder / "minari", episodes, steps)
    yield _Case(
        what=f"import of {episodes} minari episodes, hdf5",
        rows=rows,
        ours=_importing("minari", path, "steps", rows),
        peer_name="h5py and savez",
        peer=partial(peers.minari_savez, path),
    )
    path = files.zarr_buffer(folder / "buffer.zarr", episodes, steps)
    yield _Case(
        what=f"import of {episodes} zarr-buffer episodes",
        rows=rows,
        ours=_importing("zarr-buffer", path, "state", rows),
        peer_name="zarr, whole arrays, and savez",
        peer=partial(peers.zarr_savez, path),
    )
    path = files.rlds_dataset(folder / "robot" / "1.0.0", episodes, steps)
    yield _Case(
        what=f"import of {episodes} rlds episodes",
        rows=rows,
        ours=_importing("rlds", path, "action", rows),
        peer_name="google_crc32c, protobuf and savez",
        peer=partial(peers.protobuf_savez, path),
    )


def _lerobot(folder: Path, scale: float) -> Iterator[_Case]:
    episodes, frames = 20, max(10, int(5000 * scale))
    rows = episodes * frames
    given = files.lerobot_episodes(folder / "to_lerobot", episodes, frames)
    exported = folder / "lerobot"
    LeRobotExporter().write(given, exported, ignore)
    table = pq.read_table(exported / "data", partitioning=None).combine_chunks()
    yield _Case(
        what=f"export of {rows} lerobot frames",
        rows=rows,
        ours=lambda out: LeRobotExporter().write(given, out / "dataset", ignore),
        peer_name="pyarrow write_table",
        peer=lambda out: pq.write_table(table, out / "table.parquet", compression="snappy"),
    )
    yield _Case(
        what=f"import of {rows} lerobot frames",
        rows=rows,
        ours=_importing("lerobot", exported, "rows", rows),
        peer_name="pyarrow, whole tables, and savez",
        peer=partial(peers.parquet_savez, exported),
    )


def _mcap_export(folder: Path, scale: float) -> Iterator[_Case]:
    rows = max(100, int(50_000 * scale))
    given = files.arm_episodes(folder / "to_mcap", rows)
    McapExporter().write(given, folder / "arm.mcap", ignore)
    messages = peers.mcap_messages(folder / "arm.mcap")
    yield _Case(
        what=f"export of {len(messages)} mcap messages",
        rows=len(messages),
        ours=lambda out: McapExporter().write(given, out / "arm.mcap", ignore),
        peer_name="the bare mcap Writer",
        peer=partial(peers.mcap_written, messages),
    )
