"""`rollbook verify …`: scenarios that every candidate has to pass."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.cli.exit_codes import OK, VIOLATIONS
from rollbook.cli.login import ProfileName
from rollbook.cli.output import AsJson, print_json, print_rows, say
from rollbook.cli.replays.replay_arguments import gate_in
from rollbook.cli.replays.replay_run import client_of

if TYPE_CHECKING:
    from rollbook.contracts.evals import EvalResult

app = typer.Typer(
    help="Manage scenarios, and check that a candidate passes them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Severity(StrEnum):
    critical = "critical"
    warning = "warning"
    info = "info"


@app.command()
def check(
    candidate: Annotated[str, typer.Option(help="Version name of the candidate.")],
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:ATTR",
            help="Policy to replay with the scenarios that have not passed. Without it, nothing is replayed.",
        ),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:ATTR",
            help="Function that makes the candidate's environment. Without it, no success is measured.",
        ),
    ] = None,
    gate_file: Annotated[
        Path | None,
        typer.Option(
            help="JSON or TOML file with the gate of the run; it can accept an environment that cannot be verified."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Replay, but record nothing.")] = False,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Check whether a candidate passes every critical scenario. Exits with 0 if it does, with 1 if not.

    \b
    rollbook verify check --candidate pap-v4.0.0-rc1 --policy my_pkg.policies:v4_rc1 --environment my_pkg.sim:make

    Only a success that was measured in a verified environment passes; what a policy states about itself does not.
    """
    from rollbook.contracts.evals import EVIDENCE_KEY
    from rollbook.evals.verify import check_gate, run_check

    evidence: dict[str, str | None] = {}

    def on_episode(result: EvalResult) -> None:
        stated = result.metrics.get(EVIDENCE_KEY) or {}
        evidence[result.baseline_episode_id] = stated.get("success")

    with client_of(profile) as client:
        if not as_json:
            what = "gate" if policy is None else "check"
            say(f"Verify {what}: candidate={candidate}")
        if policy is None:
            gate = check_gate(candidate_policy_version=candidate, client=client)
            code = OK if gate["passed"] else VIOLATIONS
        else:
            code, gate = run_check(
                candidate_policy_version=candidate,
                policy_callable=policy,
                dry_run=dry_run,
                client=client,
                environment=environment,
                gate=None if gate_file is None else gate_in(gate_file),
                on_episode=on_episode,
            )
        portal = f"{client.base_url}/portal/verify"
    for each in gate.get("dry_run", ()):
        each["evidence"] = evidence.get(each["baseline_episode_id"])
    if as_json:
        print_json(gate)
    else:
        _print_gate(gate, portal)
    raise typer.Exit(code)


def _print_gate(gate: dict[str, Any], portal: str) -> None:
    mark = "✓ PASS" if gate["passed"] else "✗ BLOCKED"
    say(
        f"{mark}: {gate['critical_passed']}/{gate['critical_total']} critical scenarios pass "
        f"({gate['critical_failed']} failed, {gate['critical_pending']} pending)"
    )
    for blocker in gate["blockers"]:
        say(f"  - {blocker}")
    for each in gate.get("dry_run", ()):
        error = f"  {each['error'].splitlines()[0][:200]}" if each["error"] else ""
        known = f" (success {each['evidence']})" if each["evidence"] else ""
        result = f"{each['baseline_episode_id']} {each['status']}{known}{error}"
        say(f"Dry run, not recorded: {result}")
    say(portal)


@app.command()
def promote(
    episode_id: Annotated[str, typer.Argument(help="Episode that becomes a scenario.")],
    severity: Annotated[
        Severity,
        typer.Option(help="A critical scenario blocks every candidate that does not pass it."),
    ] = Severity.warning,
    name: Annotated[str | None, typer.Option(help="Name of the scenario, for people.")] = None,
    description: Annotated[
        str | None, typer.Option(help="The problem that the scenario is meant to catch.")
    ] = None,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Make an episode a scenario that candidates have to pass. A second call changes nothing."""
    from rollbook.evals.verify import promote as promoted

    with client_of(profile) as client:
        made = promoted(
            baseline_episode_id=episode_id,
            name=name,
            description=description,
            severity=severity.value,
            client=client,
        )
    if as_json:
        print_json(made)
    elif made.get("promoted", True):
        say(f"promoted {episode_id}: scenario {made['scenario_id']} ({severity.value})")
    else:
        say(f"{episode_id} already is scenario {made['scenario_id']}")


@app.command("list")
def list_(
    with_archived: Annotated[
        bool, typer.Option("--with-archived", help="Include archived scenarios.")
    ] = False,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """List the scenarios of the organisation."""
    import msgspec

    from rollbook.contracts.wire.scenarios import ScenarioList
    from rollbook.evals.server_calls import ask

    path = "/api/scenarios?limit=1000" + ("" if with_archived else "&active=true")
    with client_of(profile) as client:
        found = msgspec.to_builtins(
            ask(client, ScenarioList, "list scenarios", "GET", path).scenarios
        )
    if as_json:
        print_json(found)
    else:
        print_rows(found, _COLUMNS)


_COLUMNS = {
    "scenario_id": "id",
    "baseline_episode_id": "episode",
    "severity": "severity",
    "active": "active",
    "name": "name",
    "description": "description",
}
