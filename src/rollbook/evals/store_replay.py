"""Store replay: runs a policy on every recorded state of a rollout store, and reads the rewards of its choices.

It needs no server and no episode files: observations are slices of the store. A policy with `act_batch` gets thousands
of states at once, from many chains; any other policy gets one state at a time, chain by chain.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollbook.contracts.decision import Rollup
from rollbook.contracts.evals import EVIDENCE_KEY, EvalResult, Isolation
from rollbook.contracts.gate import Gate
from rollbook.contracts.lineage import ROLLOUT_METADATA
from rollbook.contracts.wire.episodes import EpisodeRecord
from rollbook.engines import Parallel
from rollbook.errors import ConfigurationError
from rollbook.evals.baseline_labels import chain_labels
from rollbook.evals.counterfactual import (
    ChainVerdict,
    StateRewards,
    choices_of,
    choices_of_steps,
    counterfactual_metrics,
)
from rollbook.evals.eval_run import EvalRun
from rollbook.evals.failures import failed_by, print_failure
from rollbook.evals.pair_evidence import PairEvidence
from rollbook.evals.policies.policy import Action, Policy, ReplayEpisode, StepContext
from rollbook.evals.policies.process import PolicySource
from rollbook.evals.policies.run_folders import revision_of
from rollbook.evals.runs import run_against
from rollbook.evals.store_baselines import CLOCK_KEYS, StoreBaselines
from rollbook.notebook import Progress, shown_progress
from rollbook.scoring.run_rollup import rollup

BATCH_STATES = 4096
STORE_SALT = "dry"
"""For the ids that a policy sees: a store is replayed without a run, and twice alike."""


def replay_store(
    baselines: StoreBaselines,
    policy: Any,
    *,
    batch: int = BATCH_STATES,
    policy_version: str = "",
    isolation: Isolation = "process",
    trusted: bool = False,
    verbose: bool = False,
    source: str | os.PathLike[str] | None = None,
    workers: int = 1,
    parallel: Parallel = "thread",
    on_episode: Callable[[EvalResult], object] | None = None,
) -> list[EvalResult]:
    """One result for each chain, in their order. If the policy raises in a chain, its result is a failed one.

    `policy_version` names the candidate in the digest of each pair, unless the policy is the run folder of a training,
    which has a revision. `isolation`, `trusted` and `verbose` are those of
    `run_against`.

    With `source`, the source store from which the chains were generated, the candidate is rolled out in the generator
    and its returns are measured (closed loop). Then `workers`, `parallel` and `on_episode` are those of `run_against`
    too; without `source` they have no effect.
    """
    if batch < 1:
        raise ConfigurationError(message=f"batch={batch}; it has to be at least 1")
    if source is not None:
        run = EvalRun(STORE_SALT, policy_version, None, baselines.ids, dry=True)
        return run_against(
            run,
            policy_callable=policy,
            store=baselines.reader.store_dir,
            source=source,
            isolation=isolation,
            trusted=trusted,
            verbose=verbose,
            workers=workers,
            parallel=parallel,
            on_episode=on_episode,
        )
    revision = revision_of(policy.given if isinstance(policy, PolicySource) else policy)
    named = policy_version if revision is None else revision.policy_digest
    evidence = PairEvidence(named, isolation, trusted)
    given = (
        policy
        if isinstance(policy, PolicySource)
        else PolicySource(policy, isolation=isolation, trusted=trusted)
    )
    with replace(given, salt=STORE_SALT).opened() as opened:
        asked = opened.make()
        try:
            replay = _StoreReplay(baselines, asked, evidence, verbose)
            with shown_progress("replaying chains") as progress:
                if asked.batched:
                    return replay.in_batches(batch, progress)
                return replay.one_by_one(progress)
        finally:
            asked.close()


def rollup_store(
    baselines: StoreBaselines, results: Sequence[EvalResult], gate: Gate | None = None
) -> Rollup:
    """Summarise a replay of these chains and decide. The store says which chains are of one scene, and, where the gate
    does not, which rewards are possible. Without a gate it is `Gate.for_reward()`."""
    closed_loop = any(_is_closed_loop(each) for each in results)
    gate = baselines.gate(gate, closed_loop=closed_loop)
    labels = chain_labels(baselines, gate)
    return rollup(results, gate, total=len(baselines), labels=labels)


def _is_closed_loop(result: EvalResult) -> bool:
    evidence = result.metrics.get(EVIDENCE_KEY) or {}
    return bool(evidence.get("reward_total") == "closed_loop")


class _StoreReplay:
    def __init__(
        self, baselines: StoreBaselines, policy: Policy, evidence: PairEvidence, verbose: bool
    ) -> None:
        self._baselines = baselines
        self._policy = policy
        self._evidence = evidence
        self._verbose = verbose

    @cached_property
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

    def in_batches(self, batch: int, progress: Progress) -> list[EvalResult]:
        try:
            self._policy.reset(self.whole_store)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a policy may raise anything
            return [self._failed(row, error) for row in self._baselines.rows.tolist()]
        results: list[EvalResult] = []
        for rows in self.blocks(batch):
            results += self.block(rows)
            progress(len(results), len(self._baselines))
        return results

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
                return [self._failed(int(rows[0]), error)]
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

    def one_by_one(self, progress: Progress) -> list[EvalResult]:
        results = []
        for row in self._baselines.rows.tolist():
            results.append(self.chain(row))
            progress(len(results), len(self._baselines))
        return results

    def chain(self, row: int) -> EvalResult:
        baselines = self._baselines
        states = baselines.states(row)
        rewards = StateRewards.of(baselines.reader, states)
        try:
            chosen = choices_of_steps(self._answers(row, states), rewards.valid)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a policy may raise anything
            return self._failed(row, error)
        return self._result(row, rewards.judged(chosen).in_all())

    def _answers(self, row: int, states: slice) -> list[Action]:
        baselines = self._baselines
        columns = baselines.observations(states)
        count = states.stop - states.start
        episode = ReplayEpisode(baselines.id_of(row), count, baselines.record(row))
        times = columns[CLOCK_KEYS[0]].tolist()
        self._policy.reset(episode)
        if self._policy.takes_steps and self._policy.chunk is None:
            return self._policy.act_steps(columns, 0, count - 1, times)
        return [
            self._policy.act(
                {key: values[step] for key, values in columns.items()},
                StepContext(step, step == 0, step + 1 == count, times[step], episode),
            )
            for step in range(count)
        ]

    def _result(self, row: int, verdict: ChainVerdict) -> EvalResult:
        metrics = counterfactual_metrics(verdict, repro=self._baselines.repro(row))
        metrics = self._evidence.added_to(metrics, self._baselines.seed(row))
        return EvalResult(self._baselines.id_of(row), None, "complete", metrics)

    def _failed(self, row: int, error: BaseException) -> EvalResult:
        result = failed_by(self._baselines.id_of(row), error)
        print_failure(result, verbose=self._verbose)
        return result


_NOTHING = ChainVerdict(0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0)
"""For a chain without steps."""
