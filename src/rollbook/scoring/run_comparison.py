"""Comparison of runs: several candidates on the same baselines, ranked, with a correction for their number.

Runs can be compared if they have the same gate, at least one baseline in common, the same environment for each of
those, and the same evidence; otherwise a ConfigurationError says what differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollbook.contracts.comparison import ComparedCandidate, Comparison
from rollbook.contracts.decision import ClusterSummary, OutcomeSummary, Rollup, read_summary
from rollbook.contracts.evals import EVIDENCE_KEY, EvalResult
from rollbook.contracts.gate import Gate
from rollbook.contracts.outcomes import OUTCOMES, Outcome
from rollbook.errors import ConfigurationError
from rollbook.scoring.bounds.pair_clusters import PairClusters
from rollbook.scoring.candidate_ranking import measured_primary, rank_candidates
from rollbook.scoring.labels import Labels

MOST_COMPARED = 50
NOT_BETTER_OF_MANY = "not_better_of_many"


@dataclass(frozen=True)
class ComparedRun:
    """A run that has a decision."""

    name: str
    """Its id, or its file."""
    candidate: str
    results: Sequence[EvalResult]
    summary: Rollup
    labels: Mapping[str, Labels] = field(default_factory=dict)
    """Of the baselines, by id."""

    @property
    def gate(self) -> Gate:
        return self.summary.decision.gate


def comparison_of(runs: Sequence[ComparedRun], metric: Outcome | None = None) -> Comparison:
    """Ranks the candidates on the baselines that all of the runs have. `metric` is the first primary of the gate that
    every run has measured, unless another outcome is given."""
    _check(runs)
    gate = runs[0].gate
    shared, left_out = _shared_baselines(runs)
    results = [[row for row in each.results if row.baseline_episode_id in shared] for each in runs]
    _check_environments(runs, results)
    if metric is None:
        metric = measured_primary(results, gate)
    elif metric not in OUTCOMES:
        expected = f"one of {', '.join(OUTCOMES)}"
        raise ConfigurationError(message=f"metric is {metric!r}, expected {expected}")
    if metric is None:
        raise ConfigurationError(
            message="no outcome was measured in every run; give --environment or --store to the runs"
        )
    _check_evidence(runs, results, metric)
    labels = {name: value for each in reversed(runs) for name, value in each.labels.items()}
    ranking = rank_candidates(results, gate, metric, labels)
    _check_clusters(runs, metric, ranking.cluster_by)
    sign = 1.0 if OUTCOMES[metric].higher_is_better else -1.0
    candidates = []
    for rank, place in enumerate(ranking.order, 1):
        found, run = ranking.candidates[place], runs[place]
        own = run.summary.decision
        ships = own.recommend == "ship" and found.is_better
        reasons = own.reasons if found.is_better else (*own.reasons, NOT_BETTER_OF_MANY)
        candidates.append(
            ComparedCandidate(
                rank=rank,
                candidate=run.candidate,
                run=run.name,
                delta=sign * found.gain,
                bound=sign * found.lower,
                p_value=found.p_value,
                letters=found.letters,
                better=found.is_better,
                own=own.recommend,
                recommend="ship" if ships else "hold",
                reasons=reasons,
                missing=found.missing,
                crashes=found.crashes,
            )
        )
    clusters = ranking.clusters
    return Comparison(
        metric=metric,
        level=gate.look_level,
        baselines=len(shared),
        left_out=left_out,
        pairs=clusters.pairs,
        clusters=_cluster_summary(ranking.cluster_by, clusters)
        if len(clusters) < clusters.pairs
        else None,
        gate_digest=gate.digest,
        notes=tuple(_notes(results, metric)),
        candidates=tuple(candidates),
    )


def decided(name: str, summary: object) -> Rollup:
    """The decision of a run. Older releases and other servers stored none."""
    found = read_summary(summary)
    if not isinstance(found, Rollup):
        message = f"{name} has no decision of this version of Rollbook; complete the run again"
        raise ConfigurationError(message=message)
    return found


def _check(runs: Sequence[ComparedRun]) -> None:
    if not 2 <= len(runs) <= MOST_COMPARED:
        message = f"{len(runs)} runs are given, expected 2 to {MOST_COMPARED}"
        raise ConfigurationError(message=message)
    names = [each.name for each in runs]
    twice = sorted({each for each in names if names.count(each) > 1})
    if twice:
        raise ConfigurationError(message=f"{', '.join(twice)} is given twice")
    first = runs[0]
    for other in runs[1:]:
        fields = [
            name
            for name in Gate.__struct_fields__
            if getattr(first.gate, name) != getattr(other.gate, name)
        ]
        if fields:
            message = (
                f"{first.name} and {other.name} have gates that differ in {', '.join(fields)}; "
                "only runs with the same gate are compared"
            )
            raise ConfigurationError(message=message)


def _shared_baselines(runs: Sequence[ComparedRun]) -> tuple[set[str], int]:
    """The baselines that every run has, and the number of all others."""
    used = [{row.baseline_episode_id for row in each.results} for each in runs]
    shared = set.intersection(*used)
    if not shared:
        message = "the runs have no baseline in common; replay the candidates against the same ones"
        raise ConfigurationError(message=message)
    return shared, len(set.union(*used)) - len(shared)


def _repro(row: EvalResult) -> Mapping[str, Any]:
    found = row.metrics.get("repro")
    return found if isinstance(found, Mapping) else {}


def _environment(row: EvalResult) -> Any:
    versions = _repro(row).get("env_version")
    return versions.get("candidate") if isinstance(versions, Mapping) else None


def _check_environments(
    runs: Sequence[ComparedRun], results: Sequence[Sequence[EvalResult]]
) -> None:
    """Every baseline has to be replayed in the same environment by all runs."""
    first: dict[str, tuple[str, Any]] = {}
    for run, rows in zip(runs, results, strict=True):
        for row in rows:
            version = _environment(row)
            if version is None:
                continue
            other, known = first.setdefault(row.baseline_episode_id, (run.name, version))
            if version != known:
                message = (
                    f"baseline {row.baseline_episode_id} ran in the environment {known!r} in {other} and in "
                    f"{version!r} in {run.name}; replay the candidates in the same environment"
                )
                raise ConfigurationError(message=message)


def _check_evidence(
    runs: Sequence[ComparedRun], results: Sequence[Sequence[EvalResult]], metric: Outcome
) -> None:
    kinds: dict[str, str] = {}
    for run, rows in zip(runs, results, strict=True):
        for row in rows:
            stated = row.metrics.get(EVIDENCE_KEY)
            kind = stated.get(metric) if isinstance(stated, Mapping) else None
            if isinstance(kind, str) and kind != "not_measured":
                kinds.setdefault(kind, run.name)
    if len(kinds) > 1:
        told = " and ".join(f"{kind} in {name}" for kind, name in sorted(kinds.items()))
        label = OUTCOMES[metric].label
        message = f"{label} is {told}: outcomes of different evidence are not compared"
        raise ConfigurationError(message=message)


def _check_clusters(runs: Sequence[ComparedRun], metric: Outcome, found: str | None) -> None:
    """Pairs that count in clusters in a run must not count alone here."""
    for run in runs:
        summary = run.summary.outcomes[OUTCOMES[metric].summary_key]
        clusters = summary.clusters if isinstance(summary, OutcomeSummary) else None
        if clusters is not None and found is None:
            message = (
                f"{run.name} counts its pairs in clusters by {clusters.by}, and the labels of the baselines are not in "
                "the file; compare the runs on a server, or replay them with this version of Rollbook"
            )
            raise ConfigurationError(message=message)


def _notes(results: Sequence[Sequence[EvalResult]], metric: Outcome) -> list[str]:
    notes = []
    baselines: dict[str, set[Any]] = {}
    for rows in results:
        for row in rows:
            value = row.metrics.get(f"{metric}_baseline")
            if isinstance(value, bool | int | float):
                baselines.setdefault(row.baseline_episode_id, set()).add(float(value))
    moved = sum(len(values) > 1 for values in baselines.values())
    if moved:
        label = OUTCOMES[metric].label
        notes.append(
            f"the {label} of the baseline differs between runs in {moved} of {len(baselines)} pairs: "
            "each candidate is compared with the baseline of its own run"
        )
    return notes


def _cluster_summary(by: str | None, clusters: PairClusters) -> ClusterSummary:
    return ClusterSummary(
        by=by or "situation",
        count=len(clusters),
        effective_pairs=clusters.effective_pairs,
        correlation=clusters.correlation,
    )
