"""`rollbook replay audit`: replay a few pairs of a run again, and compare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollbook.cli.exit_codes import OK, VIOLATIONS
from rollbook.cli.login import ProfileName
from rollbook.cli.output import AsJson, print_json, say
from rollbook.cli.replays.replay_run import PolicyName, client_of

if TYPE_CHECKING:
    from rollbook.evals.replay_audit import AuditedPair, ReplayAudit


def audit(
    run_id: Annotated[str, typer.Argument(help="Id of an eval run.")],
    policy: PolicyName,
    environment: Annotated[
        str | None,
        typer.Option(metavar="MODULE:ATTR", help="Function that makes the environment of the run."),
    ] = None,
    store: Annotated[Path | None, typer.Option(help="Rollout store of the run.")] = None,
    source: Annotated[
        str | None, typer.Option(help="Source store of the rollouts, if the run was closed loop.")
    ] = None,
    sample: Annotated[int, typer.Option(min=1, help="Number of pairs to replay again.")] = 10,
    seed: Annotated[
        int | None, typer.Option(help="Chooses the pairs; by default a random number.")
    ] = None,
    trusted: Annotated[
        bool, typer.Option("--trusted", help="The run was made with --trusted.")
    ] = False,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Replay random pairs of a run again, and compare outcomes and digests. Nothing is sent.

    \b
    rollbook replay audit RUN --sample 10 --policy my_pkg:v4 --environment my_pkg.sim:make_env

    A digest covers the version of Rollbook, the environment and the situation in it, the policy and the seed. Where
    digests differ, something else was replayed; where digests agree and outcomes differ, the policy or the environment
    is not deterministic, or the result is not what was measured.

    Exits with 0 when every pair agrees, and with 1 when one differs.
    """
    from rollbook.evals import open_run
    from rollbook.evals.replay_audit import audit_run

    with client_of(profile) as client:
        found = audit_run(
            open_run(run_id, client),
            sample=sample,
            seed=seed,
            policy_callable=policy,
            environment=environment,
            store=store,
            source=source,
            trusted=trusted,
        )
    if as_json:
        print_json(found.as_dict())
    else:
        _print_audit(found)
    sys.exit(OK if found.agrees else VIOLATIONS)


def _print_audit(audit: ReplayAudit) -> None:
    for pair in audit.pairs:
        mark = "✗" if pair.differences else "✓"
        say(f"  {mark} {pair.before.baseline_episode_id}{_difference(pair)}")
    agree = sum(not pair.differences for pair in audit.pairs)
    say(f"{agree} of {len(audit.pairs)} pairs agree (--seed {audit.seed} chooses the same pairs).")


def _difference(pair: AuditedPair) -> str:
    if not pair.differences:
        return ""
    shown = pair.as_dict()
    parts = [
        f"{each}: {_value(shown, 'before', each)} → {_value(shown, 'again', each)}"
        for each in pair.differences
    ]
    return f"  {'; '.join(parts)}"


def _value(shown: dict[str, Any], side: str, name: str) -> str:
    value = shown[side][name]
    if name == "status" and shown[side]["error"]:
        return f"{value} ({shown[side]['error'][:100]})"
    return str(value)[:12] if name == "digest" else str(value)
