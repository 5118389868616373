"""A run as its reports need it: who was compared, the summary, the results, and the labels of the baselines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from rollbook.contracts.decision import (
    Decision,
    OutcomeSummary,
    PlainSummary,
    Recommendation,
    Rollup,
    read_summary,
)
from rollbook.contracts.evals import EvalResult
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.errors import MalformedJson


@dataclass(frozen=True)
class RunReport:
    candidate: str
    baseline: str | None
    total: int
    summary: Mapping[str, Any]
    """JSON of the summary, as the server sent it."""
    results: Sequence[EvalResult] = ()
    run_id: str | None = None
    """None when no server knows the run."""
    url: str | None = None
    gated: bool = False
    """Whether the exit code of the command is the decision."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    """Labels of the baselines by id, such as scene and task. Empty where they are not known."""
    several_attempts: int = 0
    """Pairs with more than one result."""
    retried: int = 0
    """Pairs with an earlier result that says something else about the candidate."""
    altered: int = 0
    """Baselines that were deleted after the run was created."""

    @cached_property
    def rollup(self) -> PlainSummary | None:
        """The summary, decoded. None where its JSON has another shape."""
        return read_summary(self.summary)

    @property
    def decision(self) -> Decision | None:
        return self.rollup.decision if isinstance(self.rollup, Rollup) else None

    @property
    def recommend(self) -> Recommendation:
        """Without a decision the candidate is held."""
        return self.decision.recommend if self.decision else "hold"

    @property
    def ships(self) -> bool:
        return self.recommend == "ship"

    @property
    def sentence(self) -> str:
        return self.decision.sentence if self.decision else "No decision was made."

    @property
    def failed(self) -> list[EvalResult]:
        return [result for result in self.results if result.status == "failed"]

    def as_dict(self) -> dict[str, Any]:
        return {
            "eval_run_id": self.run_id,
            "url": self.url,
            "candidate_policy_version": self.candidate,
            "baseline_policy_version": self.baseline,
            "episodes": self.total,
            **self.extra,
            **({"labels": self.labels} if self.labels else {}),
            "results": [asdict(result) for result in self.results],
            "summary": dict(self.summary),
        }

    @classmethod
    def from_json(cls, data: bytes, source: str) -> RunReport:
        """Read what `rollbook replay run --json` printed."""
        try:
            printed = msgspec.json.decode(data, type=_Printed)
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
            detail, _, where = str(error).partition(" - at ")
            raise MalformedJson(
                source=source,
                record_id=None,
                where=where.strip("`") or "$",
                detail=f"{detail}; expected the output of `rollbook replay run --json`",
            ) from error
        known = {"eval_run_id", "url", "episodes", "results", "summary", "labels"}
        known |= {"candidate_policy_version", "baseline_policy_version"}
        everything: dict[str, Any] = json.loads(data)
        return cls(
            candidate=printed.candidate_policy_version,
            baseline=printed.baseline_policy_version,
            total=printed.episodes,
            summary=printed.summary,
            results=printed.results,
            run_id=printed.eval_run_id,
            url=printed.url,
            extra={key: value for key, value in everything.items() if key not in known},
            labels=printed.labels,
        )


class _Printed(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON of `RunReport.as_dict`. Other keys are kept as they are."""

    candidate_policy_version: str
    baseline_policy_version: str | None
    episodes: int
    results: list[EvalResult]
    summary: dict[str, Any]
    eval_run_id: str | None = None
    url: str | None = None
    labels: dict[str, dict[str, list[str]]] = {}


def outcome_summaries(rollup: Rollup) -> dict[Outcome, OutcomeSummary]:
    """By outcome, in the order of the outcome table."""
    return {name: getattr(rollup, kind.summary_key) for name, kind in OUTCOMES.items()}


def leading_outcome(rollup: Rollup) -> Outcome | None:
    """The outcome that the decision is about: the first primary that was measured, else the first guard."""
    found = outcome_summaries(rollup)
    for role in ("primary", "guard"):
        for rule in rollup.decision.gate.rules:
            if rule.role == role and found[rule.metric].n_pairs:
                return rule.metric
    return None
