"""Compare several candidates that were replayed against the same baselines, with a correction for their number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rollbook.contracts.comparison import Comparison
from rollbook.contracts.outcomes import Outcome
from rollbook.contracts.wire.eval_runs import EvalRunAnswer
from rollbook.errors import ConfigurationError, MalformedJson
from rollbook.evals.eval_run import EvalRun
from rollbook.evals.server_calls import ask, client_of, result_rows, run_path
from rollbook.report.run_report import RunReport
from rollbook.scoring.run_comparison import ComparedRun, comparison_of, decided

if TYPE_CHECKING:
    from rollbook.client import Client


def compare(
    runs: Sequence[EvalRun | ComparedRun | str | Path],
    *,
    metric: Outcome | None = None,
    client: Client | None = None,
) -> Comparison:
    """Ranks the candidates of completed runs on the baselines that all of the runs have.

    A run is an `EvalRun`, the id of one, or a file with the output of `rollbook replay run --json`. All runs need the
    same gate. `metric` is the first primary of the gate that every run has measured, unless another outcome is given. A
    candidate ships if its own run ships and it is still better after the correction for the number of candidates.
    """
    return comparison_of([_read(each, client) for each in runs], metric)


def _read(run: EvalRun | ComparedRun | str | Path, client: Client | None) -> ComparedRun:
    if isinstance(run, ComparedRun):
        return run
    if isinstance(run, EvalRun):
        return run_on_server(run.id, client_of(run.client or client))
    if isinstance(run, Path):
        return run_in_file(run)
    return run_on_server(run, client_of(client))


def run_on_server(run_id: str, client: Client) -> ComparedRun:
    run = ask(client, EvalRunAnswer, "read an eval run", "GET", run_path(run_id))
    if run.status != "completed":
        message = f"run {run_id} is {run.status}; only completed runs are compared"
        raise ConfigurationError(message=message)
    rows = list(result_rows(client, run_id))
    return ComparedRun(
        name=run.id,
        candidate=run.candidate_policy_version,
        results=[each.result for each in rows],
        summary=decided(run.id, run.summary),
        labels={each.result.baseline_episode_id: each.labels for each in rows},
    )


def run_in_file(path: Path) -> ComparedRun:
    """The output of `rollbook replay run --json`."""
    try:
        report = RunReport.from_json(path.read_bytes(), str(path))
    except (OSError, MalformedJson) as error:
        raise ConfigurationError(message=f"{path} cannot be compared: {error}") from error
    labels = {
        baseline: {name: tuple(values) for name, values in named.items()}
        for baseline, named in report.labels.items()
    }
    summary = decided(str(path), report.summary)
    return ComparedRun(str(path), report.candidate, report.results, summary, labels)
