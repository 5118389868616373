"""A LeRobot dataset as a recording: what it holds, what is left out, and totals that do not add up."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollbook.adapters import lerobot_columns
from rollbook.adapters.formats import detect
from rollbook.adapters.lerobot import LeRobotImporter
from rollbook.adapters.source_digest import SourceDigests
from rollbook.contracts.npz import read_npz
from rollbook.errors import ConfigurationError, CountMismatch, UnknownFormat
from tests.adapters.lerobot_datasets import (
    TOP,
    WRIST,
    Plan,
    change_info,
    state,
    write_v2,
    write_v3,
)
from tests.adapters.pictures import decode

both_versions = pytest.mark.parametrize("write", [write_v2, write_v3])
Write = Callable[..., Path]


@both_versions
def test_a_dataset_is_recognised_by_its_info(write: Write, tmp_path: Path) -> None:
    root = write(tmp_path / "pusht", Plan(lengths=(3,)))
    assert [found.format for found in detect(root)] == ["lerobot"]
    assert detect(root / "meta") == []


@both_versions
def test_scanning_names_episodes_streams_and_files(write: Write, tmp_path: Path) -> None:
    root = write(tmp_path / "pusht", Plan(lengths=(3, 4)))
    found = LeRobotImporter().scan(root)
    assert [(e.index, e.key, e.rows, e.duration_s) for e in found.episodes] == [
        (0, "episode_0", 3, 0.3),
        (1, "episode_1", 4, 0.4),
    ]
    slots = {stream.name: (stream.slot, stream.rows) for stream in found.streams}
    assert slots[TOP] == ("video", 7)
    assert slots["action"] == ("actions", 7)
    assert slots["next.reward"] == ("sensors", 7)
    assert found.skipped == ()
    assert all(path.is_file() for path in found.files)
    digests = SourceDigests()
    keys = {digests.of_episode(found, each, {}).import_key for each in found.episodes}
    assert len(keys) == 2


@both_versions
def test_an_episode_is_encoded_with_the_counts_that_were_declared_and_read(
    write: Write, tmp_path: Path
) -> None:
    importer = LeRobotImporter(cameras=())
    recording = importer.scan(write(tmp_path / "pusht", Plan(lengths=(3, 4))))
    (tmp_path / "out").mkdir()
    encoded = importer.encode(recording, 1, tmp_path / "out")
    assert encoded.metadata["declared"] == encoded.metadata["read"] == {"rows": 4}
    assert encoded.metadata["adapter"] == "lerobot"
    assert encoded.metadata["tasks"] == ["place"]
    values = read_npz(encoded.files["sensors"])["observation.state/value"]
    assert np.array_equal(values, state(3, 4))
    assert json.loads(json.dumps(encoded.metadata["skipped"])) == []


@both_versions
@pytest.mark.parametrize("what", ["episodes", "frames"])
def test_totals_that_do_not_add_up_are_refused(write: Write, tmp_path: Path, what: str) -> None:
    root = write(tmp_path / "pusht", Plan(lengths=(3, 4)))
    change_info(root, **{f"total_{what}": 9})
    with pytest.raises(CountMismatch, match=f"declares 9 {what}"):
        LeRobotImporter().scan(root)


@both_versions
def test_a_feature_without_a_column_is_reported(write: Write, tmp_path: Path) -> None:
    plan = Plan(lengths=(3, 4), columns=lambda episode, length: {"action": None})
    importer = LeRobotImporter(cameras=())
    recording = importer.scan(write(tmp_path / "pusht", plan))
    assert ("action", "no such column") in [
        (each.name, each.reason[-14:]) for each in recording.skipped
    ]
    assert "action" not in {stream.name for stream in recording.streams}
    (tmp_path / "out").mkdir()
    skipped = importer.encode(recording, 0, tmp_path / "out").metadata["skipped"]
    assert [each["name"] for each in skipped] == ["action"]


def test_rows_that_belong_to_no_episode_are_reported(tmp_path: Path) -> None:
    root = write_v3(tmp_path / "pusht", Plan(lengths=(3, 4)))
    path = root / "data" / "chunk-000" / "file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table, table.slice(0, 2)]), path)
    (skipped,) = LeRobotImporter().scan(root).skipped
    assert skipped.name == "data/chunk-000/file-000.parquet"
    assert skipped.reason == "2 of its 9 rows belong to no episode"


def test_cameras_that_are_not_chosen_are_reported(tmp_path: Path) -> None:
    root = write_v2(tmp_path / "pusht", Plan(lengths=(3,), cameras=(TOP, WRIST)))
    importer = LeRobotImporter(cameras=(WRIST,))
    recording = importer.scan(root)
    assert [each.name for each in recording.skipped] == [TOP]
    assert importer.options() == {"cameras": [WRIST]}
    assert "side by side" in LeRobotImporter().scan(root).losses[0]
    with pytest.raises(ConfigurationError, match="no camera 'left'"):
        LeRobotImporter(cameras=("left",)).scan(root)


def test_a_folder_without_a_description_is_not_a_lerobot_dataset(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormat, match=r"meta/info\.json"):
        LeRobotImporter().scan(tmp_path)


def test_a_table_that_episodes_share_is_unpacked_once_and_gives_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_v3(tmp_path / "pusht", Plan(lengths=(3, 4, 5)))
    importer = LeRobotImporter(cameras=())
    recording = importer.scan(root)

    def encoded(name: str) -> list[bytes]:
        files = []
        for each in recording.episodes:
            folder = tmp_path / name / str(each.index)
            folder.mkdir(parents=True)
            found = importer.encode(recording, each.index, folder)
            files += [found.files[kind].read_bytes() for kind in ("sensors", "actions")]
        return files

    lerobot_columns._whole_table.cache_clear()
    shared = encoded("shared")
    assert lerobot_columns._whole_table.cache_info()[:2] == (2, 1)
    monkeypatch.setattr(lerobot_columns, "_LARGEST_KEPT", 0)
    assert encoded("alone") == shared


def test_frames_behind_the_last_row_of_an_episode_are_reported(tmp_path: Path) -> None:
    root = write_v2(tmp_path / "pusht", Plan(lengths=(3,)))
    longer = write_v2(tmp_path / "longer", Plan(lengths=(7,)))
    video = Path("videos", "chunk-000", TOP, "episode_000000.mp4")
    shutil.copyfile(longer / video, root / video)
    importer = LeRobotImporter()
    (tmp_path / "out").mkdir()
    encoded = importer.encode(importer.scan(root), 0, tmp_path / "out")
    [skipped] = encoded.metadata["skipped"]
    reason = "4 frames of its video are behind the last of 3 rows"
    assert skipped == {"name": TOP, "reason": reason}
    assert decode(encoded.files["video"]).numbers == [0, 1, 2]
