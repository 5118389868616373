"""The source store: what goes in comes out, whole or not at all, and what only labels may use stays apart."""

from __future__ import annotations

import dataclasses
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.errors import (
    ChecksumMismatch,
    ConfigurationError,
    InvalidBoxes,
    InvalidTrajectory,
    InvalidValue,
    LeaseHeld,
    NotASourceStore,
    RowOutOfRange,
    TargetExists,
)
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.sources.documents import config_sha256
from rollbook.generate.sources.layout import TABLES, checked_id
from rollbook.generate.sources.reader import ActorView, SourceRow, SourceStore
from rollbook.generate.sources.splits import SPLITS, SplitConfig, SplitMethod, assign_splits
from rollbook.generate.sources.validation import validate_source_store
from rollbook.generate.sources.writer import SourceStoreWriter
from tests.generate.source_rows import CAMERA, room, some_boxes, some_row, write_store


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sources") / "good"
    write_store(path, scenes=5, rows=2, rows_per_shard=3)
    return path


@pytest.fixture
def store(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "store"))


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def columns_of(row: SourceRow) -> list[Any]:
    """Everything in a row but its place."""
    boxes = [row.actor.detections] + ([row.oracle.boxes] if row.oracle else [])
    arrays = [
        *(row.actor.poses, row.actor.t_ns, row.actor.points, row.actor.point_frame),
        *(row.actor.inv_dist_std, row.actor.dist_std),
        *([row.oracle.continuation, row.oracle.continuation_t_ns] if row.oracle else []),
        *(getattr(each, name) for each in boxes for name in ("pose_world_object", "extents")),
        *(getattr(each, name) for each in boxes for name in ("sem_id", "inst_id", "confidence")),
    ]
    return [
        *((array.dtype.str, array.shape, array.tobytes()) for array in arrays),
        *(each.class_name for each in boxes),
        row.actor.camera,
        (row.sample_key, row.scene_id, row.snippet_id, row.split),
    ]


def changed_view(view: ActorView, **changes: Any) -> ActorView:
    names = (
        *("poses", "t_ns", "camera", "points", "point_frame"),
        *("inv_dist_std", "dist_std", "detections"),
    )
    return ActorView(*(changes.get(name, getattr(view, name)) for name in names))


# ------------------------------------------------------------------------------------- round trip


@given(
    seed=st.integers(0, 2**32),
    sizes=st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 9), st.integers(0, 3), st.integers(0, 3)),
        min_size=1,
        max_size=5,
    ),
    rows_per_shard=st.integers(1, 4),
)
@settings(max_examples=25, deadline=None)
def test_rows_come_back_as_they_were_written(
    seed: int, sizes: list[tuple[int, int, int, int]], rows_per_shard: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = [some_row(rng, frames=f, points=p, detections=d, continuation=c) for f, p, d, c in sizes]
    boxes, mesh = some_boxes(rng, 3), room()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        with SourceStoreWriter(path, config={}, rows_per_shard=rows_per_shard) as writer:
            writer.add_scene("a", mesh, boxes)
            for number, row in enumerate(rows):
                writer.add_row("a", f"{number:03d}", *row)
            writer.finish()
        opened = SourceStore.open(path)
        assert len(opened) == len(rows)
        for index, row in enumerate(rows):
            read = opened.row(index)
            assert read.oracle is not None
            expected = SourceRow(
                *(index, f"a/{index:03d}", "a", f"{index:03d}", "train"),
                *(read.shard_id, read.shard_row),
                row.actor,
                type(read.oracle)(mesh, boxes, row.continuation, row.continuation_t_ns),
            )
            assert columns_of(read) == columns_of(expected)
            assert read.oracle.mesh.sha256 == mesh.sha256
        assert validate_source_store(path, deep=True).violations == ()


def test_values_a_detector_may_give_are_kept_as_they_are(tmp_path: Path) -> None:
    row = some_row(np.random.default_rng(0), points=3)
    bad = Boxes.build([[np.nan] * 12, [0.0] * 12], [[0, -1, np.inf]] * 2, [1, 2])
    unknown = np.full(3, np.nan, np.float32)
    view = changed_view(
        row.actor,
        point_frame=np.array([-1, 0, 1], np.int32),
        inv_dist_std=unknown,
        dist_std=unknown,
        detections=bad,
    )
    with SourceStoreWriter(tmp_path / "s", config={}) as writer:
        writer.add_scene("a", room(), Boxes.none())
        writer.add_row("a", "b", view)
        writer.finish()
    read = SourceStore.open(tmp_path / "s").row(0)
    assert np.isnan(read.actor.detections.pose_world_object[0]).all()
    assert np.isnan(read.actor.dist_std).all()
    assert read.oracle is not None
    assert len(read.oracle.boxes) == len(read.oracle.continuation) == 0
    assert validate_source_store(tmp_path / "s", deep=True).ok


def test_rows_are_copies_that_do_not_hold_the_store_open(good: Path) -> None:
    row = SourceStore.open(good).row(0)
    row.actor.poses[:] = 7  # a copy may be changed
    assert (SourceStore.open(good).row(0).actor.poses != 7).any()


def test_numpy_alone_reads_the_columns(good: Path) -> None:
    place = good / "actor" / "shard-000000" / "points"
    xyz = np.load(place / "xyz.npy", mmap_mode="r", allow_pickle=False)
    start, end = np.load(place / "offsets.npy", allow_pickle=False)[1:3]
    assert (xyz[start:end] == SourceStore.open(good).row(1).actor.points).all()


def test_the_mesh_of_a_scene_is_loaded_once_and_shared(good: Path) -> None:
    opened = SourceStore.open(good)
    first, second, other = (opened.row(index).oracle for index in (0, 1, 2))
    assert first is not None
    assert second is not None
    assert other is not None
    assert first.mesh is second.mesh
    assert first.mesh is not other.mesh


def test_equal_meshes_are_stored_once(tmp_path: Path) -> None:
    with SourceStoreWriter(tmp_path / "s", config={}) as writer:
        for scene in ("a", "b"):
            writer.add_scene(scene, room(), Boxes.none())
            writer.add_row(scene, "r", *some_row(np.random.default_rng(0)))
        manifest = writer.finish()
    assert manifest.counts["meshes"] == 1
    assert len(list((tmp_path / "s" / "oracle" / "meshes").iterdir())) == 1
    assert SourceStore.open(tmp_path / "s").mesh("b").sha256 == room().sha256


def test_a_mesh_in_two_splits_is_noted(tmp_path: Path) -> None:
    split_of = {"a": "train", "b": "train", "c": "test"}
    with SourceStoreWriter(tmp_path / "s", config={}, split_of=split_of) as writer:
        for scene in split_of:
            writer.add_scene(scene, room(), Boxes.none())
            writer.add_row(scene, "r", *some_row(np.random.default_rng(0)))
        writer.finish()
    checked = validate_source_store(tmp_path / "s")
    assert checked.ok
    assert checked.notes == ("scene c (test) has the same mesh as scene a (train)",)


def test_a_mesh_that_was_changed_is_named_by_its_folder(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "s")
    [folder] = list((tmp_path / "s" / "oracle" / "meshes").iterdir())[:1]
    vertices = folder / "vertices.npy"
    data = bytearray(vertices.read_bytes())
    data[-4] ^= 1
    vertices.write_bytes(data)
    opened = SourceStore.open(tmp_path / "s")
    told = []
    for scene in opened.scenes:
        try:
            opened.mesh(scene)
        except ChecksumMismatch as error:
            told.append(str(error))
    assert told
    assert all(each.startswith(f"{folder} was changed") for each in told)


def test_a_store_survives_a_pickle_as_its_folder(good: Path) -> None:
    opened = SourceStore.open(good, actor_only=True)
    again = pickle.loads(pickle.dumps(opened))
    assert again.actor_only
    assert again.manifest_digest == opened.manifest_digest


def test_rows_are_found_by_key_and_split(good: Path) -> None:
    opened = SourceStore.open(good)
    assert opened.find("scene-002/row-001") == 5
    assert sorted(opened.indices("train") + opened.indices("val")) == opened.indices()
    assert opened.scenes == [f"scene-{number:03d}" for number in range(5)]
    for call in (lambda: opened.row(10), lambda: opened.row(-1), lambda: opened.find("x/y")):
        with pytest.raises(RowOutOfRange):
            call()
    with pytest.raises(RowOutOfRange):
        opened.mesh("nowhere")


def test_a_recipe_is_kept_beside_its_scene(tmp_path: Path) -> None:
    recipe = {"generator_version": "v", "config": {"seed": 3, "size": (1.0, 2)}}
    with SourceStoreWriter(tmp_path / "s", config={}) as writer:
        writer.add_scene("a", room(), Boxes.none(), recipe=recipe, notes={"points": "simulated"})
        writer.add_row("a", "r", *some_row(np.random.default_rng(0)))
        writer.finish()
    opened = SourceStore.open(tmp_path / "s")
    kept = opened.geometry_facts["a"].recipe
    assert kept == {"generator_version": "v", "config": {"seed": 3, "size": [1.0, 2]}}
    assert opened.manifest.scenes[0].notes == {"points": "simulated"}


# ---------------------------------------------------------------------------------------- digests


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_store(tmp_path / name, seed=4)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_where_shards_end_changes_no_row(tmp_path: Path) -> None:
    opened = []
    for size in (1, 2, 5, 64):
        write_store(tmp_path / str(size), scenes=4, rows=2, rows_per_shard=size)
        opened.append(SourceStore.open(tmp_path / str(size)))
    for index in range(8):
        rows = [store.row(index) for store in opened]
        assert all(columns_of(row) == columns_of(rows[0]) for row in rows)
        assert len({store.index[index].row_sha256 for store in opened}) == 1
    assert len({store.manifest.content_sha256 for store in opened}) == 1
    assert len({store.manifest_digest for store in opened}) == 4


@pytest.mark.parametrize("changed", ["pose", "time", "point", "box", "mesh", "camera", "class"])
def test_any_change_of_content_changes_the_digests(tmp_path: Path, changed: str) -> None:
    rng = np.random.default_rng(0)
    row, boxes = some_row(rng), some_boxes(rng, 2)
    view, mesh = row.actor, room()
    times, points = view.t_ns.copy(), view.points.copy()
    poses, extents = view.poses.copy(), boxes.extents.copy()
    poses[0, 9] += np.float32(1e-3) if changed == "pose" else 0
    times[0] -= changed == "time"
    points[0, 0] += np.float32(1e-3) if changed == "point" else 0
    extents[0, 0] += np.float32(1e-3) if changed == "box" else 0
    names = ("x", *boxes.class_name[1:]) if changed == "class" else boxes.class_name
    other = Boxes.build(boxes.pose_world_object, extents, boxes.sem_id, class_name=names)
    same = Boxes.build(
        boxes.pose_world_object, boxes.extents, boxes.sem_id, class_name=boxes.class_name
    )
    camera = msgspec.structs.replace(CAMERA, fx=9.0) if changed == "camera" else CAMERA
    stores = []
    for name, scene, truth, actor in (
        ("as it was", mesh, same, view),
        (
            "changed",
            room((4.0, 3.0, 2.6)) if changed == "mesh" else mesh,
            other,
            changed_view(view, poses=poses, t_ns=times, camera=camera, points=points),
        ),
    ):
        with SourceStoreWriter(tmp_path / name, config={}) as writer:
            writer.add_scene("a", scene, truth)
            writer.add_row("a", "r", actor, row.continuation, row.continuation_t_ns)
            stores.append(writer.finish())
    assert stores[0].content_sha256 != stores[1].content_sha256
    assert stores[0].manifest_digest != stores[1].manifest_digest


def test_the_config_is_in_the_digest(tmp_path: Path) -> None:
    a = write_store(tmp_path / "a", seed=1)
    b = write_store(tmp_path / "b", seed=1, kind="other")
    assert a.content_sha256 == b.content_sha256
    assert a.manifest_digest != b.manifest_digest


# ------------------------------------------------------------------------------- actor and oracle


def test_an_actor_only_store_needs_no_oracle_folder(store: Path) -> None:
    whole = [SourceStore.open(store).row(index) for index in range(10)]
    shutil.rmtree(store / "oracle")
    opened = SourceStore.open(store, actor_only=True)
    for index, before in enumerate(whole):
        row = opened.row(index)
        assert row.oracle is None
        assert columns_of(row) == columns_of(dataclasses.replace(before, oracle=None))
    with pytest.raises(ConfigurationError, match="actor-only"):
        opened.mesh("scene-000")
    with pytest.raises(ConfigurationError, match="actor-only"):
        _ = opened.geometry_facts


def test_nothing_under_oracle_reaches_the_actor(store: Path) -> None:
    before = [columns_of(SourceStore.open(store, actor_only=True).row(i)) for i in range(10)]
    rng = np.random.default_rng(0)
    for path in (store / "oracle").rglob("*"):
        if path.is_file():
            data = np.frombuffer(path.read_bytes(), np.uint8).copy()
            path.write_bytes(rng.permutation(data).tobytes())
    opened = SourceStore.open(store, actor_only=True)
    assert [columns_of(opened.row(index)) for index in range(10)] == before


def test_no_oracle_column_lies_in_the_actor_tree() -> None:
    actor = {column.name for table in TABLES if table.tree == "actor" for column in table.columns}
    assert "inst_id" not in actor
    assert {table.name for table in TABLES if table.tree == "oracle"} == {"continuation", "boxes"}


def test_detections_with_instances_are_refused(tmp_path: Path) -> None:
    row = some_row(np.random.default_rng(0))
    knowing = some_boxes(np.random.default_rng(0), 1)
    view = changed_view(row.actor, detections=knowing)
    with SourceStoreWriter(tmp_path / "s", config={}) as writer:
        writer.add_scene("a", room(), Boxes.none())
        with pytest.raises(InvalidValue, match="does not know its object"):
            writer.add_row("a", "r", view)


# ----------------------------------------------------------------------------------------- splits


@given(st.integers(0, 60), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_every_scene_is_in_one_split_and_shares_hold(scenes: int, more: int) -> None:
    ids = [f"s{number:03d}" for number in range(scenes + more)]
    splits = assign_splits(ids[:scenes], SplitConfig())
    members = [scene for split in SPLITS for scene in splits.scenes(split)]
    assert sorted(members) == ids[:scenes]
    for split, share in splits.shares.items():
        assert abs(len(splits.scenes(split)) - share * scenes) < 1
    grown = assign_splits(ids, SplitConfig())
    for split in SPLITS:
        assert set(splits.scenes(split)) <= set(grown.scenes(split))


@given(st.sets(st.text("abc", min_size=1, max_size=4)), st.text("abcd", min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
def test_by_hash_a_scene_stays_in_its_split_whatever_is_added(ids: set[str], more: str) -> None:
    config = SplitConfig(method=SplitMethod.BY_HASH, train=0.5, val=0.25, test=0.25)
    before, after = (assign_splits(sorted(each), config) for each in (ids, ids | {more}))
    for split in SPLITS:
        assert set(before.scenes(split)) <= set(after.scenes(split))


def test_by_hash_shares_hold_on_average_and_follow_the_seed() -> None:
    ids = [f"scene-{number}" for number in range(2000)]
    one, two = (
        assign_splits(ids, SplitConfig(method=SplitMethod.BY_HASH, seed=seed)) for seed in (0, 1)
    )
    assert abs(len(one.train) - 1600) < 80
    assert abs(len(one.val) - 200) < 60
    assert one.train != two.train
    assert one.split_manifest_hash != two.split_manifest_hash


@given(st.sets(st.text("abcde", min_size=1, max_size=3), max_size=30), st.randoms(), st.data())
@settings(max_examples=50, deadline=None)
def test_splits_do_not_depend_on_the_order_of_scenes(
    ids: set[str], random: Any, data: st.DataObject
) -> None:
    method = data.draw(st.sampled_from(SplitMethod))
    config = SplitConfig(method=method, train=0.5, val=0.25, test=0.25, seed=3)
    ordered = sorted(ids)
    named = data.draw(st.lists(st.sampled_from(ordered))) if ids else []
    given_splits = dict.fromkeys(named, "test")
    shuffled = list(ordered)
    random.shuffle(shuffled)
    turned = dict(reversed(given_splits.items()))
    assert assign_splits(shuffled, config, turned) == assign_splits(ordered, config, given_splits)


def test_given_splits_are_kept_and_named() -> None:
    splits = assign_splits(["a", "b", "c"], SplitConfig(), {"b": "test", "not there": "val"})
    assert splits.test == ["b"]
    assert splits.given == ["b"]
    with pytest.raises(ConfigurationError, match="'dev'"):
        assign_splits(["a"], SplitConfig(), {"a": "dev"})
    with pytest.raises(ConfigurationError, match="add up to 1"):
        SplitConfig(train=0.9)


def test_more_rows_change_no_split(tmp_path: Path) -> None:
    few = write_store(tmp_path / "few", scenes=8, rows=1)
    many = write_store(tmp_path / "many", scenes=8, rows=3)
    assert few.split_manifest_hash == many.split_manifest_hash
    opened = SourceStore.open(tmp_path / "many")
    by_scene: dict[str, set[str]] = {}
    for entry in opened.index:
        by_scene.setdefault(entry.scene_id, set()).add(entry.split)
    assert all(len(splits) == 1 for splits in by_scene.values())
    assert {split for splits in by_scene.values() for split in splits} == set(SPLITS)


# ------------------------------------------------------------------------------------------ writer


@pytest.mark.parametrize(
    "bad", ["", ".", "..", "a/b", "../x", "a\\b", ".hidden", "a b", "ä", "x" * 121, "a\n", "-a"]
)
def test_ids_that_could_leave_the_store_are_refused(bad: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="scene_id"):
        checked_id(bad, "scene_id")
    with SourceStoreWriter(tmp_path / "s", config={}) as writer:
        with pytest.raises(InvalidValue, match="scene_id"):
            writer.add_scene(bad, room(), Boxes.none())
        writer.add_scene("a", room(), Boxes.none())
        with pytest.raises(InvalidValue, match="snippet_id"):
            writer.add_row("a", bad, *some_row(np.random.default_rng(0)))


def test_rows_come_in_order_each_once(tmp_path: Path) -> None:
    row = some_row(np.random.default_rng(0))
    with SourceStoreWriter(tmp_path / "s", config={}) as writer:
        writer.add_scene("b", room(), Boxes.none())
        writer.add_scene("a", room(), Boxes.none())
        writer.add_row("b", "1", *row)
        for scene, snippet in (("b", "1"), ("b", "0"), ("a", "2")):
            with pytest.raises(InvalidValue, match="rows come sorted"):
                writer.add_row(scene, snippet, *row)
        with pytest.raises(InvalidValue, match="add_scene"):
            writer.add_row("c", "1", *row)
        with pytest.raises(InvalidValue, match="not added before"):
            writer.add_scene("a", room(), Boxes.none())
        with pytest.raises(InvalidValue, match="none for a"):
            writer.finish()
    assert not (tmp_path / "s").exists()


BAD_ROWS: dict[str, tuple[Callable[[ActorView], ActorView], type[Exception], str]] = {
    "a pose that is not rigid": (
        lambda view: changed_view(view, poses=view.poses * 1.1),
        InvalidTrajectory,
        "not rigid",
    ),
    "a pose of NaN": (
        lambda view: changed_view(view, poses=view.poses * np.float32(np.nan)),
        InvalidTrajectory,
        "not rigid",
    ),
    "no frame": (
        lambda view: changed_view(
            view,
            poses=view.poses[:0],
            t_ns=view.t_ns[:0],
            point_frame=np.full_like(view.point_frame, -1),
        ),
        InvalidTrajectory,
        "root",
    ),
    "times that go back": (
        lambda view: changed_view(view, t_ns=view.t_ns[::-1]),
        InvalidTrajectory,
        "not after",
    ),
    "a time too few": (
        lambda view: changed_view(view, t_ns=view.t_ns[1:]),
        InvalidTrajectory,
        "lengths",
    ),
    "a point of NaN": (
        lambda view: changed_view(view, points=view.points * np.float32(np.nan)),
        InvalidValue,
        "not finite",
    ),
    "a point of a frame that is not there": (
        lambda view: changed_view(view, point_frame=view.point_frame + 9),
        InvalidValue,
        "was seen by frame",
    ),
    "a negative deviation": (
        lambda view: changed_view(view, dist_std=-view.dist_std),
        InvalidValue,
        "dist_std",
    ),
    "a root outside the mesh": (
        lambda view: changed_view(
            view, poses=view.poses + np.array([0] * 9 + [9, 0, 0], np.float32)
        ),
        InvalidTrajectory,
        "outside the mesh",
    ),
    "a class name that numpy would cut": (
        lambda view: changed_view(
            view, detections=Boxes.build([[0] * 12], [[1, 1, 1]], [0], class_name=["a\0b"])
        ),
        InvalidBoxes,
        "zero byte",
    ),
}


@pytest.mark.parametrize("bad", BAD_ROWS)
def test_a_bad_row_is_refused_by_its_key(bad: str, tmp_path: Path) -> None:
    change, error, words = BAD_ROWS[bad]
    row = some_row(np.random.default_rng(0))
    with SourceStoreWriter(tmp_path / "s", config={}) as writer:
        writer.add_scene("a", room(), Boxes.none())
        with pytest.raises(error, match=words) as caught:
            writer.add_row("a", "r", change(row.actor), row.continuation, row.continuation_t_ns)
        assert "a/r" in str(caught.value)


def test_bad_truth_is_refused(tmp_path: Path) -> None:
    row = some_row(np.random.default_rng(0))
    pose = [1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1]
    for number, (boxes, words) in enumerate(
        {
            "not finite": Boxes.build([[np.nan] * 12], [[1, 1, 1]], [0]),
            "extent": Boxes.build([pose], [[1, 0, 1]], [0]),
            "rigid": Boxes.build([[2.0] * 12], [[1, 1, 1]], [0]),
        }.items()
    ):
        with SourceStoreWriter(tmp_path / str(number), config={}) as writer:
            writer.add_scene("a", room(), words)
            with pytest.raises(InvalidBoxes, match=boxes):
                writer.add_row("a", "r", *row)
    with SourceStoreWriter(tmp_path / "s", config={}) as writer:
        writer.add_scene("a", room(), Boxes.none())
        with pytest.raises(InvalidTrajectory, match="the root is at"):
            writer.add_row("a", "r", row.actor, row.continuation, row.continuation_t_ns - 10**12)


# ----------------------------------------------------------------------------------- immutability


def test_a_finished_store_is_not_written_again_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    first = write_store(tmp_path / "s", seed=1)
    with pytest.raises(TargetExists, match="replace=True"):
        write_store(tmp_path / "s", seed=2)
    assert SourceStore.open(tmp_path / "s").manifest_digest == first.manifest_digest
    held = SourceStore.open(tmp_path / "s")
    before = columns_of(held.row(0))
    second = write_store(tmp_path / "s", seed=2, replace=True)
    assert SourceStore.open(tmp_path / "s").manifest_digest == second.manifest_digest
    assert columns_of(held.row(0)) == before  # its files are still open
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_what_is_no_source_store_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "thesis.tex").write_text("years of work")
    with pytest.raises(TargetExists, match="not a source store"):
        write_store(tmp_path / "s", replace=True)
    assert (tmp_path / "s" / "thesis.tex").exists()


def test_a_writer_that_does_not_finish_leaves_nothing(tmp_path: Path) -> None:
    with SourceStoreWriter(tmp_path / "s", config={}) as writer:
        writer.add_scene("a", room(), Boxes.none())
    assert list(tmp_path.iterdir()) == []


def test_two_writers_of_one_store_do_not_meet(tmp_path: Path) -> None:
    with (
        SourceStoreWriter(tmp_path / "s", config={}),
        pytest.raises(LeaseHeld),
        SourceStoreWriter(tmp_path / "s", config={}),
    ):
        pass


KILLED = """
import sys
from pathlib import Path
import numpy as np
from rollbook.generate.geometry.boxes import Boxes
from rollbook.generate.sources.writer import SourceStoreWriter
from tests.generate.source_rows import room, some_row

row = some_row(np.random.default_rng(0), points=2000)
with SourceStoreWriter(Path(sys.argv[1]), config={}, rows_per_shard=2) as writer:
    for number in range(10**6):
        writer.add_scene(f"s{number:06d}", room((4.0, 3.0, 2.5 + number / 1000)), Boxes.none())
        writer.add_row(f"s{number:06d}", "r", *row)
        print(number, flush=True)
"""


def test_a_killed_writer_leaves_no_store_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    place = tmp_path / "s"
    for rows in (1, 7):
        running = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(place)], stdout=subprocess.PIPE, text=True
        )
        assert running.stdout is not None
        for _ in range(rows):
            running.stdout.readline()
        running.send_signal(signal.SIGKILL)
        running.wait()
        running.stdout.close()
        assert not place.exists()
        with pytest.raises(NotASourceStore, match="does not exist"):
            SourceStore.open(place)
        assert len([path for path in tmp_path.iterdir() if ".stage-" in path.name]) == 1
    write_store(place)
    assert validate_source_store(place, deep=True).ok
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


# -------------------------------------------------------------------------------------------- speed


@contextmanager
def opened_files(folder: Path) -> Iterator[list[str]]:
    """The files in `folder` that are opened inside the block."""
    found: list[str] = []
    watching = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "open" and str(arguments[0]).startswith(str(folder)):
            found.append(str(arguments[0]))

    sys.addaudithook(watch)  # a hook cannot be removed
    try:
        yield found
    finally:
        watching = False


def test_opening_a_store_and_reading_a_row_take_no_longer_in_a_large_store(tmp_path: Path) -> None:
    """As many files are opened, and none for the rows before it."""
    opened_for = {}
    for scenes in (2, 20):
        place = tmp_path / str(scenes)
        write_store(place, scenes=scenes, rows=2, rows_per_shard=4)
        with opened_files(place) as to_open:
            store = SourceStore.open(place)
        with opened_files(place) as for_a_row:
            store.row(len(store) - 1)
        with opened_files(place) as for_the_next:
            store.row(len(store) - 2)
        opened_for[scenes] = (len(to_open), len(for_a_row), len(for_the_next))
    assert opened_for[2] == opened_for[20]
    assert opened_for[20][2] == 0


def test_config_digests_tell_ints_from_floats() -> None:
    assert config_sha256({"a": 1}) != config_sha256({"a": 1.0})
