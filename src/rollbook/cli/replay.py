"""`rollbook replay …`: hold a candidate policy against recorded episodes, and read what came of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from rollbook.cli import replay_run
from rollbook.cli.login import AsJson, ProfileName
from rollbook.cli.output import print_json, print_rows
from rollbook.cli.replay_arguments import gate_of
from rollbook.cli.replay_report import episode_line, report_lines
from rollbook.cli.replay_run import client_of

app = typer.Typer(
    help="Replay recorded episodes with a new policy, and decide whether it ships.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command()(replay_run.run)

RunId = Annotated[str, typer.Argument(help="Id of an eval run.")]


@app.command("list")
def list_(
    candidate_version: Annotated[str | None, typer.Option(help="Of this candidate.")] = None,
    baseline_version: Annotated[str | None, typer.Option(help="Against this baseline.")] = None,
    status: Annotated[
        str | None, typer.Option(help="pending, running, completed, failed, cancelled.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Runs to show.")] = 20,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Eval runs, the newest first."""
    asked = {
        "candidate_policy_version": candidate_version,
        "baseline_policy_version": baseline_version,
        "status": status,
        "limit": limit,
    }
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    with client_of(profile) as client:
        runs = client.call("list eval runs", "GET", f"/api/eval-runs?{query}")["eval_runs"]
    if as_json:
        print_json(runs)
    else:
        print_rows(runs, _COLUMNS)


_COLUMNS = {
    "id": "id",
    "status": "status",
    "candidate_policy_version": "candidate",
    "baseline_policy_version": "baseline",
    "episode_count": "episodes",
    "episodes_completed": "complete",
    "episodes_failed": "failed",
    "decision": "decision",
    "created_at": "created",
    "name": "name",
}


@app.command()
def show(
    run_id: RunId,
    failures: Annotated[
        bool, typer.Option("--failures", help="Also the episodes that failed, with their errors.")
    ] = False,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """One run: how far it is, its numbers, the decision and the reasons for it."""
    from rollbook.evals.server_runs import results_of, run_path

    with client_of(profile) as client:
        run = client.call("read the eval run", "GET", run_path(run_id))
        failed = list(results_of(client, run_id, "failed")) if failures else []
        url = f"{client.base_url}/portal/evals/{run['id']}"
    if as_json:
        rows = [
            {"baseline_episode_id": row.baseline_episode_id, "error": row.error} for row in failed
        ]
        print_json({**run, "url": url, **({"failures": rows} if failures else {})})
        return
    typer.echo(
        f"Replay run: candidate={run['candidate_policy_version']} "
        f"baseline={run['baseline_policy_version'] or 'mixed'} episodes={run['episode_count']}"
    )
    typer.echo(
        f"{run['status']}: {run['episodes_completed']} complete, {run['episodes_failed']} failed"
    )
    for number, row in enumerate(failed, 1):
        typer.echo(episode_line(number, len(failed), row))
    if run["summary"]:
        for line in ("", *report_lines(run["summary"])):
            typer.echo(line)
    typer.echo(f"\n{url}")


@app.command()
def cancel(run_id: RunId, profile: ProfileName = "default", as_json: AsJson = False) -> None:
    """End a run that nobody needs any more. What was measured stays to be read."""
    from rollbook.evals.server_runs import run_path

    with client_of(profile) as client:
        answer = client.call("cancel the eval run", "POST", f"{run_path(run_id)}/cancel")
    if as_json:
        print_json(answer)
    else:
        typer.echo(f"cancelled {run_id}")


# ---------------------------------------------------------------------------------------------- gate


@app.command()
def gate(
    file: Annotated[
        Path | None, typer.Argument(help="A gate to check, JSON or TOML; the default if not given.")
    ] = None,
    reward: Annotated[
        bool, typer.Option("--reward", help="The default where there is a reward and no success.")
    ] = False,
    as_toml: Annotated[bool, typer.Option("--toml", help="TOML instead of JSON.")] = False,
) -> None:
    """Prints a gate with everything that it asks for, to change and to give to --gate-file.

    \b
    rollbook replay gate --toml > gate.toml
    """
    found = gate_of(file, for_reward=reward)
    if as_toml:
        typer.echo(_toml(found.as_dict()), nl=False)
    else:
        print_json(found.as_dict())
    typer.echo(f"gate {found.digest}", err=True)


def _toml(document: dict[str, Any]) -> str:
    """Plain fields, then a table for each rule. TOML has no null: what is not set is left out."""

    def fields(values: dict[str, Any]) -> list[str]:
        known = {key: value for key, value in values.items() if value is not None}
        return [f"{key} = {json.dumps(value)}" for key, value in known.items()]

    lines = fields({key: value for key, value in document.items() if key != "rules"})
    for rule in document["rules"]:
        lines += ["", "[[rules]]", *fields(rule)]
    return "\n".join(lines) + "\n"
