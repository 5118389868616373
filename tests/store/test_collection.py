"""Many stores as one: rows, ids, words and batches over all of them, and stores that do not belong together."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.errors import ConfigurationError, IncompatibleStores, InvalidNumber, StorageError
from rollbook.store.collection import ROW_IDS, RolloutCollection
from rollbook.store.manifest import group_metadata, json_bytes, manifest_sha256
from rollbook.store.reader import RolloutZarrStoreReader
from rollbook.store.schema import Q_H, TABLES
from rollbook.store.writer import write_rollout_zarr_store
from tests.store.synthetic import make_records
from tests.store.test_reader import Array, assert_same_columns, same

Write = Callable[..., Path]


def write_store(place: Path, name: str, count: int = 4, **options: Any) -> Path:
    """Records whose rollouts are named for their store."""
    config = {key: options.pop(key) for key in tuple(options) if key in CONFIG}
    records = make_records(count, **{"horizon": 3, "candidates": (3, 6), "features": 2, **options})
    named = [
        dataclasses.replace(each, rollout_id_prefix=f"{name}-{each.rollout_id_prefix}")
        for each in records
    ]
    write_rollout_zarr_store(place / name, named, **{"selected_depth_enabled": False, **config})
    return place / name


CONFIG = ("discount_gamma", "return_semantics", "target_protocol_version", "reason_code_version")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three stores of different widths, horizons, words and sizes."""
    place = tmp_path_factory.mktemp("collection")
    return [
        write_store(place, "narrow", 5, seed=1, candidates=(3, 5), branching=True),
        write_store(place, "wide", 7, seed=2, candidates=(6, 11), horizon=5, policies=("learned",)),
        write_store(place, "last", 2, seed=3, candidates=4, horizon=2),
    ]


@pytest.fixture(scope="module")
def many(paths: list[Path]) -> RolloutCollection:
    return RolloutCollection(paths)


def parts(many: RolloutCollection, table: str, name: str) -> list[Array]:
    return [store.array(f"{table}/{name}") for store in many.stores]


# -------------------------------------------------------------------------------------------- rows


def test_counts_are_sums(many: RolloutCollection) -> None:
    for name in ("num_sources", "num_targets", "num_rollouts", "num_steps", "num_candidates"):
        assert getattr(many, name) == sum(getattr(store, name) for store in many.stores)
    assert len(many) == 3
    assert f"{many.num_candidates} candidates" in repr(many)


@pytest.mark.parametrize("table", [name for name in TABLES if name not in ("q_h", "returns")])
def test_tables_are_one_behind_the_other(many: RolloutCollection, table: str) -> None:
    got = many.table(table)
    for name in got:
        assert same(got[name], np.concatenate(parts(many, table, name))), name


@given(data=st.data())
def test_any_rows_of_any_table(many: RolloutCollection, data: st.DataObject) -> None:
    table = data.draw(st.sampled_from(["rollouts", "steps", "candidates", "q_h", "targets"]))
    total = many.num_rows(table)
    whole = many.table(table)
    bound = st.none() | st.integers(-total - 2, total + 2)
    step = st.none() | st.integers(-3, 3).filter(bool)
    rows = data.draw(
        st.builds(slice, bound, bound, step)
        | st.lists(st.integers(0, total - 1), max_size=20).map(lambda some: np.array(some, int))
    )
    assert_same_columns(
        many.table(table, rows=rows), {name: each[rows] for name, each in whole.items()}
    )


def test_rows_by_mask(many: RolloutCollection) -> None:
    mask = many.table("candidates", ("selected_mask",))["selected_mask"]
    chosen = many.table("candidates", ("target_rri", "selected_mask"), mask)
    assert len(chosen["target_rri"]) == many.num_steps
    assert chosen["selected_mask"].all()


def test_locate_is_the_inverse_of_the_offsets(many: RolloutCollection) -> None:
    for table in ("rollouts", "candidates"):
        offsets = many.offsets(table)
        for row in range(many.num_rows(table)):
            store, local = many.locate(table, row)
            assert offsets[store] + local == row
            assert 0 <= local < offsets[store + 1] - offsets[store]
    assert many.locate("rollouts", int(many.offsets("rollouts")[1])) == (1, 0)


@pytest.mark.parametrize("row", [-1, 1_000_000])
def test_rows_that_are_not_there(many: RolloutCollection, row: int) -> None:
    with pytest.raises(InvalidNumber, match="from 0 to"):
        many.locate("steps", row)
    with pytest.raises(InvalidNumber, match="from 0 to"):
        many.table("steps", ("step_row_id",), np.array([0, row]))
    with pytest.raises(InvalidNumber, match="row numbers"):
        many.table("steps", ("step_row_id",), np.array([0.5]))
    with pytest.raises(StorageError, match="no such column"):
        many.table("steps", ("nothing",))


# --------------------------------------------------------------------------------- ids and words


def test_global_ids_name_global_rows(many: RolloutCollection) -> None:
    for table, name in (
        ("rollouts", "rollout_row_id"),
        ("steps", "step_row_id"),
        ("candidates", "candidate_row_id"),
        ("targets", "target_row_id"),
        ("q_h", "state_step_row_id"),
    ):
        ids = many.table(table, (name,), global_ids=True)[name]
        assert ids.tolist() == list(range(many.num_rows(table)))
        assert not same(ids, many.table(table, (name,))[name])


def test_global_ids_still_point_to_the_same_rows(many: RolloutCollection) -> None:
    steps = many.table("steps", global_ids=True)
    chosen = many.table(
        "candidates",
        ("step_row_id", "selected_mask"),
        steps["selected_candidate_row_id"],
        global_ids=True,
    )
    assert same(chosen["step_row_id"], steps["step_row_id"])
    assert chosen["selected_mask"].all()
    rollouts = many.table("rollouts", global_ids=True)
    first = many.table("steps", rows=rollouts["step_offset"], global_ids=True)
    assert same(first["rollout_row_id"], rollouts["rollout_row_id"])
    view = many.table("q_h", global_ids=True)
    following = view["td_next_step_row_id"]
    assert (following == -1).sum() == view["td_terminal_mask"].sum()
    assert same(following[following >= 0], view["state_step_row_id"][following >= 0] + 1)


def test_what_names_nothing_stays_so(many: RolloutCollection) -> None:
    for table, column in TABLES.items():
        for name in set(many.column_names(table)) & set(ROW_IDS):
            own = many.table(table, (name,))[name]
            everywhere = many.table(table, (name,), global_ids=True)[name]
            assert same(own < 0, everywhere < 0), f"{table}/{name}"
            assert everywhere.dtype == column.columns[name].numpy
            assert set(everywhere[everywhere < 0].tolist()) <= {-1}


def test_every_row_id_of_the_schema_is_known() -> None:
    own = {"source_row_id", "matched_gt_target_row_id", "selector_target_row_id"}
    ids = {name for table in TABLES.values() for name in table.columns if name.endswith("_row_id")}
    assert ids - own <= set(ROW_IDS)
    offsets = {
        name for table in TABLES.values() for name in table.columns if name.endswith("_offset")
    }
    assert offsets <= set(ROW_IDS)


def test_words_of_all_stores(many: RolloutCollection) -> None:
    for table, column in (
        ("rollouts", "policy_id"),
        ("rollouts", "rollout_id"),
        ("lineage", "model_checkpoint_id"),
    ):
        expected = [word for store in many.stores for word in store.decoded(table, column)]
        assert many.decoded(table, column) == expected
    codes = many.table("rollouts", ("policy_id",), global_ids=True)["policy_id"]
    assert [many.words("policy")[code] for code in codes] == many.decoded("rollouts", "policy_id")
    assert len(set(many.words("policy"))) == len(many.words("policy"))
    with pytest.raises(ConfigurationError, match="no coded words"):
        many.decoded("rollouts", "horizon")
    with pytest.raises(ConfigurationError, match="no dictionary"):
        many.words("colour")


# ------------------------------------------------------------------------------------ the dense view


def test_narrow_states_are_padded_with_the_schemas_values(many: RolloutCollection) -> None:
    view = many.q_h_view()
    widest = max(int(store.attrs["q_h_max_candidates"]) for store in many.stores)
    for name, column in Q_H.columns.items():
        first = 0
        for store in many.stores:
            own = store.array(f"q_h/{name}")
            rows = view[name][first : first + len(own)]
            first += len(own)
            if "A" not in column.shape:
                assert same(rows, own), name
                continue
            assert rows.shape[1] == widest
            assert same(np.ascontiguousarray(rows[:, : own.shape[1]]), np.ascontiguousarray(own)), (
                name
            )
            padding = rows[:, own.shape[1] :]
            assert same(padding, np.full_like(padding, column.fill)), name


def test_longer_returns_of_a_short_horizon_are_its_longest(many: RolloutCollection) -> None:
    returns = many.table("returns")
    horizon = max(int(store.attrs["q_h_horizon"]) for store in many.stores)
    assert returns["n_step_return"].shape == (many.num_steps, horizon)
    assert same(np.ascontiguousarray(returns["n_step_return"][:, -1]), returns["mc_return"])


def test_batches_hold_every_state_of_every_store_once(many: RolloutCollection) -> None:
    view = many.q_h_view(global_ids=True)
    batches = list(many.batches(8, seed=4, epochs=2, global_ids=True))
    half = len(batches) // 2
    for epoch in (batches[:half], batches[half:]):
        seen = np.concatenate([each["state_step_row_id"] for each in epoch])
        assert sorted(seen.tolist()) == list(range(many.num_steps))
    for batch in many.batches(8, seed=4, global_ids=True):
        rows = batch["state_step_row_id"]
        assert_same_columns(batch, {name: each[rows] for name, each in view.items()})
        assert all(each.flags.writeable for each in batch.values())


def test_batches_hold_returns_by_name(many: RolloutCollection) -> None:
    """Horizons differ between the stores."""
    returns = many.table("returns")
    columns = ("state_step_row_id", *returns)
    for batch in many.batches(8, seed=4, columns=columns, global_ids=True):
        rows = batch.pop("state_step_row_id")
        assert_same_columns(batch, {name: each[rows] for name, each in returns.items()})


def test_batches_mix_the_stores(many: RolloutCollection) -> None:
    offsets = many.offsets("steps")
    first = next(many.batches(24, seed=0, global_ids=True))["state_step_row_id"]
    assert set(np.searchsorted(offsets, first, side="right").tolist()) == {1, 2, 3}


@pytest.mark.parametrize("start", [0, 3, 11, 1000])
def test_batches_are_determined_and_resume(many: RolloutCollection, start: int) -> None:
    again = pickle.loads(pickle.dumps(many))
    whole = list(many.batches(8, seed=4, epochs=2))
    rest = list(again.batches(8, seed=4, epochs=2, start=start, prefetch=True))
    assert len(rest) == max(0, len(whole) - start)
    for one, other in zip(whole[start:], rest, strict=True):
        assert_same_columns(one, other)


def test_one_store_alone_gives_its_own_batches(paths: list[Path]) -> None:
    alone, store = RolloutCollection([paths[1]]), RolloutZarrStoreReader(paths[1])
    columns = ("td_reward", "actor_features", "state_step_row_id")
    for one, other in zip(
        alone.batches(16, seed=9, epochs=2, columns=columns),
        store.batches(16, seed=9, epochs=2, columns=columns),
        strict=True,
    ):
        assert_same_columns(one, other)


def test_batches_that_cannot_be(many: RolloutCollection) -> None:
    for size, start in ((0, 0), (4, -1)):
        with pytest.raises(ConfigurationError, match="cannot be made"):
            many.batches(size, start=start)


def test_images_of_the_stores_that_kept_them(tmp_path: Path, paths: list[Path]) -> None:
    records = make_records(2, seed=5, horizon=2, candidates=4, depth=(4, 6), features=2)
    named = [
        dataclasses.replace(each, rollout_id_prefix=f"seen-{i}") for i, each in enumerate(records)
    ]
    write_rollout_zarr_store(
        tmp_path / "seen", named, selected_depth_height_px=4, selected_depth_width_px=6
    )
    many = RolloutCollection([paths[0], tmp_path / "seen"])
    images = many.table("selected_depth", global_ids=True)
    assert images["depth_m"].shape == (4, 4, 6)
    assert images["step_row_id"].tolist() == list(range(many.num_steps - 4, many.num_steps))


# ------------------------------------------------------------------------------------- what they are


def test_provenance_names_every_store(many: RolloutCollection, paths: list[Path]) -> None:
    rows = many.provenance()
    assert [row["path"] for row in rows] == [str(path.resolve()) for path in paths]
    for row, store in zip(rows, many.stores, strict=True):
        payload = store.manifest()["manifest"]
        assert row["content_sha256"] == payload["content_sha256"]
        assert row["manifest_sha256"] == store.attrs["manifest_sha256"]
        assert row["counts"] == payload["counts"]
        assert row["config_hashes"] == payload["config_hashes"]
        assert row["first_step_row"] == many.offsets("steps")[row["store"]]
    json.dumps(rows, allow_nan=False)


def test_open_readers_are_taken_as_they_are(paths: list[Path]) -> None:
    store = RolloutZarrStoreReader(paths[0])
    many = RolloutCollection([store, str(paths[1])])
    assert many.stores[0] is store


# ------------------------------------------------------------------------------------------- refusals


def test_no_stores(paths: list[Path]) -> None:
    with pytest.raises(ConfigurationError, match="at least one store"):
        RolloutCollection([])
    with pytest.raises(ConfigurationError, match="a list of stores"):
        RolloutCollection(str(paths[0]))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("discount_gamma", 0.5),
        ("return_semantics", "something_else"),
        ("target_protocol_version", "v9"),
        ("reason_code_version", "v9"),
        ("features", 5),
        ("features", 0),
    ],
)
def test_stores_that_mean_different_things(
    tmp_path: Path, paths: list[Path], option: str, value: Any
) -> None:
    other = write_store(tmp_path, "other", 1, **{option: value})
    with pytest.raises(
        IncompatibleStores, match=option.rstrip("s").replace("feature", "feature count")
    ) as caught:
        RolloutCollection([paths[0], other])
    assert caught.value.path == str(paths[0].resolve())
    assert caught.value.other == str(other.resolve())


def test_another_schema_version(
    tmp_path: Path, paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a release reads two versions, a collection still reads one."""
    other = Path(shutil.copytree(paths[1], tmp_path / "other"))
    payload = json.loads((other / "manifest.json").read_bytes())
    payload["root_attrs"]["schema_version"] = "0.9-older"
    (other / "manifest.json").write_bytes(json_bytes(payload, "the manifest"))
    attrs = {**payload["root_attrs"], "manifest_sha256": manifest_sha256(payload)}
    (other / "zarr.json").write_bytes(group_metadata(attrs))
    monkeypatch.setattr("rollbook.store.stored_tables._check_schema", lambda *_: None)
    with pytest.raises(IncompatibleStores, match=r"schema_version is .*'0\.9-older'"):
        RolloutCollection([paths[0], other])


def test_the_same_rollout_in_two_stores(tmp_path: Path, paths: list[Path]) -> None:
    records = list(make_records(3, seed=8, horizon=3, candidates=4, features=2))
    for place, chosen in (("one", records[:2]), ("other", records[1:])):
        write_rollout_zarr_store(tmp_path / place, chosen, selected_depth_enabled=False)
    shared = records[1].lineage_for_chain(0).rollout_id
    with pytest.raises(IncompatibleStores, match=f"both hold the rollout '{shared}'") as caught:
        RolloutCollection([paths[0], tmp_path / "one", paths[1], tmp_path / "other"])
    assert {caught.value.path, caught.value.other} == {
        str((tmp_path / place).resolve()) for place in ("one", "other")
    }


def test_the_same_content_twice(tmp_path: Path, paths: list[Path]) -> None:
    copied = Path(shutil.copytree(paths[0], tmp_path / "copied"))
    for twice in ([paths[0], paths[0]], [paths[0], copied], [paths[2], paths[0], paths[2]]):
        with pytest.raises(IncompatibleStores, match="both hold the content"):
            RolloutCollection(twice)


def test_a_store_that_does_not_open(tmp_path: Path, paths: list[Path]) -> None:
    with pytest.raises(StorageError, match="not a rollout store"):
        RolloutCollection([paths[0], tmp_path])
