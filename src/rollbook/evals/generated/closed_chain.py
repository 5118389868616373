"""Closed loop on a chain: the recorded choices are rolled out again, and then the candidate from the same root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.evals import Evidence
from rollbook.evals.counterfactual import ChainVerdict, choices_of_steps
from rollbook.evals.generated.generated_episode import GeneratedEpisode
from rollbook.evals.generated.store_world import ChainRoot, StoreWorld
from rollbook.evals.policies.policy import Action, Policy, ReplayEpisode, StepContext
from rollbook.evals.store_baselines import CLOCK_KEYS, MOVE_NS, StoreBaselines
from rollbook.evals.worlds.played_episode import split_chunk
from rollbook.scoring.metrics import result_metrics


@dataclass(frozen=True, slots=True)
class ClosedChain:
    """The candidate, rolled out from the root of one stored chain."""

    recorded_total: float | None
    """The return of the stored chain; None where a label cannot be trusted."""
    repro: dict[str, Any]
    rewards: tuple[float, ...] | None = None
    """None if the candidate could not be rolled out."""
    actions: tuple[Action, ...] = ()
    ended_by: str | None = None
    invalid_choices: int = 0

    @property
    def t_ns(self) -> NDArray[np.int64]:
        """The time of each action, as in the store."""
        return np.arange(len(self.actions), dtype=np.int64) * MOVE_NS

    @property
    def reward_total(self) -> float | None:
        """The return. None where that of the stored chain is not known."""
        if self.rewards is None or self.recorded_total is None:
            return None
        return float(np.sum(self.rewards, dtype=np.float64))

    def metrics(self, counterfactual: ChainVerdict | None) -> dict[str, Any]:
        """The metrics of one result. `counterfactual` are the same policy's choices in the recorded states."""
        evidence: dict[str, Evidence] = {
            "reward_total": "not_measured" if self.reward_total is None else "closed_loop",
            "actions": "closed_loop" if self.actions else "not_measured",
        }
        beside = {} if counterfactual is None else {"counterfactual": counterfactual.as_metrics()}
        return result_metrics(
            baseline={"reward_total": self.recorded_total},
            candidate={"reward_total": self.reward_total},
            evidence=evidence,
            l2=None,
            ood=None,
            step_count=len(self.actions),
            repro=self.repro,
            ended_by=self.ended_by,
            invalid_choices=self.invalid_choices,
            **beside,
        )


def roll_out_chain(
    chains: StoreBaselines, world: StoreWorld, row: int, policy: Policy
) -> ClosedChain:
    """Errors of the policy are raised."""
    root = world.root(row)
    changed = _changes(chains, root, row)
    verdict = chains.recorded(row)
    trusted = verdict.steps_total == verdict.steps
    recorded = verdict.baseline_reward_total if trusted else None
    repro = _repro(chains, root, row, changed)
    if root.evaluator is None:
        return ClosedChain(recorded, repro)
    episode = GeneratedEpisode(chains, root)
    known = ReplayEpisode(id=chains.id_of(row), step_count=None, record=chains.record(row))
    actions = _act_in(episode, root.horizon, known, policy)
    return ClosedChain(
        recorded,
        repro,
        tuple(map(float, episode.rewards)),
        tuple(actions),
        episode.ended_by,
        episode.invalid_choices,
    )


def _act_in(
    episode: GeneratedEpisode, horizon: int, known: ReplayEpisode, policy: Policy
) -> list[Action]:
    policy.reset(known)
    actions: list[Action] = []
    waiting: list[Action] = []
    while episode.ended_by is None:
        step = len(actions)
        if not waiting:
            context = StepContext(step, step == 0, step + 1 == horizon, step * MOVE_NS, known)
            waiting = split_chunk(policy.act(episode.observation(), context), policy.chunk)
        actions.append(waiting.pop(0))
        episode.take(int(choices_of_steps(actions[-1:], episode.valid[None])[0]))
    return actions


# ------------------------------------------------------------------------------------ the same world


def _changes(chains: StoreBaselines, root: ChainRoot, row: int) -> list[str]:
    """What differs when the recorded choices are rolled out again: words, empty for nothing.

    Rewards and observations are compared bit for bit.
    """
    words = dict.fromkeys(root.changed)
    if root.evaluator is None:
        return list(words)
    states = chains.states(row)
    stored = chains.observations(states)
    chosen = chains.reader.array("q_h/selected_candidate_index")[states].tolist()
    gains = chains.reader.array("q_h/one_step_target_root_gain")[states]
    episode = GeneratedEpisode(chains, root)
    for step, index in enumerate(chosen):
        if episode.ended_by is not None:
            words["ended_at_step"] = None
            break
        if not _same(episode.observation(), stored, step):
            words["observations"] = None
        if not (0 <= index < len(episode.valid) and episode.valid[index]):
            break  # the observations differ, and this choice is no longer possible
        if episode.take(index).tobytes() != gains[step, index].tobytes():
            words["rewards"] = None
    return list(words)


def _same(observation: Mapping[str, Any], stored: Mapping[str, Any], step: int) -> bool:
    return all(
        np.asarray(observation[key]).tobytes() == np.ascontiguousarray(rows[step]).tobytes()
        for key, rows in stored.items()
        if key not in CLOCK_KEYS
    )


def _repro(chains: StoreBaselines, root: ChainRoot, row: int, changed: list[str]) -> dict[str, Any]:
    known = chains.repro(row)
    recorded = known["env_version"]["baseline"]
    return known | {
        "env_version": {"baseline": recorded, "candidate": root.env_version},
        "env_match": None if root.env_version is None else root.env_version == recorded,
        # a difference says that something changed, not that the generator is noisy
        "deterministic": None if changed else True,
        "verified": not changed,
        "env_changed": changed,
    }
