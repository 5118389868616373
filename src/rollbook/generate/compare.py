"""Comparison of policies. All start from the same roots, so that their differences are paired."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from rollbook.errors import ConfigurationError, NoRollouts
from rollbook.generate.dataset_config import RolloutDatasetWriterConfig
from rollbook.generate.rollout.learned_scorers import digest_of_policy, run_policy
from rollbook.generate.rollout.policies import CounterfactualSelectionPolicy
from rollbook.generate.rollout.recipes import RolloutRecipeConfig
from rollbook.generate.rollout.scorers import SCORERS
from rollbook.generate.row_rollouts import RolloutDatasetWriterStats, RowRoller
from rollbook.generate.sources.reader import SourceStore
from rollbook.lazy import needs
from rollbook.notebook import shown_progress
from rollbook.store.records import CounterfactualRolloutResult, RolloutChain

_OWN_SCORES = {
    "random": CounterfactualSelectionPolicy.RANDOM_VALID,
    "softmax": CounterfactualSelectionPolicy.TEMPERATURE_SOFTMAX,
    "greedy": CounterfactualSelectionPolicy.ORACLE_GREEDY,
    "lookahead": CounterfactualSelectionPolicy.ORACLE_GREEDY,
}
_LOOKAHEAD = 4
"""Branches and beam of `lookahead`."""
DEFAULT_POLICIES = (
    *("random", "nearest", "novelty", "target_area", "frontier"),
    *("information_gain", "information_gain_target", "coverage_greedy"),
    *("rri_greedy_scene", "softmax", "greedy", "lookahead"),
)


def recipe_for(policy: str, horizon: int) -> RolloutRecipeConfig:
    """The recipe of `random`, `softmax`, `greedy` or `lookahead`; or a greedy one by a scorer, which may be the folder
    of a training run or `module:attr`."""
    own = _OWN_SCORES.get(policy)
    ahead = policy == "lookahead"
    return RolloutRecipeConfig(
        name=_recipe_name(policy),
        horizon=horizon,
        selection_policy=own or CounterfactualSelectionPolicy.ORACLE_GREEDY,
        scorer=None if own else policy,
        branch_factor=_LOOKAHEAD if ahead else 1,
        beam_width=_LOOKAHEAD if ahead else None,
    )


def _recipe_name(policy: str) -> str:
    """Chance depends on it, so a run folder gives the digest of its policy instead of its path."""
    if policy not in SCORERS and os.path.isdir(policy):
        return f"learned-{digest_of_policy(run_policy(policy))[:12]}"
    return re.sub(r"[^\w-]", "-", policy)


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """One policy over all roots, compared with the reference policy on the same roots."""

    policy: str
    roots: int
    """Targets of source rows from which it started."""
    scenes: int
    """Scenes of these roots. Roots of one scene are alike, so all means and intervals count every scene once."""
    target_gain: float
    """Mean share of the target's error at the root that the rollout removes."""
    scene_gain: float | None
    """None if the scene is not measured."""
    target_coverage: float
    """Mean share of the target's surface with a point nearby, at the end."""
    versus: str | None = None
    difference: float | None = None
    low: float | None = None
    """Lower limit of the 95 % interval of the mean paired difference (Student's t); None for a single root."""
    high: float | None = None
    wins: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    policies: tuple[str, ...]
    endpoint: NDArray[np.float64]
    """[roots, policies, 3]: target gain, scene gain (NaN if not measured) and target coverage at the end."""
    stats: RolloutDatasetWriterStats
    scene_ids: tuple[str, ...] | None = None
    """[roots]: the scene of each root; None if every root is of another scene."""

    def results(self, versus: str | None = None) -> list[PolicyResult]:
        reference = reference_of(self.policies, versus)
        by_scene = self._by_scene()
        return [self._result(by_scene, policy, reference) for policy in self.policies]

    def _by_scene(self) -> NDArray[np.float64]:
        """[scenes, policies, 3]: the means of the roots of each scene."""
        if self.scene_ids is None:
            return self.endpoint
        names, scene = np.unique(self.scene_ids, return_inverse=True)
        sums = np.zeros((len(names), *self.endpoint.shape[1:]))
        np.add.at(sums, scene, self.endpoint)
        return np.asarray(sums / np.bincount(scene)[:, None, None])

    def _result(self, by_scene: NDArray[np.float64], policy: str, reference: str) -> PolicyResult:
        number, base = self.policies.index(policy), self.policies.index(reference)
        target, scene, coverage = by_scene[:, number].mean(axis=0).tolist()
        alone = PolicyResult(
            policy, len(self.endpoint), len(by_scene), target, _finite_or_none(scene), coverage
        )
        if policy == reference:
            return alone
        low, mean, high = paired_interval(by_scene[:, number, 0] - by_scene[:, base, 0])
        wins = int((self.endpoint[:, number, 0] > self.endpoint[:, base, 0]).sum())
        return replace(
            alone,
            versus=reference,
            difference=mean,
            low=_finite_or_none(low),
            high=_finite_or_none(high),
            wins=wins,
        )


def reference_of(policies: Sequence[str], versus: str | None) -> str:
    """The reference policy: `versus`, or the first policy."""
    reference = policies[0] if versus is None else versus
    if reference not in policies:
        known = ", ".join(policies)
        raise ConfigurationError(message=f"versus is {reference!r}, expected one of {known}")
    return reference


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def paired_interval(differences: NDArray[np.float64]) -> tuple[float, float, float]:
    """Lower limit, mean and upper limit of the 95 % interval of a mean (Student's t); infinite for a single pair."""
    with needs("comparing policies"):
        from scipy.stats import t

    count = len(differences)
    mean = float(differences.mean())
    if count < 2:
        return -math.inf, mean, math.inf
    spread = float(differences.std(ddof=1)) / math.sqrt(count)
    reach = float(t.ppf(0.975, count - 1)) * spread
    return mean - reach, mean, mean + reach


def compare_policies(
    config: RolloutDatasetWriterConfig,
    source: SourceStore,
    rows: Sequence[int],
    policies: Sequence[str],
    *,
    on_row: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Runs the config's recipes, one per policy, from the usable targets of every row.

    The config's `max_targets_per_sample` limits the targets. Rows may be of several splits, since nothing is stored. A
    target on which some policy has no rollout is skipped for all policies, and counted.
    """
    roller = RowRoller(config, source)
    stats = RolloutDatasetWriterStats()
    endpoints, scenes = [], []
    with shown_progress("comparing policies", on_row) as progress:
        for done, row in enumerate(rows, start=1):
            outcome = roller.roll_out(row)
            stats.add(outcome.stats)
            for _, found in groupby(outcome.records, key=lambda record: record.lineage.target_id):
                records = list(found)
                if len(records) == len(policies):
                    endpoints.append([_endpoint(record.result) for record in records])
                    scenes.append(source.index[row].scene_id)
                else:
                    stats.skip("not_every_policy")
            progress(done, len(rows))
    if not endpoints:
        raise NoRollouts(samples_seen=stats.samples_seen, reasons=stats.listed_reasons())
    return Comparison(tuple(policies), np.array(endpoints), stats, tuple(scenes))


def _endpoint(result: CounterfactualRolloutResult) -> tuple[float, float, float]:
    """Gains and coverage at the end of the chain that the recipe itself scored best."""
    chain = max(result.chains, key=_own_score)
    last = chain.steps[-1]
    coverage = last.metric_vectors["target_coverage_after"][last.selected_shell_index]
    return _sum(chain, "target_root_gain"), _sum(chain, "scene_root_gain"), float(coverage)


def _own_score(chain: RolloutChain) -> float:
    """The score of a chain: the sum of its logits, which are the scores of a greedy recipe."""
    logits = [step.selection_logits for step in chain.steps]
    taken = [step.selected_shell_index for step in chain.steps]
    return sum(float(each[at]) for each, at in zip(logits, taken, strict=True) if each is not None)


def _sum(chain: RolloutChain, metric: str) -> float:
    if metric not in chain.steps[0].metric_vectors:
        return math.nan
    taken = [step.metric_vectors[metric][step.selected_shell_index] for step in chain.steps]
    return float(np.sum(taken, dtype=np.float64))
