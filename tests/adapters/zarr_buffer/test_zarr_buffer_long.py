"""Replay buffers: memory does not depend on their length, and Zarr 2 reads what the tests here write."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from rollbook.adapters.zarr_buffer import ZarrBufferImporter
from tests.adapters.encoded_files import import_all
from tests.adapters.memory import most_memory_of_import
from tests.adapters.zarr_buffers import arrays, write, write_small
from tests.public_packages import reader_python

pytestmark = pytest.mark.slow

READ_AND_WRITE = """
import sys, numpy as np, zarr
source, target = sys.argv[1:]
opened = zarr.ZipStore(source, mode="r") if source.endswith(".zip") else source
root = zarr.open_group(opened, mode="r")
made = zarr.ZipStore(target, mode="w") if target.endswith(".zip") else zarr.DirectoryStore(target)
copy = zarr.group(made, overwrite=True)
ends = root["meta/episode_ends"][:]
copy.create_group("meta").array("episode_ends", ends, chunks=ends.shape, compressor=None)
data = copy.create_group("data")
for key, array in root["data"].arrays():
    values = array[:]
    data.array(key, values, chunks=(3, *values.shape[1:]), compressor=zarr.Blosc("lz4", 5, 0))
if target.endswith(".zip"):
    made.close()
print(zarr.__version__, ends.tolist(), sorted(root["data"].array_keys()))
"""


@pytest.mark.parametrize(("first", "second"), [("a.zarr", "b.zarr.zip"), ("a.zarr.zip", "b.zarr")])
def test_zarr_2_reads_our_buffers_and_we_read_its_own(
    first: str, second: str, tmp_path: Path
) -> None:
    python = reader_python("zarr==2.18.7", "numcodecs<0.16", "numpy<2.3")
    ours, theirs = write_small(tmp_path / first), tmp_path / second
    command = [str(python), "-c", READ_AND_WRITE, str(ours), str(theirs)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == f"2.18.7 [4, 9] {sorted(arrays(9))}\n"
    before = import_all(ZarrBufferImporter(), ours, tmp_path / "1")
    after = import_all(ZarrBufferImporter(), theirs, tmp_path / "2")
    for one, two in zip(before, after, strict=True):
        assert one.sensors.keys() == two.sensors.keys()
        for key, values in one.sensors.items():
            assert values.tobytes() == two.sensors[key].tobytes(), key
        action = one.actions["action/value"]
        assert action.tobytes() == two.actions["action/value"].tobytes()
        assert one.encoded.files["video"].read_bytes() == two.encoded.files["video"].read_bytes()


@pytest.mark.parametrize("name", ["long.zarr", "long.zarr.zip"])
def test_memory_does_not_grow_with_the_episode(name: str, tmp_path: Path) -> None:
    def make(rows: int) -> Path:
        data = {"state": np.ones((rows, 64)), "action": np.ones((rows, 2), np.float32)}
        return write(tmp_path / str(rows) / name, data, [rows], chunk=5000)

    short, long = make(30_000), make(300_000)
    importer = ZarrBufferImporter()
    most_memory_of_import(importer, short, tmp_path)  # what is loaded once does not count
    before = most_memory_of_import(importer, short, tmp_path)
    assert most_memory_of_import(importer, long, tmp_path) < before + (4 << 20)
