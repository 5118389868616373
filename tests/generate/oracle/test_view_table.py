"""Sets of views: the table answers for all of them what taking them one by one would."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.errors import InvalidValue
from rollbook.generate.oracle.config import OracleConfig
from rollbook.generate.oracle.oracle import Oracle, OracleState
from rollbook.generate.oracle.view_table import ViewTable
from tests.generate.oracle_rooms import Room, make_room

METRICS = pytest.mark.parametrize("metric", ["area", "face_sq"])
SETS = st.sets(st.integers(0, 7), max_size=4)


@lru_cache(maxsize=8)
def built(seed: int, metric: Any, region: str) -> tuple[Room, Oracle, OracleState, ViewTable]:
    room = make_room(seed, views=8, size=16)
    config = OracleConfig(metric=metric, scene_samples=300, target_samples=150)
    oracle = Oracle(room.geometry(), room.boxes, 0, config)
    state = oracle.root(room.points)
    # not from the root: gains still count from there
    state = oracle.fuse(state, room.depth[0], room.poses[0], room.camera)
    table = ViewTable.build(oracle, state, room.depth, room.poses, room.camera, region=region)
    return room, oracle, state, table


def table_of(seed: int, metric: str = "area", region: str = "scene") -> ViewTable:
    return built(seed, metric, region)[3]


@METRICS
def test_a_set_is_worth_what_taking_its_views_gives(metric: str) -> None:
    room, oracle, state, table = built(0, metric, "target")
    assert table.error([]) == state.target.error
    for views in ([3], [1, 4], [7, 2, 5]):
        after = state
        for view in views:
            after = oracle.fuse(after, room.depth[view], room.poses[view], room.camera)
        assert table.error(views) == pytest.approx(after.target.error, rel=1e-7)
    scored = oracle.score(state, room.depth, room.poses, room.camera)
    np.testing.assert_allclose(table.gains(), scored["target_root_gain"], atol=1e-7)


@METRICS
def test_pairs_are_those_of_one_set_at_a_time(metric: str) -> None:
    table = table_of(1, metric)
    gains = table.pair_gains()
    assert (gains == gains.T).all()
    for first, second in itertools.combinations(range(len(table)), 2):
        assert gains[first, second] == pytest.approx(table.gain([first, second]), abs=1e-12)
    assert (gains.diagonal() == table.gains()).all()
    first, second, gain = table.best_pair()
    pairs = itertools.combinations(range(len(table)), 2)
    assert gain == max(gains[pair] for pair in pairs) == gains[first, second]
    assert first < second


@METRICS
def test_two_step_values_are_a_gain_and_the_best_gain_after_it(metric: str) -> None:
    room, oracle, state, table = built(2, metric, "target")
    values, second = table.two_step_values()
    scored = oracle.score(state, room.depth, room.poses, room.camera)
    for first in range(len(table)):
        after = oracle.fuse(state, room.depth[first], room.poses[first], room.camera)
        then = oracle.score(after, room.depth, room.poses, room.camera)["target_root_gain"]
        then[first] = -np.inf
        expected = scored["target_root_gain"][first] + then.max()
        assert values[first] == pytest.approx(expected, abs=1e-7)
        assert then[second[first]] == pytest.approx(then.max(), abs=1e-7)


@METRICS
@pytest.mark.parametrize("region", ["target", "scene"])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 3), small=SETS, more=SETS, view=st.integers(0, 7))
def test_gains_grow_with_the_set_and_shrink_with_what_is_known(
    metric: str, region: str, seed: int, small: set[int], more: set[int], view: int
) -> None:
    table = table_of(seed, metric, region)
    large = small | more
    gain = {name: table.gain(sorted(views)) for name, views in (("small", small), ("large", large))}
    assert gain["large"] >= gain["small"] - 1e-12
    if view not in large:
        early = table.gain(sorted(small | {view})) - gain["small"]
        late = table.gain(sorted(large | {view})) - gain["large"]
        assert early >= late - 1e-12


@METRICS
@pytest.mark.parametrize("seed", range(4))
def test_greed_is_lazy_and_near_the_best(metric: str, seed: int) -> None:
    table = table_of(seed, metric)
    views, gains = table.greedy(3)
    plain: list[int] = []
    for _ in range(3):
        left = [view for view in range(len(table)) if view not in plain]
        plain.append(max(left, key=lambda view: table.gain([*plain, view])))
    assert views == plain
    for count in (1, 2, 3):
        assert gains[count - 1] == pytest.approx(table.gain(views[:count]), abs=1e-12)
        best = max(table.gain(each) for each in itertools.combinations(range(len(table)), count))
        assert gains[count - 1] >= (1 - 1 / math.e) * best
    assert gains[1] <= table.best_pair()[2] + 1e-12


def test_all_views_can_be_taken_and_no_more() -> None:
    table = table_of(0)
    views, gains = table.greedy(len(table))
    assert sorted(views) == list(range(len(table)))
    assert gains == sorted(gains)
    for count in (0, len(table) + 1):
        with pytest.raises(InvalidValue, match="count"):
            table.greedy(count)


def test_a_pair_needs_two_views_and_a_table_one() -> None:
    room, oracle, state, _ = built(0, "area", "scene")
    single = ViewTable.build(oracle, state, room.depth[:1], room.poses[:1], room.camera)
    assert single.greedy(1)[0] == [0]
    for ask in (single.best_pair, single.two_step_values):
        with pytest.raises(InvalidValue, match="views"):
            ask()
    with pytest.raises(InvalidValue, match="views"):
        ViewTable.build(oracle, state, room.depth[:0], room.poses[:0], room.camera)
