"""Procedural source rows: a seed decides everything, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from rollbook.errors import ConfigurationError
from rollbook.generate.scenes.scene import GENERATOR_VERSION, SceneConfig, make_scene
from rollbook.generate.sources.make_sources import (
    MakeSourcesConfig,
    make_numbered_scene,
    make_source_store,
    sources_config,
)
from rollbook.generate.sources.reader import SourceStore
from rollbook.generate.sources.validation import validate_source_store
from tests.generate.sources.test_sources import files_of

SMALL = sources_config(
    difficulty="easy",
    top={"scenes": 3, "seed": 7, "rows_per_scene": 2},
    scene={"max_edge_m": 0.5},
    walk={"frames": 4, "continuation_frames": 2},
    sensing={"points_per_frame": 60, "image_px": 48},
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "s"
    seen: list[tuple[int, int]] = []
    make_source_store(path, SMALL, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    return path


def test_a_made_store_is_valid_and_full(made: Path) -> None:
    assert validate_source_store(made, deep=True).violations == ()
    opened = SourceStore.open(made)
    assert len(opened) == 6
    row = opened.row(1)
    assert row.oracle is not None
    assert row.actor.poses.shape == (4, 12)
    assert row.oracle.continuation.shape == (2, 12)
    assert 0 < len(row.actor.points) <= 240
    assert set(row.actor.point_frame.tolist()) <= {0, 1, 2, 3}
    assert (row.actor.detections.inst_id == -1).all()
    assert set(row.oracle.boxes.inst_id.tolist()) <= set(row.oracle.mesh.inst_id.tolist())
    assert opened.manifest.kind == "procedural"
    assert opened.manifest.scenes[0].notes["points"] == "simulated"
    assert opened.manifest.config["scene"]["max_edge_m"] == 0.5


def test_every_scene_can_be_made_again_from_its_recipe(made: Path) -> None:
    opened = SourceStore.open(made)
    for scene in opened.manifest.scenes:
        recipe = opened.geometry_facts[scene.scene_id].recipe
        assert recipe is not None
        assert recipe["generator"] == GENERATOR_VERSION
        again = make_scene(msgspec.convert(recipe["config"], SceneConfig))
        assert again.mesh.sha256 == scene.mesh_sha256


def test_the_same_config_gives_the_same_bytes(made: Path, tmp_path: Path) -> None:
    make_source_store(tmp_path / "again", SMALL)
    assert files_of(tmp_path / "again") == files_of(made)


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing(made: Path, tmp_path: Path) -> None:
    make_source_store(tmp_path / "by two", SMALL, workers=2)
    assert files_of(tmp_path / "by two") == files_of(made)


def test_scenes_and_rows_that_are_added_change_none_of_the_others(made: Path) -> None:
    few = SourceStore.open(made)
    more = msgspec.structs.replace(SMALL, scenes=5, rows_per_scene=1)
    scene = make_numbered_scene(more, 2)
    assert scene.scene_id == few.scenes[2]
    assert scene.mesh.sha256 == few.mesh(few.scenes[2]).sha256
    first = few.row(4).actor
    assert (scene.recordings[0].poses == first.poses).all()
    assert (scene.recordings[0].points == first.points).all()


def test_scenes_of_another_kind_or_seed_have_other_names() -> None:
    names = {
        MakeSourcesConfig().scene_id(0),
        MakeSourcesConfig(seed=1).scene_id(0),
        SMALL.scene_id(0),
        SMALL.scene_id(1),
        msgspec.structs.replace(SMALL, seed=8).scene_id(0),
    }
    assert len(names) == 5
    assert SMALL.scene_id(0) == msgspec.structs.replace(SMALL, scenes=99).scene_id(0)


def test_walks_differ_from_row_to_row_and_scene_to_scene() -> None:
    draws = {
        float(SMALL.walk_generator(scene, row).random()) for scene in range(3) for row in range(3)
    }
    assert len(draws) == 9
    assert len({SMALL.scene_config(number).seed for number in range(50)}) == 50


def test_a_config_is_refused_by_the_field_that_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"make_sources\.scenes is 0"):
        MakeSourcesConfig(scenes=0)
    with pytest.raises(ConfigurationError, match="max_edge_m"):
        sources_config(scene={"max_edge_m": np.inf})
    with pytest.raises(ConfigurationError, match="workers is 0"):
        make_source_store(tmp_path / "s", SMALL, workers=0)
    (tmp_path / "c.toml").write_text("[scene]\nroms = 3\n")
    with pytest.raises(ConfigurationError, match="roms"):
        sources_config(tmp_path / "c.toml")
    with pytest.raises(ConfigurationError, match=r"none\.toml"):
        sources_config(tmp_path / "none.toml")
    assert not (tmp_path / "s").exists()
