"""Counterfactual rewards: what a policy would have earned in recorded states, read from the store alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError, InvalidValue
from rollbook.evals.counterfactual import (
    StateRewards,
    choices_of,
    choices_of_steps,
    counterfactual_metrics,
)
from rollbook.evals.policies.policy import ReplayEpisode, StepContext
from rollbook.evals.store_baselines import StoreBaselines
from rollbook.evals.store_replay import replay_store
from rollbook.store.reader import RolloutZarrStoreReader
from tests.evals.small_stores import small_store

NAN = math.nan
Obs = dict[str, Any]

# reward of four candidates in each of three states: NaN without a label, and the last is never valid
REWARDS = StateRewards(
    reward=np.array([[0.1, 0.5, 0.3, NAN], [NAN, 0.2, 0.4, NAN], [NAN, NAN, NAN, NAN]]),
    valid=np.array([[True, True, True, False], [True, True, True, False], [False] * 4]),
    taken=np.array([0, 1, -1]),
)


def judged(*choices: int) -> Any:
    return REWARDS.judged(np.array(choices, np.int64))


# ------------------------------------------------------------------------------------------- rewards


def test_a_choice_earns_what_the_store_says() -> None:
    verdict = judged(1, 2, 0).in_all()
    assert verdict.reward_total == pytest.approx(0.5 + 0.4)
    assert verdict.baseline_reward_total == pytest.approx(0.1 + 0.2)
    assert (verdict.steps, verdict.steps_total) == (2, 3)


def test_regret_is_read_between_the_random_and_the_best_choice() -> None:
    metrics = judged(1, 1, 0).in_all().as_metrics()
    assert metrics["best_total"] == pytest.approx(0.9)
    assert metrics["random_total"] == pytest.approx(0.3 + 0.3)
    assert metrics["regret"] == pytest.approx(0.2)
    assert metrics["regret_share"] == pytest.approx(0.2 / 0.3)
    assert judged(1, 2, 0).in_all().as_metrics()["regret_share"] == 0


@pytest.mark.parametrize("wrong", [3, 4, 99, -1, -7])
def test_an_invalid_choice_costs_the_worst_and_is_counted(wrong: int) -> None:
    verdict = judged(wrong, 2, -1).in_all()
    assert verdict.reward_total == pytest.approx(0.1 + 0.4)
    assert verdict.invalid_choices == 2


def test_a_choice_without_a_label_is_not_measured_on_either_side() -> None:
    verdict = judged(1, 0, 0).in_all()
    assert verdict.steps == 1
    assert verdict.reward_total == pytest.approx(0.5)
    assert verdict.baseline_reward_total == pytest.approx(0.1)
    assert verdict.as_metrics()["best_total"] == pytest.approx(0.5)


def test_where_nothing_was_measured_nothing_is_said() -> None:
    verdict = StateRewards(REWARDS.reward[2:], REWARDS.valid[2:], REWARDS.taken[2:]).judged(
        np.array([0])
    )
    metrics = counterfactual_metrics(verdict.in_all())
    assert metrics["reward_total_candidate"] is None
    assert metrics["reward_total_baseline"] is None
    assert metrics["evidence"]["reward_total"] == "not_measured"
    assert metrics["counterfactual"]["regret"] is None


def test_states_in_which_all_choices_are_equal_have_no_scale() -> None:
    same = StateRewards(np.full((2, 3), 0.2), np.ones((2, 3), bool), np.array([0, 1]))
    assert same.judged(np.array([2, 2])).in_all().as_metrics()["regret_share"] is None


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_columns_say_what_one_state_at_a_time_says(data: st.DataObject) -> None:
    states, width, chains = data.draw(
        st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(1, 3))
    )
    shape = (states, width)
    valid = data.draw(arrays.arrays(bool, shape))
    gain = data.draw(
        arrays.arrays(np.float64, shape, elements=st.sampled_from([-0.5, 0, 0.25, 1, NAN]))
    )
    reward = np.where(valid, gain, NAN)
    taken, chosen = (
        data.draw(arrays.arrays(np.int64, states, elements=st.integers(-1, width)))
        for _ in range(2)
    )
    chain = np.sort(data.draw(arrays.arrays(np.int64, states, elements=st.integers(0, chains - 1))))
    found = StateRewards(reward, valid, taken).judged(chosen).by_chain(chain, chains)
    for number in range(chains):
        expected = {
            "steps": 0,
            "invalid": 0,
            "chosen": 0.0,
            "recorded": 0.0,
            "best": 0.0,
            "random": 0.0,
        }
        for s in np.flatnonzero(chain == number):
            labels = [r for r in reward[s] if not math.isnan(r)]
            allowed = 0 <= chosen[s] < width and valid[s, chosen[s]]
            expected["invalid"] += not allowed
            earned = reward[s, chosen[s]] if allowed else min(labels, default=NAN)
            known = 0 <= taken[s] < width and valid[s, taken[s]]
            recorded = reward[s, taken[s]] if known else NAN
            if math.isnan(earned) or math.isnan(recorded):
                continue
            expected["steps"] += 1
            expected["chosen"] += earned
            expected["recorded"] += recorded
            expected["best"] += max(labels)
            expected["random"] += sum(labels) / len(labels)
        verdict = found[number]
        got = (verdict.steps, verdict.invalid_choices, verdict.chosen_total, verdict.recorded_total)
        assert (*got, verdict.best_total, verdict.random_total) == pytest.approx(
            tuple(expected.values())
        )


# ------------------------------------------------------------------------------------------- choices

VALID = np.array([[True, False, True], [False, True, True], [False, False, False]])


def test_the_best_score_of_a_valid_candidate_is_the_choice() -> None:
    scores = np.array([[1.0, 9.0, 2.0], [9.0, NAN, -1.0], [1.0, 2.0, 3.0]])
    assert choices_of({"/choice/score": scores}, VALID).tolist() == [2, 2, -1]


def test_of_equal_scores_the_first_valid_is_the_choice() -> None:
    assert choices_of({"/choice/score": np.zeros((3, 3))}, VALID).tolist() == [0, 1, -1]
    lowest = np.full((3, 3), -np.inf)
    assert choices_of({"/choice/score": lowest}, VALID).tolist() == [0, 1, -1]


def test_an_index_is_taken_as_it_is() -> None:
    for given_as in ([2, 0, 7], [[2], [0], [7]], [2.0, 0.0, 7.0]):
        assert choices_of({"/choice/index": given_as}, VALID).tolist() == [2, 0, 7]
    assert choices_of({"/choice/index": [NAN, 1, np.inf]}, VALID).tolist() == [-1, 1, -1]


def test_answers_of_single_steps_are_taken_together() -> None:
    steps: list[dict[str, Any]] = [
        {"/choice/index": 1},
        {"/choice/index": np.int32(2)},
        {"/choice/index": [0]},
    ]
    assert choices_of_steps(steps[:2], VALID[:2]).tolist() == [1, 2]
    mixed: list[dict[str, Any]] = [{"/choice/index": 1}, {"/choice/score": np.array([0, 1, 2])}]
    assert choices_of_steps(mixed, VALID[:2]).tolist() == [1, 2]
    assert choices_of_steps([], VALID[:0]).tolist() == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({}, "nothing.*'/choice/index'"),
        ({"/cmd_vel/linear": [1, 2, 3]}, "/cmd_vel/linear"),
        ({"/choice/index": [0.5, 1, 2]}, "0.5, expected a whole number"),
        ({"/choice/index": [1, 2]}, "of shape"),
        ({"/choice/index": ["a", "b", "c"]}, "expected one whole number"),
        ({"/choice/score": np.zeros((3, 2))}, "expected 3 numbers"),
        ({"/choice/score": np.array([["a"] * 3] * 3)}, "expected 3 numbers"),
    ],
)
def test_answers_that_choose_nothing_are_refused(answer: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        choices_of(answer, VALID)


# --------------------------------------------------------------------------------------- whole stores


@pytest.fixture(scope="module")
def store() -> Path:
    return small_store(30, unlabelled_fraction=0.1, unmatched_fraction=0.2, early_fraction=0.3)


class ByScore:
    """Takes the greatest of the first feature."""

    def act_batch(self, obs: Obs) -> Obs:
        return {"/choice/score": obs["/candidates/features"][..., 0]}


def by_score(obs: Obs) -> Obs:
    return {"/choice/score": obs["/candidates/features"][:, 0]}


def test_every_chain_is_a_baseline_that_names_its_store(store: Path) -> None:
    baselines = StoreBaselines(store)
    reader = RolloutZarrStoreReader(store)
    assert len(baselines) == reader.num_rollouts == 30
    digest = reader.store_manifest.payload["content_sha256"]
    assert baselines.ids[3] == f"{digest[:12]}:3" == baselines[3].id
    first = baselines[0]
    assert first.record is not None
    assert first.record.metadata["rollout"]["store_content_sha256"] == digest
    assert first.record.policy_version == "oracle_greedy"
    assert first.seed == reader.array("rollouts/random_seed")[0]
    assert (first.actions or {})["/choice/index"].tolist() == (
        reader.rollout(0)["steps"]["selected_shell_index"].tolist()
    )


def test_a_policy_sees_what_the_actor_knew_and_no_label(store: Path) -> None:
    baselines = StoreBaselines(store)
    seen = baselines.observations(slice(0, baselines.reader.num_steps))
    assert set(seen) == {
        "/candidates/features",
        "/candidates/valid",
        "/candidates/position_id",
        "/candidates/history",
        "/candidates/_t_ns",
    }
    view = baselines.reader.q_h_view()
    np.testing.assert_array_equal(seen["/candidates/features"], view["actor_features"])
    np.testing.assert_array_equal(seen["/candidates/valid"], view["valid_action_mask"])


def test_history_is_what_was_taken_before_the_newest_first(store: Path) -> None:
    baselines = StoreBaselines(store)
    row = int(np.argmax(baselines.reader.array("rollouts/num_steps")))
    states = baselines.states(row)
    assert states.stop - states.start == 3
    history = baselines.observations(states)["/candidates/history"]
    shells = baselines.reader.array("q_h/actor_features")[states]
    taken = baselines.reader.array("q_h/selected_candidate_index")[states]
    assert np.isnan(history[0]).all()
    np.testing.assert_array_equal(history[2], [shells[1, taken[1]], shells[0, taken[0]]])
    assert np.isnan(history[1, 1]).all()


def test_the_recorded_choices_earn_the_recorded_rewards(store: Path) -> None:
    baselines = StoreBaselines(store)

    class Recorded:
        def reset(self, episode: ReplayEpisode) -> None:
            row = int(episode.id.partition(":")[2])
            self.taken = baselines.actions(row)["/choice/index"]

        def act(self, obs: Obs, context: StepContext) -> Obs:
            return {"/choice/index": self.taken[context.step]}

    for result in replay_store(baselines, Recorded(), trusted=True):
        metrics = result.metrics
        assert metrics["reward_total_candidate"] == metrics["reward_total_baseline"]
        assert metrics["counterfactual"]["same_choice_share"] == 1
        assert metrics["counterfactual"]["invalid_choices"] == 0


def test_a_chain_earns_what_its_own_steps_add_up_to(store: Path) -> None:
    baselines = StoreBaselines(store)
    reader = baselines.reader
    trusted = reader.array("targets/gt_label_valid_mask")[reader.array("rollouts/target_row_id")]
    final = reader.array("rollouts/final_cumulative_target_root_gain")
    assert trusted.any()
    assert not trusted.all()
    for row in range(len(baselines)):
        total = baselines.recorded(row).reward_total
        assert (
            total == pytest.approx(float(final[row]), abs=1e-6) if trusted[row] else total is None
        )


def test_batches_say_what_one_step_at_a_time_says(store: Path) -> None:
    baselines = StoreBaselines(store)
    one_by_one = replay_store(baselines, by_score)
    for batch in (1, 7, 4096):
        assert replay_store(baselines, ByScore(), batch=batch) == one_by_one
    some = StoreBaselines(store, policy="random_valid")
    assert 0 < len(some) < len(baselines)
    expected = [each for each in one_by_one if each.baseline_episode_id in some.ids]
    assert replay_store(some, ByScore()) == expected


def test_the_best_choices_have_no_regret(store: Path) -> None:
    baselines = StoreBaselines(store)
    view = baselines.reader.q_h_view()
    gain = np.where(view["q_train_mask"], view["one_step_target_root_gain"], -np.inf)
    states = iter(gain)  # a policy with a secret

    results = replay_store(baselines, lambda obs: {"/choice/index": int(np.argmax(next(states)))})
    measured = [
        each.metrics["counterfactual"]
        for each in results
        if each.metrics["counterfactual"]["steps"]
    ]
    assert measured
    assert all(each["regret"] == 0 for each in measured)


def test_a_chain_in_which_the_policy_raises_is_a_failed_one(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baselines = StoreBaselines(store, rows=[4, 5, 6])

    class Fails:
        def reset(self, episode: ReplayEpisode) -> None:
            self.row = episode.id.partition(":")[2]

        def act(self, obs: Obs) -> Obs:
            if self.row == "5":
                raise RuntimeError("cannot see")
            return by_score(obs)

    results = replay_store(baselines, Fails(), trusted=True)
    assert [each.status for each in results] == ["complete", "failed", "complete"]
    assert results[1].error == "RuntimeError: cannot see"
    assert results[1].metrics == {}
    assert capsys.readouterr().err == f"{baselines.id_of(5)}: RuntimeError: cannot see\n"
    assert "in act" in str(results[1].traceback)


def test_a_batch_that_fails_fails_only_where_it_does(store: Path) -> None:
    baselines = StoreBaselines(store)
    bad = baselines.observations(baselines.states(5))["/candidates/features"][0]

    class Fails(ByScore):
        def act_batch(self, obs: Obs) -> Obs:
            shells: NDArray[Any] = obs["/candidates/features"]
            if any(np.array_equal(each, bad, equal_nan=True) for each in shells):
                raise RuntimeError("cannot see")
            return super().act_batch(obs)

    results = replay_store(baselines, Fails())
    assert [i for i, each in enumerate(results) if each.status == "failed"] == [5]


def test_answers_of_the_wrong_kind_are_failed_results(store: Path) -> None:
    answers: list[Any] = [None, {"/choice/index": "first"}, {"speed": 3}]
    for answer in answers:
        (result,) = replay_store(StoreBaselines(store, rows=[0]), lambda obs, a=answer: a)
        assert result.status == "failed"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"policy": "lookahead"}, "has those of: oracle_greedy"),
        ({"rows": [30]}, "0 to 29"),
        ({"rows": [-1]}, "0 to 29"),
        ({"limit": -1}, "limit"),
    ],
)
def test_chains_that_are_not_there_are_named(
    store: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        StoreBaselines(store, **options)


def test_chains_without_features_can_be_chosen_in_by_position(tmp_path: Path) -> None:
    path = small_store(4, features=0)
    (first, *_) = StoreBaselines(path)
    assert "/candidates/features" not in (first.sensors or {})
    results = replay_store(
        StoreBaselines(path), lambda obs: {"/choice/score": obs["/candidates/position_id"]}
    )
    assert all(each.status == "complete" for each in results)
