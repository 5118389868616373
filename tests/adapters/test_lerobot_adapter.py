"""LeRobot datasets become episodes: every value, every time, every frame, of both versions."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollbook import client as sdk
from rollbook.adapters import lerobot
from rollbook.adapters.encoded import EncodedEpisode
from rollbook.contracts.npz import read_npz
from rollbook.contracts.typed_metadata import plain_metadata
from tests.adapters.lerobot_datasets import (
    FPS,
    TOP,
    WRIST,
    Plan,
    action,
    change_info,
    in_table,
    state,
    write_v2,
    write_v3,
)
from tests.adapters.pictures import (
    BLUE,
    GREEN,
    RED,
    colour_of,
    decode,
    is_close,
    number_of,
    top_level_boxes,
)
from tests.client.faulty_server import FaultyServer

public_evals: Any = import_module("robotrace.evals")
Write = Callable[[Path, Plan], Path]
both_versions = pytest.mark.parametrize("write", [write_v2, write_v3])
LENGTHS = (12, 7, 9)
FIRST = (0, 12, 19)


def encode(
    write: Write, tmp_path: Path, episode: int = 1, plan: Plan | None = None, **options: Any
) -> EncodedEpisode:
    root = write(tmp_path / "pusht", plan or Plan())
    return lerobot.encode_episode(root, episode, tmp_path / "out", **options)


# ----------------------------------------------------------------------------------------- values


@both_versions
@pytest.mark.parametrize("episode", [0, 1, 2])
def test_an_episode_has_its_own_rows_and_no_others(
    write: Write, tmp_path: Path, episode: int
) -> None:
    encoded = encode(write, tmp_path, episode)
    first, length = FIRST[episode], LENGTHS[episode]
    sensors, actions = (read_npz(encoded.files[kind]) for kind in ("sensors", "actions"))
    assert (sensors["observation.state/value"] == state(first, length)).all()
    assert (actions["action/value"] == action(first, length)).all()
    assert actions.keys() == {"action/value", "action/_t_ns"}
    assert encoded.metadata["lerobot_episode_length"] == length
    assert encoded.duration_s == pytest.approx(length / FPS)


@both_versions
def test_times_are_those_of_the_dataset(write: Write, tmp_path: Path) -> None:
    sensors = read_npz(encode(write, tmp_path).files["sensors"])
    seconds = (np.arange(7) / FPS).astype(np.float32).astype(np.float64)
    for key in sensors:
        if key.endswith("/_t_ns"):
            assert sensors[key].tolist() == np.rint(seconds * 1e9).tolist()


@both_versions
def test_a_dataset_without_times_has_one_row_each_frame_and_says_so(
    write: Write, tmp_path: Path
) -> None:
    plan = Plan(columns=lambda episode, length: {"timestamp": None})
    encoded = encode(write, tmp_path, plan=plan)
    assert read_npz(encoded.files["actions"])["action/_t_ns"].tolist() == [
        row * 100_000_000 for row in range(7)
    ]
    assert encoded.metadata["timestamps_assumed"] is True


def kinds(episode: int, length: int) -> dict[str, Any]:
    return {
        "observation.double": pa.array(np.arange(length) / 7),
        "observation.count": pa.array(np.arange(length, dtype=np.int16)),
        "observation.grip": pa.array([row % 2 == 0 for row in range(length)]),
        "observation.matrix": pa.array([[[row, 1], [2, 3]] for row in range(length)]),
        "observation.gap": pa.array([None, *range(1, length)], pa.float32()),
        "language": pa.array([f"take it, “{row}”" for row in range(length)]),
        "observation.mode": pa.array(["fast", *["slow"] * (length - 1)]).dictionary_encode(),
        "action.joint": pa.array([[row] for row in range(length)], pa.list_(pa.float32())),
    }


@both_versions
def test_every_kind_of_number_truth_value_and_text_keeps_its_type(
    write: Write, tmp_path: Path
) -> None:
    encoded = encode(write, tmp_path, plan=Plan(columns=kinds))
    with np.load(encoded.files["sensors"], allow_pickle=False) as found:
        assert found["observation.double/value"].tolist() == (np.arange(7) / 7).tolist()
        assert found["observation.double/value"].dtype == np.float64
        assert found["observation.count/value"].dtype == np.int16
        assert found["observation.grip/value"].tolist() == [True, False] * 3 + [True]
        assert found["observation.matrix/value"].tolist() == [
            [[row, 1], [2, 3]] for row in range(7)
        ]
        assert np.isnan(found["observation.gap/value"][0])
        assert found["observation.gap/value"][1:].tolist() == list(range(1, 7))
        assert found["language/value"].tolist() == [f"take it, “{row}”" for row in range(7)]
        assert found["observation.mode/value"].tolist() == ["fast"] + ["slow"] * 6
    actions = read_npz(encoded.files["actions"])
    assert actions["action.joint/value"].tolist() == [[row] for row in range(7)]
    assert encoded.metadata["skipped_columns"] == []


def unreadable(episode: int, length: int) -> dict[str, Any]:
    return {
        "ragged": pa.array([[0.0] * (row + 1) for row in range(length)]),
        "nested": pa.array([{"x": row} for row in range(length)]),
        "blob": pa.array([b"\0"] * length),
        "holes": pa.array([None, *range(1, length)], pa.int64()),
        "no_list": pa.array([None, *[[1.0]] * (length - 1)]),
        "nul": pa.array(["a\0"] * length),
    }


@both_versions
def test_a_column_that_cannot_be_an_array_is_left_out_and_named_with_the_reason(
    write: Write, tmp_path: Path
) -> None:
    encoded = encode(write, tmp_path, plan=Plan(columns=unreadable))
    reasons = {each["column"]: each["reason"] for each in encoded.metadata["skipped_columns"]}
    assert reasons.keys() == {"ragged", "nested", "blob", "holes", "no_list", "nul"}
    assert "rows differ in length" in reasons["ragged"]
    assert "struct" in reasons["nested"]
    assert "binary" in reasons["blob"]
    assert "1 values are null" in reasons["holes"]
    assert "observation.state/value" in read_npz(encoded.files["sensors"])


@both_versions
def test_evals_can_read_reward_and_success(write: Write, tmp_path: Path) -> None:
    encoded = encode(write, tmp_path)
    metadata = plain_metadata(encoded.metadata)
    assert public_evals.extract_outcome(metadata) == {
        "success": True,
        "reward_total": pytest.approx(21 / 4),
        "time_to_goal_s": pytest.approx(5 / FPS),
    }
    assert metadata["outcome"]["__type"] == "robotrace.EpisodeOutcome"
    assert metadata["lerobot_episode_outcome"] == {
        "next.reward": 1.5,
        "next.done": True,
        "next.success": True,
        "next.reward_sum": pytest.approx(21 / 4),
    }
    rewards = read_npz(encoded.files["sensors"])["next.reward/value"]
    assert rewards.tolist() == [row / 4 for row in range(7)]


@both_versions
def test_an_outcome_the_dataset_does_not_have_stays_unknown(write: Write, tmp_path: Path) -> None:
    plan = Plan(columns=lambda e, n: dict.fromkeys(("next.reward", "next.success", "next.done")))
    outcome = plain_metadata(encode(write, tmp_path, plan=plan).metadata)["outcome"]
    assert set(outcome.values()) == {"robotrace.EpisodeOutcome", None}


@both_versions
def test_what_is_said_about_an_episode(write: Write, tmp_path: Path) -> None:
    encoded = encode(write, tmp_path)
    assert (encoded.name, encoded.source, encoded.robot) == ("pusht #1", "real", "so100")
    assert (encoded.fps, encoded.metadata["lerobot_tasks"]) == (FPS, ["place"])
    assert encoded.metadata["lerobot_codebase_version"] in ("v2.1", "v3.0")
    assert encoded.metadata["lerobot_repo_id"] == "pusht"
    assert encoded.metadata["channels"]["observation.state"] == ["a", "b", "c"]
    assert str(tmp_path) not in str(encoded.metadata)


def test_tasks_come_from_the_list_of_tasks_where_an_episode_does_not_name_them(
    tmp_path: Path,
) -> None:
    root = write_v2(tmp_path / "d")
    path = root / "meta" / "episodes.jsonl"
    path.write_text(path.read_text().replace('"tasks": ["place"], ', ""))
    encoded = lerobot.encode_episode(root, 1, tmp_path / "out")
    assert encoded.metadata["lerobot_tasks"] == ["place"]


# ------------------------------------------------------------------------------------------ frames


@both_versions
@pytest.mark.parametrize("episode", [0, 1, 2])
def test_the_video_has_the_frames_of_the_episode_and_its_colours(
    write: Write, tmp_path: Path, episode: int
) -> None:
    video = decode(encode(write, tmp_path, episode).files["video"])
    first, length = FIRST[episode], LENGTHS[episode]
    assert video.numbers == list(range(first, first + length))
    assert all(is_close(colour_of(picture), RED) for picture in video.pictures)
    assert video.times == pytest.approx([row / FPS for row in range(length)])


def test_the_film_of_one_camera_is_taken_over_as_it_is(tmp_path: Path) -> None:
    encoded = encode(write_v2, tmp_path)
    source = tmp_path / "pusht" / "videos" / "chunk-000" / TOP / "episode_000001.mp4"
    before, after = decode(source), decode(encoded.files["video"])
    assert all((a == b).all() for a, b in zip(after.pictures, before.pictures, strict=True))
    boxes = top_level_boxes(encoded.files["video"])
    assert boxes.index("moov") < boxes.index("mdat")


@both_versions
def test_a_film_that_browsers_do_not_play_is_encoded_anew(write: Write, tmp_path: Path) -> None:
    video = decode(encode(write, tmp_path, plan=Plan(codec="mpeg4")).files["video"])
    assert (video.codec, video.numbers) == ("h264", list(range(12, 19)))
    assert video.longest_key_gap_s <= 0.5


@both_versions
def test_several_cameras_are_shown_side_by_side_and_can_be_told_apart(
    write: Write, tmp_path: Path
) -> None:
    encoded = encode(write, tmp_path, plan=Plan(cameras=(TOP, WRIST)))
    top, wrist = encoded.metadata["video_cameras"]
    assert (top["camera"], wrist["camera"]) == (TOP, WRIST)
    for row, picture in enumerate(decode(encoded.files["video"]).pictures):
        for tile, colour in ((top, RED), (wrist, BLUE)):
            rows = slice(tile["y"], tile["y"] + tile["height"])
            cut = picture[rows, tile["x"] : tile["x"] + tile["width"]]
            assert number_of(cut) == 12 + row
            assert is_close(colour_of(cut), colour)


@both_versions
def test_one_camera_of_several_can_be_chosen(write: Write, tmp_path: Path) -> None:
    encoded = encode(write, tmp_path, plan=Plan(cameras=(TOP, WRIST)), cameras=[WRIST])
    video = decode(encoded.files["video"])
    assert (video.width, video.height) == (80, 48)
    assert video.numbers == list(range(12, 19))
    assert is_close(colour_of(video.pictures[0]), BLUE)


@both_versions
def test_a_dataset_can_be_imported_without_its_video(write: Write, tmp_path: Path) -> None:
    encoded = encode(write, tmp_path, cameras=[])
    assert sorted(encoded.files) == ["actions", "sensors"]
    assert encoded.metadata["video_cameras"] == []


def test_pictures_that_lie_in_the_table_become_a_video(tmp_path: Path) -> None:
    encoded = encode(write_v2, tmp_path, 0, in_table())
    video = decode(encoded.files["video"])
    assert video.numbers == list(range(5))
    assert is_close(colour_of(video.pictures[2]), GREEN)
    assert encoded.metadata["skipped_columns"] == []
    assert f"{TOP}/value" not in read_npz(encoded.files["sensors"])


@pytest.mark.slow
@both_versions
def test_films_as_lerobot_encodes_them_are_read(write: Write, tmp_path: Path) -> None:
    video = decode(encode(write, tmp_path, plan=Plan(codec="libsvtav1")).files["video"])
    assert video.numbers == list(range(12, 19))
    assert is_close(colour_of(video.pictures[3]), RED, 8)


def test_a_small_error_in_the_times_of_a_shared_film_does_not_shift_frames(tmp_path: Path) -> None:
    """Times of later episodes are sums of durations, each rounded by whoever measured it."""
    plan = Plan()
    root = write_v3(tmp_path / "pusht", plan)
    path = root / "meta" / "episodes" / "chunk-000" / "file-001.parquet"
    (row,) = pq.read_table(path).to_pylist()
    for name in ("from", "to"):
        row[f"videos/{TOP}/{name}_timestamp"] -= 0.4 / FPS
    pq.write_table(pa.Table.from_pylist([row]), path)
    video = decode(lerobot.encode_episode(root, 1, tmp_path / "out").files["video"])
    assert video.numbers == list(range(12, 19))


# -------------------------------------------------------------------------------------------- scan


@both_versions
def test_scanning_reads_what_the_dataset_says_of_itself(write: Write, tmp_path: Path) -> None:
    found = lerobot.scan_dataset(write(tmp_path / "pusht", Plan(cameras=(TOP, WRIST))))
    assert list(found.episodes) == [0, 1, 2]
    assert found.total_frames == 28
    assert found.info.cameras == (TOP, WRIST)
    assert found.columns == {
        "observation.state": "sensors",
        "action": "actions",
        TOP: "video",
        WRIST: "video",
    }
    assert found.tasks == {0: "pick", 1: "place"}


def test_a_dataset_in_the_cache_of_the_hub_is_called_as_its_repository(tmp_path: Path) -> None:
    """There, files are links to others with names of their own."""
    blobs = write_v2(tmp_path / "blobs")
    snapshot = tmp_path / "datasets--lerobot--pusht" / "snapshots" / "0a1b2c"
    for path in blobs.rglob("*.*"):
        if path.is_file():
            link = snapshot / path.relative_to(blobs)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
    encoded = lerobot.encode_episode(snapshot, 1, tmp_path / "out")
    assert encoded.name == "lerobot/pusht #1"
    assert decode(encoded.files["video"]).numbers == list(range(12, 19))


@pytest.mark.parametrize("version", ["v2.0", "2.1", "v2.1"])
def test_every_version_2_is_read(tmp_path: Path, version: str) -> None:
    root = write_v2(tmp_path / "d")
    change_info(root, codebase_version=version)
    assert len(lerobot.scan_dataset(root).episodes) == 3


def test_a_dataset_that_does_not_say_where_its_files_are_has_them_where_lerobot_puts_them(
    tmp_path: Path,
) -> None:
    for write in (write_v2, write_v3):
        root = write(tmp_path / write.__name__)
        change_info(root, data_path=..., video_path=...)
        out = tmp_path / f"{write.__name__}_out"
        assert decode(lerobot.encode_episode(root, 2, out).files["video"]).numbers[0] == 19


# ------------------------------------------------------------------------------------------ upload


@both_versions
def test_a_dataset_is_uploaded_episode_by_episode(
    write: Write, tmp_path: Path, client: sdk.Client, wire: FaultyServer
) -> None:
    root = write(tmp_path / "pusht", Plan())
    seen: list[tuple[int, int, int]] = []
    results = lerobot.upload_dataset(
        root,
        client=client,
        policy_version="teleop",
        name="{dataset} / {episode_index}",
        on_progress=lambda done, total, result: seen.append((done, total, result.item)),
    )
    assert [result.error for result in results] == [None] * 3
    assert seen == [(1, 3, 0), (2, 3, 1), (3, 3, 2)]
    names = [episode["name"] for episode in wire.episodes.values()]
    assert names == ["pusht / 0", "pusht / 1", "pusht / 2"]
    run = results[2].run
    assert run is not None
    assert run.episode is not None
    assert run.episode.id is not None
    found = client.episode(run.episode.id)
    assert (found.record.policy_version, found.record.robot) == ("teleop", "so100")
    assert found.record.duration_s == pytest.approx(0.9)
    assert (found.sensors()["observation.state/value"] == state(19, 9)).all()
    assert decode(found.video()).numbers == list(range(19, 28))


def test_some_episodes_can_be_chosen(tmp_path: Path, client: sdk.Client) -> None:
    root = write_v2(tmp_path / "pusht")
    results = lerobot.upload_dataset(
        root, episodes=[2, 0], client=client, output_dir=tmp_path / "kept"
    )
    assert [result.item for result in results] == [2, 0]
    assert sorted(p.name for p in (tmp_path / "kept").iterdir()) == [
        "episode_000000",
        "episode_000002",
    ]


def test_one_episode_is_uploaded_with_what_the_caller_says(
    tmp_path: Path, client: sdk.Client, wire: FaultyServer
) -> None:
    root = write_v3(tmp_path / "pusht")
    lerobot.upload_episode(root, 1, client=client, robot="my arm", source="real")
    (episode,) = wire.episodes.values()
    assert (episode["robot"], episode["source"], episode["name"]) == ("my arm", "real", "pusht #1")


def test_an_episode_that_cannot_be_read_is_reported_and_the_others_are_uploaded(
    tmp_path: Path, client: sdk.Client, wire: FaultyServer
) -> None:
    root = write_v2(tmp_path / "pusht")
    (root / "data" / "chunk-000" / "episode_000001.parquet").unlink()
    results = lerobot.upload_dataset(root, client=client)
    assert [result.run is not None for result in results] == [True, False, True]
    assert "episode_000001.parquet" in str(results[1].error)
    assert len(wire.episodes) == 2
