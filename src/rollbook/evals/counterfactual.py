"""Counterfactual rewards: the rewards of a policy's choices in recorded states, read from a rollout store.

A store keeps the reward of every candidate, not only of the chosen one. So the choices of another policy have known
rewards. The replay is teacher-forced: each state is one that the baseline reached, and the policy chooses once in each.
The states after its own choices are not known, so the sum over a chain is a sum of single choices, not a return.

The rules for one state:

- A choice is *measured* when its label and the label of the recorded choice can be trusted (`q_train_mask`). Other
  states count on neither side.
- An invalid choice, an index out of range, and no choice at all earn the worst label among the valid candidates.
- `best` is the greatest and `random` the mean of the valid labels. Regret is measured on the scale between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.candidate_keys import CHOICE_KEY, SCORE_KEY
from rollbook.contracts.evals import Evidence
from rollbook.contracts.outcomes import OUTCOMES
from rollbook.errors import InvalidValue
from rollbook.store.reader import RolloutZarrStoreReader

NO_CHOICE = -1
_NO_SCALE = 1e-12
"""If best and random differ by less, there was nothing to choose."""

Array = NDArray[Any]
Rows = slice | NDArray[np.int64]


# ---------------------------------------------------------------------------------------- choices


def choices_of(answers: Mapping[str, Any], valid: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Choices in S states from one answer: indices [S], or scores [S, A]. `valid` is [S, A]."""
    if CHOICE_KEY in answers:
        return _indices(np.asarray(answers[CHOICE_KEY]), len(valid))
    if SCORE_KEY in answers:
        return _best_scored(np.asarray(answers[SCORE_KEY]), valid)
    given = ", ".join(sorted(map(str, answers))[:8]) or "nothing"
    raise _invalid_answer(
        "keys", given, f"{CHOICE_KEY!r} (one index) or {SCORE_KEY!r} (one per candidate)"
    )


def choices_of_steps(
    actions: Sequence[Mapping[str, Any]], valid: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Choices from one answer for each state. Answers of different kinds may be mixed."""
    if len(actions) != len(valid):
        raise _invalid_answer("steps", str(len(actions)), f"{len(valid)}, one for each state")
    for key in (CHOICE_KEY, SCORE_KEY):
        if actions and all(key in action for action in actions):
            return choices_of({key: _stacked(key, actions)}, valid)
    chosen = [
        choices_of(
            {key: np.asarray(value)[None] for key, value in action.items()}, valid[i : i + 1]
        )
        for i, action in enumerate(actions)
    ]
    return np.concatenate([np.zeros(0, np.int64), *chosen])


def _stacked(key: str, actions: Sequence[Mapping[str, Any]]) -> Array:
    try:
        return np.stack([np.asarray(action[key]) for action in actions])
    except ValueError as error:
        raise _invalid_answer(
            key, "of another shape at some step", "one shape throughout"
        ) from error


def _indices(given: Array, states: int) -> NDArray[np.int64]:
    if given.dtype.kind not in "iuf" or given.size != states:
        found = f"{given.dtype} of shape {given.shape}"
        raise _invalid_answer(CHOICE_KEY, found, "one whole number for each state")
    flat = given.reshape(states)
    if flat.dtype.kind == "f":
        whole = np.isfinite(flat) & (np.abs(flat) < 2**31)
        if (flat[whole] % 1 != 0).any():
            raise _invalid_answer(
                CHOICE_KEY, str(flat[whole][flat[whole] % 1 != 0][0]), "a whole number"
            )
        flat = np.where(whole, flat, NO_CHOICE)
    return flat.astype(np.int64)


def _best_scored(given: Array, valid: NDArray[np.bool_]) -> NDArray[np.int64]:
    if given.dtype.kind not in "biuf" or given.shape != valid.shape:
        found = f"{given.dtype} of shape {given.shape[1:]}"
        raise _invalid_answer(SCORE_KEY, found, f"{valid.shape[1]} numbers, one for each candidate")
    known = valid & ~np.isnan(given.astype(np.float64, copy=False))
    score = np.where(known, given, -np.inf)
    if not score.shape[1]:
        return np.full(len(score), NO_CHOICE, np.int64)
    # among equal scores the first known one; minus infinity is a valid score
    best = np.argmax(known & (score == score.max(axis=1, keepdims=True)), axis=1)
    return np.where(known.any(axis=1), best, NO_CHOICE).astype(np.int64)


def _invalid_answer(field: str, value: str, expected: str) -> InvalidValue:
    return InvalidValue(record="the policy's answer", field=field, value=value, expected=expected)


# ---------------------------------------------------------------------------------------- rewards


@dataclass(frozen=True, slots=True, eq=False)
class StateRewards:
    """The rewards of all candidates of some states. A policy never sees them."""

    reward: NDArray[np.float64]
    """[S, A]: NaN where there is no trusted label."""
    valid: NDArray[np.bool_]
    """[S, A]"""
    taken: NDArray[np.int64]
    """[S]: the choices of the baseline."""

    @classmethod
    def of(cls, reader: RolloutZarrStoreReader, states: Rows) -> StateRewards:
        names = ("valid_action_mask", "q_train_mask", "one_step_target_root_gain")
        columns = reader.table("q_h", (*names, "selected_candidate_index"), states)
        gain = columns["one_step_target_root_gain"].astype(np.float64)
        trusted = columns["q_train_mask"] & np.isfinite(gain)
        return cls(
            reward=np.where(trusted, gain, np.nan),
            valid=np.asarray(columns["valid_action_mask"]),
            taken=columns["selected_candidate_index"].astype(np.int64),
        )

    def limits(self) -> NDArray[np.float64]:
        """[2, S]: lowest and highest reward of any choice. A state that does not count has a reward of 0."""
        known = ~np.isnan(self.reward)
        worst, best = self._extreme(np.inf, known), self._extreme(-np.inf, known)
        return np.stack([np.minimum(np.nan_to_num(worst), 0), np.maximum(np.nan_to_num(best), 0)])

    def judged(self, chosen: NDArray[np.int64]) -> JudgedSteps:
        known = ~np.isnan(self.reward)
        some = known.any(axis=1)
        worst, best = self._extreme(np.inf, known), self._extreme(-np.inf, known)
        count = np.maximum(known.sum(axis=1), 1)
        mean = np.where(some, np.where(known, self.reward, 0.0).sum(axis=1) / count, np.nan)
        allowed, earned = self._looked_up(chosen)
        earned = np.where(allowed, earned, worst)
        recorded = self._looked_up(self.taken)[1]
        return JudgedSteps(
            measured=np.isfinite(earned) & np.isfinite(recorded),
            chosen=earned,
            recorded=recorded,
            best=best,
            random=mean,
            invalid=~allowed,
            same=chosen == self.taken,
        )

    def _extreme(self, otherwise: float, known: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Smallest (`otherwise` inf) or greatest label of each state; NaN in a state without labels."""
        reduce = np.minimum if otherwise > 0 else np.maximum
        values: NDArray[np.float64] = reduce.reduce(
            np.where(known, self.reward, otherwise), axis=1, initial=otherwise
        )
        return np.where(np.isfinite(values), values, np.nan)

    def _looked_up(self, index: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Whether each index names a valid candidate, and its reward."""
        states, width = self.reward.shape
        inside = (index >= 0) & (index < width)
        if not width:
            return inside, np.full(states, np.nan)
        column = np.where(inside, index, 0)
        every = np.arange(states)
        allowed = inside & self.valid[every, column]
        return allowed, np.where(allowed, self.reward[every, column], np.nan)


@dataclass(frozen=True, slots=True, eq=False)
class JudgedSteps:
    """One entry for each state."""

    measured: NDArray[np.bool_]
    chosen: NDArray[np.float64]
    recorded: NDArray[np.float64]
    best: NDArray[np.float64]
    random: NDArray[np.float64]
    invalid: NDArray[np.bool_]
    same: NDArray[np.bool_]

    def by_chain(self, chain: NDArray[np.int64], chains: int) -> list[ChainVerdict]:
        """Sums over the states of each chain. `chain` is the number of the chain of each state, from 0."""

        def added(values: Array) -> list[float]:
            weights = np.where(self.measured, values, 0.0)
            totals: list[float] = np.bincount(chain, weights, minlength=chains).tolist()
            return totals

        def counted(mask: NDArray[np.bool_]) -> list[int]:
            counts: list[int] = np.bincount(chain[mask], minlength=chains).tolist()
            return counts

        columns = (
            counted(np.ones_like(self.measured)),
            counted(self.measured),
            counted(self.invalid),
            counted(self.same),
            *map(added, (self.chosen, self.recorded, self.best, self.random)),
        )
        return [ChainVerdict(*row) for row in zip(*columns, strict=True)]

    def in_all(self) -> ChainVerdict:
        return self.by_chain(np.zeros(len(self.measured), np.int64), 1)[0]


class ChainVerdict(NamedTuple):
    """Sums over the measured states of one chain."""

    steps_total: int
    steps: int
    """Measured states. All sums are over these."""
    invalid_choices: int
    same_choices: int
    chosen_total: float
    recorded_total: float
    best_total: float
    random_total: float

    @property
    def reward_total(self) -> float | None:
        """The reward of the candidate's choices; None where no step was measured."""
        return self.chosen_total if self.steps else None

    @property
    def baseline_reward_total(self) -> float | None:
        """The reward of the recorded choices in the same states."""
        return self.recorded_total if self.steps else None

    def as_metrics(self) -> dict[str, Any]:
        """The `counterfactual` object of a result's metrics."""
        scale = self.best_total - self.random_total
        regret = self.best_total - self.chosen_total
        known = self.steps > 0
        return {
            "steps": self.steps,
            "steps_total": self.steps_total,
            "best_total": self.best_total if known else None,
            "random_total": self.random_total if known else None,
            "chosen_total": self.chosen_total if known else None,
            "regret": regret if known else None,
            "regret_share": regret / scale if known and scale > _NO_SCALE else None,
            "invalid_choices": self.invalid_choices,
            "same_choice_share": self.same_choices / self.steps_total if self.steps_total else None,
        }


def counterfactual_metrics(
    verdict: ChainVerdict, *, repro: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The metrics of one result. They have no distance of actions, because a choice is not a quantity."""
    from rollbook.scoring.metrics import result_metrics

    measured = verdict.steps > 0
    evidence: dict[str, Evidence] = dict.fromkeys(OUTCOMES, "not_measured")
    evidence["reward_total"] = "counterfactual" if measured else "not_measured"
    evidence["actions"] = "open_loop" if verdict.steps_total else "not_measured"
    return result_metrics(
        baseline={"reward_total": verdict.baseline_reward_total},
        candidate={"reward_total": verdict.reward_total},
        evidence=evidence,
        l2=None,
        ood=None,
        step_count=verdict.steps_total,
        counterfactual=verdict.as_metrics(),
        **({} if repro is None else {"repro": dict(repro)}),
    )
