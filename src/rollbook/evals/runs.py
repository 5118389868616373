"""The verbs of the harness: create a run, replay its baselines with a policy, complete it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from rollbook.contracts.evals import MOST_BASELINES, EvalResult
from rollbook.contracts.gate import Gate, gate_from
from rollbook.contracts.gate_presets import gate_preset
from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.typed_metadata import plain_metadata
from rollbook.contracts.wire.eval_runs import EvalRunAnswer, EvalRunCreated, EvalRunFinalized
from rollbook.errors import ConfigurationError
from rollbook.evals.eval_run import EvalRun
from rollbook.evals.options import ReplayOptions, with_keywords
from rollbook.evals.policies.run_folders import record_training
from rollbook.evals.server_calls import as_dict, ask, client_of, results_of, run_path

if TYPE_CHECKING:
    from rollbook.client import Client


def create_run(
    *,
    candidate_policy_version: str | None = None,
    baseline_episode_ids: Sequence[str],
    baseline_policy_version: str | None = None,
    name: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    client: Client | None = None,
    gate: Gate | Mapping[str, Any] | str | None = None,
    dry_run: bool = False,
    candidate_policy_revision: PolicyRevision | None = None,
    baseline_policy_revision: PolicyRevision | None = None,
    gate_name: str | None = None,
) -> EvalRun:
    """Opens a run of one candidate against baselines, which must be episodes of your organisation.

    The `gate` is stored with the run and cannot be changed afterwards. A text is the name of a preset: `quick`,
    `default` or `strict`. Without a gate, the server chooses the default for
    what the baselines have (`Gate.for_baselines`), and `run.gate` is that gate. A dry run is not created on the server.
    `candidate_policy_revision` says exactly which policy the candidate is; replays are recorded with it, and its
    `revision_id` is the version where none is given. `gate_name` is a locked gate of your organisation; a `gate` that
    is weaker is refused.
    """
    from rollbook.client.bodies import revision_body
    from rollbook.client.ingest import warn_of_lost_revisions

    if candidate_policy_version is None and candidate_policy_revision is not None:
        candidate_policy_version = candidate_policy_revision.revision_id
    rules = gate_preset(gate) if isinstance(gate, str) else gate
    if rules is not None and not isinstance(rules, Gate):
        rules = gate_from(rules)
    revisions = {
        argument: revision_body(argument, revision)
        for argument, revision in (
            ("candidate_policy_revision", candidate_policy_revision),
            ("baseline_policy_revision", baseline_policy_revision),
        )
        if revision is not None
    }
    run = EvalRun(
        id=f"dry-{uuid.uuid4()}",
        candidate_policy_version=checked_text("candidate_policy_version", candidate_policy_version),
        baseline_policy_version=baseline_policy_version,
        baseline_episode_ids=_checked_ids(baseline_episode_ids),
        name=name,
        gate=None if rules is None else rules.as_dict(),
        dry=dry_run,
        candidate_policy_revision=candidate_policy_revision,
        baseline_policy_revision=baseline_policy_revision,
        client=client,
    )
    if dry_run and gate_name is not None:
        raise ConfigurationError(
            message=f"a dry run is not judged by the locked gate {gate_name!r}; `rollbook gates show` prints the gate, "
            "for --gate-file"
        )
    if dry_run:
        return run
    run.client = client_of(client)
    given = {
        "candidate_policy_version": run.candidate_policy_version,
        "baseline_episode_ids": run.baseline_episode_ids,
        "baseline_policy_version": baseline_policy_version,
        "name": name,
        "metadata": None if metadata is None else plain_metadata(metadata),
        "gate": run.gate,
        "gate_name": gate_name,
        **revisions,
    }
    created = ask(
        run.client,
        EvalRunCreated,
        "create an eval run",
        "POST",
        "/api/ingest/eval-run",
        body={key: value for key, value in given.items() if value is not None},
        headers={"Idempotency-Key": uuid.uuid4().hex},
        safe_to_resend=True,
    )
    if revisions and not created.policy_revisions_kept:
        warn_of_lost_revisions(run.client.base_url)
    run.update(
        id=created.eval_run_id,
        status=created.status,
        gate=run.gate if created.gate is UNSET else created.gate,
        gate_name=created.gate_name or None,
    )
    return run


def open_run(run_id: str, client: Client | None = None) -> EvalRun:
    """A run that was created before, to read it or to resume it."""
    speaking = client_of(client)
    path = run_path(checked_text("run_id", run_id))
    answer = ask(speaking, EvalRunAnswer, "read an eval run", "GET", path)
    return EvalRun(
        id=answer.id,
        candidate_policy_version=answer.candidate_policy_version,
        baseline_policy_version=answer.baseline_policy_version,
        baseline_episode_ids=[each.baseline_episode_id for each in results_of(speaking, run_id)],
        name=answer.name,
        runner_kind=answer.runner_kind,
        status=answer.status,
        episodes_completed=answer.episodes_completed,
        episodes_failed=answer.episodes_failed,
        gate=answer.gate,
        gate_name=answer.gate_name,
        candidate_policy_revision=answer.candidate_policy_revision or None,
        baseline_policy_revision=answer.baseline_policy_revision or None,
        client=speaking,
    )


@with_keywords(ReplayOptions)
def run_against(run: EvalRun, options: ReplayOptions) -> list[EvalResult]:
    """Replays every baseline of the run with the policy. Returns one result for each baseline, in their order.

    With a gate of the design `sequential`, or with several looks, baselines are replayed in the order of their ids, and
    there may be fewer results: when the decision is certain, no further baseline is started.

    With `environment` (a function that makes one, or `module:attr`), each baseline's situation is run again and the
    outcome is measured. With `store`, the true reward of each choice is read from a rollout store; with `source` too,
    the candidate is rolled out in the generator of the store, and its return is measured. Without any of them, an
    outcome is known only if the policy asserts it. An environment that cannot be made, and a store that cannot be read
    or is not the one of the baselines, is a ConfigurationError before anything is replayed. A baseline that cannot be
    fetched is a failed result whose error begins with `infrastructure: `.
    """
    from rollbook.evals.runner import replay_all
    from rollbook.evals.store_check import check_logged_from, is_chain_id, opened_store

    options.check()
    if run.dry:
        options = replace(options, dry_run=True)
    # chains of a store have ids of their own; every other baseline is on a server
    needs_server = not (
        options.dry_run
        and options.store is not None
        and all(map(is_chain_id, run.baseline_episode_ids))
    )
    client = client_of(run.client) if needs_server else None
    if options.store is not None and options.engine == "local":
        # the nodes of a cluster may have a store that is not here
        chains = opened_store(options.store)
        check_logged_from(chains, run.baseline_episode_ids, client)
        if options.source is not None:
            from rollbook.evals.generated.store_world import StoreWorld

            StoreWorld(chains, options.source)  # refuses another source
    if client is not None and not options.dry_run:
        record_training(client, options.policy.given)
    return replay_all(run, client, options)


def complete_run(
    run: EvalRun,
    *,
    status: str = "completed",
    metadata: Mapping[str, Any] | None = None,
    client: Client | None = None,
) -> dict[str, Any]:
    """Closes the run. The server computes the rollup and answers with the `summary`, which has the decision."""
    if run.dry:
        raise ConfigurationError(
            message="a dry run cannot be completed, because no server knows it; rollbook.scoring.rollup adds up results"
        )
    body: dict[str, Any] = {"status": status}
    if metadata is not None:
        body["metadata"] = plain_metadata(metadata)
    finalized = ask(
        client_of(run.client or client),
        EvalRunFinalized,
        "complete an eval run",
        "POST",
        f"/api/ingest/eval-run/{run.id}/finalize",
        body=body,
        slow=True,
        safe_to_resend=True,
    )
    run.update(status=finalized.status)
    _remove_delivered_journals(run.id)
    return as_dict(finalized)


def cancel_run(run: EvalRun, *, client: Client | None = None) -> dict[str, Any]:
    """Ends the run: the server takes no further results. Results that it has stay readable."""
    if run.dry:
        return {}
    path = f"{run_path(run.id)}/cancel"
    speaking = client_of(run.client or client)
    cancelled = ask(
        speaking, EvalRunAnswer, "cancel an eval run", "POST", path, safe_to_resend=True
    )
    run.update(status="cancelled")
    return as_dict(cancelled)


def checked_text(name: str, value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if not text:
        raise ConfigurationError(message=f"{name} is {value!r}, expected a text that is not blank")
    return text


def _checked_ids(given: Sequence[str]) -> list[str]:
    """Each id once, in the given order."""
    if isinstance(given, str):
        message = "baseline_episode_ids is a text, expected a list of ids"
        raise ConfigurationError(message=message)
    ids = [str(each).strip() for each in given]
    if not ids:
        message = "baseline_episode_ids is empty, expected at least one episode to replay against"
        raise ConfigurationError(message=message)
    if not all(ids):
        message = f"baseline_episode_ids has a blank id at place {ids.index('')}"
        raise ConfigurationError(message=message)
    unique = list(dict.fromkeys(ids))
    if len(unique) > MOST_BASELINES:
        most = f"at most {MOST_BASELINES}; make several runs"
        message = f"baseline_episode_ids has {len(unique)} episodes, expected {most}"
        raise ConfigurationError(message=message)
    return unique


def _remove_delivered_journals(run_id: str) -> None:
    """A journal with results that were never delivered is kept."""
    from rollbook.evals.journal import AbandonedJournals, remove_journals
    from rollbook.evals.runner import journal_folder

    folder = journal_folder(run_id)
    abandoned = AbandonedJournals(folder)
    waiting = abandoned.rows
    abandoned.close()
    if not waiting:
        remove_journals(folder)
