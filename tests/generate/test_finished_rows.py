"""A run that ends early keeps its finished rows, and goes on with them to the same store."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollbook.errors import ChecksumMismatch, GenerationFailed, StorageError, UnfinishedRun
from rollbook.generate.finished_rows import FinishedRows
from rollbook.generate.row_rollouts import RowRoller
from rollbook.generate.writer import RolloutDatasetWriter
from tests.generate.tiny_source import tiny_config

BEAM = [
    {
        "name": "beam",
        "selection_policy": "oracle_greedy",
        "horizon": 2,
        "branch_factor": 2,
        "beam_width": 2,
    },
    {"name": "soft", "selection_policy": "temperature_softmax"},
]
"""Chains that share steps, and every optional part of a step."""


def writer(out: Path, **changes: Any) -> RolloutDatasetWriter:
    store = {
        "store_dir": str(out),
        "target_eval_crops_enabled": True,
        "target_eval_crop_max_points": 100,
    }
    return tiny_config(out, **{"recipes": BEAM, "store": store} | changes).setup_target()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> str:
    return writer(tmp_path_factory.mktemp("whole") / "x.zarr").run().content_sha256


@pytest.fixture
def rolled_out(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows that are computed, as they are."""
    rows: list[int] = []
    computed = RowRoller.roll_out

    def noted(self: RowRoller, index: int) -> Any:
        rows.append(index)
        return computed(self, index)

    monkeypatch.setattr(RowRoller, "roll_out", noted)
    return rows


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_run_that_is_interrupted_goes_on_to_the_same_store(
    tmp_path: Path, uninterrupted: str, rolled_out: list[int]
) -> None:
    out = tmp_path / "x.zarr"
    with pytest.raises(KeyboardInterrupt):
        writer(out).run(on_row=interrupt)
    assert not out.exists()
    resumed = writer(out)
    assert resumed.run(unfinished="resume").content_sha256 == uninterrupted
    assert rolled_out == [0, 1]
    assert resumed.rows_resumed == 1
    assert resumed.stats.samples_seen == 2
    assert [each.name for each in tmp_path.iterdir()] == ["x.zarr"]


def test_after_a_full_disk_the_run_goes_on(
    tmp_path: Path, uninterrupted: str, rolled_out: list[int]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(*_: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))

    try:
        with pytest.raises(StorageError, match="File too large"):
            writer(tmp_path / "x.zarr").run(on_row=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    result = writer(tmp_path / "x.zarr").run(unfinished="resume")
    assert result.content_sha256 == uninterrupted
    assert rolled_out == [0, 1, 1]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished row of a run to `x.zarr`."""
    folder = tmp_path_factory.mktemp("interrupted")
    with pytest.raises(KeyboardInterrupt):
        writer(folder / "x.zarr").run(on_row=interrupt)
    return folder


@pytest.fixture
def folder(tmp_path: Path, interrupted: Path) -> Path:
    return shutil.copytree(interrupted, tmp_path / "run")


def test_finished_rows_are_neither_used_nor_removed_unless_told(folder: Path) -> None:
    with pytest.raises(UnfinishedRun, match=r"1 finished row of .* --resume .* --start-over"):
        writer(folder / "x.zarr").run()
    assert FinishedRows(folder / "x.zarr").numbers() == {0}


def test_chains_that_share_a_shell_share_it_in_the_file_too(folder: Path) -> None:
    beam = FinishedRows(folder / "x.zarr").load(0).records[0].result
    first, second = (chain.steps[0].candidates.shell_poses for chain in beam.chains[:2])
    assert first is second


def test_rows_that_are_discarded_are_made_again(
    folder: Path, uninterrupted: str, rolled_out: list[int]
) -> None:
    result = writer(folder / "x.zarr").run(unfinished="discard")
    assert result.content_sha256 == uninterrupted
    assert rolled_out == [0, 1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 7}, "config.seed was 0 and is 7"),
        ({"candidate_rules": {"max_step_length_m": 2.5}}, r"max_step_length_m was .* and is 2\.5"),
        ({"renderer": "bvh"}, "config.renderer was 'auto' and is 'bvh'"),
    ],
)
def test_rows_of_another_config_are_refused_with_the_difference(
    folder: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnfinishedRun, match=said):
        writer(folder / "x.zarr", **changes).run(unfinished="resume")


@pytest.mark.parametrize("fact", ["source", "rollbook", "renderer"])
def test_rows_of_another_source_release_or_renderer_are_refused(folder: Path, fact: str) -> None:
    file = folder / ".x.zarr.rows" / "run.json"
    made_with = json.loads(file.read_bytes())
    file.write_text(json.dumps(made_with | {fact: "another"}))
    with pytest.raises(UnfinishedRun, match=f"{fact} was 'another' and is '{made_with[fact]}'"):
        writer(folder / "x.zarr").run(unfinished="resume")


def test_more_rows_may_be_asked_for_when_a_run_goes_on(folder: Path, uninterrupted: str) -> None:
    """As are other numbers of workers and threads: they determine no row."""
    resumed = writer(folder / "x.zarr", max_samples=1, threads=2)
    assert resumed.run(unfinished="resume").num_rollouts > 0
    assert resumed.rows_resumed == 1


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:90] + b"?" + data[91:]]
)
def test_a_damaged_row_is_refused_and_made_again_when_it_is_removed(
    folder: Path, damage: Callable[[bytes], bytes]
) -> None:
    (row,) = (folder / ".x.zarr.rows").glob("*.row")
    row.write_bytes(damage(row.read_bytes()))
    with pytest.raises(ChecksumMismatch, match="remove this file and resume"):
        writer(folder / "x.zarr").run(unfinished="resume")
    row.unlink()
    resumed = writer(folder / "x.zarr", max_samples=1)
    resumed.run(unfinished="resume")
    assert resumed.rows_resumed == 0


def breaks_at_once(features: Any, names: Any, valid: Any, context: Any) -> Any:
    raise ValueError("not today")


def test_a_run_without_a_finished_row_leaves_nothing(tmp_path: Path) -> None:
    recipe = {
        "name": "own",
        "selection_policy": "oracle_greedy",
        "scorer": f"{__name__}:breaks_at_once",
    }
    with pytest.raises(GenerationFailed, match="not today"):
        writer(tmp_path / "x.zarr", recipes=[recipe]).run()
    assert not (tmp_path / ".x.zarr.rows").exists()
