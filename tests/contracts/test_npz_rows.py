"""Rows of one array of an NPZ file: equal to those of the whole array, and only their bytes are read."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.contracts.npz import NpzArchive, write_npz
from rollbook.errors import InvalidValue


class Counting(io.FileIO):
    """Counts the bytes that are read."""

    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data: bytes = super().read(-1 if size is None else size)
        self.count += len(data)
        return data


ARRAYS: dict[str, Any] = {
    "/arm/q": np.arange(300_000, dtype=np.float64).reshape(100_000, 3),
    "/arm/flags": np.arange(100_000) % 3 == 0,
    "big": np.arange(2_000_000, dtype=">i8"),
    "columns first": np.asfortranarray(np.arange(60).reshape(20, 3)),
    "empty": np.zeros((0, 4)),
}


@pytest.fixture(scope="module", params=["stored", "packed"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("rows") / f"{request.param}.npz"
    if request.param == "stored":
        write_npz(made, ARRAYS)
    else:
        np.savez_compressed(made, **ARRAYS)
    return made


@pytest.mark.parametrize("key", ARRAYS)
def test_rows_are_those_of_the_array(path: Path, key: str) -> None:
    whole = ARRAYS[key]
    with NpzArchive(path) as archive:
        for start, stop in ((0, len(whole)), (len(whole) // 3, len(whole) // 2), (0, 0)):
            pieces = list(archive.rows(key, start, stop))
            joined = np.concatenate(pieces) if pieces else whole[:0]
            np.testing.assert_array_equal(joined, whole[start:stop])


def test_two_arrays_are_read_in_turn(path: Path) -> None:
    with NpzArchive(path) as archive:
        big, arm = archive.rows("big", 0, 2_000_000), archive.rows("/arm/q", 5, 100_000)
        first, other = next(big), next(arm)
        rest = np.concatenate([first, *big])
        np.testing.assert_array_equal(rest, ARRAYS["big"])
        np.testing.assert_array_equal(np.concatenate([other, *arm]), ARRAYS["/arm/q"][5:])


def test_of_a_stored_array_only_the_rows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "stored.npz"
    write_npz(path, ARRAYS)
    with Counting(path, "rb") as file:
        archive = NpzArchive(file)
        file.count = 0
        [piece] = archive.rows("big", 1_000_000, 1_000_100)
        assert len(piece) == 100
        assert file.count < 10_000, f"of {path.stat().st_size} bytes"


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 100_001)])
def test_rows_that_are_not_there_are_refused(path: Path, start: int, stop: int) -> None:
    with NpzArchive(path) as archive, pytest.raises(InvalidValue):
        list(archive.rows("/arm/q", start, stop))
