"""Writing a store: rows per second against the disk and zarr-python, images against their codec, and memory."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.stores import files_of, peer, records_for, scratch, size_of, turns, write_store
from benchmarks.timing import Claim, best
from rollbook.digest import checksum
from rollbook.store.rasters import blosc
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.records import RolloutZarrRecord
from rollbook.store.schema import TABLES

_ROWS = 60_000
_IMAGES = 1000
_STREAMED = 1_000_000
_ROOT = Path(__file__).resolve().parents[1]


def main(scale: float = 1.0) -> list[Claim]:
    with scratch() as folder:
        return [
            *_rows(Path(folder) / "rows", max(600, int(_ROWS * scale)), turns(scale)),
            *_images(Path(folder) / "images", max(10, int(_IMAGES * scale)), turns(scale)),
            *_memory(Path(folder) / "memory", max(600, int(_STREAMED * scale))),
        ]


# ----------------------------------------------------------------------------------------------- rows


def _rows(folder: Path, rows: int, repeats: int) -> list[Claim]:
    folder.mkdir()
    records = list(records_for(rows))
    first = write_store(folder / "first", records)
    reader = RolloutZarrStoreReader(first)
    size, files = size_of(first), len(files_of(first))
    data = b"".join(path.read_bytes() for path in files_of(first))
    number = itertools.count()
    runs: dict[str, Any] = {
        "ours, checksums and fsync": lambda: write_store(folder / f"{next(number)}", records),
        "limit: the bytes in one file, fsync": lambda: _write(folder / f"{next(number)}", data),
        "limit: their checksum": lambda: checksum(data),
    }
    zarr = peer("zarr")
    if zarr is not None:
        columns = _columns(reader)
        runs["zarr-python, flat columns, neither"] = lambda: _zarr_write(
            zarr, folder / f"{next(number)}", columns
        )
    seconds = best(runs, repeats=repeats, clock=time.perf_counter)
    total = reader.num_candidates
    print(f"store write: {total} candidate rows, {size / 1e6:.1f} MB in {files} files")
    for name, spent in seconds.items():
        print(f"  {name:36} {spent * 1e3:9.1f} ms  {total / spent:12,.0f} rows/s")
    return [
        Claim(
            "candidate rows written per second",
            total / seconds["ours, checksums and fsync"],
            1e5,
            "",
        ),
        Claim(f"files of {total} candidate rows", files, 299, "files", at_most=True),
    ]


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _columns(reader: RolloutZarrStoreReader) -> dict[str, Any]:
    return {
        f"{table}/{name}": np.array(values)
        for table in TABLES
        for name, values in reader.table(table).items()
    }


def _zarr_write(zarr: Any, folder: Path, columns: dict[str, Any]) -> None:
    """The same columns, already in order, one raw chunk each."""
    root = zarr.create_group(str(folder))
    for path, values in columns.items():
        chunks = tuple(max(1, size) for size in values.shape)
        root.create_array(path, data=values, chunks=chunks, compressors=None)


# --------------------------------------------------------------------------------------------- images


def _images(folder: Path, images: int, repeats: int) -> list[Claim]:
    folder.mkdir()
    records = list(records_for(images * 60, depth=(240, 240)))
    frames = _frames(records)
    number = itertools.count()
    seconds = best(
        {
            "ours, whole store": lambda: write_store(
                folder / f"{next(number)}", records, selected_depth_enabled=True
            ),
            "ours without images": lambda: write_store(folder / f"{next(number)}", records),
            "limit: the codec alone": lambda: _encode(frames),
        },
        repeats=repeats,
        clock=time.perf_counter,
    )
    size = sum(depth.nbytes + mask.nbytes for depth, mask in frames)
    print(f"store write with depth: {len(frames)} images of 240 x 240, {size / 1e6:.1f} MB raw")
    for name, spent in seconds.items():
        print(f"  {name:36} {spent * 1e3:9.1f} ms  {len(frames) / spent:12,.0f} images/s")
    share = seconds["limit: the codec alone"] / seconds["ours, whole store"]
    return [Claim("store with depth vs its codec alone", share * 100, 50, "%")]


def _frames(records: list[RolloutZarrRecord]) -> list[tuple[Any, Any]]:
    """What the codec is given: half floats and masks, as plain integers."""
    depths = [
        step.selected_depth
        for record in records
        for chain in record.result.chains
        for step in chain.steps
    ]
    return [
        (each.depth_m.astype(np.float16).view(np.uint16), each.valid_mask.view(np.uint8))
        for each in depths
        if each is not None
    ]


def _encode(frames: list[tuple[Any, Any]]) -> None:
    of_depth, of_mask = blosc(2), blosc(1)
    for depth, mask in frames:
        of_depth.encode(depth)
        of_mask.encode(mask)


# --------------------------------------------------------------------------------------------- memory


def _memory(folder: Path, rows: int) -> list[Claim]:
    folder.mkdir()
    print("streaming write, in a process of its own:")
    grown = [_streamed(folder / f"{part}", rows // part) for part in (10, 1)][-1]
    return [Claim(f"memory of streaming {rows} candidate rows", grown, 600, "MB", at_most=True)]


def _streamed(folder: Path, rows: int) -> float:
    """Megabytes that the process grew by at its peak."""
    program = f"from benchmarks.store_write import stream; stream({str(folder)!r}, {rows})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    report = json.loads(done.stdout)
    grown: float = report["peak_mb"] - report["before_mb"]
    print(
        f"  {report['rows']:9,} rows: {report['rows'] / report['seconds']:10,.0f} rows/s with making them, "
        f"peak {report['peak_mb']:.0f} MB, {grown:.0f} MB more than before"
    )
    return grown


def stream(folder: str, rows: int) -> None:
    """Run in the child: records are made, written and dropped one after the other."""
    write_store(Path(f"{folder}-warm-up"), records_for(300))
    before, start = _peak_mb(), time.perf_counter()
    store = write_store(Path(folder), records_for(rows))
    report = {
        "rows": RolloutZarrStoreReader(store).num_candidates,
        "seconds": time.perf_counter() - start,
        "before_mb": before,
        "peak_mb": _peak_mb(),
    }
    print(json.dumps(report))


def _peak_mb() -> float:
    """Of this program alone; the peak that `resource` reports can be that of the process which started it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the system does not say how much memory was used")
