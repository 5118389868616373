"""Next-best-view as an environment: what it offers, what it pays, when it ends."""

from __future__ import annotations

import importlib
import sys
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.generate.actor.actor import ActorState
from rollbook.generate.actor.features import FEATURES
from rollbook.generate.environment import ENVIRONMENT_ID, CounterfactualEnv, register
from rollbook.generate.rollout.loop import RolloutEngine
from rollbook.generate.rollout.nodes import RolloutTask
from rollbook.generate.row_rollouts import RowRoller
from rollbook.store.records import RolloutChain
from tests.generate.tiny_source import tiny_config, tiny_source

HORIZON = 3
GREEDY = {"name": "greedy", "selection_policy": "oracle_greedy", "horizon": HORIZON, "seed": 0}


def an_env(rows: list[int] | None = None, **changes: Any) -> CounterfactualEnv:
    """Arguments of the environment, and changes of the config."""
    own = ("invalid_reward", "invalid_ends", "horizon", "score", "scene_budget_bytes")
    options = {name: changes.pop(name) for name in own if name in changes}
    config = tiny_config(Path("unused"), target_selector={"k": 8}, recipes=[GREEDY], **changes)
    return CounterfactualEnv(config, rows, **options)


@lru_cache
def shared_env() -> CounterfactualEnv:
    """For tests that begin with a reset, as all do."""
    return an_env()


def greedily(env: CounterfactualEnv) -> int:
    return int(np.nanargmax(env.labels["target_root_gain"]))


def gains_at_every_step(env: CounterfactualEnv, options: dict[str, int]) -> bool:
    """Whether a greedy agent always knows which candidate is best: ties are settled by other things."""
    try:
        env.reset(options=options)
    except ConfigurationError:
        return False
    for _ in range(HORIZON):
        gains = env.labels["target_root_gain"]
        best = greedily(env)
        if not gains[best] > 1e-3 or np.count_nonzero(gains == gains[best]) > 1:
            return False
        env.step(best)
    return True


@lru_cache
def _seen() -> tuple[int, int]:
    env = shared_env()
    for row in env.rows:
        for target in range(5):
            if gains_at_every_step(env, {"row": row, "target": target, "candidate_seed": 0}):
                return row, target
    raise AssertionError("no target can be seen better at every step")


def seen() -> dict[str, int]:
    """Options: a target that can be seen better and better, with the candidates of the greedy recipe."""
    row, target = _seen()
    return {"row": row, "target": target, "candidate_seed": 0}


def valid_action(info: dict[str, Any]) -> int:
    return int(np.flatnonzero(info["action_mask"])[-1])


def invalid_action(info: dict[str, Any]) -> int:
    return int(np.flatnonzero(info["action_mask"] == 0)[0])


def played(env: CounterfactualEnv, seed: int | None, **options: int) -> list[Any]:
    """An episode of the last valid candidate each time, which looks at the target: everything that was told."""
    observation, info = env.reset(seed=seed, options=options)
    told: list[Any] = [(observation, info)]
    terminated = False
    while not terminated:
        observation, reward, terminated, truncated, info = env.step(valid_action(info))
        told.append((observation, reward, terminated, truncated, info))
    return told


def same(first: Any, second: Any) -> bool:
    """To the last bit, types included."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and np.array_equal(first, second)
    return bool(first == second)


# --------------------------------------------------------------------------------- as gymnasium has it


def test_it_draws_every_moment_of_an_episode() -> None:
    env = CounterfactualEnv(tiny_config(Path("unused"), recipes=[GREEDY]), render_mode="rgb_array")
    _, info = env.reset(seed=1)
    pictures = [env.render()]
    while info["ended"] is None:
        *_, info = env.step(int(np.flatnonzero(env.action_masks())[0]))
        pictures.append(env.render())
    assert len(pictures) == env.horizon + 1
    for each in pictures:
        assert each is not None
        assert each.shape == (540, 960, 3)
        assert each.dtype == np.uint8
    assert not any(same(one, after) for one, after in pairwise(pictures))
    env.reset(seed=1)
    assert same(env.render(), pictures[0])


def test_without_a_render_mode_it_draws_nothing() -> None:
    env = shared_env()
    env.reset(seed=1)
    assert env.render() is None


def test_it_passes_the_checks_of_gymnasium_without_a_warning() -> None:
    register()
    config = tiny_config(Path("unused"), recipes=[GREEDY])
    check_env(gymnasium.make(ENVIRONMENT_ID, config=config).unwrapped)


def test_registering_twice_is_no_mistake() -> None:
    register()
    register()
    spec = gymnasium.spec(ENVIRONMENT_ID)
    assert spec.entry_point == "rollbook.generate.environment:CounterfactualEnv"


def test_a_config_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        f'[source]\nstore_dir = "{tiny_source()}"\nsplit = "train"\n[store]\nstore_dir = "out"\n'
    )
    env = CounterfactualEnv(file)
    assert env.num_candidates == 60
    assert env.horizon == 2, "the longest of the default recipes"


def test_the_same_seed_gives_the_same_episode_to_the_last_bit() -> None:
    first, again = played(an_env(), 5), played(shared_env(), 5)
    assert same(first, again)
    assert not same(first, played(shared_env(), 6))


def test_the_next_episode_follows_from_the_seed_too() -> None:
    env = shared_env()
    played(env, 5)
    second = played(env, None)
    played(env, 5)
    assert same(second, played(env, None))


def test_without_gymnasium_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.delitem(sys.modules, "rollbook.generate.environment")
    with pytest.raises(ConfigurationError, match=r"pip install 'rollbook\[gym\]'"):
        importlib.import_module("rollbook.generate.environment")


# ------------------------------------------------------------------------------- as the engine has it


def engine_chain() -> RolloutChain:
    """What the engine's own greedy recipe does from the same root."""
    config = tiny_config(Path("unused"), target_selector={"k": 8}, recipes=[GREEDY])
    source, rows = config.setup_target().rows()
    roller = RowRoller(config, source)
    row = source.row(rows[seen()["row"]])
    assert row.oracle is not None
    actor = ActorState.from_view(row.actor)
    selection, _ = roller.select(row, row.oracle, actor)
    task: RolloutTask = roller.task(row, row.oracle, actor, selection.targets[seen()["target"]])
    (chain,) = RolloutEngine(task).run(config.recipes[0]).chains
    return chain


def test_a_greedy_agent_with_the_oracles_labels_goes_where_the_greedy_recipe_goes() -> None:
    env, chain = shared_env(), engine_chain()
    observation, info = env.reset(options=seen())
    assert len(chain.steps) == HORIZON
    for step in chain.steps:
        features = step.candidates.actor_features
        assert np.array_equal(observation["candidate_features"], np.asarray(features))
        assert np.array_equal(observation["candidate_valid_mask"], step.candidates.mask_valid)
        best = greedily(env)
        assert best == step.selected_shell_index
        observation, reward, terminated, _, info = env.step(best)
        assert reward == step.metric_vectors["target_root_gain"][best] > 0
    assert terminated
    assert info["ended"] == "horizon"


def test_rewards_add_up_to_the_gain_at_the_end() -> None:
    env = shared_env()
    _, info = env.reset(options=seen())
    before = float(env.labels["target_pm_dist_before"][valid_action(info)])
    total = 0.0
    for _ in range(HORIZON):
        action = greedily(env)
        after = float(env.labels["target_pm_dist_after"][action])
        _, reward, _, _, info = env.step(action)
        total += reward
    assert info["target_gain"] == total == pytest.approx((before - after) / before, rel=1e-5)
    assert info["scene_gain"] > 0


def test_an_observation_holds_nothing_of_the_oracle() -> None:
    """Another oracle gives other labels and rewards, and the very same observations."""
    scorers: list[dict[str, Any]] = [
        {"render_size_px": 40, "scene_samples": 1000, "target_samples": 400},
        {
            "render_size_px": 40,
            "metric": "face_sq",
            "truncation_m": 0.3,
            "include_scene": False,
            "seed": 9,
        },
    ]
    env, other = (an_env(target_scorer=scorer) for scorer in scorers)
    first, second = played(env, 3, **seen()), played(other, 3, **seen())
    assert same([told[0] for told in first], [told[0] for told in second])
    rewards, others = ([told[1] for told in each[1:]] for each in (first, second))
    assert rewards != others
    assert second[-1][-1]["scene_gain"] is None


def test_observations_lie_in_their_space_and_say_where_the_actor_has_been() -> None:
    env = shared_env()
    told = played(env, 0, **seen())
    for number, (observation, *_) in enumerate(told):
        assert env.observation_space.contains(observation)
        assert observation["step_fraction"][0] == np.float32(number / HORIZON)
        assert observation["history_mask"].tolist() == [1] * (number + 1) + [0] * (HORIZON - number)
        visited = observation["history_positions"][number]
        assert np.array_equal(visited, observation["current_position"])
        assert not observation["history_positions"][number + 1 :].any()
    places = told[0][0]["candidate_positions"][valid_action(told[0][1])]
    assert np.array_equal(told[1][0]["current_position"], places)


# -------------------------------------------------------------------------- what is not valid, and ends


def test_an_action_that_is_not_valid_costs_a_step_and_changes_nothing_else() -> None:
    env = shared_env()
    before, info = env.reset(options=seen())
    after, reward, terminated, truncated, told = env.step(invalid_action(info))
    assert (reward, terminated, truncated) == (-0.01, False, False)
    assert told["reasons"]
    assert "VALID" not in told["reasons"]
    assert (told["step"], told["moves"], told["target_gain"]) == (1, 0, 0.0)
    assert after["step_fraction"][0] == np.float32(1 / HORIZON)
    remaining = FEATURES.index("remaining")
    assert (after["candidate_features"][:, remaining] == HORIZON - 1).all()
    after["candidate_features"][:, remaining] = HORIZON
    after["step_fraction"][0] = 0
    assert same(before, after)


def test_such_actions_alone_come_to_the_end_as_well() -> None:
    env = shared_env()
    _, info = env.reset(options=seen())
    for _ in range(HORIZON):
        observation, _, terminated, _, info = env.step(invalid_action(info))
    assert terminated
    assert info["ended"] == "horizon"
    assert not observation["candidate_valid_mask"].any()


def test_it_may_end_at_the_first_such_action() -> None:
    env = an_env(invalid_ends=True, invalid_reward=-1.0)
    _, info = env.reset(options=seen())
    _, reward, terminated, truncated, info = env.step(invalid_action(info))
    assert (reward, terminated, truncated, info["ended"]) == (-1.0, True, False, "invalid_action")


def test_where_no_candidate_is_valid_the_episode_is_over() -> None:
    """Rules that let the actor go nowhere but where it may not, found by trying."""
    env = an_env(candidate_rules={"max_step_length_m": 0.35}, min_valid_root_candidates=1)
    for seed in range(30):
        told = played(env, seed)
        if told[-1][-1]["ended"] == "no_valid_candidate":
            observation, _, terminated, truncated, info = told[-1]
            assert terminated
            assert not truncated
            assert not observation["candidate_valid_mask"].any()
            assert info["step"] < HORIZON
            return
    pytest.fail("every episode went on to the horizon")


def test_after_the_end_a_reset_is_needed() -> None:
    env = shared_env()
    played(env, 0, **seen())
    assert not env.action_masks().any()
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    with pytest.raises(gymnasium.error.ResetNeeded):
        _ = env.labels
    with pytest.raises(gymnasium.error.ResetNeeded):
        an_env().action_masks()


@pytest.mark.parametrize("action", [60, -1, 1.5, "0"])
def test_an_action_that_is_no_candidate_is_refused(action: Any) -> None:
    env = shared_env()
    env.reset(options=seen())
    with pytest.raises(InvalidValue, match=f"action is {action}, expected 0 to 59"):
        env.step(action)
    assert env.action_masks().any(), "nothing has happened"


# --------------------------------------------------------------------------------- where episodes begin


def test_targets_that_cannot_be_used_are_passed_over_and_counted() -> None:
    env = an_env(target_scorer={"render_size_px": 40, "min_current_target_points": 50})
    skipped: dict[str, int] = {}
    for seed in range(12):
        _, info = env.reset(seed=seed)
        skipped |= info["skipped"]
        assert np.nanmin(env.labels["target_current_support"]) >= 50
    assert skipped["TARGET_SUPPORT_TOO_LOW"] >= 1


def test_it_gives_up_when_no_row_can_be_used() -> None:
    env = an_env(min_valid_root_candidates=60)
    message = r"no usable target in 2 of 2 rows: .*\d low_valid_root_candidates"
    with pytest.raises(ConfigurationError, match=message):
        env.reset(seed=0)


def test_a_target_that_was_asked_for_is_not_replaced_by_another() -> None:
    env = an_env(min_valid_root_candidates=60)
    with pytest.raises(ConfigurationError, match="in 1 of 2 rows: 1 low_valid_root_candidates"):
        env.reset(options=seen())
    with pytest.raises(ConfigurationError, match="1 no_target_of_rank_99"):
        env.reset(options={"row": 0, "target": 99})


def test_rows_can_be_chosen() -> None:
    env = an_env([1])
    assert {env.reset(seed=seed)[1]["row"] for seed in range(4)} == {1}
    with pytest.raises(ConfigurationError, match=r"row is 0, expected one of \[1\]"):
        env.reset(options={"row": 0})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 1}, "unknown key 'rows'; known: row, target, candidate_seed"),
        ({"target": -1}, "target is -1, expected a whole number from 0 up"),
        ({"row": "first"}, "row is 'first', expected a whole number"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        shared_env().reset(options=options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": [2]}, "row is 2, expected a number from 0 to 1"),
        ({"rows": []}, "rows: empty"),
        ({"horizon": 0}, "horizon is 0, expected at least 1"),
        ({"max_rows_tried": 0}, "max_rows_tried is 0, expected at least 1"),
        ({"invalid_reward": float("nan")}, "invalid_reward is nan, expected a finite number"),
        ({"render_mode": "human"}, "render_mode is 'human', expected rgb_array or None"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        CounterfactualEnv(tiny_config(Path("unused")), **arguments)
