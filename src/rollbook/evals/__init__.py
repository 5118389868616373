"""The replay regression harness: does the candidate beat the baseline, and how sure are we?

run = rollbook.evals.create_run(candidate_policy_version="v4", baseline_episode_ids=[…])
rollbook.evals.run_against(run, policy_callable=my_policy)
print(rollbook.evals.complete_run(run)["summary"]["decision"]["sentence"])
"""

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
    "cancel_run",
    "complete_run",
    "create_run",
    "gate_from",
    "load_policy",
    "open_run",
    "run_against",
]
