"""Store replay: runs a policy on every recorded state of a rollout store, and reads the rewards of its choices.

It needs no server and no episode files: observations are slices of the store. A policy with `act_batch` gets thousands
of states at once, from many chains; any other policy gets one state at a time, chain by chain.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.evals import LONGEST_ERROR, EvalResult
from rollbook.contracts.wire.episodes import EpisodeRecord
from rollbook.errors import ConfigurationError
from rollbook.evals.counterfactual import (
    ChainVerdict,
    StateRewards,
    choices_of,
    choices_of_steps,
    counterfactual_metrics,
)
from rollbook.evals.policies import Action, Policy, ReplayEpisode, StepContext, as_policy
from rollbook.evals.store_baselines import CLOCK_KEYS, ROLLOUT_METADATA, StoreBaselines

BATCH_STATES = 4096


def replay_store(
    baselines: StoreBaselines, policy: Any, *, batch: int = BATCH_STATES
) -> list[EvalResult]:
    """One result for each chain, in their order. If the policy raises in a chain, its result is a failed one."""
    if batch < 1:
        raise ConfigurationError(message=f"batch={batch}; it has to be at least 1")
    asked = as_policy(policy)
    try:
        replay = _StoreReplay(baselines, asked)
        if not asked.batched:
            return [replay.chain(row) for row in baselines.rows.tolist()]
        asked.reset(replay.whole_store)
        return [result for rows in replay.blocks(batch) for result in replay.block(rows)]
    finally:
        asked.close()


class _StoreReplay:
    def __init__(self, baselines: StoreBaselines, policy: Policy) -> None:
        self._baselines = baselines
        self._policy = policy

    @property
    def whole_store(self) -> ReplayEpisode:
        """The episode for a policy that gets many chains at once: what all chains have in common."""
        digest = self._baselines.digest
        metadata = {
            ROLLOUT_METADATA: {"store_content_sha256": digest},
            "actor_feature_names": list(self._baselines.feature_names),
        }
        record = EpisodeRecord(id=digest[:12], status="ready", source="sim", metadata=metadata)
        return ReplayEpisode(id=digest[:12], record=record)

    # ------------------------------------------------------------------------------ many at a time

    def blocks(self, batch: int) -> Iterator[NDArray[np.int64]]:
        """Groups of complete chains, each with about `batch` states."""
        rows = self._baselines.rows
        lengths = self._baselines.reader.array("rollouts/num_steps")[rows].astype(np.int64)
        number = (np.cumsum(lengths) - lengths) // batch
        starts = np.flatnonzero(np.diff(number, prepend=-1))
        yield from np.split(rows, starts[1:]) if len(rows) else ()

    def block(self, rows: NDArray[np.int64]) -> list[EvalResult]:
        """A batch that fails is repeated chain by chain, to find the chains that fail."""
        try:
            return self._judged(rows)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a policy may raise anything
            if len(rows) == 1:
                return [_failed(self._baselines.id_of(int(rows[0])), error)]
        return [result for row in rows for result in self.block(np.array([row]))]

    def _judged(self, rows: NDArray[np.int64]) -> list[EvalResult]:
        reader = self._baselines.reader
        first = reader.array("rollouts/step_offset")[rows]
        lengths = reader.array("rollouts/num_steps")[rows].astype(np.int64)
        chain = np.repeat(np.arange(len(rows)), lengths)
        if not len(chain):
            return [self._result(row, _NOTHING) for row in rows.tolist()]
        ends = np.cumsum(lengths)
        inside = np.arange(len(chain)) - np.repeat(ends - lengths, lengths)
        states = np.repeat(first, lengths) + inside
        together = slice(int(states[0]), int(states[-1]) + 1)
        is_range = together.stop - together.start == len(states) and (np.diff(states) == 1).all()
        chosen_states = together if is_range else states
        rewards = StateRewards.of(reader, chosen_states)
        context = StepContext(0, True, True, None, self.whole_store)
        answer = self._policy.act_batch(self._baselines.observations(chosen_states), context)
        judged = rewards.judged(choices_of(answer, rewards.valid))
        verdicts = judged.by_chain(chain, len(rows))
        return [self._result(row, each) for row, each in zip(rows.tolist(), verdicts, strict=True)]

    # ---------------------------------------------------------------------------- one after another

    def chain(self, row: int) -> EvalResult:
        baselines = self._baselines
        states = baselines.states(row)
        rewards = StateRewards.of(baselines.reader, states)
        try:
            chosen = choices_of_steps(self._answers(row, states), rewards.valid)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a policy may raise anything
            return _failed(baselines.id_of(row), error)
        return self._result(row, rewards.judged(chosen).in_all())

    def _answers(self, row: int, states: slice) -> list[Action]:
        baselines = self._baselines
        columns = baselines.observations(states)
        count = states.stop - states.start
        episode = ReplayEpisode(baselines.id_of(row), count, baselines.record(row))
        times = columns[CLOCK_KEYS[0]].tolist()
        self._policy.reset(episode)
        return [
            self._policy.act(
                {key: values[step] for key, values in columns.items()},
                StepContext(step, step == 0, step + 1 == count, times[step], episode),
            )
            for step in range(count)
        ]

    def _result(self, row: int, verdict: ChainVerdict) -> EvalResult:
        metrics = counterfactual_metrics(verdict, repro=self._baselines.repro(row))
        return EvalResult(self._baselines.id_of(row), None, "complete", metrics)


_NOTHING = ChainVerdict(0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0)
"""For a chain without steps."""


def _failed(baseline_id: str, error: BaseException) -> EvalResult:
    traceback.print_exception(error, file=sys.stderr)
    reason = f"{type(error).__name__}: {error}".removesuffix(": ")
    return EvalResult(baseline_id, None, "failed", {}, reason[:LONGEST_ERROR])
