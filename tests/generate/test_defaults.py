"""The defaults of generation: the same in code and examples, and worth learning from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from rollbook.generate.candidates.families import CandidateMixtureConfig
from rollbook.generate.candidates.rules import RuleConfig
from rollbook.generate.compare import compare_policies, paired_interval, recipe_for
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.sources.make_sources import make_source_store, sources_config
from rollbook.store.checks.validate import validate_rollout_zarr_store
from rollbook.store.reader import RolloutZarrStoreReader

EXAMPLES = Path(__file__).parents[2] / "examples" / "generate"


@pytest.mark.parametrize("name", ["smoke", "demo", "micro", "thesis"])
def test_examples_use_the_default_rules_and_mixture(name: str) -> None:
    config = RolloutDatasetWriterConfig.from_toml(EXAMPLES / f"{name}.toml")
    assert config.candidate_rules == RuleConfig()
    assert config.candidate_mixture == CandidateMixtureConfig()


def test_the_limits_of_the_reference_are_a_preset_in_code_and_as_a_file() -> None:
    config = RolloutDatasetWriterConfig.from_toml(EXAMPLES / "reference.toml")
    assert config.candidate_rules == RuleConfig.reference()
    assert config.candidate_mixture == CandidateMixtureConfig.reference()
    limits = config.candidate_rules
    assert (limits.max_step_length_m, limits.max_height_delta_m) == (1.0, 0.25)
    assert (limits.max_backward_step_m, limits.max_yaw_delta_deg) == (0.25, 70.0)
    assert not limits.require_floor


@pytest.mark.slow
def test_the_commands_of_the_readme_give_gains(tmp_path: Path) -> None:
    make_source_store(tmp_path / "sources", sources_config(top={"scenes": 2, "seed": 1}))
    config = RolloutDatasetWriterConfig.from_toml(EXAMPLES / "smoke.toml")
    result = dataclasses.replace(
        config,
        source=type(config.source)(store_dir=str(tmp_path / "sources"), split="train"),
        store=dataclasses.replace(config.store, store_dir=tmp_path / "smoke.zarr"),
    ).setup_target()
    result.run()
    gains = RolloutZarrStoreReader(tmp_path / "smoke.zarr").array(
        "rollouts/final_cumulative_target_root_gain"
    )
    assert (gains > 0.1).all()
    assert validate_rollout_zarr_store(tmp_path / "smoke.zarr").warnings == ()


@pytest.mark.slow
def test_greedy_is_better_than_random_on_flats_that_chose_nothing(tmp_path: Path) -> None:
    """The table in docs/decisions/0033 has 52 flats; these are 16 others, at a resolution for tests."""
    flats = sources_config(top={"scenes": 16, "seed": 303}, scene={"max_edge_m": 1.0})
    make_source_store(tmp_path / "sources", flats)
    config = RolloutDatasetWriterConfig.from_table(
        {
            "source": {"store_dir": "sources"},
            "store": {"store_dir": "x.zarr"},
            "target_source": "actor_visible_selector",
            "max_targets_per_sample": 1,
            "target_scorer": {
                "render_size_px": 40,
                "include_scene": False,
                "target_samples": 800,
            },
            "selected_depth": {"enabled": False},
        },
        folder=tmp_path,
    )
    policies = ("random", "greedy")
    config = dataclasses.replace(config, recipes=tuple(recipe_for(each, 3) for each in policies))
    source, rows = config.setup_target().rows(one_split=False)
    compared = compare_policies(config, source, rows, policies)
    low, _, _ = paired_interval(compared.endpoint[:, 1, 0] - compared.endpoint[:, 0, 0])
    assert low > 0
    best = compared.endpoint[:, 1, 0]
    assert np.mean(best < 1e-6) < 0.25
