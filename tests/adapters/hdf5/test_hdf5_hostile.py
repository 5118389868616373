"""HDF5 files that point elsewhere, claim too much, or are damaged: typed errors, and no other file is opened."""

from __future__ import annotations

import random
import resource
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rollbook.adapters.encoded import EncodedEpisode
from rollbook.adapters.hdf5 import Hdf5Importer
from rollbook.contracts.npz import read_npz
from rollbook.errors import DamagedRecording, RollbookError, StorageError, TruncatedFile
from tests.adapters.hdf5.hdf5_files import write_aloha, write_demo, write_droid, write_robomimic


def secret(folder: Path) -> Path:
    """A file that a hostile file points to."""
    path = folder / "secret.h5"
    with h5py.File(path, "w") as file:
        file["values"] = np.full((5, 3), 42.0)
        write_demo(file.create_group("demo"), 5, 0)
    return path


def encode(path: Path, index: int = 0, **options: Any) -> EncodedEpisode:
    importer = Hdf5Importer(**options)
    recording = importer.scan(path)
    folder = path.parent / "out"
    folder.mkdir()
    return importer.encode(recording, index, folder)


def changed(folder: Path, change: Callable[[Any], object]) -> Path:
    path = write_robomimic(folder / "lift.hdf5")
    with h5py.File(path, "r+") as file:
        change(file)
    return path


def reasons(encoded: EncodedEpisode) -> dict[str, str]:
    return {each["name"]: each["reason"] for each in encoded.metadata["skipped"]}


def test_no_way_to_another_file_is_followed(tmp_path: Path) -> None:
    other = secret(tmp_path)
    raw = tmp_path / "raw.bin"
    raw.write_bytes(np.full(15, 42.0).tobytes())

    def add(file: Any) -> None:
        demo = file["data/demo_0"]
        demo["obs/external"] = h5py.ExternalLink(str(other), "/values")
        file["elsewhere"] = h5py.ExternalLink(str(other), "/")
        demo["obs/soft"] = h5py.SoftLink("/elsewhere/values")
        demo["obs/dangling"] = h5py.SoftLink("/nowhere")
        demo.create_dataset("obs/raw", (5, 3), "f8", external=[(str(raw), 0, 120)])
        view = h5py.VirtualLayout((5, 3), "f8")
        view[:] = h5py.VirtualSource(str(other), "values", (5, 3))
        demo.create_virtual_dataset("obs/view", view)
        file["data/demo_7"] = h5py.ExternalLink(str(other), "/demo")

    path = changed(tmp_path, add)
    other.unlink()
    raw.unlink()
    other.mkdir()  # opening it would fail
    raw.mkdir()
    encoded = encode(path)
    found = reasons(encoded)
    inside = {f"obs/{n}" for n in ("external", "soft", "dangling", "raw", "view")}
    assert set(found) == inside | {"elsewhere", "data/demo_7"}
    assert "secret.h5" in found["obs/external"]
    assert "virtual" in found["obs/view"]
    assert "another file" in found["obs/raw"]
    assert not any(42.0 in values for values in read_npz(encoded.files["sensors"]).values())
    skipped = {each.name for each in Hdf5Importer().scan(path).skipped}
    assert {"elsewhere", "data/demo_7"} <= skipped


@pytest.mark.parametrize("how", ["external", "soft", "virtual"])
def test_actions_in_another_file_are_refused(how: str, tmp_path: Path) -> None:
    other = secret(tmp_path)

    def change(file: Any) -> None:
        demo = file["data/demo_0"]
        del demo["actions"]
        if how == "external":
            demo["actions"] = h5py.ExternalLink(str(other), "/values")
        elif how == "soft":
            demo["actions"] = h5py.SoftLink("/data/demo_1/actions")
        else:
            view = h5py.VirtualLayout((5, 3), "f8")
            view[:] = h5py.VirtualSource(str(other), "values", (5, 3))
            demo.create_virtual_dataset("actions", view)

    path = changed(tmp_path, change)
    with pytest.raises(DamagedRecording, match="actions cannot be imported: it is a"):
        Hdf5Importer().scan(path)


def test_groups_that_contain_themselves_end(tmp_path: Path) -> None:
    def add(file: Any) -> None:
        file["data/demo_0/obs/loop"] = file["data/demo_0"]
        file["data/demo_0/again"] = file["data/demo_0/obs"]

    found = reasons(encode(changed(tmp_path, add)))
    assert found["obs/loop"] == "it leads back to a group above it"
    assert found["again/loop"] == "it leads back to a group above it"


def test_a_group_that_fans_out_without_end_is_refused(tmp_path: Path) -> None:
    def add(file: Any) -> None:
        inner = file["data/demo_0"].create_group("g0")
        for depth in range(1, 16):
            outer = file.create_group(f"tmp{depth}")
            outer["a"], outer["b"] = inner, inner
            inner = outer
        file["data/demo_0/wide"] = inner

    with pytest.raises(DamagedRecording, match="more than 4096 objects"):
        Hdf5Importer().scan(changed(tmp_path, add))


@pytest.mark.parametrize("chunks", [None, (1024, 7)])
def test_a_shape_that_was_only_declared_is_not_allocated(
    chunks: tuple[int, ...] | None, tmp_path: Path
) -> None:
    def change(file: Any) -> None:
        demo = file["data/demo_0"]
        demo.create_dataset("obs/huge", (5, 2**40), "f8", chunks=chunks and (1, 2**20))
        demo.create_dataset("log", (2**40,), "f8", chunks=chunks and (2**20,))
        del file["data/demo_1/actions"]
        file["data/demo_1"].create_dataset("actions", (2**40, 7), "f8", chunks=chunks)

    path = changed(tmp_path, change)
    with h5py.File(path, "r+") as file:
        del file["data"].attrs["total"]
    started = time.monotonic()
    tracemalloc.start()
    try:
        found = reasons(encode(path))
        with pytest.raises(DamagedRecording, match="nothing was ever written to it"):
            Hdf5Importer().encode(Hdf5Importer().scan(path), 1, tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert all("nothing was ever written" in found[name] for name in ("obs/huge", "log"))
    assert peak < 20 << 20
    assert time.monotonic() - started < 5


def test_a_dataset_that_was_written_in_part_is_refused(tmp_path: Path) -> None:
    def change(file: Any) -> None:
        made = file["data/demo_0"].create_dataset("obs/part", (5, 2), "f8", chunks=(1, 2))
        made[:3] = 1

    with pytest.raises(DamagedRecording, match="only 3 of its 5 chunks were written"):
        Hdf5Importer().scan(changed(tmp_path, change))


def test_a_chunk_that_is_too_large_is_refused(tmp_path: Path) -> None:
    def change(file: Any) -> None:
        demo = file["data/demo_0"]
        made = demo.create_dataset("wide", (1, 2**28), "f8", chunks=(1, 2**28), compression=1)
        made.id.write_direct_chunk((0, 0), b"\0")

    with pytest.raises(StorageError, match="wide: one row of it has 2147483648 bytes"):
        encode(changed(tmp_path, change))


def test_a_small_file_that_unpacks_to_far_more_is_refused(tmp_path: Path) -> None:
    def change(file: Any) -> None:
        demo = file["data/demo_0"]
        made = demo.create_dataset("bomb", (80, 2**23), "f8", chunks=(1, 2**23), compression=9)
        for row in range(80):
            made.id.write_direct_chunk((row, 0), b"\0")

    with pytest.raises(DamagedRecording, match="unpacks to 5368"):
        encode(changed(tmp_path, change))


def test_a_missing_filter_is_named_with_the_package_that_has_it(tmp_path: Path) -> None:
    def change(file: Any) -> None:
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk((5, 2))
        plan.set_filter(32001, h5py.h5z.FLAG_OPTIONAL, (1,))
        space = h5py.h5s.create_simple((5, 2))
        group = file["data/demo_0/obs"].id
        made = h5py.h5d.create(group, b"packed", h5py.h5t.NATIVE_DOUBLE, space, plan)
        made.write_direct_chunk((0, 0), b"\x02\x01", 0)

    path = changed(tmp_path, change)
    with pytest.raises(StorageError, match=r"packed.*filter 32001.*pip install hdf5plugin"):
        encode(path)


def test_names_that_cannot_be_names_of_arrays_are_reported(tmp_path: Path) -> None:
    def change(file: Any) -> None:
        demo = file["data/demo_0"]
        for name in (b"..", b"back\\slash", b"tab\t", b"\xff\xfe", b"long" * 200):
            h5py.h5d.create(
                demo["obs"].id, name, h5py.h5t.NATIVE_DOUBLE, h5py.h5s.create_simple((5,))
            )

    found = reasons(encode(changed(tmp_path, change)))
    assert {"obs/..", "obs/back\\slash", "obs/tab\t", "obs/\\xff\\xfe"} <= set(found)
    assert len(found) == 5


def test_a_jpeg_that_claims_a_huge_size_is_refused(tmp_path: Path) -> None:
    def change(file: Any) -> None:
        camera = file["observations/images/cam_high"]
        rows = camera[()]
        at = rows[0].tobytes().index(b"\xff\xc0")
        rows[0, at + 5 : at + 9] = (0xFF, 0xFF, 0xFF, 0xFF)
        camera[...] = rows

    path = write_aloha(tmp_path / "episode_0.hdf5", compress=True)
    with h5py.File(path, "r+") as file:
        change(file)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(StorageError, match="cam_high in row 0"):
        encode(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


@pytest.mark.parametrize("part", [0.05, 0.3, 0.6, 0.99])
def test_a_file_that_is_cut_off_is_said_to_be(part: float, tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "lift.hdf5")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(TruncatedFile, match=r"lift\.hdf5 is incomplete"):
        Hdf5Importer().scan(path)


def _fuzzed(folder: Path, seeds: range) -> dict[str, int]:
    sources = [
        write_robomimic(folder / "rm.hdf5", with_camera=True).read_bytes(),
        write_aloha(folder / "aloha.hdf5", compress=True).read_bytes(),
        write_droid(folder / "droid.h5").read_bytes(),
    ]
    importer, path = Hdf5Importer(), folder / "fuzzed.hdf5"
    seen: dict[str, int] = {}
    for seed in seeds:
        chance = random.Random(seed)
        data = bytearray(chance.choice(sources))
        for _ in range(chance.choice((1, 4, 64))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data)
        try:
            recording = importer.scan(path)
            for episode in recording.episodes:
                out = folder / f"out-{seed}-{episode.index}"
                out.mkdir()
                importer.encode(recording, episode.index, out)
            outcome = "imported"
        except RollbookError as error:
            outcome = type(error).__name__
        seen[outcome] = seen.get(outcome, 0) + 1
    return seen


def test_changed_bytes_give_typed_errors_or_an_import(tmp_path: Path) -> None:
    seen = _fuzzed(tmp_path, range(120))
    assert seen["imported"] > 0
    assert seen["DamagedRecording"] > 0


@pytest.mark.slow
def test_many_changed_files_give_typed_errors_or_an_import(tmp_path: Path) -> None:
    assert sum(_fuzzed(tmp_path, range(1000, 3000)).values()) == 2000


@pytest.mark.parametrize("where", ["attribute", "dataset"])
def test_a_heap_that_does_not_end_is_refused_before_the_library_walks_through_it(
    where: str, tmp_path: Path
) -> None:
    """The HDF5 library would never return, and could not be interrupted."""
    path = tmp_path / "demo.hdf5"
    with h5py.File(path, "w") as file:
        demo = file.create_group("data").create_group("demo_0")
        demo["actions"], demo["obs/x"] = np.zeros((3, 2)), np.zeros((3, 2))
        if where == "attribute":
            demo.attrs["model_file"] = "text of varying length"
        else:
            demo["obs/note"] = np.array(["a", "b", "c"], object)
    data = bytearray(path.read_bytes())
    at = data.index(b"GCOL") + 16
    while (head := struct.unpack_from("<HHIQ", data, at))[0] != 0:
        at += 16 + (head[3] + 7) // 8 * 8
    struct.pack_into("<HHIQ", data, at, 0, 0, 0, 0)
    path.write_bytes(data)
    with pytest.raises(DamagedRecording, match="heap"):
        Hdf5Importer().scan(path)
