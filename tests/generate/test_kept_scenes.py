"""Prepared scenes stay in memory within a budget, for all environments of a process together."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rollbook.errors import ConfigurationError
from rollbook.generate.environment import CounterfactualEnv
from rollbook.generate.kept_scenes import DEFAULT_BUDGET_BYTES, SCENES, KeptScenes
from rollbook.generate.prepared_scene import PreparedScene, held_bytes
from rollbook.generate.raycast.scene_geometry import SceneGeometry
from rollbook.generate.sources.reader import SourceStore
from tests.generate.test_environment import an_env, played, same
from tests.generate.tiny_source import tiny_config, tiny_source


@pytest.fixture(autouse=True)
def no_kept_scenes() -> Iterator[None]:
    """Each test begins without scenes and leaves the default budget behind."""
    SCENES.clear()
    yield
    SCENES.clear()
    SCENES.budget_bytes = DEFAULT_BUDGET_BYTES


def a_scene(nbytes: int) -> PreparedScene:
    scene = PreparedScene(tiny_config(Path("unused")), SourceStore.open(tiny_source()))
    scene.nbytes = nbytes
    return scene


def test_the_least_recently_used_scenes_go_first() -> None:
    kept = KeptScenes(budget_bytes=10)
    scenes = {name: a_scene(4) for name in "abc"}
    for name in "ab":
        kept.scene(name, lambda name=name: scenes[name])  # type: ignore[misc]
    assert kept.scene("a", lambda: a_scene(0)) is scenes["a"], "kept, and now the last used"
    kept.scene("c", lambda: scenes["c"])
    kept.fit()
    assert kept.nbytes == 8
    assert kept.scene("a", lambda: a_scene(0)) is scenes["a"]
    assert kept.scene("b", lambda: a_scene(0)) is not scenes["b"], "dropped"


def test_the_scene_in_use_stays_even_if_it_is_too_large() -> None:
    kept = KeptScenes(budget_bytes=10)
    kept.scene("small", lambda: a_scene(1))
    kept.scene("large", lambda: a_scene(99))
    kept.fit()
    assert len(kept) == 1
    assert kept.nbytes == 99


def visit_all(env: CounterfactualEnv) -> None:
    for row in env.rows:
        env.reset(seed=0, options={"row": row})


def test_a_row_that_comes_again_is_not_prepared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    env = an_env()
    visit_all(env)
    monkeypatch.setattr(SceneGeometry, "__init__", None)  # preparing a scene now fails
    visit_all(env)


def test_environments_of_equal_settings_share_their_scenes() -> None:
    first, second, other = an_env([0]), an_env(horizon=2), an_env(seed=8)
    visit_all(first)
    assert len(SCENES) == 1
    visit_all(second)
    assert len(SCENES) == len(second.rows) == 2
    visit_all(other)
    assert len(SCENES) == 4, "other settings give other targets"


def test_a_budget_bounds_what_all_environments_keep_and_changes_no_episode() -> None:
    env = an_env()
    expected = [played(env, seed) for seed in range(3)]
    visit_all(env)
    assert len(SCENES) == 2
    one = SCENES.nbytes // 2
    frugal = an_env(seed=0, scene_budget_bytes=one)
    assert len(SCENES) == 1, "a smaller budget counts at once"
    assert all(same(played(frugal, seed), expected[seed]) for seed in range(3))
    assert len(SCENES) == 1
    assert SCENES.budget_bytes == one
    an_env()
    assert SCENES.budget_bytes == one, "without a budget it stays as it was"


def test_the_bytes_of_a_scene_are_those_that_it_takes() -> None:
    env = an_env()
    source, rows = env.config.setup_target().rows()
    source.row(rows[0])  # opens the shard
    tracemalloc.start()
    try:
        scene = PreparedScene(env.config, source)
        prepared = scene.row(rows[0])
        for target in prepared.targets:
            if target.label_valid:
                scene.task(prepared, target)
        source._mesh.cache_clear()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    embree = scene._roller.geometry_of(prepared.oracle)._tracer
    assert scene.nbytes - held_bytes(embree) == pytest.approx(taken, rel=0.1)


def test_an_array_is_counted_once_with_all_of_its_memory() -> None:
    whole = np.zeros(1000, np.float64)
    assert held_bytes([whole, whole[:10], {"part": whole[::2]}]) == 8000


def test_a_budget_below_zero_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="scene_budget_bytes is -1, expected a number"):
        an_env(scene_budget_bytes=-1)
