"""ReplayWorker: replays baselines in one thread, process or actor."""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.evals import EvalResult
from rollbook.contracts.npz import NpzLimits, storable_array, write_npz
from rollbook.contracts.streams import CLOCK_FIELD
from rollbook.contracts.zip_members import check_key
from rollbook.errors import (
    APIError,
    ConfigurationError,
    NotFoundError,
    PolicyFailed,
    Refusal,
    TransportError,
)
from rollbook.evals.baselines import Arrays, Baseline, Fetched, Ticket
from rollbook.evals.failures import failed_by, infrastructure_failure
from rollbook.evals.journal import FinishedReplay
from rollbook.evals.open_loop import Replay, act_through, replay_one, with_clocks
from rollbook.evals.options import ReplayOptions
from rollbook.evals.pair_evidence import PairEvidence
from rollbook.evals.policies.policy import Policy
from rollbook.evals.policies.process import PolicySource
from rollbook.scoring.actions import key_parts, stack_actions
from rollbook.scoring.reference import ActionReference

if TYPE_CHECKING:
    from rollbook.client import Client
    from rollbook.evals.generated.store_world import StoreWorld
    from rollbook.evals.store_baselines import StoreBaselines


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """Makes workers, here or in another process. Each has its own policy."""

    options: ReplayOptions
    policy: PolicySource
    evidence: PairEvidence
    reference: ActionReference | None = None
    client: Client | None = None
    """For workers in other processes, which fetch their baselines themselves."""

    def __call__(self) -> ReplayWorker:
        return ReplayWorker(self)


class ReplayWorker:
    def __init__(self, plan: WorkerPlan) -> None:
        self._plan = plan
        self._options = plan.options
        self._policy: Policy = plan.policy.make()
        self._opened_chains: StoreBaselines | None = None
        self._opened_world: StoreWorld | None = None

    def __call__(self, item: Ticket | Fetched | Baseline) -> FinishedReplay:
        try:
            baseline = self._baseline(item)
        except NotFoundError:
            raise
        except (TransportError, APIError, OSError) as error:
            return FinishedReplay(infrastructure_failure(item.id, error))
        try:
            replay = self._replay(baseline)
        except PolicyFailed as error:
            return FinishedReplay(failed_by(item.id, error))
        except ConfigurationError as error:
            if self._options.environment is None and self._options.source is None:
                raise
            return FinishedReplay(infrastructure_failure(item.id, error))
        metrics = self._plan.evidence.added_to(replay.metrics, baseline.seed)
        files: dict[ArtifactKind, bytes] = {}
        if self._options.upload_actions and not self._options.dry_run:
            arrays = {**(replay.actions or {}), **(replay.per_step or {})}
            if arrays:
                files["actions"] = encoded(arrays)
        return FinishedReplay(
            EvalResult(baseline.id, None, "complete", metrics),
            duration_s=_duration_s(replay),
            fps=None if baseline.record is None else baseline.record.fps,
            files=files,
        )

    def close(self) -> None:
        self._policy.close()

    def _baseline(self, item: Ticket | Fetched | Baseline) -> Baseline:
        if isinstance(item, Fetched):
            return item.baseline()
        if isinstance(item, Ticket):
            assert self._plan.client is not None
            return item.fetch(self._plan.client, self._options.kinds)
        return item

    def _replay(self, baseline: Baseline) -> Replay:
        if self._options.store_path is not None:
            row = self._chains.row_of(baseline)
            if self._options.source_path is not None:
                return self._generated(row, self._options.source_path)
            return self._counterfactual(row)
        if self._options.environment is not None:
            return self._closed_loop(baseline)
        return replay_one(baseline, self._policy, self._options, self._plan.reference)

    def _closed_loop(self, baseline: Baseline) -> Replay:
        from rollbook.evals.worlds.closed_loop import closed_loop_metrics, run_closed_loop

        run = run_closed_loop(
            self._options.environment,
            baseline,
            self._policy,
            check_determinism=self._options.check_determinism,
        )
        arrays = with_clocks(stack_actions(run.actions).arrays(), run.t_ns)
        return Replay(closed_loop_metrics(run, baseline), arrays or None, None, len(run.actions))

    @property
    def _chains(self) -> StoreBaselines:
        from rollbook.evals.store_baselines import StoreBaselines

        assert self._options.store_path is not None
        if self._opened_chains is None:
            self._opened_chains = StoreBaselines(self._options.store_path)
        return self._opened_chains

    def _counterfactual(self, row: int) -> Replay:
        """The policy sees the chain of the store, and the rewards of its choices are read from the store."""
        from rollbook.evals.counterfactual import counterfactual_metrics

        chains = self._chains
        table, steps = act_through(chains[row], self._policy, self._options)
        metrics = counterfactual_metrics(chains.judge(row, steps), repro=chains.repro(row))
        arrays = with_clocks(stack_actions(steps).arrays(), table.t_ns)
        return Replay(metrics, arrays or None, None, len(steps))

    def _generated(self, row: int, source: str) -> Replay:
        """The policy is rolled out from the root of the chain. Then it chooses in the recorded states too, to see how
        the two figures relate."""
        from rollbook.evals.generated.closed_chain import roll_out_chain
        from rollbook.evals.generated.store_world import StoreWorld

        chains = self._chains
        if self._opened_world is None:
            self._opened_world = StoreWorld(chains, source)
        closed = roll_out_chain(chains, self._opened_world, row, self._policy)
        beside = None
        # the outcome is measured already: a policy that fails only here has no second figure
        with suppress(Exception, SystemExit):
            _, steps = act_through(chains[row], self._policy, self._options)
            beside = chains.judge(row, steps)
        arrays = with_clocks(stack_actions(closed.actions).arrays(), closed.t_ns)
        return Replay(closed.metrics(beside), arrays or None, None, len(closed.actions))


def encoded(arrays: Arrays) -> bytes:
    """The arrays as an artifact, without those whose key or type an artifact cannot hold."""
    target = io.BytesIO()
    write_npz(
        target, {key: array for key, array in arrays.items() if _fits_an_artifact(key, array)}
    )
    return target.getvalue()


def _fits_an_artifact(key: object, array: object) -> bool:
    if not isinstance(key, str):
        return False
    try:
        check_key(key, NpzLimits(), "npz")
        storable_array(key, array)  # type: ignore[arg-type]
    except Refusal:
        return False
    return True


def _duration_s(replay: Replay) -> float | None:
    for key, array in (replay.actions or {}).items():
        if key_parts(str(key))[1] == CLOCK_FIELD and len(array) > 1 and array.dtype.kind in "iu":
            seconds = (int(array[-1]) - int(array[0])) / 1e9
            return seconds if seconds >= 0 else None
    return None
