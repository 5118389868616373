"""The replay regression harness: does the candidate beat the baseline, and how sure are we?

run = rollbook.evals.create_run(candidate_policy_version="v4", baseline_episode_ids=[…])
rollbook.evals.run_against(run, policy_callable=my_policy)
print(rollbook.evals.complete_run(run)["summary"]["decision"]["sentence"])
"""

import importlib
from typing import TYPE_CHECKING, Any

from rollbook.contracts.evals import EvalResult, EvalRun
from rollbook.contracts.gate import Gate, MetricRule, gate_from
from rollbook.evals.policies import (
    Action,
    Observation,
    PolicyCallable,
    ReplayEpisode,
    StepContext,
    load_policy,
)
from rollbook.evals.runs import cancel_run, complete_run, create_run, open_run, run_against

if TYPE_CHECKING:
    from rollbook.evals.closed_loop import calibrate, run_closed_loop
    from rollbook.evals.store_baselines import StoreBaselines
    from rollbook.evals.store_episodes import log_chains
    from rollbook.evals.store_replay import replay_store

__all__ = [
    "Action",
    "EvalResult",
    "EvalRun",
    "Gate",
    "MetricRule",
    "Observation",
    "PolicyCallable",
    "ReplayEpisode",
    "StepContext",
    "StoreBaselines",
    "calibrate",
    "cancel_run",
    "complete_run",
    "create_run",
    "gate_from",
    "load_policy",
    "log_chains",
    "open_run",
    "replay_store",
    "run_against",
    "run_closed_loop",
]
_LATE = {
    "StoreBaselines": "store_baselines",
    "calibrate": "closed_loop",
    "log_chains": "store_episodes",
    "replay_store": "store_replay",
    "run_closed_loop": "closed_loop",
}
"""Loaded when they are first used: whoever replays recorded episodes needs neither zarr nor an environment."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"rollbook.evals.{_LATE[name]}"), name)
