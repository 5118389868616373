"""`rollbook replay …`: compare a candidate policy with recorded episodes, and read the results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from rollbook.cli.login import ProfileName
from rollbook.cli.output import AsJson, print_json, print_rows, say
from rollbook.cli.replays import replay_audit, replay_compare, replay_html, replay_plan, replay_run
from rollbook.cli.replays.replay_arguments import gate_in
from rollbook.cli.replays.replay_run import client_of
from rollbook.errors import ConfigurationError

app = typer.Typer(
    help="Replay recorded episodes with a new policy, and decide whether it ships.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command()(replay_run.run)
app.command()(replay_plan.plan)
app.command()(replay_compare.compare)
app.command()(replay_audit.audit)
app.command()(replay_html.report)

RunId = Annotated[str, typer.Argument(help="Id of an eval run.")]


@app.command("list")
def list_(
    candidate_version: Annotated[
        str | None, typer.Option(help="Only runs of this candidate.")
    ] = None,
    baseline_version: Annotated[
        str | None, typer.Option(help="Only runs against this baseline.")
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(
            help="Only runs with this status: pending, running, completed, failed or cancelled."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=200, help="Maximum number of runs to list.")
    ] = 20,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """List eval runs, newest first."""
    import msgspec

    from rollbook.contracts.wire.eval_runs import EvalRunList
    from rollbook.evals.server_calls import ask

    asked = {
        "candidate_policy_version": candidate_version,
        "baseline_policy_version": baseline_version,
        "status": status,
        "limit": limit,
    }
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    with client_of(profile) as client:
        found = ask(client, EvalRunList, "list eval runs", "GET", f"/api/eval-runs?{query}")
    runs = msgspec.to_builtins(found.eval_runs)
    if as_json:
        print_json(runs)
    else:
        print_rows(runs, _COLUMNS, essential=3)


_COLUMNS = {
    "id": "id",
    "status": "status",
    "decision": "decision",
    "candidate_policy_version": "candidate",
    "baseline_policy_version": "baseline",
    "episode_count": "episodes",
    "episodes_completed": "complete",
    "episodes_failed": "failed",
    "retried": "retried",
    "altered": "altered",
    "created_at": "created",
    "name": "name",
}


@app.command()
def show(
    run_id: RunId,
    failures: Annotated[
        bool, typer.Option("--failures", help="Also list the failed episodes with their errors.")
    ] = False,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Show one run: its progress, its numbers, the decision and the reasons for it."""
    import msgspec

    from rollbook.cli.replays.replay_report import episode_line, report_lines
    from rollbook.contracts.wire.eval_runs import EvalRunAnswer
    from rollbook.evals.server_calls import ask, results_of, run_path

    with client_of(profile) as client:
        run = ask(client, EvalRunAnswer, "read the eval run", "GET", run_path(run_id))
        failed = list(results_of(client, run_id, "failed")) if failures else []
        url = f"{client.base_url}/portal/evals/{run.id}"
    if as_json:
        rows = [
            {"baseline_episode_id": row.baseline_episode_id, "error": row.error} for row in failed
        ]
        print_json(
            {**msgspec.to_builtins(run), "url": url, **({"failures": rows} if failures else {})}
        )
        return
    say(
        f"Replay run: candidate={run.candidate_policy_version} "
        f"baseline={run.baseline_policy_version or 'mixed'} episodes={run.episode_count}"
    )
    say(f"{run.status}: {run.episodes_completed} complete, {run.episodes_failed} failed")
    if run.retried:
        say(f"retried: {run.retried} pairs have an earlier result that says something else")
    if run.altered:
        say(f"altered: {run.altered} baselines were deleted; the decision is the one from before")
    for number, row in enumerate(failed, 1):
        say(episode_line(number, len(failed), row))
    if run.summary:
        for line in ("", *report_lines(run.summary)):
            say(line)
    say(f"\n{url}")


@app.command()
def cancel(run_id: RunId, profile: ProfileName = "default", as_json: AsJson = False) -> None:
    """Cancel a run. The server takes no further results; those that it has stay readable."""
    import msgspec

    from rollbook.contracts.wire.eval_runs import EvalRunAnswer
    from rollbook.evals.server_calls import ask, run_path

    with client_of(profile) as client:
        path = f"{run_path(run_id)}/cancel"
        answer = ask(client, EvalRunAnswer, "cancel the eval run", "POST", path)
    if as_json:
        print_json(msgspec.to_builtins(answer))
    else:
        say(f"cancelled {run_id}")


# ---------------------------------------------------------------------------------------------- gate


@app.command()
def gate(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Gate to check, JSON or TOML. Without it, the default gate is printed."
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Print this preset: quick, default or strict."),
    ] = None,
    reward: Annotated[
        bool, typer.Option("--reward", help="Print the gate for rewards without success.")
    ] = False,
    as_toml: Annotated[bool, typer.Option("--toml", help="Print TOML instead of JSON.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, which is the default.")
    ] = False,
) -> None:
    """Print a complete gate, to edit and pass to --gate-file.

    \b
    rollbook replay gate --toml > gate.toml
    rollbook replay gate --preset strict --toml > gate.toml

    A run without a gate has the first one where a baseline has a success, and the one of --reward where baselines have
    rewards only.
    """
    from rollbook.contracts.gate_presets import gate_preset

    if as_toml and as_json:
        raise ConfigurationError(message="--toml and --json do not go together")
    if file is not None and preset is not None:
        raise ConfigurationError(message="a gate file and --preset do not go together")
    found = gate_preset(preset or "default", reward=reward) if file is None else gate_in(file)
    if as_toml:
        say(gate_toml(found.as_dict()))
    else:
        print_json(found.as_dict())
    say(f"gate {found.digest}", err=True)


def gate_toml(document: dict[str, Any]) -> str:
    """Plain fields, then a table for each rule and each slice. Values of None are left out, because TOML has no
    null."""

    def fields(values: dict[str, Any]) -> list[str]:
        known = {key: value for key, value in values.items() if value is not None}
        return [f"{key} = {json.dumps(value)}" for key, value in known.items()]

    tables = ("rules", "guard_slices")
    lines = fields({key: value for key, value in document.items() if key not in tables})
    for name in tables:
        for table in document[name]:
            lines += ["", f"[[{name}]]", *fields(table)]
    return "\n".join(lines)
