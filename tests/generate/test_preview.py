"""The picture of a rollout: that it is one, that its words are right, and what is refused."""

from __future__ import annotations

import dataclasses
import io
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.errors import ConfigurationError, TargetExists, TargetInvalid
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.preview_rollout import draw_preview, rolled_out
from rollbook.generate.rollout_picture import Matplotlib, ShownRollout, picture_png
from rollbook.generate.row_rollouts import RowRoller
from tests.generate.tiny_source import tiny_config

RECIPES: list[dict[str, Any]] = [
    {"name": "greedy", "selection_policy": "oracle_greedy"},
    {"name": "beam", "selection_policy": "oracle_greedy", "branch_factor": 2, "beam_width": 3},
]


def a_config(**changes: Any) -> RolloutDatasetWriterConfig:
    return tiny_config(Path("unused"), **({"recipes": RECIPES} | changes))


@lru_cache
def shown() -> ShownRollout:
    return rolled_out(a_config(), 0, _usable_rank(0), "greedy")


@lru_cache
def _usable_rank(row: int) -> int:
    """Of the target that a run would take."""
    config = a_config()
    source, rows = config.setup_target().rows()
    record = RowRoller(config, source).roll_out(rows[row]).records[0]
    rank = record.lineage.target_selection_rank
    assert rank is not None
    return rank


def pixels(png: bytes) -> Any:
    from matplotlib import image

    return image.imread(io.BytesIO(png), format="png")


# ---------------------------------------------------------------------------------------- what is drawn


def test_a_preview_is_a_picture_and_says_what_it_shows(tmp_path: Path) -> None:
    out = tmp_path / "preview.png"
    rank = _usable_rank(0)
    said = draw_preview(a_config(), row=0, target=rank, recipe=None, out=out, replace=False)
    image = pixels(out.read_bytes())
    assert image.shape[0] > 800
    assert image.shape[1] > 1200
    assert 0.02 < (image[..., :3] < 0.9).any(axis=2).mean() < 0.9, "neither empty nor all ink"
    assert said == shown().in_words()
    assert "\n" not in said
    again = pixels(picture_png(Matplotlib.loaded(), shown()))
    assert np.array_equal(image, again), "the same rollout gives the same picture"


def test_its_words_are_those_of_the_run() -> None:
    config = a_config(recipes=RECIPES[:1])
    source, rows = config.setup_target().rows()
    (record,) = RowRoller(config, source).roll_out(rows[0]).records
    (chain,) = record.result.chains
    first, last = chain.steps[0], chain.steps[-1]
    gains = [s.metric_vectors["target_root_gain"][s.selected_shell_index] for s in chain.steps]
    before = first.metric_vectors["target_pm_dist_before"][first.selected_shell_index]
    after = last.metric_vectors["target_pm_dist_after"][last.selected_shell_index]
    said = shown().in_words()
    assert said.startswith(f"{record.lineage.target_class_name} (rank {_usable_rank(0)}) by greedy")
    assert f"{first.candidates.mask_valid.sum()} of 60 candidates valid" in said
    assert f"target gain {sum(map(float, gains)):.3f} in 2 steps" in said
    assert f"error {before:.4f} -> {after:.4f} m" in said
    assert shown().taken == tuple(step.selected_shell_index for step in chain.steps)


def test_of_several_chains_the_one_that_gains_most_is_shown() -> None:
    beam = rolled_out(a_config(), 0, _usable_rank(0), "beam")
    assert beam.chains == 3
    assert beam.gains.sum() >= shown().gains.sum()


@pytest.mark.parametrize(
    "changes",
    [
        {"target_scorer": {"metric": "face_sq", "render_size_px": 40, "include_scene": False}},
        {"target_scorer": {"truncation_m": None, "render_size_px": 40, "target_samples": 3}},
    ],
    ids=["faces", "few samples"],
)
def test_other_measures_can_be_shown_as_well(changes: dict[str, Any]) -> None:
    other = rolled_out(a_config(**changes), 0, _usable_rank(0), None)
    assert other.unit == ("m²" if "metric" in changes["target_scorer"] else "m")
    assert ("scene gain" in other.in_words()) == ("metric" not in changes["target_scorer"])
    assert pixels(picture_png(Matplotlib.loaded(), other)).size


def test_a_chain_that_took_no_step_can_be_shown() -> None:
    root = shown().root
    still = dataclasses.replace(shown(), nodes=(root,), taken=(), end=root.node)
    assert "target gain 0.000 in 0 steps, error" in still.in_words()
    assert pixels(picture_png(Matplotlib.loaded(), still)).size


def test_without_a_rank_it_is_the_first_target_that_can_be_rolled_out() -> None:
    for row in (0, 1):
        found = rolled_out(a_config(), row, None, None)
        assert found.target.rank == _usable_rank(row)
    with pytest.raises(TargetInvalid, match="SAMPLER_RULE_REJECTED"):
        rolled_out(a_config(candidate_rules={"max_step_length_m": 0.01}), 0, None, None)


# ------------------------------------------------------------------------------------- what is refused


def test_a_file_that_is_there_is_replaced_only_if_asked(tmp_path: Path) -> None:
    out = tmp_path / "preview.png"
    out.write_bytes(b"mine")
    arguments: dict[str, Any] = {"row": 0, "target": _usable_rank(0), "recipe": "greedy"}
    with pytest.raises(TargetExists):
        draw_preview(a_config(), **arguments, out=out, replace=False)
    assert out.read_bytes() == b"mine"
    draw_preview(a_config(), **arguments, out=out, replace=True)
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"row": 2}, "row is 2, the config chooses 2 rows, counted from 0"),
        ({"row": -1}, "row is -1, the config chooses 2 rows"),
        ({"target": 99}, r"target is 99, flat-\w+-000000/walk-000 has: 0 \w+, 1 \w+"),
        ({"recipe": "best"}, "recipe is 'best', the config has: greedy, beam"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    out = tmp_path / "preview.png"
    given: dict[str, Any] = {"row": 0, "target": 0, "recipe": None} | arguments
    with pytest.raises(ConfigurationError, match=message):
        draw_preview(a_config(), **given, out=out, replace=False)
    assert not out.exists()


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'rollbook\[generate\]'"):
        draw_preview(
            a_config(), row=0, target=0, recipe=None, out=tmp_path / "preview.png", replace=False
        )
