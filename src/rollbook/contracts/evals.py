"""Eval runs: the words and records that a runner and the server share.

An eval run replays one candidate policy against recorded baseline episodes. Each pair gives one result.
Every outcome in a result has its evidence, because a measured outcome and a stated one do not mean the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from rollbook.contracts.outcomes import OUTCOMES
from rollbook.notebook import card

if TYPE_CHECKING:
    from rollbook.contracts.policy import PolicyRevision

RunStatus: TypeAlias = Literal["pending", "running", "completed", "failed", "cancelled"]
ResultStatus: TypeAlias = Literal["pending", "complete", "failed"]
RunnerKind: TypeAlias = Literal["client", "hosted"]
Severity: TypeAlias = Literal["critical", "warning", "info"]
VerifyStatus: TypeAlias = Literal["pass", "fail", "error"]
Align: TypeAlias = Literal["index", "nearest", "hold"]
"""How observations of different rates are paired: by index, or by their clocks."""
Isolation: TypeAlias = Literal["process", "thread"]
"""Where a policy runs: in a process of its own, or inside the runner."""
Evidence: TypeAlias = Literal[
    "closed_loop", "counterfactual", "asserted", "open_loop", "not_measured"
]

RUN_STATUSES: tuple[RunStatus, ...] = get_args(RunStatus)
RESULT_STATUSES: tuple[ResultStatus, ...] = get_args(ResultStatus)
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
ALIGNMENTS: tuple[Align, ...] = get_args(Align)
ISOLATIONS: tuple[Isolation, ...] = get_args(Isolation)
VERIFY_STATUSES: tuple[VerifyStatus, ...] = get_args(VerifyStatus)
EVIDENCE: tuple[Evidence, ...] = get_args(Evidence)
"""The strongest first.

`closed_loop`: an environment was run again with the candidate, and the outcome measured. `counterfactual`: a rollout
store holds the true reward of what the candidate chose. `asserted`: the policy stated it. `open_loop`: the
policy saw recorded observations; only the change of its actions is known. `not_measured`: nothing is known.
"""

MEASURED: tuple[Evidence, ...] = ("closed_loop", "counterfactual")
"""Kinds of evidence for which nobody has to believe the policy."""

RESULT_KEYS = (
    *(f"{name}_{side}" for name in OUTCOMES for side in ("baseline", "candidate")),
    "action_l2_distance",
    "ood_action_share",
    "step_count",
)
"""The eleven keys of a result's metrics that every client knows. Our results have further keys."""

EVIDENCE_KEY = "evidence"
"""In the metrics: the evidence of each outcome by name, and of `actions`. A result without it comes from another
client, and it is unknown how its numbers were measured."""

INFRASTRUCTURE = "infrastructure: "
"""Start of an error that says nothing about the candidate: its baseline could not be fetched, or its environment could
not be made. Only the runner writes it; the error of a policy never begins with it. A resumed run replays these
baselines again, and no others."""

INTERRUPTED = "interrupted: "
"""Start of an error of a pair whose runner ended while the pair was replayed. A resumed run replays it again, and the
run counts it as retried: a policy can end its runner where it would lose."""

MOST_BASELINES = 10_000
LONGEST_ERROR = 2_000
"""Characters of an error that are kept with a failed result."""


@dataclass(frozen=True)
class EvalResult:
    """The candidate against one baseline episode. A failed result has an error and no metrics."""

    baseline_episode_id: str
    candidate_episode_id: str | None
    status: ResultStatus
    metrics: dict[str, Any]
    error: str | None = None
    traceback: str | None = None
    """Where the error was raised. Only the runner knows it; the server does not keep it."""


@dataclass(frozen=True)
class EvalRunRecord:
    """One candidate and its baselines. `rollbook.evals.EvalRun` has these attributes and a client."""

    id: str
    candidate_policy_version: str
    baseline_policy_version: str | None
    baseline_episode_ids: list[str]
    name: str | None = None
    runner_kind: RunnerKind = "client"
    status: RunStatus = "pending"
    episodes_completed: int = 0
    episodes_failed: int = 0
    gate: dict[str, Any] | None = None
    """The gate that is stored with the run. The decision is made by this gate only."""
    dry: bool = False
    """No server knows this run."""
    candidate_policy_revision: PolicyRevision | None = field(default=None, kw_only=True)
    """The policy that the decision is about. Replays are recorded with it."""
    baseline_policy_revision: PolicyRevision | None = field(default=None, kw_only=True)
    gate_name: str | None = field(default=None, kw_only=True)
    """The locked gate of the organisation that the gate of the run is, or is stricter than."""

    def _repr_html_(self) -> str:
        """In a notebook."""
        revision = self.candidate_policy_revision
        facts = [
            ("candidate", self.candidate_policy_version),
            ("revision", None if revision is None else revision.policy_digest),
            ("baseline", self.baseline_policy_version),
            ("status", f"{self.status}, dry run" if self.dry else self.status),
            ("baselines", len(self.baseline_episode_ids)),
            ("results", f"{self.episodes_completed:,} complete, {self.episodes_failed:,} failed"),
            ("gate", self.gate_name),
        ]
        return card(f"Eval run {self.name or self.id}", facts)
