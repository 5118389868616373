"""The reader: every column as plain zarr-python reads it, rows by range, batches, and stores that do not open."""

from __future__ import annotations

import itertools
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

from rollbook.errors import (
    ChecksumMismatch,
    ConfigurationError,
    InvalidNumber,
    StorageError,
    UnsupportedVersion,
)
from rollbook.store.manifest import group_metadata, json_bytes, manifest_sha256
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.schema import Q_H, TABLES, TARGETS
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.plain_q_h import plain_q_h
from tests.store.synthetic import make_records

Array = NDArray[Any]
RECORDS: dict[str, Any] = {
    "seed": 3,
    "horizon": 3,
    "candidates": (4, 9),
    "branching": True,
    "unlabelled_fraction": 0.2,
    "early_fraction": 0.3,
    "features": 3,
    "depth": (6, 8),
    "crops": True,
}
STORE: dict[str, Any] = {
    "selected_depth_chunk_steps": 16,
    "selected_depth_height_px": 6,
    "selected_depth_width_px": 8,
    "target_eval_crops_enabled": True,
    "target_eval_crop_max_points": 32,
    "discount_gamma": 0.9,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("stores") / "store"
    write_rollout_zarr_store(place, make_records(10, **RECORDS), **STORE)
    return place


@pytest.fixture
def store(folder: Path) -> RolloutZarrStoreReader:
    return RolloutZarrStoreReader(folder)


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """A store to damage."""
    return Path(shutil.copytree(folder, tmp_path / "copied"))


def same(first: Array, second: Array) -> bool:
    return (
        first.dtype == second.dtype
        and first.shape == second.shape
        and np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
    )


def assert_same_columns(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert list(first) == list(second)
    assert [
        name for name in first if not same(np.asarray(first[name]), np.asarray(second[name]))
    ] == []


# ----------------------------------------------------------------------------------------- columns


@pytest.mark.parametrize("table", TABLES)
def test_every_column_is_what_plain_zarr_reads(folder: Path, table: str) -> None:
    store = RolloutZarrStoreReader(folder)
    group = zarr.open_group(str(folder), mode="r", use_consolidated=False)[table]
    assert isinstance(group, zarr.Group)
    assert store.column_names(table) == tuple(TABLES[table].columns)
    for name, column in TABLES[table].columns.items():
        node = group[column.packed or name]
        assert isinstance(node, zarr.Array)
        expected: Array = np.asarray(node[...])
        if column.packed is not None:
            expected = expected[:, TABLES[table].packed()[column.packed].index(name)]
            assert node.attrs["columns"] == TABLES[table].packed()[column.packed]
        assert same(store.array(f"{table}/{name}"), expected), name
        assert store.array(f"{table}/{name}").dtype == column.numpy


def test_packed_columns_share_one_array(store: RolloutZarrStoreReader) -> None:
    names = TARGETS.packed()["scores"]
    together = store.array("targets/scores")
    assert together.shape == (store.num_targets, len(names))
    assert same(store.array(f"targets/{names[3]}"), np.ascontiguousarray(together[:, 3]))
    assert store.has("targets/scores")
    assert not (store.store_dir / "targets" / names[3]).exists()


def test_arrays_cannot_be_written_to(store: RolloutZarrStoreReader) -> None:
    for table, names in ((name, store.column_names(name)) for name in TABLES):
        for name in names:
            column = store.array(f"{table}/{name}")
            assert not column.flags.writeable, f"{table}/{name}"
    with pytest.raises(ValueError, match="read-only"):
        store.array("candidates/target_rri")[0] = 1


def test_raw_columns_are_mapped_and_opened_once(store: RolloutZarrStoreReader) -> None:
    view = store.array("candidates/pose_world_cam")
    assert view.base is not None
    assert store.array("candidates/pose_world_cam") is view


def test_a_table_by_columns_and_rows(store: RolloutZarrStoreReader) -> None:
    names = ("step_row_id", "target_rri")
    whole = store.table("candidates", names)
    assert tuple(whole) == names
    assert_same_columns(
        store.table("candidates", names, slice(5, 9)), {name: whole[name][5:9] for name in names}
    )
    rows = np.array([7, 0, 7, 3])
    assert_same_columns(
        store.table("candidates", names, rows), {name: whole[name][rows] for name in names}
    )
    assert tuple(store.table("rollouts")) == tuple(TABLES["rollouts"].columns)


def test_columns_a_store_does_not_have(tmp_path: Path) -> None:
    write_rollout_zarr_store(tmp_path / "s", make_records(2, seed=1), selected_depth_enabled=False)
    store = RolloutZarrStoreReader(tmp_path / "s")
    assert store.column_names("selected_depth") == ()
    assert not store.has("q_h/actor_features")
    assert "actor_features" not in store.q_h_view()
    assert store.selected_depth(0) is None
    with pytest.raises(StorageError, match="no such column"):
        store.array("q_h/actor_features")
    with pytest.raises(StorageError, match="no such column"):
        store.array("candidates/no_such_name")


def test_words(store: RolloutZarrStoreReader) -> None:
    codes = store.array("rollouts/rollout_id")
    words = store.words("rollout")
    assert store.decoded("rollouts", "rollout_id") == [words[code] for code in codes]
    assert len(set(words)) == store.num_rollouts
    assert store.decoded("lineage", "model_checkpoint_id", slice(0, 2)) == [None, None]


def test_counts_are_those_of_the_columns(store: RolloutZarrStoreReader) -> None:
    counts = (store.num_sources, store.num_targets, store.num_rollouts, store.num_steps)
    ids = ("source_row_id", "target_row_id", "rollout_row_id", "step_row_id")
    tables = ("sources", "targets", "rollouts", "steps")
    for count, table, name in zip(counts, tables, ids, strict=True):
        assert len(store.array(f"{table}/{name}")) == count
    assert len(store.array("candidates/candidate_row_id")) == store.num_candidates
    assert f"{store.num_candidates} candidates" in repr(store)


# -------------------------------------------------------------------------------------------- rows


def test_one_rollout_is_its_rows(store: RolloutZarrStoreReader) -> None:
    steps, candidates = store.table("steps"), store.table("candidates")
    for row in range(store.num_rollouts):
        chain = store.rollout(row)
        assert chain["rollout_row_id"] == row
        own = steps["rollout_row_id"] == row
        assert_same_columns(chain["steps"], {name: each[own] for name, each in steps.items()})
        own = candidates["rollout_row_id"] == row
        assert_same_columns(
            chain["candidates"], {name: each[own] for name, each in candidates.items()}
        )


def test_one_step_is_its_shell(store: RolloutZarrStoreReader) -> None:
    owner = store.array("candidates/step_row_id")
    for step in range(store.num_steps):
        shell = store.candidates(step)
        assert shell["candidate_row_id"].tolist() == np.flatnonzero(owner == step).tolist()
        assert shell["shell_index"].tolist() == list(range(len(shell["shell_index"])))
    assert store.steps(slice(2, 5))["step_row_id"].tolist() == [2, 3, 4]


def test_rows_of_one_rollout_are_views_of_its_range(store: RolloutZarrStoreReader) -> None:
    """Reading one rollout touches only its rows: no column is copied or searched."""
    row = store.num_rollouts // 2
    chain = store.rollout(row)
    assert len(chain["candidates"]["candidate_row_id"]) < store.num_candidates // 4
    for table in ("steps", "candidates"):
        for name, values in chain[table].items():
            column = store.array(f"{table}/{name}")
            if column.strides[0]:  # a column of one value has no rows in memory
                assert np.shares_memory(values, column), name
                assert values.nbytes < column.nbytes


@pytest.mark.parametrize("row", [-1, 1_000_000])
def test_rows_that_are_not_there(store: RolloutZarrStoreReader, row: int) -> None:
    for read in (store.rollout, store.candidates, store.selected_depth):
        with pytest.raises(InvalidNumber, match="a number from 0 to"):
            read(row)


def test_depth_by_step(store: RolloutZarrStoreReader, folder: Path) -> None:
    group = zarr.open_group(str(folder / "selected_depth"), mode="r", use_consolidated=False)
    for step in (0, 7, store.num_steps - 1):
        image = store.selected_depth(step)
        assert image is not None
        assert image["step_row_id"] == step
        assert image["candidate_row_id"] == store.array("steps/selected_candidate_row_id")[step]
        assert image["depth_m"].shape == (6, 8)
        for name in ("depth_m", "valid_mask"):
            node = group[name]
            assert isinstance(node, zarr.Array)
            assert same(image[name], np.asarray(node[step]))


# ---------------------------------------------------------------------------------------- training


def test_the_dense_view(store: RolloutZarrStoreReader) -> None:
    stored = store.q_h_view()
    assert tuple(stored) == tuple(Q_H.columns)
    plain = plain_q_h(store, 0.9)
    assert_same_columns({name: stored[name] for name in plain}, plain)
    widest = int(store.array("steps/num_candidates").max())
    assert stored["actor_features"].shape == (store.num_steps, widest, 3)


def test_the_dense_view_for_another_discount(store: RolloutZarrStoreReader) -> None:
    rebuilt = store.q_h_view(discount_gamma=0.5)
    stored = store.q_h_view()
    assert_same_columns(
        {name: rebuilt[name] for name in stored if name != "td_discount"},
        {name: stored[name] for name in stored if name != "td_discount"},
    )
    terminal = stored["td_terminal_mask"]
    assert set(rebuilt["td_discount"][~terminal].tolist()) == {0.5}
    assert set(rebuilt["td_discount"][terminal].tolist()) == {0.0}
    with pytest.raises(InvalidNumber, match="discount_gamma"):
        store.q_h_view(discount_gamma=float("nan"))


def test_returns_follow_the_rewards(store: RolloutZarrStoreReader) -> None:
    assert_same_columns(store.returns_view(), store.returns_view(discount_gamma=0.9))
    rewards = store.array("q_h/td_reward")
    for row in range(store.num_rollouts):
        chain = store.table("rollouts", ("step_offset", "num_steps"), slice(row, row + 1))
        first, count = int(chain["step_offset"][0]), int(chain["num_steps"][0])
        own = rewards[first : first + count].astype(np.float64)
        seen = np.isfinite(own)
        total = float((np.where(seen, own, 0) * 0.5 ** np.arange(count)).sum())
        got = store.returns_view(discount_gamma=0.5)["mc_return"][first]
        assert got == pytest.approx(total if seen.any() else np.nan, rel=1e-5, nan_ok=True)


def taken(batches: Iterator[dict[str, Array]]) -> list[list[int]]:
    return [batch["state_step_row_id"].tolist() for batch in batches]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_every_state_once_per_epoch(store: RolloutZarrStoreReader, size: int) -> None:
    batches = taken(store.batches(size, seed=5, epochs=2))
    per_epoch = -(-store.num_steps // size)
    assert len(batches) == 2 * per_epoch
    first, second = batches[:per_epoch], batches[per_epoch:]
    for epoch in (first, second):
        assert sorted(itertools.chain(*epoch)) == list(range(store.num_steps))
    assert first != second
    assert [len(batch) for batch in first[:-1]] == [size] * (per_epoch - 1)


def test_batches_follow_the_seed_alone(store: RolloutZarrStoreReader) -> None:
    again = pickle.loads(pickle.dumps(store))
    assert again.store_dir == store.store_dir
    whole = list(store.batches(8, seed=5, epochs=2))
    for one, other in zip(whole, again.batches(8, seed=5, epochs=2, prefetch=True), strict=True):
        assert_same_columns(one, other)
    assert taken(store.batches(8, seed=6, epochs=2)) != taken(iter(whole))


@pytest.mark.parametrize("start", [0, 1, 5, 1000])
def test_batches_resume(store: RolloutZarrStoreReader, start: int) -> None:
    whole = taken(store.batches(8, seed=5, epochs=2))
    assert taken(store.batches(8, seed=5, epochs=2, start=start)) == whole[start:]


def test_batches_hold_the_rows_of_the_view(store: RolloutZarrStoreReader) -> None:
    view = store.q_h_view()
    for batch in store.batches(9, seed=1):
        rows = batch["state_step_row_id"]
        assert_same_columns(batch, {name: each[rows] for name, each in view.items()})
        assert all(each.flags.writeable and each.flags.owndata for each in batch.values())


def test_batches_of_some_columns_without_end(store: RolloutZarrStoreReader) -> None:
    columns = ("td_reward", "state_step_row_id")
    endless = store.batches(16, seed=0, epochs=None, columns=columns)
    some = list(itertools.islice(endless, 20))
    assert {tuple(batch) for batch in some} == {columns}


def test_batches_hold_returns_by_name(store: RolloutZarrStoreReader) -> None:
    columns = ("mc_return", "state_step_row_id", "n_step_return")
    returns = store.returns_view()
    for batch in store.batches(9, seed=1, columns=columns, prefetch=True):
        rows = batch.pop("state_step_row_id")
        assert_same_columns(batch, {name: each[rows] for name, each in returns.items()})


def test_batches_of_a_column_that_states_do_not_have(store: RolloutZarrStoreReader) -> None:
    with pytest.raises(ConfigurationError, match=r"no column 'mc_returns'; did you mean mc_return"):
        store.batches(4, columns=("mc_returns",))


@pytest.mark.parametrize(("size", "start"), [(0, 0), (-3, 0), (4, -1)])
def test_batches_that_cannot_be(store: RolloutZarrStoreReader, size: int, start: int) -> None:
    with pytest.raises(ConfigurationError, match="cannot be made"):
        next(store.batches(size, start=start))


# ----------------------------------------------------------------------------- stores that do not open


def test_a_folder_that_is_no_store(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(StorageError, match=r"not a rollout store: there is no zarr\.json"):
            RolloutZarrStoreReader(place)


def test_another_zarr_hierarchy(tmp_path: Path) -> None:
    zarr.create_group(str(tmp_path / "other"))
    with pytest.raises(StorageError, match="not a rollout store: no manifest is named"):
        RolloutZarrStoreReader(tmp_path / "other")


@pytest.mark.parametrize("text", ["", "[1]", "{", "\ufeff"])
def test_a_root_that_is_not_json(copied: Path, text: str) -> None:
    (copied / "zarr.json").write_text(text)
    with pytest.raises(StorageError):
        RolloutZarrStoreReader(copied)


def test_without_its_manifest(copied: Path) -> None:
    (copied / "manifest.json").unlink()
    with pytest.raises(StorageError, match=r"not complete: there is no manifest\.json"):
        RolloutZarrStoreReader(copied)


def test_an_edited_manifest(copied: Path) -> None:
    path = copied / "manifest.json"
    path.write_text(path.read_text().replace('"num_rollouts"', '"num_rollouts" ', 1))
    with pytest.raises(ChecksumMismatch, match=r"manifest\.json is not the one"):
        RolloutZarrStoreReader(copied)


def test_edited_root_attributes(copied: Path) -> None:
    root = json.loads((copied / "zarr.json").read_bytes())
    root["attributes"]["num_rollouts"] += 1
    (copied / "zarr.json").write_text(json.dumps(root))
    with pytest.raises(ChecksumMismatch, match="root attributes are not those"):
        RolloutZarrStoreReader(copied)


@pytest.mark.parametrize(
    ("attr", "value", "named"),
    [
        ("schema_version", "7.3-future", "'7.3-future'.*'1.0-target-rollout-core'"),
        ("schema_id", "someone.else", "'someone.else'.*'rollbook.rollout_store'"),
    ],
)
def test_a_schema_this_release_does_not_read(
    copied: Path, attr: str, value: str, named: str
) -> None:
    payload = json.loads((copied / "manifest.json").read_bytes())
    payload["root_attrs"][attr] = value
    (copied / "manifest.json").write_bytes(json_bytes(payload, "the manifest"))
    attrs = {**payload["root_attrs"], "manifest_sha256": manifest_sha256(payload)}
    (copied / "zarr.json").write_bytes(group_metadata(attrs))
    with pytest.raises(UnsupportedVersion, match=named):
        RolloutZarrStoreReader(copied)


def test_a_chunk_that_is_missing_or_short(copied: Path) -> None:
    chunk = copied / "q_h" / "td_reward" / "c" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-4])
    store = RolloutZarrStoreReader(copied)
    with pytest.raises(StorageError, match="bytes"):
        store.array("q_h/td_reward")
    with pytest.raises(StorageError, match="bytes"):
        next(store.batches(4))


# ------------------------------------------------------------------------------- stores that lie elsewhere


def test_files_are_asked_for_before_they_are_read(folder: Path, tmp_path: Path) -> None:
    """The hook by itself: a store whose files come one by one from another folder."""
    place = tmp_path / "arriving"
    place.mkdir()
    for name in ("zarr.json", "manifest.json"):
        shutil.copy(folder / name, place / name)
    asked: list[str] = []

    def fetch(path: str) -> None:
        asked.append(path)
        if (folder / path).is_dir():
            shutil.copytree(folder / path, place / path, dirs_exist_ok=True)
        else:
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / path, place / path)

    store = RolloutZarrStoreReader(place, fetch=fetch)
    whole = RolloutZarrStoreReader(folder)
    assert store.has("q_h/actor_features")
    assert not store.has("q_h/nothing")
    assert store.column_names("selected_depth") == whole.column_names("selected_depth")
    assert asked == []
    assert same(store.array("steps/step_index"), whole.array("steps/step_index"))
    assert asked == ["steps/step_index"]
    assert same(store.array("targets/gt_match_iou"), whole.array("targets/gt_match_iou"))
    assert asked[1:] == ["targets/scores"]
    assert store.words("policy") == whole.words("policy")
    assert taken(store.batches(8, seed=2)) == taken(whole.batches(8, seed=2))
    seen, expected = store.selected_depth(17), whole.selected_depth(17)
    assert seen is not None
    assert expected is not None
    assert same(seen["depth_m"], expected["depth_m"])
    assert not (place / "selected_depth" / "depth_m" / "c.0.0.0").exists()
    assert (place / "selected_depth" / "depth_m" / "c.1.0.0").exists()


def test_reading_needs_neither_zarr_nor_torch(folder: Path) -> None:
    script = (
        "import sys\n"
        "from rollbook.store.reader import RolloutZarrStoreReader\n"
        "store = RolloutZarrStoreReader(sys.argv[1])\n"
        "assert len(list(store.batches(8))) and store.rollout(0)\n"
        "assert not {'zarr', 'torch', 'fsspec', 's3fs'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True)


def test_a_store_that_is_replaced_while_open_is_never_mixed_with_the_new_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.zarr"
    write_rollout_zarr_store(path, make_records(2, seed=1), selected_depth_enabled=False)
    reader = RolloutZarrStoreReader(path)
    before = reader.array("candidates/target_rri")
    kept = before.copy()
    write_rollout_zarr_store(
        path, make_records(2, seed=2), selected_depth_enabled=False, replace=True
    )
    assert np.array_equal(before, kept, equal_nan=True)
    assert reader.array("candidates/target_rri") is before
    with pytest.raises(StorageError, match="replaced while it was open"):
        reader.array("candidates/target_root_gain")
    assert RolloutZarrStoreReader(path).array("candidates/target_root_gain").size


# ---------------------------------------------------------------------------------- choosing rows


def test_a_mask_or_row_ids_choose_rows(store: RolloutZarrStoreReader) -> None:
    column = store.array("steps/step_index")
    mask = column == 1
    assert same(store.table("steps", ("step_index",), mask)["step_index"], column[mask])
    ids = np.array([3, 0, 3])
    assert same(store.table("steps", ("step_index",), ids)["step_index"], column[ids])
    words = store.decoded("rollouts", "policy_id")
    assert store.decoded("rollouts", "policy_id", np.array([2, 0])) == [words[2], words[0]]


@pytest.mark.parametrize("rows", [[-1], [0.0], [True, False], [10**6]], ids=repr)
def test_a_row_that_is_none_is_refused(store: RolloutZarrStoreReader, rows: Any) -> None:
    """-1 means "no row" in a store. It must not become the last row."""
    with pytest.raises(InvalidNumber):
        store.table("steps", ("step_index",), rows)
    with pytest.raises(InvalidNumber):
        store.decoded("rollouts", "policy_id", rows)


@pytest.mark.parametrize("row", [1.0, True, -1, 10**6], ids=repr)
def test_one_row_is_a_number_of_a_row(store: RolloutZarrStoreReader, row: Any) -> None:
    for read in (store.rollout, store.candidates, store.selected_depth):
        with pytest.raises(InvalidNumber, match="row"):
            read(row)
