"""From source rows to a store: what comes out, what is counted, what stops."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.contracts.reasons import VALID_BITSET
from rollbook.errors import (
    ConfigurationError,
    GenerationFailed,
    NoRollouts,
    NotASourceStore,
    TargetExists,
)
from rollbook.generate.actor.features import FEATURES
from rollbook.generate.row_rollouts import RolloutDatasetWriterStats
from rollbook.generate.sources.reader import SourceStore
from rollbook.rollouts import RolloutDatasetWriterConfig
from rollbook.store.checks.validate import validate_rollout_zarr_store
from rollbook.store.reader import RolloutZarrStoreReader
from tests.generate.tiny_source import tiny_config, tiny_source


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> RolloutZarrStoreReader:
    out = tmp_path_factory.mktemp("written") / "rollouts.zarr"
    tiny_config(out, recipes=SUITE).setup_target().run()
    return RolloutZarrStoreReader(out)


SUITE: list[dict[str, Any]] = [
    {"name": "random", "selection_policy": "random_valid", "horizon": 3},
    {"name": "greedy", "selection_policy": "oracle_greedy", "horizon": 3},
    {
        "name": "beam",
        "selection_policy": "oracle_greedy",
        "horizon": 3,
        "branch_factor": 2,
        "beam_width": 3,
    },
    {
        "name": "soft",
        "selection_policy": "temperature_softmax",
        "horizon": 3,
        "branch_factor_schedule": [2, 1],
    },
    {
        "name": "area",
        "selection_policy": "oracle_greedy",
        "scorer": "target_area",
        "horizon": 3,
    },
]


def rows_of(reader: RolloutZarrStoreReader, recipe: str) -> list[int]:
    """Rollout rows of one recipe."""
    words = reader.words("config")
    ids = reader.array("lineage/branch_schedule_id")
    return [row for row, code in enumerate(ids) if words[code] == recipe]


def taken(reader: RolloutZarrStoreReader, rollout: int) -> list[int]:
    steps = reader.array("steps/rollout_row_id") == rollout
    return [int(each) for each in reader.array("steps/selected_shell_index")[steps]]


# ------------------------------------------------------------------------------------ what comes out


def test_the_store_validates_deeply(written: RolloutZarrStoreReader) -> None:
    result = validate_rollout_zarr_store(written.store_dir, deep=True)
    assert result.ok, result.errors
    assert result.num_rollouts == len(written.array("rollouts/rollout_row_id")) >= 10


def test_every_shell_is_whole_and_every_valid_candidate_has_a_label(
    written: RolloutZarrStoreReader,
) -> None:
    assert (written.array("steps/num_candidates") == 60).all()
    valid = written.array("candidates/actor_action_mask")
    gain = written.array("candidates/target_root_gain")
    assert 0 < valid.mean() < 1
    np.testing.assert_array_equal(np.isfinite(gain), valid)
    np.testing.assert_array_equal(
        written.array("candidates/invalid_reason_bitset") == VALID_BITSET, valid
    )
    assert (gain[valid] >= 0).all()


def test_gains_add_up_to_what_the_errors_say(written: RolloutZarrStoreReader) -> None:
    """Telescoping: the sum of root gains is the whole fall of the error, over the error at the root."""
    selected = written.array("candidates/selected_mask")
    before = written.array("candidates/target_pm_dist_before")[selected]
    after = written.array("candidates/target_pm_dist_after")[selected]
    step = written.array("steps/step_index")
    last = np.append(step[1:] == 0, True)
    np.testing.assert_allclose(before[1:][step[1:] > 0], after[:-1][step[1:] > 0], rtol=1e-5)
    gained = written.array("rollouts/final_cumulative_target_root_gain")
    root, end = before[step == 0], after[last]
    np.testing.assert_allclose(gained, (root - end) / root, atol=1e-5)


def test_accuracy_and_completeness_make_the_error(written: RolloutZarrStoreReader) -> None:
    parts = written.table("candidate_diagnostics")
    valid = written.array("candidates/actor_action_mask")
    for region in ("target", "scene"):
        for when in ("before", "after"):
            total = parts[f"{region}_accuracy_{when}"] + parts[f"{region}_completeness_{when}"]
            error = written.array(f"candidates/{region}_pm_dist_{when}")
            np.testing.assert_allclose(total[valid], error[valid], rtol=1e-4)
        assert (
            parts[f"{region}_coverage_after"][valid] >= parts[f"{region}_coverage_before"][valid]
        ).all()


def test_recipes_find_the_same_candidates_at_the_same_node(
    written: RolloutZarrStoreReader,
) -> None:
    """At the root all recipes do; after it those that took the same way."""
    poses = written.array("candidates/pose_world_cam")
    offsets = written.array("steps/candidate_offset")
    first = written.array("rollouts/step_offset")
    source = written.array("rollouts/source_row_id")
    shells: dict[tuple[int, tuple[int, ...]], np.ndarray[Any, Any]] = {}
    shared = 0
    for rollout in range(len(first)):
        way = taken(written, rollout)
        for depth in range(len(way)):
            start = offsets[first[rollout] + depth]
            key = (int(source[rollout]), tuple(way[:depth]))
            shared += key in shells
            np.testing.assert_array_equal(
                shells.setdefault(key, poses[start : start + 60]), poses[start : start + 60]
            )
    assert shared > len(first)
    roots = [shells[key] for key in shells if key[1] == ()]
    after = [shells[key] for key in shells if len(key[1]) == 1]
    assert all(not np.array_equal(roots[0], other) for other in after)


def test_the_greedy_recipe_takes_the_best_and_the_beam_does_no_worse(
    written: RolloutZarrStoreReader,
) -> None:
    gain = written.array("candidates/target_root_gain")
    total = written.array("rollouts/final_cumulative_target_root_gain")
    offsets = written.array("steps/candidate_offset")
    first = written.array("rollouts/step_offset")
    for rollout in rows_of(written, "greedy"):
        start = offsets[first[rollout]]
        assert gain[start + taken(written, rollout)[0]] == np.nanmax(gain[start : start + 60])
    for greedy in rows_of(written, "greedy"):
        source = written.array("rollouts/source_row_id")
        beams = [row for row in rows_of(written, "beam") if source[row] == source[greedy]]
        assert 1 < len(beams) <= 3
        assert max(total[beams]) >= total[greedy] - 1e-6


def test_a_beam_of_chance_does_not_keep_to_the_first_node(tmp_path: Path) -> None:
    """Chance scores all chains alike: if the first were kept, all would be children of one node."""
    recipe = {
        "name": "random",
        "selection_policy": "random_valid",
        "branch_factor": 3,
        "beam_width": 3,
    }
    recipes = [recipe | {"name": f"random{seed}", "seed": seed} for seed in range(4)]
    config = tiny_config(tmp_path / "x.zarr", recipes=recipes, max_samples=1)
    reader = RolloutZarrStoreReader(config.setup_target().run().store_dir)
    ways = [taken(reader, rollout) for rollout in range(12)]
    parents = [{way[0] for way in ways[at : at + 3]} for at in range(0, 12, 3)]
    assert max(map(len, parents)) > 1


def test_chains_that_fork_name_the_one_they_share_most_with(
    written: RolloutZarrStoreReader,
) -> None:
    parents = written.array("rollouts/parent_rollout_row_id")
    forks = written.array("rollouts/fork_step_index")
    children = np.flatnonzero(parents >= 0)
    assert len(children)
    for child in children:
        own, other = taken(written, int(child)), taken(written, int(parents[child]))
        fork = int(forks[child])
        assert own[:fork] == other[:fork]
        assert own[fork : fork + 1] != other[fork : fork + 1]


def test_the_dense_view_has_the_features_by_name(written: RolloutZarrStoreReader) -> None:
    features = written.array("q_h/actor_features")
    assert features.shape[2] == len(FEATURES)
    config = written.manifest()["manifest"]["generation"]["writer_config"]
    assert config["actor_feature_names"] == list(FEATURES)
    assert np.isfinite(features[written.array("q_h/valid_action_mask")]).all()


def test_lineage_leads_back_to_the_source_row(written: RolloutZarrStoreReader) -> None:
    source = SourceStore.open(tiny_source())
    words = written.words("config")
    for name in ("candidate_config_id", "oracle_config_id", "rollout_config_id"):
        assert all(len(words[code]) == 64 for code in written.array(f"lineage/{name}"))
    keys = written.words("source_key")
    meshes = written.array("lineage/mesh_version_id")
    rows = list(written.array("sources/source_row_id"))
    for rollout, row in enumerate(written.array("rollouts/source_row_id")):
        entry = source.row(int(row))
        place = rows.index(row)
        assert keys[written.array("sources/sample_key_id")[place]] == entry.sample_key
        assert entry.oracle is not None
        assert words[meshes[rollout]] == entry.oracle.mesh.sha256
        np.testing.assert_array_equal(
            written.array("rollouts/root_pose_world")[rollout], entry.actor.poses[-1]
        )
        assert written.array("rollouts/root_time_ns")[rollout] == entry.actor.t_ns[-1]


def test_depth_is_kept_of_every_step(written: RolloutZarrStoreReader) -> None:
    depth = written.array("selected_depth/depth_m")
    assert depth.shape == (written.num_steps, 24, 32)
    assert ((depth > 0) == written.array("selected_depth/valid_mask")).all()


# -------------------------------------------------------------------------------------- determinism


@pytest.mark.parametrize(
    "run", [pytest.param({"threads": 2}, marks=pytest.mark.slow), {"workers": 2}]
)
def test_threads_and_workers_change_no_bit(tmp_path: Path, run: dict[str, int]) -> None:
    one = tiny_config(tmp_path / "one.zarr").setup_target().run()
    other = tiny_config(tmp_path / "other.zarr", **run).setup_target().run()
    assert one.content_sha256 == other.content_sha256


def test_another_seed_is_another_store(tmp_path: Path) -> None:
    sums = {
        tiny_config(tmp_path / f"{seed}.zarr", seed=seed, max_samples=1)
        .setup_target()
        .run()
        .content_sha256
        for seed in (0, 1)
    }
    assert len(sums) == 2


def test_a_row_comes_out_the_same_whichever_rows_come_with_it(tmp_path: Path) -> None:
    """Seeds follow from what a row is, not from when its turn comes."""
    everything = RolloutZarrStoreReader(
        tiny_config(tmp_path / "all.zarr").setup_target().run().store_dir
    )
    scene = SourceStore.open(tiny_source()).row(1).scene_id
    source = {"store_dir": str(tiny_source()), "split": "train", "scenes": [scene]}
    alone = RolloutZarrStoreReader(
        tiny_config(tmp_path / "one.zarr", source=source).setup_target().run().store_dir
    )
    second = everything.array("candidates/rollout_row_id") >= 2
    for column in ("pose_world_cam", "target_root_gain", "selected_mask", "actor_features"):
        np.testing.assert_array_equal(
            everything.array(f"candidates/{column}")[second], alone.array(f"candidates/{column}")
        )


def test_both_renderers_agree_on_what_is_best(tmp_path: Path) -> None:
    stores = [
        RolloutZarrStoreReader(
            tiny_config(tmp_path / f"{name}.zarr", renderer=name).setup_target().run().store_dir
        )
        for name in ("embree", "bvh")
    ]
    first, second = (store.array("candidates/target_root_gain") for store in stores)
    np.testing.assert_allclose(first, second, atol=0.02)


# ------------------------------------------------------------------------------- what is not usable


def test_targets_without_a_match_are_counted_and_skipped(tmp_path: Path) -> None:
    writer = tiny_config(tmp_path / "x.zarr", target_selector={"min_gt_iou": 1.0}).setup_target()
    with pytest.raises(NoRollouts, match="unmatched_gt"):
        writer.run()
    assert writer.stats.targets_label_invalid == writer.stats.targets_selected > 0
    assert not (tmp_path / "x.zarr").exists()


def test_a_root_where_nothing_can_be_taken_is_counted_with_its_reason(tmp_path: Path) -> None:
    rules = {"max_step_length_m": 0.01}
    with pytest.raises(NoRollouts, match="greedy:SAMPLER_RULE_REJECTED"):
        tiny_config(tmp_path / "x.zarr", candidate_rules=rules).setup_target().run()


def test_a_root_with_too_few_candidates_is_counted(tmp_path: Path) -> None:
    writer = tiny_config(tmp_path / "x.zarr", min_valid_root_candidates=61).setup_target()
    with pytest.raises(NoRollouts, match=r"low_valid_root_candidates:\d+<61"):
        writer.run()
    usable = writer.stats.targets_selected - writer.stats.targets_label_invalid
    assert writer.stats.rollout_invalid_skips == 2 * usable > 0


def test_a_target_that_nobody_has_seen_a_point_of_is_counted(tmp_path: Path) -> None:
    scorer = {"min_current_target_points": 10**6}
    with pytest.raises(NoRollouts, match="target_scorer:TARGET_SUPPORT_TOO_LOW"):
        tiny_config(tmp_path / "x.zarr", target_scorer=scorer).setup_target().run()


def test_the_oracle_task_sampler_is_another_protocol(tmp_path: Path) -> None:
    config = tiny_config(
        tmp_path / "tasks.zarr",
        target_source="oracle_target_task_sampler",
        oracle_target_task_sampler={"max_targets_per_sample": 20},
    )
    reader = RolloutZarrStoreReader(config.setup_target().run().store_dir)
    assert reader.root.attrs["target_protocol_version"] == "v0_gt_input"
    assert list(reader.words("target_source")) == ["gt_obbs_oracle"]


def test_points_of_the_prefix_can_be_rendered_instead_of_recorded(tmp_path: Path) -> None:
    scorer = {"root_points": "rendered_prefix", "render_size_px": 40, "scene_samples": 1000}
    config = tiny_config(tmp_path / "x.zarr", target_scorer=scorer, max_samples=1)
    assert config.setup_target().run().num_rollouts == 2


def test_points_the_oracle_used_can_be_kept(tmp_path: Path) -> None:
    store = {
        "store_dir": str(tmp_path / "crops.zarr"),
        "target_eval_crops_enabled": True,
        "target_eval_crop_max_points": 500,
    }
    result = tiny_config(tmp_path, store=store, max_samples=1).setup_target().run()
    reader = RolloutZarrStoreReader(result.store_dir)
    lengths = reader.array("target_eval_crops/lengths")
    owner = reader.array("target_eval_crops/candidate_row_id")
    assert (owner < 0).sum() == reader.num_steps
    assert (owner >= 0).sum() == reader.array("candidates/actor_action_mask").sum()
    assert lengths[owner < 0].min() > 0


def test_a_row_whose_mesh_cannot_be_read_is_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    copied = tmp_path / "source"
    shutil.copytree(tiny_source(), copied)
    row = SourceStore.open(copied).row(0)
    assert row.oracle is not None
    shutil.rmtree(copied / "oracle" / "meshes" / row.oracle.mesh.sha256)
    source = {"store_dir": str(copied), "split": "train"}
    writer = tiny_config(tmp_path / "x.zarr", source=source).setup_target()
    assert writer.run().num_rollouts == 2
    assert writer.stats.samples_without_snippet_or_mesh == 1
    assert next(iter(writer.stats.skipped_reasons)).startswith("missing_snippet_or_mesh:")


def broken_policy(features: Any, names: Any, valid: Any, context: Any) -> Any:
    return np.zeros(3)


def failing_policy(features: Any, names: Any, valid: Any, context: Any) -> Any:
    raise ZeroDivisionError("no")


def leaving_policy(features: Any, names: Any, valid: Any, context: Any) -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("broken_policy", "expected float"),
        ("failing_policy", r"ZeroDivisionError: no \(test_dataset_writer\.py, line \d+\)"),
        ("leaving_policy", "SystemExit: 3"),
    ],
)
def test_an_unexpected_error_stops_and_says_which_row(
    tmp_path: Path, policy: str, said: str
) -> None:
    recipe = {
        "name": "own",
        "selection_policy": "oracle_greedy",
        "scorer": f"{__name__}:{policy}",
    }
    with pytest.raises(GenerationFailed, match=said) as caught:
        tiny_config(tmp_path / "x.zarr", recipes=[recipe]).setup_target().run()
    assert caught.value.sample_key == SourceStore.open(tiny_source()).row(0).sample_key
    assert not (tmp_path / "x.zarr").exists()


def good_policy(features: Any, names: Any, valid: Any, context: Any) -> Any:
    return -features[:, names.index("dist_target")].astype(np.float64)


def test_a_policy_of_ones_own_is_run_by_its_name(tmp_path: Path) -> None:
    recipes = [
        {"name": name, "selection_policy": "oracle_greedy", "scorer": scorer}
        for name, scorer in (("own", f"{__name__}:good_policy"), ("near", "nearest"))
    ]
    result = tiny_config(tmp_path / "x.zarr", recipes=recipes, max_samples=1).setup_target().run()
    reader = RolloutZarrStoreReader(result.store_dir)
    assert taken(reader, 0) == taken(reader, 1)


# ---------------------------------------------------------------------------------------- bad config


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"target_selector": {"colour": 1}}, "target_selector: .*unknown field.*colour"),
        ({"recipes": []}, "recipes is empty"),
        ({"max_samples": 0}, "max_samples is 0, expected at least 1"),
        ({"renderer": "opengl"}, "renderer: "),
        ({"store": {}}, "store_dir"),
        ({"store": {"store_dir": "x", "colour": 1}}, "unknown key 'colour'"),
        ({"store": {"store_dir": "x", "discount_gamma": "much"}}, "store.discount_gamma"),
        (
            {"recipes": [{"name": "a", "selection_policy": "oracle_greedy", "horizon": 0}]},
            "horizon is 0, expected at least 1",
        ),
        (
            {
                "recipes": [
                    {
                        "name": "a",
                        "selection_policy": "oracle_greedy",
                        "branch_factor_schedule": [2, 0],
                    }
                ]
            },
            "branch_factor_schedule is",
        ),
        ({"recipes": [{"name": "a/b", "selection_policy": "random"}]}, "name is 'a/b'"),
        (
            {"recipes": [{"name": "a", "selection_policy": "random"}] * 2},
            "a is given twice",
        ),
        (
            {"recipes": [{"name": "a", "selection_policy": "best"}]},
            r"Invalid enum value 'best' - at `\$\[0\]\.selection_policy`; expected one of farthest",
        ),
        ({"target_source": "mine"}, "'mine'; expected one of oracle_target_task_sampler, actor"),
        ({"target_scorer": {"metric": "best"}}, "expected one of area, face_sq"),
    ],
)
def test_a_wrong_config_is_refused_by_field(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        tiny_config(tmp_path / "x.zarr", **changes)


@pytest.mark.parametrize("scorer", ["nowhere:at_all", "json:no_such_name", "unheard_of", "json:"])
def test_a_wrong_policy_is_found_before_anything_is_rendered(tmp_path: Path, scorer: str) -> None:
    recipe = {"name": "own", "selection_policy": "oracle_greedy", "scorer": scorer}
    writer = tiny_config(tmp_path / "x.zarr", recipes=[recipe]).setup_target()
    for early in (writer.run, writer.rows):  # a dry run asks for the rows, and no more
        with pytest.raises(ConfigurationError):
            early()


def test_a_shell_whose_density_no_store_can_keep_stops_before_there_is_one(tmp_path: Path) -> None:
    narrow = {"base": {"kappa": 1e300}}
    config = tiny_config(tmp_path / "x.zarr", candidate_mixture=narrow)
    with pytest.raises(GenerationFailed, match=r"candidate_mixture gives a density of .*e\+"):
        config.setup_target().run()
    assert not (tmp_path / "x.zarr").exists()


def test_a_run_can_be_repeated_from_what_its_store_says(tmp_path: Path) -> None:
    first = tiny_config(tmp_path / "first.zarr", seed=5).setup_target().run()
    config = RolloutDatasetWriterConfig.from_manifest(first.store_dir)
    elsewhere = dataclasses.replace(config.store, store_dir=tmp_path / "second.zarr")
    second = dataclasses.replace(config, store=elsewhere).setup_target().run()
    assert second.content_sha256 == first.content_sha256
    packages = RolloutZarrStoreReader(second.store_dir).manifest()["manifest"]["generation"][
        "runtime"
    ]["packages"]
    assert {"numpy", "numba", "embreex"} <= set(packages)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("{", "does not say how"),
        ('{"generation": {"writer_config": null}}', "does not say how"),
    ],
)
def test_a_manifest_that_does_not_say_enough_is_refused(
    tmp_path: Path, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        RolloutDatasetWriterConfig.from_manifest(tmp_path)


def test_a_missing_source_and_an_existing_store_are_said_at_once(tmp_path: Path) -> None:
    source = {"store_dir": str(tmp_path / "nothing")}
    with pytest.raises(NotASourceStore):
        tiny_config(tmp_path / "x.zarr", source=source).setup_target().run()
    (tmp_path / "there.zarr").mkdir()
    with pytest.raises(TargetExists):
        tiny_config(tmp_path / "there.zarr").setup_target().run()


@pytest.mark.parametrize(
    ("source", "said"),
    [({"split": "val"}, "has no row"), ({"scenes": ["elsewhere"]}, "there is no scene")],
)
def test_rows_that_are_not_there_are_named(
    tmp_path: Path, source: dict[str, Any], said: str
) -> None:
    place = {"store_dir": str(tiny_source())}
    with pytest.raises(ConfigurationError, match=said):
        tiny_config(tmp_path / "x.zarr", source=place | source).setup_target().rows()


def test_a_config_says_the_same_from_toml_and_has_a_digest_of_what_matters(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('seed = 7\n[source]\nstore_dir = "here"\n[store]\nstore_dir = "out.zarr"\n')
    config = RolloutDatasetWriterConfig.from_toml(file)
    assert config.source.store_dir == str(tmp_path / "here")
    assert config.store.store_dir == tmp_path / "out.zarr"
    same = dataclasses.replace(config, threads=8, workers=3)
    assert same.config_hash == config.config_hash
    assert dataclasses.replace(config, seed=8).config_hash != config.config_hash
    recipes = config.recipes
    hashes = {config.rollout_config_hash(recipe) for recipe in recipes}
    assert len(hashes) == len(recipes) == 4


def test_counters_add_up() -> None:
    total = RolloutDatasetWriterStats(samples_seen=1)
    total.skip("a")
    other = RolloutDatasetWriterStats(samples_seen=2, rollouts_written=3)
    other.skip("a")
    other.skip("b", 2)
    total.add(other)
    assert (total.samples_seen, total.rollouts_written) == (3, 3)
    assert total.skipped_reasons == {"a": 2, "b": 2}
