"""The range of rewards of a store: what any policy can earn in one of its chains."""

from __future__ import annotations

import numpy as np
import pytest

from rollbook.contracts.candidate_keys import CHOICE_KEY
from rollbook.contracts.evals import EvalResult
from rollbook.contracts.gate import Gate
from rollbook.evals.counterfactual import StateRewards
from rollbook.evals.store_baselines import StoreBaselines
from rollbook.evals.store_replay import replay_store, rollup_store
from rollbook.scoring import rollup
from tests.evals.small_stores import small_store


class _Extreme:
    """Knows the labels, and takes the best or the worst candidate in every state."""

    def __init__(self, chains: StoreBaselines, best: bool) -> None:
        rewards = StateRewards.of(chains.reader, slice(0, chains.reader.num_steps))
        reward = np.where(rewards.valid, rewards.reward, np.nan)
        filled = np.where(np.isnan(reward), -np.inf if best else np.inf, reward)
        self._choices = np.argmax(filled, axis=1) if best else np.argmin(filled, axis=1)
        self._at = 0

    def act(self, observation: object, context: object) -> dict[str, int]:
        self._at += 1
        return {CHOICE_KEY: int(self._choices[self._at - 1])}


def rewards_of(results: list[EvalResult]) -> list[float]:
    sides = ("baseline", "candidate")
    return [each.metrics[f"reward_total_{side}"] for each in results for side in sides]


@pytest.mark.parametrize("best", [True, False])
def test_no_policy_leaves_the_range(best: bool) -> None:
    chains = StoreBaselines(small_store(9, early_fraction=0.3))
    found = chains.reward_range()
    assert found is not None
    low, high = found
    earned = rewards_of(replay_store(chains, _Extreme(chains, best)))
    assert low - 1e-9 <= min(earned)
    assert max(earned) <= high + 1e-9
    if best:
        assert max(earned) == pytest.approx(high), "and the best one reaches its end"


def test_the_range_is_that_of_the_chosen_chains() -> None:
    path = small_store(9, early_fraction=0.3)
    single = [StoreBaselines(path, rows=[row]).reward_range() for row in (2, 7)]
    both = StoreBaselines(path, rows=[7, 2]).reward_range()
    assert both is not None
    assert None not in single
    assert both[0] == pytest.approx(min(each[0] for each in single if each))
    assert both[1] == pytest.approx(max(each[1] for each in single if each))
    assert StoreBaselines(path, rows=[]).reward_range() is None


class _Greedy(_Extreme):
    def __init__(self, chains: StoreBaselines) -> None:
        super().__init__(chains, best=True)


def test_a_replay_of_a_store_is_decided_by_its_scenes_and_its_range() -> None:
    """Without them 60 chains would count as 60 pairs that know nothing of each other."""
    chains = StoreBaselines(small_store(60))
    results = replay_store(chains, _Greedy(chains))
    found = rollup_store(chains, results)
    assert found.decision.gate == chains.gate()
    assert found.decision.gate.reward_range == chains.reward_range()
    assert found.reward_mean.clusters is not None
    assert found.reward_mean.clusters.by == "scene"
    assert rollup(results, Gate.for_reward()).reward_mean.clusters is None


def test_a_range_that_the_gate_declares_stays() -> None:
    chains = StoreBaselines(small_store(9, early_fraction=0.3))
    declared = Gate.for_reward(reward_range=(-3.0, 5.0))
    assert chains.gate(declared) == declared
    assert chains.gate(Gate()).rules == Gate().rules
