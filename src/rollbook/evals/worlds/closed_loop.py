"""Closed loop: runs the environment of a baseline again with the candidate, and measures the outcome.

The environment starts from the baseline's seed. `contracts/reported_outcome.py` says how the outcome is read.

First `world_check` plays the recorded actions again, to see whether the world is still the recorded one, so that a
difference is due to the candidate; and `situations` names the situation from which both start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.evals import Evidence
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.contracts.reported_outcome import KnownOutcome
from rollbook.errors import ConfigurationError
from rollbook.evals.baselines import Baseline
from rollbook.evals.policies.policy import Action, Policy, ReplayEpisode
from rollbook.evals.worlds.environments import EnvironmentFactory, open_environment
from rollbook.evals.worlds.played_episode import PlayedEpisode, play
from rollbook.evals.worlds.situations import situation_of
from rollbook.evals.worlds.world_check import WorldCheck, check_world
from rollbook.scoring.actions import stack_actions
from rollbook.scoring.metrics import action_l2_distance, ood_action_share, result_metrics

MOST_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class ClosedLoopRun:
    """The candidate in the baseline's environment."""

    outcome: KnownOutcome
    """Measured; None where the environment reports nothing."""
    baseline_outcome: KnownOutcome
    """The recorded one. What was not recorded is that of the recorded actions, played again, if they led to everything
    that was."""
    repro: dict[str, Any]
    actions: list[Action]
    ended_by: str
    """`terminated`, `truncated` or `max_steps`."""
    fps: float | None = None

    @property
    def t_ns(self) -> NDArray[np.int64] | None:
        """The time of each action, where the rate is known."""
        if self.fps is None:
            return None
        ticks = np.arange(len(self.actions), dtype=np.float64)
        return np.rint(ticks * 1e9 / self.fps).astype(np.int64)

    @property
    def evidence(self) -> dict[str, Evidence]:
        found: dict[str, Evidence] = {
            name: "not_measured" if value is None else "closed_loop"
            for name, value in self.outcome.items()
        }
        return {**found, "actions": "closed_loop" if self.actions else "not_measured"}


def run_closed_loop(
    factory: EnvironmentFactory,
    baseline: Baseline,
    policy: Policy,
    *,
    repeat: int = 1,
    max_steps: int = MOST_STEPS,
    check_determinism: bool = True,
) -> ClosedLoopRun:
    """Errors of the policy, and of the environment while the policy acts, are raised.

    The first of `repeat` runs gives the outcome. If another run observes something else, the set-up is not
    deterministic. If the baseline could take only a number of steps, the candidate gets the same number. Without
    `check_determinism` nothing but the candidate is played, and the world is not verified.
    """
    if repeat < 1 or max_steps < 1:
        message = f"repeat={repeat}, max_steps={max_steps}; both have to be at least 1"
        raise ConfigurationError(message=message)
    world = check_world(factory, baseline) if check_determinism else WorldCheck.skipped(baseline)
    steps = min(max_steps, world.step_limit or max_steps)
    runs = [_played(factory, baseline, policy, steps) for _ in range(repeat)]
    first = runs[0]
    if baseline.seed is not None and any(run.start != (world.start or first.start) for run in runs):
        world = world.with_change("seed_ignored")
    if not first.ended and len(first.actions) < world.recorded_steps:
        world = world.with_change("max_steps")
    same = all(run.observations() == first.observations() for run in runs)
    known = world.outcome or {}
    recorded = {name: baseline.outcome.get(name) for name in OUTCOMES}
    return ClosedLoopRun(
        outcome=first.outcome(),
        baseline_outcome={
            name: known.get(name) if value is None else value for name, value in recorded.items()
        },
        repro=_repro(baseline, first, world, world.deterministic if same else False),
        actions=first.actions,
        ended_by=first.ended_by,
        fps=first.fps,
    )


def _played(
    factory: EnvironmentFactory, baseline: Baseline, policy: Policy, steps: int
) -> PlayedEpisode:
    episode = ReplayEpisode(id=baseline.id, step_count=None, record=baseline.record)
    with open_environment(factory, episode) as environment:
        return play(environment, baseline, policy, steps)


def _repro(
    baseline: Baseline, run: PlayedEpisode, world: WorldCheck, deterministic: bool | None
) -> dict[str, Any]:
    versions = (baseline.env_version, run.env_version)
    found = {
        "env_version": {"baseline": versions[0], "candidate": versions[1]},
        "seed": {"baseline": baseline.seed, "candidate": baseline.seed},
        "env_match": None if None in versions else versions[0] == versions[1],
        "deterministic": deterministic,
        "verified": world.verified,
        "env_changed": None if world.changed is None else list(world.changed),
        "situation": situation_of(run.description, run.start, world.probes),
    }
    return found if world.error is None else {**found, "env_error": world.error}


def closed_loop_metrics(run: ClosedLoopRun, baseline: Baseline) -> dict[str, Any]:
    """The metrics of one result. After the first step the two policies act in different states, so the distance of
    their actions shows only that something changed."""
    candidate, recorded = stack_actions(run.actions), baseline.actions or {}
    return result_metrics(
        baseline=run.baseline_outcome,
        candidate=run.outcome,
        evidence=run.evidence,
        l2=action_l2_distance(recorded, candidate),
        ood=ood_action_share(recorded, candidate),
        step_count=len(run.actions),
        repro=run.repro,
        ended_by=run.ended_by,
    )
