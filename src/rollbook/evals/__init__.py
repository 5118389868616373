"""The replay regression harness: is the candidate better than the baseline, and how certain is that?

run = rollbook.evals.create_run(candidate_policy_version="v4", baseline_episode_ids=[…])
rollbook.evals.run_against(run, policy_callable=my_policy)
print(rollbook.evals.complete_run(run)["summary"]["decision"]["sentence"])

`runs` has the verbs, `options` their keywords. `runner` replays all baselines of a run: `baselines` and
`store_baselines` fetch them, `workers` replay them by `open_loop`, `closed_loop` or `counterfactual`, and `journal` and
`delivery` bring the results to the server. The policy runs in a `policy_process`. This room imports `client`, `store`
and `scoring`, never `server` or `adapters`.
"""

from typing import TYPE_CHECKING

from rollbook.lazy import lazy_names

if TYPE_CHECKING:
    from rollbook.contracts.evals import (
        EvalResult as EvalResult,
    )
    from rollbook.contracts.gate import (
        Gate as Gate,
        MetricRule as MetricRule,
        gate_from as gate_from,
    )
    from rollbook.evals.baselines import (
        look_up as look_up,
    )
    from rollbook.evals.calibration import (
        calibrate as calibrate,
    )
    from rollbook.evals.compared_runs import (
        compare as compare,
    )
    from rollbook.evals.eval_run import (
        EvalRun as EvalRun,
    )
    from rollbook.evals.fresh_draw import (
        fresh_baselines as fresh_baselines,
    )
    from rollbook.evals.policies.policy import (
        Action as Action,
        Observation as Observation,
        PolicyCallable as PolicyCallable,
        ReplayEpisode as ReplayEpisode,
        StepContext as StepContext,
        load_policy as load_policy,
    )
    from rollbook.evals.replay_audit import (
        audit_run as audit_run,
    )
    from rollbook.evals.runs import (
        cancel_run as cancel_run,
        complete_run as complete_run,
        create_run as create_run,
        open_run as open_run,
        run_against as run_against,
    )
    from rollbook.evals.store_baselines import (
        StoreBaselines as StoreBaselines,
    )
    from rollbook.evals.store_episodes import (
        log_chains as log_chains,
    )
    from rollbook.evals.store_replay import (
        replay_store as replay_store,
        rollup_store as rollup_store,
    )
    from rollbook.evals.worlds.closed_loop import (
        run_closed_loop as run_closed_loop,
    )
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "rollbook.contracts.evals": ("EvalResult",),
            "rollbook.contracts.gate": ("Gate", "MetricRule", "gate_from"),
            "rollbook.evals.baselines": ("look_up",),
            "rollbook.evals.calibration": ("calibrate",),
            "rollbook.evals.worlds.closed_loop": ("run_closed_loop",),
            "rollbook.evals.compared_runs": ("compare",),
            "rollbook.evals.eval_run": ("EvalRun",),
            "rollbook.evals.fresh_draw": ("fresh_baselines",),
            "rollbook.evals.policies.policy": (
                "Action",
                "Observation",
                "PolicyCallable",
                "ReplayEpisode",
                "StepContext",
                "load_policy",
            ),
            "rollbook.evals.replay_audit": ("audit_run",),
            "rollbook.evals.runs": (
                "cancel_run",
                "complete_run",
                "create_run",
                "open_run",
                "run_against",
            ),
            "rollbook.evals.store_baselines": ("StoreBaselines",),
            "rollbook.evals.store_episodes": ("log_chains",),
            "rollbook.evals.store_replay": ("replay_store", "rollup_store"),
        },
        extra="evals",
    )
