"""What `rollbook replay run` prints and writes: how a run begins, its report, and the files for CI."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbook.cli.output import print_json, say

if TYPE_CHECKING:
    from rollbook.cli.replays.replay_arguments import ReplayArguments
    from rollbook.evals import EvalRun
    from rollbook.report.run_report import RunReport


def print_start(asked: ReplayArguments, run: EvalRun, url: str | None) -> None:
    if asked.quiet:
        return
    say(
        f"Replay run: candidate={run.candidate_policy_version} "
        f"baseline={run.baseline_policy_version or 'mixed'} episodes={len(run.baseline_episode_ids)}"
    )
    if asked.store_alone:
        say(f"Chains of {asked.store}: no server is called, and nothing is sent.")
        if asked.source is not None:
            say(f"Closed loop: rolled out from {asked.source}, each recorded chain first.")
    elif run.dry:
        say("Dry run: nothing is created on the server, and nothing is sent.")
    elif asked.resume is not None:
        done = run.episodes_completed
        say(f"✓ Eval run resumed: {run.id} ({done} of {len(run.baseline_episode_ids)} complete)")
    else:
        say(f"✓ Eval run created: {run.id}")
        if run.gate is not None and (asked.gate is None or run.gate_name is not None):
            _print_gate(run.gate, run.gate_name)
    if url:
        say(f"  Portal: {url}")


def _print_gate(stored: dict[str, Any], locked: str | None) -> None:
    from rollbook.contracts.gate import gate_from
    from rollbook.report.words import gate_words

    gate = gate_from(stored)
    if locked is not None:
        say(
            f"  Gate: {gate_words(gate)} (not weaker than {locked!r}, which your organisation locked)"
        )
        return
    why = "" if gate.rule("success").role == "primary" else " (no baseline has a success)"
    say(f"  Gate: {gate_words(gate)}{why}")
    say("  This is the default; --gate-file sets another, `rollbook replay gate` prints one.")


def write_report(
    report: RunReport, *, as_json: bool, github: bool, junit_file: Path | None
) -> None:
    from rollbook.cli.replays.replay_report import junit
    from rollbook.files import atomic_write

    if junit_file is not None:
        with atomic_write(junit_file) as file:
            file.write(junit(report))
    if as_json:
        print_json(report.as_dict())
    else:
        _print_report(report)
    if github:
        _write_for_github(report, to_stderr=as_json)


def _print_report(report: RunReport) -> None:
    from rollbook.cli.replays.replay_report import episode_line, report_lines

    if report.results and report.run_id is None:
        failed = len(report.failed)
        complete = len(report.results) - failed
        what = "Replay of the store" if "store" in report.extra else "Dry-run"
        say(f"{what} complete: {complete} complete, {failed} failed.")
        if (
            "store" in report.extra and "source" not in report.extra
        ):  # a closed loop has said so as it went
            for number, result in enumerate(report.failed, 1):
                say(episode_line(number, failed, result))
    if "stopped_early" in report.extra:
        landed = len(report.results)
        say(
            f"stopped early after {landed} of {report.total}: the results are enough to {report.recommend}"
        )
    say("")
    for line in report_lines(report.summary):
        say(line)
    if report.url:
        say(f"\n{report.url}")


def _write_for_github(report: RunReport, *, to_stderr: bool) -> None:
    """GitHub reads commands from both streams, so standard output can be left to JSON."""
    from rollbook.cli.replays.replay_report import markdown, workflow_commands

    for line in workflow_commands(report):
        say(line, err=to_stderr)
    text = markdown(report)
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if target:
        _append(target, text)
    else:
        say(text, err=to_stderr)
    if output := os.environ.get("GITHUB_OUTPUT"):
        _append(output, f"decision={report.recommend}\neval_run_id={report.run_id or ''}\n")


def _append(path: str, text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)
