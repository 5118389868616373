"""Variety: the flats of one store differ in size, and its walks in length; what is given holds for all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbook.errors import ConfigurationError
from rollbook.generate.scenes.floor_plan import plan_of
from rollbook.generate.scenes.scene import SceneConfig
from rollbook.generate.scenes.variety import FlatVariety
from rollbook.generate.sources.make_sources import MakeSourcesConfig, sources_config

FLATS = range(200)


def scenes(config: MakeSourcesConfig) -> list[SceneConfig]:
    return [config.scene_config(number) for number in FLATS]


def areas(config: MakeSourcesConfig) -> list[float]:
    return [one.size_m[0] * one.size_m[1] for one in scenes(config)]


def frames(config: MakeSourcesConfig) -> list[int]:
    return [config.walk_config(number, 0).frames for number in FLATS]


def test_flats_differ_in_size_rooms_and_ceiling_and_walks_in_length() -> None:
    config = sources_config()
    made = scenes(config)
    assert {one.rooms for one in made} == {1, 2, 3, 4}
    assert min(areas(config)) < 16
    assert max(areas(config)) > 75
    proportions = [max(one.size_m) / min(one.size_m) for one in made]
    assert min(proportions) < 1.05
    assert max(proportions) > 1.5
    assert {one.size_m[0] > one.size_m[1] for one in made} == {True, False}
    ceilings = [one.ceiling_m for one in made]
    assert min(ceilings) < 2.35
    assert max(ceilings) > 3.1
    assert min(frames(config)) <= 13
    assert max(frames(config)) >= 47


def test_harder_flats_are_larger_and_their_walks_longer() -> None:
    easy, medium, hard = (sources_config(difficulty=name) for name in ("easy", "medium", "hard"))
    assert {one.rooms for one in scenes(easy)} == {1}
    assert {one.rooms for one in scenes(hard)} == {3, 4, 5, 6}
    assert np.median(areas(easy)) < np.median(areas(medium)) < np.median(areas(hard))
    assert np.median(frames(medium)) < np.median(frames(hard))


def test_a_seed_and_a_number_give_a_flat_whatever_else_is_made() -> None:
    few, many = sources_config(top={"scenes": 3}), sources_config(top={"scenes": 90, "seed": 0})
    assert [few.scene_config(n) for n in range(3)] == [many.scene_config(n) for n in range(3)]
    assert few.walk_config(2, 1) == many.walk_config(2, 1)
    other = sources_config(top={"seed": 1})
    assert few.scene_config(2).size_m != other.scene_config(2).size_m
    assert few.walk_config(2, 1) != few.walk_config(2, 0)


def test_what_is_given_holds_for_all_flats_and_the_rest_still_differs(tmp_path: Path) -> None:
    three = sources_config(scene={"rooms": 3}, walk={"frames": 30})
    assert {one.rooms for one in scenes(three)} == {3}
    assert set(frames(three)) == {30}
    assert np.ptp(areas(three)) > 20
    (tmp_path / "c.toml").write_text("[scene]\nsize_m = [8.0, 6.0]\nceiling_m = 2.5\n")
    same = sources_config(tmp_path / "c.toml")
    assert {(one.rooms, one.size_m, one.ceiling_m) for one in scenes(same)} == {
        (2, (8.0, 6.0), 2.5)
    }
    (tmp_path / "r.toml").write_text("[variety]\nrooms = [2, 3]\n")
    assert {one.rooms for one in scenes(sources_config(tmp_path / "r.toml"))} == {2, 3}
    uniform = sources_config(tmp_path / "r.toml", difficulty="hard", uniform=True)
    assert {(one.rooms, one.size_m) for one in scenes(uniform)} == {(4, (10.5, 8.0))}
    assert set(frames(uniform)) == {24}


def test_one_fixed_range_leaves_the_draws_of_the_others_as_they_are() -> None:
    plain, fixed = sources_config(), sources_config(scene={"ceiling_m": 2.6})
    assert [one.size_m for one in scenes(plain)] == [one.size_m for one in scenes(fixed)]


def test_flats_with_other_ranges_have_other_names() -> None:
    plain, fixed = sources_config(), sources_config(scene={"ceiling_m": 2.6})
    uniform = sources_config(uniform=True)
    assert len({config.scene_id(0) for config in (plain, fixed, uniform)}) == 3
    assert uniform.scene_id(0) == MakeSourcesConfig().scene_id(0)


@pytest.mark.parametrize("rooms", [2, 4, 6])
def test_rooms_fit_into_the_smallest_and_longest_flats(rooms: int) -> None:
    tight = FlatVariety(
        rooms=(rooms, rooms), room_area_m2=(10.0, 10.0), proportion=(1.6, 1.6), ceiling_m=None
    )
    for seed in range(40):
        one = tight.scene(SceneConfig(), np.random.default_rng(seed))
        layout = np.random.default_rng(seed)
        plan = plan_of(
            layout,
            rooms=one.rooms,
            size=(one.size_m[0] * 0.94, one.size_m[1] * 0.94),
            ceiling_m=2.6,
            l_shaped=0.6,
            doors_ajar=0.6,
        )
        assert len(plan.rooms) == rooms


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rooms", (0, 2)),
        ("rooms", (3, 2)),
        ("room_area_m2", (5.0, 20.0)),
        ("proportion", (1.0, 3.0)),
        ("ceiling_m", (2.5, float("nan"))),
        ("frames", (1, 10)),
    ],
)
def test_a_bad_range_is_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"variety\.{field} is "):
        FlatVariety(**{field: value})
    with pytest.raises(ConfigurationError, match=field):
        sources_config(top={"variety": {field: value}})
