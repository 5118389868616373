"""`rollbook replay run`: every recorded episode through the candidate, and a decision."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollbook.cli.login import AsJson, ProfileName
from rollbook.cli.output import OK, USAGE, VIOLATIONS, print_error, print_json
from rollbook.cli.replay_arguments import (
    Align,
    Asked,
    Engine,
    Parallel,
    check,
    ci_facts,
    episode_ids,
    gate_of,
    metadata_pairs,
)
from rollbook.cli.replay_report import (
    RunReport,
    episode_line,
    junit,
    markdown,
    report_lines,
    workflow_commands,
)
from rollbook.contracts.decision import Rollup
from rollbook.errors import (
    ConfigurationError,
    NotFoundError,
    RollbookError,
    TransportError,
    ValidationError,
)

if TYPE_CHECKING:
    from rollbook.client import Client
    from rollbook.contracts.evals import EvalResult, EvalRun

INFRASTRUCTURE = 3
INTERRUPTED = 130
_MOST_NAMED = 5


def client_of(profile: str) -> Client:
    """With the key that the SDK would use: the environment's, else that of the profile."""
    from rollbook.client import Client
    from rollbook.client.credentials import DEFAULT_PROFILE

    return Client(profile=None if profile == DEFAULT_PROFILE else profile, verbose=False)


def run(
    policy: Annotated[
        str,
        typer.Option(
            metavar="MODULE:ATTR", help="The candidate: pkg.module:name, importable from here."
        ),
    ],
    candidate_version: Annotated[
        str | None, typer.Option(help="What the candidate is called, pap-v4.0.0-rc1 say.")
    ] = None,
    baseline_episodes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="IDS",
            help="Comma list of episode ids, or @FILE with one a line (# starts a comment, @- is standard input).",
        ),
    ] = None,
    more_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Further episode ids.")
    ] = None,
    baseline_version: Annotated[
        str | None, typer.Option(help="What the policy that was recorded is called.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What people will know the run by.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Fetch and compute; create and send nothing.")
    ] = False,
    gate: Annotated[
        bool,
        typer.Option(
            "--gate", help="End with 0 for ship, 1 for hold, 2 for usage, 3 for infrastructure."
        ),
    ] = False,
    gate_file: Annotated[
        Path | None,
        typer.Option(
            help="JSON or TOML with a gate; `rollbook replay gate` prints one to start from."
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            help="A rollout store that knows the reward of every choice. Without ids: its own chains, no server."
        ),
    ] = None,
    store_policy: Annotated[
        str | None, typer.Option(help="Of the store's chains those that this policy chose.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Of the store's chains this many.")
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:ATTR",
            help="Makes the environment to run the candidate in: outcomes are measured.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Episodes at the same time.")] = 1,
    parallel: Annotated[Parallel, typer.Option(help="What a worker is.")] = Parallel.thread,
    engine: Annotated[Engine, typer.Option(help="Where workers are.")] = Engine.local,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Take up a run: what is complete is not done again."),
    ] = None,
    align: Annotated[
        Align, typer.Option(help="How sensors of different rates are paired.")
    ] = Align.by_index,
    step_timeout: Annotated[
        float | None,
        typer.Option(min=0.001, help="Seconds that one answer of the policy may take."),
    ] = None,
    frames: Annotated[
        bool, typer.Option("--frames", help="Show the policy the pictures of the video.")
    ] = False,
    no_actions: Annotated[
        bool, typer.Option("--no-actions", help="Do not upload what the candidate did.")
    ] = False,
    metadata: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE, kept with the run; may be repeated.")
    ] = None,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", help="Write a test report for CI here.")
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Annotations, and a Markdown summary for the job.")
    ] = False,
    profile: ProfileName = "default",
    as_json: AsJson = False,
) -> None:
    """Replays recorded episodes with a candidate policy and says whether it ships.

    \b
    rollbook replay run \\
        --policy my_pkg.policies:v4_rc1 \\
        --candidate-version pap-v4.0.0-rc1 \\
        --baseline-episodes @nightly.txt \\
        --baseline-version pap-v3.2.1 \\
        --environment my_pkg.sim:make_env \\
        --workers 4 --gate --junit replay.xml

    The policy is a function from an observation to an action, both dicts of arrays; or an object with
    act(obs, context) and, if it likes, reset(episode) and close(); or a class of such.

    What can be said depends on how outcomes are come by. With --environment the candidate is run, and outcomes are
    measured. With --store the true reward of its choices is known. With neither, recorded observations are all it
    sees: how much its actions changed is known, and outcomes only as far as it asserts them itself (_outcome).

    \b
    rollbook replay run --store rollouts.zarr --policy my_pkg:choose --candidate-version v4

    Ends with 0 when every episode is complete, 1 when one failed; with --gate, by the decision.
    """
    with _endings(gate):
        asked = Asked(
            policy=policy,
            candidate=candidate_version,
            baseline=baseline_version,
            ids=episode_ids([*(baseline_episodes or ()), *(more_ids or ())]),
            name=name,
            metadata={**metadata_pairs(metadata or ()), **(ci_facts() if github else {})},
            gate=gate_of(gate_file, for_reward=store is not None),
            store=store,
            store_policy=store_policy,
            limit=limit,
            resume=resume,
            dry_run=dry_run,
            quiet=as_json,
            runner={
                "workers": workers,
                "engine": engine.value,
                "parallel": parallel.value,
                "align": align.value,
                "step_timeout_s": step_timeout,
                "upload_actions": not no_actions,
                "environment": environment,
                "frames": frames,
            },
        )
        check(asked, gate_given=gate_file is not None)
        if asked.store_alone:
            report = _replay_store(asked)
        else:
            with client_of(profile) as client:
                report = _replay(asked, client, gated=gate)
        report = replace(report, gated=gate, extra={"dry_run": dry_run, **report.extra})
        _tell(report, as_json=as_json, github=github, junit_file=junit_file)
    raise typer.Exit(_ending(report))


# --------------------------------------------------------------------------------------- replaying


def _replay(asked: Asked, client: Client, *, gated: bool) -> RunReport:
    from rollbook import evals
    from rollbook.evals.environments import try_environment
    from rollbook.scoring import rollup

    environment = asked.runner["environment"]
    if environment is not None and asked.runner["engine"] == "local":
        try_environment(environment)  # before there is a run that nothing could be measured for
    if asked.resume is not None:
        run = evals.open_run(asked.resume, client=client)
    else:
        run = evals.create_run(
            candidate_policy_version=asked.candidate or "",
            baseline_episode_ids=asked.ids,
            baseline_policy_version=asked.baseline,
            name=asked.name,
            metadata=asked.metadata or None,
            client=client,
            gate=asked.gate,
            dry_run=asked.dry_run,
        )
    url = None if run.dry else f"{client.base_url}/portal/evals/{run.id}"
    _say_started(asked, run, url)
    results = _results(asked, run)
    total = len(run.baseline_episode_ids)
    report = _reported(run, total, results, url)
    with _taken_up_with(run):
        if gated:
            _check_infrastructure(results)
        if run.dry:
            return replace(report, summary=rollup(results, asked.gate, total=total).to_wire())
        return replace(report, summary=evals.complete_run(run)["summary"])


def _check_infrastructure(results: Sequence[EvalResult]) -> None:
    """What kept the candidate from being asked is no verdict on it. The run stays open, to be taken up again."""
    from rollbook.evals.workers import INFRASTRUCTURE

    lost = [each for each in results if (each.error or "").startswith(INFRASTRUCTURE)]
    if lost:
        named = ", ".join(each.baseline_episode_id for each in lost[:_MOST_NAMED])
        rest = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
        message = (
            f"no decision: {len(lost)} of {len(results)} baselines could not be replayed, through no fault of the "
            f"candidate: {named}{rest} ({lost[0].error})"
        )
        raise TransportError(message=message)


def _reported(
    run: EvalRun, total: int, results: Sequence[EvalResult], url: str | None
) -> RunReport:
    return RunReport(
        candidate=run.candidate_policy_version,
        baseline=run.baseline_policy_version,
        total=total,
        summary={},
        results=results,
        run_id=None if run.dry else run.id,
        url=url,
        extra={"stopped_early": True} if len(results) < total else {},
    )


def _results(asked: Asked, run: EvalRun) -> list[EvalResult]:
    from rollbook import evals

    left = len(run.baseline_episode_ids)
    if asked.resume is not None:
        left -= run.episodes_completed
    with _taken_up_with(run), _progress(left, quiet=asked.quiet) as on_episode:
        return evals.run_against(
            run,
            policy_callable=asked.policy,
            on_episode=on_episode,
            resume=asked.resume is not None,
            store=asked.store,
            **asked.runner,
        )


def _replay_store(asked: Asked) -> RunReport:
    """Its own chains as baselines: nothing is asked of any server, and nothing is sent."""
    from rollbook.evals.store_baselines import StoreBaselines
    from rollbook.evals.store_replay import replay_store
    from rollbook.scoring import rollup

    assert asked.store is not None
    chains = StoreBaselines(asked.store, policy=asked.store_policy, limit=asked.limit)
    if not len(chains):
        raise ConfigurationError(message=f"--store {asked.store} has no chains to replay against")
    run = _store_run(asked, chains.ids)
    _say_started(asked, run, None)
    alone = asked.runner["workers"] == 1 and asked.runner["step_timeout_s"] is None
    if alone and asked.runner["engine"] == "local":
        results = replay_store(chains, asked.policy)
    else:
        results = _results(asked, run)
    report = _reported(run, len(chains), results, None)
    summary = rollup(results, asked.gate, total=len(chains)).to_wire()
    return replace(report, summary=summary, extra={**report.extra, "store": str(asked.store)})


def _store_run(asked: Asked, ids: list[str]) -> EvalRun:
    from rollbook.contracts.evals import EvalRun

    baseline = asked.baseline or asked.store_policy
    return EvalRun("dry", asked.candidate or "", baseline, ids, asked.name, dry=True)


# ------------------------------------------------------------------------------------- what it tells


def _say_started(asked: Asked, run: EvalRun, url: str | None) -> None:
    if asked.quiet:
        return
    typer.echo(
        f"Replay run: candidate={run.candidate_policy_version} "
        f"baseline={run.baseline_policy_version or 'mixed'} episodes={len(run.baseline_episode_ids)}"
    )
    if asked.store_alone:
        typer.echo(f"Chains of {asked.store}: no server is asked, and nothing is sent.")
    elif run.dry:
        typer.echo("Dry run: nothing is created on the server, and nothing is sent.")
    elif asked.resume is not None:
        done = run.episodes_completed
        typer.echo(
            f"✓ Eval run taken up: {run.id} ({done} of {len(run.baseline_episode_ids)} complete)"
        )
    else:
        typer.echo(f"✓ Eval run created: {run.id}")
    if url:
        typer.echo(f"  Portal: {url}")


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Callable[[EvalResult], None] | None]:
    """A line for each episode as it lands; on a terminal with a bar below them."""
    from rich.console import Console
    from rich.progress import Progress

    if quiet:
        yield None
        return
    landed = 0
    console = Console()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("replaying", total=total)

        def on_episode(result: EvalResult) -> None:
            nonlocal landed
            landed += 1
            line = episode_line(landed, max(total, landed), result)
            if console.is_terminal:  # above the bar, not into it
                console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)
            else:
                typer.echo(line)
            bar.update(task, completed=landed)

        yield on_episode


@contextmanager
def _taken_up_with(run: EvalRun) -> Iterator[None]:
    """A run that breaks off is not lost: says how to go on."""
    hint = f"rollbook replay run --resume {run.id} … goes on where it stopped"
    try:
        yield
    except KeyboardInterrupt:
        if not run.dry:
            typer.echo(f"interrupted; {hint}", err=True)
        sys.exit(INTERRUPTED)
    except RollbookError:
        if not run.dry:
            typer.echo(hint, err=True)
        raise


def _tell(report: RunReport, *, as_json: bool, github: bool, junit_file: Path | None) -> None:
    from rollbook.files import atomic_write

    if junit_file is not None:
        with atomic_write(junit_file) as file:
            file.write(junit(report))
    if as_json:
        print_json(report.as_dict())
    else:
        _print_report(report)
    if github:
        _tell_github(report, to_stderr=as_json)


def _print_report(report: RunReport) -> None:
    if report.results and report.run_id is None:
        failed = len(report.failed)
        complete = len(report.results) - failed
        what = "Replay of the store" if "store" in report.extra else "Dry-run"
        typer.echo(f"{what} complete: {complete} complete, {failed} failed.")
        if "store" in report.extra:
            for number, result in enumerate(report.failed, 1):
                typer.echo(episode_line(number, failed, result))
    if "stopped_early" in report.extra:
        landed = len(report.results)
        typer.echo(
            f"stopped early after {landed} of {report.total}: enough is known to {report.recommend}"
        )
    typer.echo("")
    for line in report_lines(report.summary):
        typer.echo(line)
    if report.url:
        typer.echo(f"\n{report.url}")


def _tell_github(report: RunReport, *, to_stderr: bool) -> None:
    """GitHub reads commands from both streams, so JSON keeps one for itself."""
    for line in workflow_commands(report):
        typer.echo(line, err=to_stderr)
    text = markdown(report)
    target = os.environ.get("GITHUB_STEP_SUMMARY")
    if target:
        _append(target, text)
    else:
        typer.echo(text, err=to_stderr)
    if output := os.environ.get("GITHUB_OUTPUT"):
        _append(output, f"decision={report.recommend}\neval_run_id={report.run_id or ''}\n")


def _append(path: str, text: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)


@contextmanager
def _endings(gated: bool) -> Iterator[None]:
    """With `--gate`, 1 is a verdict on the candidate: whatever else goes wrong ends with another number."""
    try:
        yield
    except RollbookError as error:
        if not gated:
            raise
        print_error(error)
        usage = isinstance(error, ConfigurationError | ValidationError | NotFoundError)
        sys.exit(USAGE if usage else INFRASTRUCTURE)
    except SystemExit as ended:
        if not gated or ended.code not in (None, 0):
            raise
        # 0 is "ship", and nothing in here decides that: this is the code of a policy that called sys.exit
        typer.echo("error: sys.exit was called before there was a decision", err=True)
        sys.exit(INFRASTRUCTURE)
    except Exception:
        if not gated:
            raise
        traceback.print_exc()
        sys.exit(INFRASTRUCTURE)


def _ending(report: RunReport) -> int:
    if report.gated:
        return OK if report.ships else VIOLATIONS
    if not isinstance(report.rollup, Rollup):
        return VIOLATIONS if report.failed else OK
    counts = report.rollup.counts
    skipped = counts.pending if "stopped_early" in report.extra else 0
    return OK if counts.complete + skipped == counts.total else VIOLATIONS
