"""The three verbs: create a run, hold a policy against its baselines, complete it and read what came of it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbook.contracts.evals import EvalResult, EvalRun
from rollbook.contracts.gate import Gate, gate_from
from rollbook.contracts.typed_metadata import plain_metadata
from rollbook.engines import Engine, Parallel
from rollbook.errors import ConfigurationError
from rollbook.evals.arguments import (
    check_positive,
    checked_ids,
    checked_text,
    client_of,
    is_chain_id,
)
from rollbook.evals.policies import PolicySource
from rollbook.evals.server_runs import results_of, run_id_of, run_path

if TYPE_CHECKING:
    from rollbook.client import Client
    from rollbook.scoring.observations import Align


def create_run(
    *,
    candidate_policy_version: str,
    baseline_episode_ids: Sequence[str],
    baseline_policy_version: str | None = None,
    name: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    client: Client | None = None,
    gate: Gate | Mapping[str, Any] | None = None,
    dry_run: bool = False,
) -> EvalRun:
    """Opens a campaign: one result is to come for every baseline, each of which has to be yours.

    The `gate` is stored with it and cannot be changed afterwards. A dry run is known to nobody but the caller.
    """
    version = checked_text("candidate_policy_version", candidate_policy_version)
    ids = checked_ids(baseline_episode_ids)
    rules = gate if gate is None or isinstance(gate, Gate) else gate_from(gate)
    run = EvalRun(
        id=f"dry-{uuid.uuid4()}",
        candidate_policy_version=version,
        baseline_policy_version=baseline_policy_version,
        baseline_episode_ids=ids,
        name=name,
        gate=None if rules is None else rules.as_dict(),
        dry=dry_run,
        client=client,
    )
    if dry_run:
        return run
    run.client = client_of(client)
    body: dict[str, Any] = {"candidate_policy_version": version, "baseline_episode_ids": ids}
    given = {
        "baseline_policy_version": baseline_policy_version,
        "name": name,
        "metadata": None if metadata is None else plain_metadata(metadata),
        "gate": run.gate,
    }
    body |= {key: value for key, value in given.items() if value is not None}
    answer = run.client.call(
        "create an eval run",
        "POST",
        "/api/ingest/eval-run",
        body=body,
        headers={"Idempotency-Key": uuid.uuid4().hex},
        safe_to_resend=True,
    )
    run.id, run.status = run_id_of(answer), answer.get("status", "pending")
    return run


def open_run(run_id: str, client: Client | None = None) -> EvalRun:
    """One that was created before, to be taken up again or read."""
    speaking = client_of(client)
    answer = speaking.call("read an eval run", "GET", run_path(checked_text("run_id", run_id)))
    ids = [each.baseline_episode_id for each in results_of(speaking, run_id)]
    return EvalRun(
        id=answer["id"],
        candidate_policy_version=answer["candidate_policy_version"],
        baseline_policy_version=answer.get("baseline_policy_version"),
        baseline_episode_ids=ids,
        name=answer.get("name"),
        runner_kind=answer.get("runner_kind", "client"),
        status=answer.get("status", "running"),
        episodes_completed=answer.get("episodes_completed", 0),
        episodes_failed=answer.get("episodes_failed", 0),
        gate=answer.get("gate"),
        client=speaking,
    )


def run_against(
    run: EvalRun,
    *,
    policy_callable: Any,
    on_episode: Callable[[EvalResult], object] | None = None,
    dry_run: bool = False,
    workers: int = 1,
    engine: Engine = "local",
    parallel: Parallel = "thread",
    resume: bool = False,
    journal: str | os.PathLike[str] | None = None,
    align: Align = "index",
    clock: str | None = None,
    step_timeout_s: float | None = None,
    upload_actions: bool = True,
    environment: Any = None,
    store: str | os.PathLike[str] | None = None,
    frames: bool | Mapping[str, str] = False,
    batch: int | None = None,
) -> list[EvalResult]:
    """Every baseline through the policy; one result for each, in their order.

    With a gate of the design `sequential` there may be fewer: once it is settled, no further baseline is begun.

    `policy_callable` is a function from an observation to an action, an object with `act(obs, context)`, a class or a
    function that makes one for each worker, or `module:attr`. What it raises makes a failed result, with the traceback
    on standard error, and the others go on. `on_episode` hears of each result as it lands, one at a time, possibly in
    another thread. `dry_run` computes and sends nothing.

    `workers` run in threads or, with `parallel="process"`, in processes, or on Ray. `step_timeout_s` is how long one
    answer of the policy may take. `align` is how observations of different rates are paired: by `index`, or by their
    clocks (`nearest`, `hold`; `clock` names the namespace that gives the steps). `frames` adds the video's pictures.
    `batch` is how many steps a policy with `act_batch` is given.

    `environment` (a function that makes one, or `module:attr`) runs each baseline's situation again and measures the
    outcome; `store` is a rollout store that knows the reward of every choice. Without either, outcomes are known only
    as far as the policy asserts them. An environment that cannot be made is a ConfigurationError before anything is
    replayed; a baseline that cannot be fetched is a failed result whose error begins with `infrastructure: `.

    `resume` leaves out what is complete, and delivers what an earlier runner left in the `journal`, a folder: by
    default in ROLLBOOK_HOME/runs.
    """
    from rollbook.evals.environments import environment_factory, try_environment
    from rollbook.evals.replay import STEPS_AT_ONCE, ReplayOptions
    from rollbook.evals.runner import RunnerOptions, run as run_all

    check_positive("workers", workers, int)
    check_positive("batch", batch, int)
    check_positive("step_timeout_s", step_timeout_s)
    if environment is not None and store is None:
        # on a cluster it may need what is not here
        (environment_factory if engine == "ray" else try_environment)(environment)
    nothing_sent = dry_run or run.dry
    # chains of a store have ids of their own; anything else is known to the server alone
    needs_server = not (
        nothing_sent and store is not None and all(map(is_chain_id, run.baseline_episode_ids))
    )
    asked = RunnerOptions(
        policy=PolicySource(policy_callable, step_timeout_s),
        options=ReplayOptions(
            align=align, clock=clock, frames=frames, batch=batch or STEPS_AT_ONCE
        ),
        on_episode=on_episode,
        dry_run=nothing_sent,
        workers=workers,
        engine=engine,
        parallel=parallel,
        resume=resume,
        journal=None if journal is None else Path(journal),
        upload_actions=upload_actions,
        environment=environment,
        store=None if store is None else os.fspath(store),
    )
    return run_all(run, client_of(run.client) if needs_server else None, asked)


def complete_run(
    run: EvalRun,
    *,
    status: str = "completed",
    metadata: Mapping[str, Any] | None = None,
    client: Client | None = None,
) -> dict[str, Any]:
    """Closes the campaign. The server adds up the results and answers with the `summary` and the decision."""
    if run.dry:
        raise ConfigurationError(
            message="a dry run has nothing to complete: no server knows of it; rollbook.scoring.rollup adds up results"
        )
    body: dict[str, Any] = {"status": status}
    if metadata is not None:
        body["metadata"] = plain_metadata(metadata)
    answer: dict[str, Any] = client_of(run.client or client).call(
        "complete an eval run",
        "POST",
        f"/api/ingest/eval-run/{run.id}/finalize",
        body=body,
        slow=True,
        safe_to_resend=True,
    )
    run.status = answer.get("status", run.status)
    _forget(run)
    return answer


def cancel_run(run: EvalRun, *, client: Client | None = None) -> dict[str, Any]:
    """No more results are taken; what was measured stays to be read."""
    if run.dry:
        return {}
    answer: dict[str, Any] = client_of(run.client or client).call(
        "cancel an eval run", "POST", f"{run_path(run.id)}/cancel", safe_to_resend=True
    )
    run.status = "cancelled"
    return answer


def _forget(run: EvalRun) -> None:
    """Journals have done their work. One with something that was never delivered is kept."""
    from rollbook.evals.journal import LeftBehind, remove_journals
    from rollbook.evals.runner import journal_folder

    folder = journal_folder(run.id)
    left = LeftBehind(folder)
    waiting = left.rows
    left.close()
    if not waiting:
        remove_journals(folder)
