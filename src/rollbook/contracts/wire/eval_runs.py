"""Eval runs and their results: create a run, put results, finalize, read, list and delete."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from rollbook.contracts.evals import ResultStatus, RunnerKind, RunStatus
from rollbook.contracts.policy import PolicyRevision
from rollbook.contracts.wire.episodes import Name, Version
from rollbook.contracts.wire.limits import LONGEST_INDEXED, MOST_IN_A_BATCH

NotBlank: TypeAlias = Annotated[str, Meta(max_length=LONGEST_INDEXED, pattern=r"\S")]
Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=LONGEST_INDEXED)]


class CreateEvalRun(Struct, frozen=True, kw_only=True):
    candidate_policy_version: NotBlank
    baseline_episode_ids: Annotated[list[Id], Meta(min_length=1)]
    """At most 10,000. A repeated id counts once."""
    baseline_policy_version: Version | None = None
    name: Name | None = None
    metadata: dict[str, Any] | None = None
    gate: dict[str, Any] | None = None
    """`gate.v1`: the rules that the candidate has to pass. It cannot be changed afterwards. Without one, the default
    follows what the baselines have: success, or reward where no baseline has a success."""
    gate_name: NotBlank | None = None
    """A locked gate of the organisation, by name. Without one it is the gate called `default`, or the only one. A
    `gate` that is weaker is refused; without a `gate` the locked one judges."""
    runner_kind: RunnerKind = "client"
    candidate_policy_revision: PolicyRevision | None = None
    """Which policy the candidate is, exactly."""
    baseline_policy_revision: PolicyRevision | None = None


class EvalRunCreated(Struct, frozen=True):
    eval_run_id: str
    status: RunStatus
    episode_count: int
    gate_digest: str
    policy_revisions_kept: Literal[True] | UnsetType = UNSET
    """Present when the request has a policy revision. A server that does not know revisions ignores them."""
    gate: dict[str, Any] | UnsetType = UNSET
    """The gate of the run: the one that was sent, else the default for its baselines."""
    gate_name: str | UnsetType = UNSET
    """The locked gate that the gate of the run is, or is stricter than. Absent when nothing is locked."""


class PutResult(Struct, frozen=True, kw_only=True):
    baseline_episode_id: str
    status: Literal["complete", "failed"]
    metrics: dict[str, Any]
    candidate_episode_id: str | None = None
    error: str | None = None
    """Of any length; the first 2,000 characters are kept."""


class ResultPut(Struct, frozen=True):
    eval_result_id: str
    run_status: RunStatus
    episodes_completed: int
    episodes_failed: int


class PutResults(Struct, frozen=True):
    results: Annotated[list[PutResult], Meta(max_length=MOST_IN_A_BATCH)]


class OneResultPut(Struct, frozen=True, omit_defaults=True):
    """With an `error` the result was refused; `status_code` is the status that a single call would have."""

    baseline_episode_id: str
    eval_result_id: str | None = None
    error: str | None = None
    code: str | None = None
    status_code: int | None = None


class ResultsPut(Struct, frozen=True):
    run_status: RunStatus
    episodes_completed: int
    episodes_failed: int
    results: list[OneResultPut]


class FinalizeEvalRun(Struct, frozen=True, kw_only=True):
    status: Literal["completed", "failed", "cancelled"] = "completed"
    metadata: dict[str, Any] | None = None


class EvalRunFinalized(Struct, frozen=True):
    eval_run_id: str
    status: RunStatus
    summary: dict[str, Any]


class EvalRunListed(Struct, frozen=True, kw_only=True):
    id: str
    name: str | None
    candidate_policy_version: str
    baseline_policy_version: str | None
    runner_kind: RunnerKind
    status: RunStatus
    episode_count: int
    """Baselines that the run was created with. A deleted baseline takes its result along and still counts here."""
    episodes_completed: int
    episodes_failed: int
    recommend: str | None
    """From the summary: the majority vote of the means."""
    decision: str | None
    """From the summary: the decision by the gate."""
    gate_digest: str
    created_by: str | None
    created_at: str
    updated_at: str
    completed_at: str | None
    candidate_policy_revision: PolicyRevision | UnsetType = UNSET
    """The policy that the decision is about. Absent when the run was created without one."""
    baseline_policy_revision: PolicyRevision | UnsetType = UNSET
    gate_name: str | None = None
    """The locked gate of the organisation that the gate of the run is, or is stricter than."""
    retried: int = 0
    """Pairs with an earlier result that says something else about the candidate."""
    altered: int = 0
    """Baselines that were deleted after the run was created. The summary of a completed run stays as it was."""


class EvalRunAnswer(EvalRunListed, frozen=True, kw_only=True):
    gate: dict[str, Any]
    metadata: dict[str, Any]
    summary: dict[str, Any] | None


class EvalRunList(Struct, frozen=True):
    eval_runs: list[EvalRunListed]
    next_cursor: str | None


class FreshBaselines(Struct, frozen=True):
    episode_ids: list[str]
    """In the order in which they were drawn."""
    available: int
    """Episodes that match the filters, and that no run has used."""
    draw_seed: int


class EvalRunDeleted(Struct, frozen=True):
    id: str
    deleted: Literal[True] = True


class EvalResultAnswer(Struct, frozen=True):
    id: str
    baseline_episode_id: str
    candidate_episode_id: str | None
    status: ResultStatus
    metrics: dict[str, Any]
    error: str | None
    updated_at: str
    attempts: int = 0
    """Different results that were sent so far; 0 while it is pending."""
    retried: bool = False
    """An earlier result says something else about the candidate, and is not a failure of the infrastructure."""
    labels: dict[str, list[str]] | None = None
    """Scene, task, robot and so on of the baseline when the run was created. Null in runs of older releases."""


class EvalResultList(Struct, frozen=True):
    results: list[EvalResultAnswer]
    next_cursor: str | None


class EvalAttemptAnswer(Struct, frozen=True):
    """A result that a later one for the same baseline replaced."""

    baseline_episode_id: str
    number: int
    """From 1, in the order in which the results arrived."""
    status: ResultStatus
    metrics: dict[str, Any]
    error: str | None
    recorded_at: str


class EvalAttemptList(Struct, frozen=True):
    attempts: list[EvalAttemptAnswer]
    next_cursor: str | None


class EpisodeUseAnswer(Struct, frozen=True):
    eval_run_id: str
    run_name: str | None
    baseline_episode_id: str
    is_replay: bool
    """It is the replay of the candidate; else it is the baseline."""


class EpisodeUses(Struct, frozen=True):
    eval_runs: list[EpisodeUseAnswer]
    """The newest 100."""
