"""Replay workers: what one thread, process or actor does with a baseline, from its artifacts to those of the replay."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollbook.contracts.episode import ArtifactKind
from rollbook.contracts.evals import LONGEST_ERROR
from rollbook.contracts.npz import NpzLimits, storable_array, write_npz
from rollbook.contracts.zip_members import check_key
from rollbook.errors import (
    APIError,
    ConfigurationError,
    NotFoundError,
    Refusal,
    TransportError,
)
from rollbook.evals.baselines import Arrays, Baseline, Fetched, Ticket
from rollbook.evals.journal import Row
from rollbook.evals.policies import Policy, PolicySource
from rollbook.evals.replay import (
    Replay,
    ReplayOptions,
    act_through,
    replay_one,
    with_clocks,
)
from rollbook.scoring.actions import CLOCK_FIELD, split_key, stack_actions

if TYPE_CHECKING:
    from rollbook.client import Client

INFRASTRUCTURE = "infrastructure: "
"""How the error of a row begins that says nothing about the candidate: its baseline could not be fetched, or there was
no environment to run it in. A run that is taken up again does these again."""


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """Makes workers, wherever it is sent. Each has a policy of its own."""

    policy: PolicySource
    options: ReplayOptions
    kinds: tuple[ArtifactKind, ...]
    client: Client | None = None
    """For workers that fetch for themselves."""
    environment: Any = None
    store: str | None = None
    upload_actions: bool = True

    def __call__(self) -> ReplayWorker:
        return ReplayWorker(self)


class ReplayWorker:
    def __init__(self, plan: WorkerPlan) -> None:
        self._plan = plan
        self._policy: Policy = plan.policy.make()
        self._chains: Any = None

    def __call__(self, item: Ticket | Fetched | Baseline) -> Row:
        try:
            baseline = self._baseline(item)
        except NotFoundError:
            raise
        except (TransportError, APIError, OSError) as error:
            return _without_blame(item.id, error)
        try:
            replay = self._replay(baseline)
        except ConfigurationError as error:
            if self._plan.environment is None:
                raise
            return _without_blame(item.id, error)
        files: dict[ArtifactKind, bytes] = {}
        if self._plan.upload_actions:
            arrays = {**(replay.actions or {}), **(replay.per_step or {})}
            if arrays:
                files["actions"] = encoded(arrays)
        return Row(
            baseline.id,
            "complete",
            replay.metrics,
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
            return item.fetch(self._plan.client, self._plan.kinds)
        return item

    def _replay(self, baseline: Baseline) -> Replay:
        if self._plan.store is not None:
            return self._counterfactual(baseline, self._plan.store)
        if self._plan.environment is not None:
            return self._closed_loop(baseline)
        return replay_one(baseline, self._policy, self._plan.options)

    def _closed_loop(self, baseline: Baseline) -> Replay:
        from rollbook.evals.closed_loop import closed_loop_metrics, run_closed_loop

        run = run_closed_loop(self._plan.environment, baseline, self._policy)
        arrays = with_clocks(stack_actions(run.actions).arrays(), run.t_ns)
        return Replay(closed_loop_metrics(run, baseline), arrays or None, None, len(run.actions))

    def _counterfactual(self, baseline: Baseline, store: str) -> Replay:
        """The policy sees the chain as the store has it, and its choices are looked up there."""
        from rollbook.evals.counterfactual import counterfactual_metrics
        from rollbook.evals.store_baselines import StoreBaselines

        if self._chains is None:
            self._chains = StoreBaselines(store)
        chains: StoreBaselines = self._chains
        row = chains.row_of(baseline)
        table, steps = act_through(chains[row], self._policy, self._plan.options)
        metrics = counterfactual_metrics(chains.judge(row, steps), repro=chains.repro(row))
        arrays = with_clocks(stack_actions(steps).arrays(), table.t_ns)
        return Replay(metrics, arrays or None, None, len(steps))


def _without_blame(baseline_id: str, error: Exception) -> Row:
    said = f"{INFRASTRUCTURE}{type(error).__name__}: {error}"
    return Row(baseline_id, "failed", {}, said[:LONGEST_ERROR])


def encoded(arrays: Arrays) -> bytes:
    """As an artifact; without those arrays that no artifact can hold, under the names a policy may think of."""
    target = io.BytesIO()
    write_npz(target, {key: array for key, array in arrays.items() if _is_storable(key, array)})
    return target.getvalue()


def _is_storable(key: object, array: object) -> bool:
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
        if split_key(str(key))[1] == CLOCK_FIELD and len(array) > 1 and array.dtype.kind in "iu":
            seconds = (int(array[-1]) - int(array[0])) / 1e9
            return seconds if seconds >= 0 else None
    return None
